// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
)

// AuthPaths are the files where rpm-ostree and bootc look for credentials for registries, in this order. They read the
// first existing file and no other. If no file exists, they pull without credentials.
var AuthPaths = []string{"/run/ostree/auth.json", "/etc/ostree/auth.json", "/usr/lib/ostree/auth.json"}

// KubeletAuthPath is the file where the kubelet has the credentials of a node. The tools for the OS do not look there
// by themselves. The OpenShift MCO links the first of AuthPaths to it.
const KubeletAuthPath = "/var/lib/kubelet/config.json"

// ProxyFile is the file where a node has the environment variables for the proxies to registries.
const ProxyFile = "/etc/mco/proxy.env"

// credentialsHint returns a sentence for an error of a pull that the registry refused. The sentence tells whether the
// host has credentials for the image's registry, and what to do if not. The result is "" for an image that is not from
// a registry. The sentence names paths and the registry, and nothing else from the files. read reads a file of the
// host.
func credentialsHint(image Image, read func(path string) ([]byte, error)) string {
	host := image.registryHost()
	if host == "" {
		return ""
	}
	forKubelet := ""
	if data, err := read(KubeletAuthPath); err == nil && credentials(data, image) == credentialsFound {
		forKubelet = "; " + KubeletAuthPath + " has some: link " + AuthPaths[0] + " to it"
	}
	for _, path := range AuthPaths {
		data, err := read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return path + ", where credentials are looked for, can't be read"
		}
		switch credentials(data, image) {
		case credentialsFound:
			return path + " has credentials for " + host + ", which the registry does not take for this image"
		case credentialsHelped:
			return path + " leaves the credentials for " + host + " to a helper program"
		case credentialsBroken:
			return path + ", where credentials are looked for, is no auth.json" + forKubelet
		}
		return path + ", the only file that is looked at, has no credentials for " + host + forKubelet
	}
	return "there are no credentials for " + host + ": none of " + strings.Join(AuthPaths, ", ") + " is there" + forKubelet
}

// The results of credentials: what a file has for an image.
const (
	credentialsNone = iota
	credentialsFound
	credentialsHelped
	credentialsBroken
)

// credentials looks into a containers-auth.json(5) as the tools do: for the image's repository, then for each parent of
// the repository, up to the registry.
func credentials(data []byte, image Image) int {
	var file struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			IdentityToken string `json:"identitytoken"`
		} `json:"auths"`
		Helpers map[string]string `json:"credHelpers"`
	}
	if json.Unmarshal(data, &file) != nil {
		return credentialsBroken
	}
	if file.Helpers[image.registryHost()] != "" {
		return credentialsHelped
	}
	keys := parents(image.expanded())
	for key, entry := range file.Auths {
		if entry.Auth == "" && entry.IdentityToken == "" {
			continue
		}
		for _, want := range keys {
			if key == want || hostOfKey(key) == want {
				return credentialsFound
			}
		}
	}
	return credentialsNone
}

// hostOfKey returns the registry of a key as old versions of docker wrote it, for example https://index.docker.io/v1/.
func hostOfKey(key string) string {
	key, isURL := strings.CutPrefix(key, "https://")
	if !isURL {
		key, isURL = strings.CutPrefix(key, "http://")
	}
	host, path, _ := strings.Cut(key, "/")
	if !isURL && path != "v1/" && path != "v2/" {
		return key
	}
	if host == "index."+dockerHub || host == "registry-1."+dockerHub {
		return dockerHub
	}
	return host
}
