// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/coreos/ignition/v2/config/util"
	"github.com/coreos/ignition/v2/config/v3_6/types"
)

// ociScheme begins the source of contents in a registry. Ignition does not know the scheme.
const ociScheme = "oci://"

// Reference is where a node fetches the contents of a file, and how the node knows that they are the right ones.
type Reference struct {
	// Source is an https URL, or oci://REGISTRY/REPOSITORY@sha256:DIGEST. The digest is that of a manifest with one layer.
	Source string
	// Hash is the verification.hash of the document in lower case: the function, a hyphen and hex digits. The bytes are
	// those after decompression. Hash may be "" for a reference to a registry.
	Hash string
	// Gzip means that the source is compressed.
	Gzip bool
}

// ociReference has the registry, the repository and the digest.
var ociReference = regexp.MustCompile(`^oci://([A-Za-z0-9.-]+(?::[0-9]+)?)/` +
	`([a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)@(sha256:[0-9a-f]{64})$`)

// Image returns the parts of a reference to a registry; ok is false for any other one.
func (r *Reference) Image() (registry, repository, digest string, ok bool) {
	m := ociReference.FindStringSubmatch(r.Source)
	if m == nil {
		return "", "", "", false
	}
	return m[1], m[2], m[3], true
}

// Key names the contents: two references with one key have the same bytes. The key is a file name.
func (r *Reference) Key() string {
	if r.Hash != "" {
		return r.Hash
	}
	_, digest, _ := strings.Cut(r.Source, "@")
	key := "oci-" + strings.Replace(digest, ":", "-", 1)
	if r.Gzip {
		key += "-expanded"
	}
	return key
}

// Is reports whether data are the contents. A reference without a hash is not enough to say so.
func (r *Reference) Is(data []byte) bool { return r.Hash != "" && verify(data, r.Hash) == nil }

// String says the reference for people: where the contents are, and their hash.
func (r *Reference) String() string {
	if r.Hash == "" {
		return r.Source
	}
	return r.Source + " (" + r.Hash + ")"
}

// SameContents reports whether two files have the same bytes, as far as the documents say.
func SameContents(a, b *File) bool {
	switch {
	case a.Reference != nil && b.Reference != nil:
		return a.Reference.Key() == b.Reference.Key()
	case a.Reference != nil:
		return a.Reference.Is(b.Contents)
	case b.Reference != nil:
		return b.Reference.Is(a.Contents)
	}
	return string(a.Contents) == string(b.Contents)
}

// fetched reports whether a source is no data URL.
func fetched(source string) bool {
	scheme, _, _ := strings.Cut(source, ":")
	return scheme != "data"
}

// referable returns the reference of a resource whose source is no data URL. The error begins with the wrong field.
func referable(res types.Resource) (*Reference, error) {
	source := *res.Source
	hash := ""
	if util.NotEmpty(res.Verification.Hash) {
		hash = strings.ToLower(*res.Verification.Hash)
	}
	r := &Reference{Source: source, Hash: hash, Gzip: util.NotEmpty(res.Compression)}
	u, err := url.Parse(source)
	switch {
	case err != nil:
		return nil, errors.New("source: is not a URL")
	case strings.HasPrefix(source, ociScheme):
		if _, _, _, ok := r.Image(); !ok {
			return nil, errors.New("source: a reference to a registry is oci://REGISTRY/REPOSITORY@sha256:DIGEST, with the " +
				"64 hex digits of a manifest's digest: a tag may name other contents tomorrow")
		}
	case u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("source: contents must be in the document itself as a data: URL, or at an https: or oci: "+
			"reference with a hash, not at %q", u.Scheme+":")
	case u.User != nil || slices.ContainsFunc(slices.Collect(maps.Keys(u.Query())), signature.matchString):
		return nil, errors.New("source: credentials in a URL can be read by all readers of the document; leave them out")
	case hash == "":
		return nil, errors.New("source: contents must be in the document itself, or have a verification.hash: sha512- or " +
			"sha256-, and the hex digits of the contents after decompression")
	}
	if len(res.HTTPHeaders) > 0 {
		return nil, errors.New("httpHeaders: a node sends none for the contents of a file; leave them out")
	}
	if hash == "" {
		return r, nil
	}
	function, sum, _ := strings.Cut(hash, "-")
	if digits, known := map[string]int{"sha256": 64, "sha512": 128}[function]; !known {
		return nil, fmt.Errorf("verification.hash: function %q is neither sha256 nor sha512", function)
	} else if len(sum) != digits || strings.Trim(sum, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("verification.hash: %s has %d hex digits", function, digits)
	}
	return r, nil
}

// judgedPaths are the places whose files are judged before a configuration reaches a node, or which the node needs to
// fetch anything.
var judgedPaths = []string{
	"/etc/systemd", "/run/systemd", "/usr/lib/systemd", "/usr/local/lib/systemd", "/lib/systemd", "/etc/fstab",
	"/etc/tmpfiles.d", "/run/tmpfiles.d", "/etc/containers", "/etc/crio", "/etc/containerd", "/etc/kubernetes",
	"/etc/machine-config-daemon", "/etc/mco", "/etc/ostree", "/etc/ssl", "/etc/pki", "/var/lib/kubelet/config.json",
}

// judged returns why the contents of a path can't be a reference, "" where they can.
func judged(name string) string {
	name = path.Clean(name)
	for _, at := range judgedPaths {
		if name == at || strings.HasPrefix(name, at+"/") {
			return "contents below " + at + " are judged before a node is asked to take them; put them into the document " +
				"as a data: URL"
		}
	}
	return ""
}

// standIn takes the place of ociScheme while the library, which knows no such scheme, reads a document.
const standIn = "https://oci.invalid/"

// withoutImages returns a document in which all references of files to a registry are URLs, and a function that
// makes them references again. A document that has such references elsewhere is left to the library, which refuses it.
func withoutImages(raw []byte, cfg *types.Config) (out []byte, back func(*types.Config)) {
	const quote = `"`
	sources := 0
	for i := range cfg.Storage.Files {
		if s := cfg.Storage.Files[i].Contents.Source; s != nil && strings.HasPrefix(*s, ociScheme) {
			sources++
		}
	}
	if sources == 0 || bytes.Count(raw, []byte(quote+ociScheme)) != sources {
		return raw, func(*types.Config) {}
	}
	return bytes.ReplaceAll(raw, []byte(quote+ociScheme), []byte(quote+standIn)), func(c *types.Config) {
		for i := range c.Storage.Files {
			f := &c.Storage.Files[i]
			if f.Contents.Source == nil {
				continue
			}
			if rest, is := strings.CutPrefix(*f.Contents.Source, standIn); is {
				f.Contents.Source = new(ociScheme + rest)
			}
		}
	}
}
