// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Login returns the credentials that the host has for a repository, all "" where it has none: those of the first of
// AuthPaths that exists, and then the kubelet's. read reads a file of the host. Errors name files, and quote nothing
// from them.
func Login(read func(path string) ([]byte, error), repository string) (user, password string, err error) {
	paths := slices.Clone(AuthPaths)
	for i, path := range paths {
		if _, err := read(path); !errors.Is(err, fs.ErrNotExist) {
			paths = paths[i : i+1]
			break
		}
	}
	for _, path := range paths {
		if user, password, err = loginIn(read, path, keysOfTools, repository); err != nil || user != "" || password != "" {
			return user, password, err
		}
	}
	return KubeletLogin(read, repository)
}

// KubeletLogin returns the credentials that the kubelet has for a repository, all "" where it has none. The user alone
// is "" for a token without a user. read and errors are as in Login.
func KubeletLogin(read func(path string) ([]byte, error), repository string) (user, password string, err error) {
	return loginIn(read, KubeletAuthPath, keysOfKubelet, repository)
}

// loginIn returns the credentials that a file has for a repository: those of the first key with any. keysOf returns the
// keys that count for the repository, of all keys of the file in alphabetical order. A file that is missing has no
// credentials.
func loginIn(read func(path string) ([]byte, error), path string,
	keysOf func(keys []string, repository string) []string, repository string) (user, password string, err error) {
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("reading credentials: %w", err)
	}
	var file struct {
		Auths map[string]struct {
			Auth     string `json:"auth"` // username:password in base64
			Username string `json:"username"`
			Password string `json:"password"`
		} `json:"auths"`
	}
	if json.Unmarshal(data, &file) != nil {
		return "", "", fmt.Errorf("reading credentials: %s is no auth.json", path)
	}
	for _, key := range keysOf(slices.Sorted(maps.Keys(file.Auths)), repository) {
		entry := file.Auths[key]
		user, password := entry.Username, entry.Password
		if entry.Auth != "" {
			// The kubelet takes an entry with and without padding.
			plain, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(entry.Auth, "="))
			if err != nil {
				return "", "", fmt.Errorf("reading credentials: the entry of %s in %s is not base64", key, path)
			}
			user, password, _ = strings.Cut(string(plain), ":")
		}
		if user != "" || password != "" {
			return user, password, nil
		}
	}
	return "", "", nil
}

// keysOfTools returns the keys that count for the tools of the OS: the repository and its parents, the longest first. A
// key that is the name itself comes before URLs of that registry.
func keysOfTools(keys []string, repository string) (out []string) {
	for _, want := range parents(repository) {
		if slices.Contains(keys, want) {
			out = append(out, want)
		}
		for _, key := range keys {
			if key != want && hostOfKey(key) == want {
				out = append(out, key)
			}
		}
	}
	return out
}

// keysOfKubelet returns the keys that count for the kubelet: those whose place covers the repository. The longest comes
// first, a name before a pattern, and of two keys for one place the shorter. Keys for index.docker.io come last for
// repositories of Docker Hub.
func keysOfKubelet(keys []string, repository string) (out []string) {
	for _, key := range keys {
		if covers(placeOfKey(key), repository) {
			out = append(out, key)
		}
	}
	slices.SortStableFunc(out, func(a, b string) int { // an asterisk sorts before letters and digits
		return cmp.Or(cmp.Compare(placeOfKey(b), placeOfKey(a)), cmp.Compare(len(a), len(b)))
	})
	if strings.HasPrefix(repository, dockerHub+"/") {
		for _, key := range keys {
			if placeOfKey(key) == "index."+dockerHub {
				out = append(out, key)
			}
		}
	}
	return out
}

// placeOfKey returns the registry or repository that the kubelet takes a key for: the key without scheme, version of
// the API and last slash.
func placeOfKey(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "http://"), "https://")
	host, within, _ := strings.Cut(key, "/")
	if version, rest, is := strings.Cut(within, "/"); is && (version == "v1" || version == "v2") {
		within = rest
	}
	return strings.TrimSuffix(host+"/"+within, "/")
}

// covers reports whether a place, as of placeOfKey, is the repository or a parent of the repository. Each part of the
// place's host may be a pattern, for example *.example.com. A pattern stands for one part, and never for a port.
func covers(place, repository string) bool {
	host, within, _ := strings.Cut(place, "/")
	ofHost, ofWithin, _ := strings.Cut(repository, "/")
	if within != "" && !strings.HasPrefix(ofWithin+"/", within+"/") {
		return false
	}
	host, port, _ := strings.Cut(host, ":")
	ofHost, ofPort, _ := strings.Cut(ofHost, ":")
	parts, ofParts := strings.Split(host, "."), strings.Split(ofHost, ".")
	return port == ofPort && slices.EqualFunc(parts, ofParts, func(pattern, part string) bool {
		match, err := path.Match(pattern, part)
		return err == nil && match
	})
}
