// SPDX-License-Identifier: Apache-2.0

// Package osimage describes the OS of a deployment: the image that a configuration names, and what it has become on the
// disk. The package checks the image against the host's policy for signatures. The package also classes the errors of
// the tools that pull images.
package osimage

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/ostree"
)

// ImageKind is the kind of an Image.
type ImageKind string

// The kinds of images.
const (
	ContainerImage ImageKind = "container image"
	OSTreeCommit   ImageKind = "ostree commit"
)

// Transport is where a container image is read from, by the name that container tools use.
type Transport string

// The transports. Registry and ContainersStorage name images, all others a path on the host.
const (
	Registry          Transport = "registry"
	ContainersStorage Transport = "containers-storage"
	OCIDirectory      Transport = "oci"
	OCIArchive        Transport = "oci-archive"
	DockerArchive     Transport = "docker-archive"
	PlainDirectory    Transport = "dir"
)

var transports = []Transport{Registry, ContainersStorage, OCIDirectory, OCIArchive, DockerArchive, PlainDirectory}

// Verification is what a reference demands about the signatures of a container image.
type Verification string

// The verifications. Policy.Admit replaces VerifyUnsaid.
const (
	VerifyUnsaid   Verification = ""              // a bare reference: the host's policy decides
	VerifyNothing  Verification = "unverified"    // the reference wants no verification
	VerifyPolicy   Verification = "policy"        // by the host's policy, which must demand a signature
	VerifyByRemote Verification = "ostree remote" // the commit in the image, by the keys of an ostree remote
)

// Image is a parsed osImageURL. Two Images are == if their references have the same meaning in the same words.
// SatisfiedBy tells whether they name the same system.
type Image struct {
	Kind ImageKind
	// Remote is an ostree remote. For a commit, it is the remote that has the commit ("" for a commit in the host's
	// repository). For VerifyByRemote, it is the remote whose keys verify the container image.
	Remote string
	// An OSTreeCommit has one of Ref and Checksum, 64 hex digits.
	Ref      string
	Checksum string

	// The other fields belong to a ContainerImage.

	Verify    Verification
	Transport Transport
	// Name is the repository with its registry's host, as written. In containers-storage it may begin with the store in
	// brackets, or be the ID of an image. With other transports it is an absolute path.
	Name string
	// Tag follows the name after a colon, without the digest. In an archive the tag may be a reference of its own.
	Tag    string
	Digest string // sha256:..., of the manifest
}

// The schemes: words before the first colon on how the signatures of a container image are verified.
const (
	schemeSigned             = "ostree-image-signed"
	schemeUnverified         = "ostree-unverified-image"
	schemeUnverifiedRegistry = "ostree-unverified-registry"
	schemeRemote             = "ostree-remote-image"
	schemeRemoteRegistry     = "ostree-remote-registry"
)

var schemes = []string{
	schemeUnverifiedRegistry, schemeUnverified, schemeSigned, schemeRemoteRegistry, schemeRemote,
}

// schemePattern matches the beginning of a scheme. No remote may match, so that a misspelt scheme is not taken for a
// remote.
var schemePattern = regexp.MustCompile(`^ostree-(?:image|unverified|remote)[a-z-]*$`)

var (
	remotePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	// hostPattern matches the host of a registry, with its port.
	hostPattern = regexp.MustCompile(
		`^(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:]+\])` +
			`(?::[0-9]{1,5})?$`)
	repositoryPattern = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`)
	tagPattern        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
)

// longestTag is how long the tag of an image may be.
const longestTag = 128

// digits are how many hex digits the digests of images have.
var digits = map[string]int{"sha256": 64, "sha384": 96, "sha512": 128}

// IsDigest reports whether a text is the digest of an image.
func IsDigest(text string) bool {
	algorithm, sum, _ := strings.Cut(text, ":")
	return sum != "" && len(sum) == digits[algorithm] && strings.Trim(sum, "0123456789abcdef") == ""
}

// maxImage is the longest accepted osImageURL, in bytes. A repository has up to 255, and paths may be long.
const maxImage = 4096

// ParseImage parses an osImageURL, which is one of
//
//	HOST/NAME[:TAG][@DIGEST]                              a registry's image; signatures as the host's policy demands
//	ostree-unverified-registry:NAME[:TAG][@DIGEST]        the same without
//	ostree-unverified-image:TRANSPORT:...                 the same of any transport
//	ostree-image-signed:TRANSPORT:...                     verified by the host's policy
//	ostree-remote-registry:REMOTE:NAME                    verified by the keys of an ostree remote
//	ostree-remote-image:REMOTE:TRANSPORT:...
//	CHECKSUM, REF, REMOTE:REF, REMOTE:CHECKSUM            an ostree commit
//
// with TRANSPORT:... being docker://NAME, registry:NAME, containers-storage:NAME, oci:PATH[:TAG],
// oci-archive:PATH[:TAG], docker-archive:PATH[:NAME] or dir:PATH.
//
// A reference without a scheme is a container image if it has an @, or the host of a registry before its first slash.
// Such a host is localhost, a name with a dot in it, or anything with a port. So fedora:fedora/stable is a ref, while
// fedora:5000/stable and my.remote/stable are images. All other references without a scheme are of ostree, whose
// remotes can't have the name of a transport.
//
// An error is an *Error of the class Invalid. It names osImageURL and the wrong part of it.
func ParseImage(text string) (Image, error) {
	image, err := parseImage(text)
	if err != nil {
		shown := text
		if len(shown) > 300 {
			shown = shown[:300] + "..."
		}
		return Image{}, &ostree.Error{Class: ostree.Invalid, Doing: fmt.Sprintf("parsing osImageURL %q", shown), Err: err}
	}
	return image, nil
}

func parseImage(text string) (Image, error) {
	if text == "" {
		return Image{}, errors.New("it is empty")
	}
	if len(text) > maxImage {
		return Image{}, fmt.Errorf("it is longer than %d bytes", maxImage)
	}
	if at := strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }); at >= 0 {
		return Image{}, fmt.Errorf("it has %q in it, which no reference may have", []rune(text[at:])[0])
	}
	scheme, rest, found := strings.Cut(text, ":")
	if !found || !schemePattern.MatchString(scheme) {
		return parseBare(text)
	}
	image := Image{Kind: ContainerImage}
	switch scheme {
	case schemeSigned:
		image.Verify = VerifyPolicy
	case schemeUnverified, schemeUnverifiedRegistry:
		image.Verify = VerifyNothing
	case schemeRemote, schemeRemoteRegistry:
		image.Verify = VerifyByRemote
		image.Remote, rest, found = strings.Cut(rest, ":")
		if !found || !remotePattern.MatchString(image.Remote) {
			return Image{}, fmt.Errorf("after %s: there must be the name of an ostree remote and a colon", scheme)
		}
	default:
		return Image{}, fmt.Errorf("the scheme %s is not one of %s", scheme, strings.Join(schemes, ", "))
	}
	if scheme == schemeUnverifiedRegistry || scheme == schemeRemoteRegistry {
		image.Transport = Registry
		return image.withRepository(rest)
	}
	return image.withTransport(rest)
}

// parseBare reads a reference without a scheme.
func parseBare(text string) (Image, error) {
	host, _, hasPath := strings.Cut(text, "/")
	if strings.Contains(text, "@") || hasPath && isRegistryHost(host) {
		image := Image{Kind: ContainerImage, Transport: Registry}
		return image.withRepository(text)
	}
	parts := ostree.ImagePattern.FindStringSubmatch(text)
	if transport, _, found := strings.Cut(text, ":"); found &&
		(transport == "docker" || slices.Contains(transports, Transport(transport))) {
		return Image{}, fmt.Errorf("before the transport %s: there must be %s:, or another word on signatures",
			transport, schemeUnverified)
	}
	if parts == nil {
		return Image{}, errors.New("it is neither a container image (HOST/NAME[:TAG][@DIGEST]) " +
			"nor an ostree commit (REF, REMOTE:REF or a checksum)")
	}
	image := Image{Kind: OSTreeCommit, Remote: parts[1]}
	if ostree.IsChecksum(parts[2]) {
		image.Checksum = parts[2]
	} else {
		image.Ref = parts[2]
	}
	return image, nil
}

// isRegistryHost tells the host of a registry, before the first slash of a reference, from the first part of a path or
// ref.
func isRegistryHost(s string) bool {
	return hostPattern.MatchString(s) && (s == "localhost" || strings.ContainsAny(s, ".:"))
}

// withTransport reads TRANSPORT:NAME.
func (i Image) withTransport(text string) (Image, error) {
	transport, rest, found := strings.Cut(text, ":")
	i.Transport = Transport(transport)
	if transport == "docker" {
		i.Transport = Registry
		if rest, found = strings.CutPrefix(rest, "//"); !found {
			return Image{}, errors.New("after the transport docker: there must be //")
		}
	}
	if !found || !slices.Contains(transports, i.Transport) {
		return Image{}, fmt.Errorf("the transport %q is not one of %q, nor docker", transport, transports)
	}
	switch i.Transport {
	case Registry:
		return i.withRepository(rest)
	case ContainersStorage:
		return i.withStored(rest)
	case OCIDirectory, OCIArchive, DockerArchive:
		i.Name, i.Tag, found = strings.Cut(rest, ":")
		if found && i.Tag == "" {
			return Image{}, errors.New("after the last colon there must be a tag")
		}
	default:
		i.Name = rest
	}
	if !strings.HasPrefix(i.Name, "/") {
		return Image{}, fmt.Errorf("the path %q of the transport %s is not absolute", i.Name, i.Transport)
	}
	return i, nil
}

// withRepository reads [HOST/]NAME[:TAG][@DIGEST].
func (i Image) withRepository(text string) (Image, error) {
	name, digest, hasDigest := strings.Cut(text, "@")
	if hasDigest {
		if !IsDigest(digest) {
			return Image{}, fmt.Errorf("the digest %q is not sha256: and 64 hex digits in lower case", digest)
		}
		i.Digest = digest
	}
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		name, i.Tag = name[:colon], name[colon+1:]
		if len(i.Tag) > longestTag || !tagPattern.MatchString(i.Tag) {
			return Image{}, fmt.Errorf("the tag %q is not up to 128 letters, digits, dots, dashes and underscores", i.Tag)
		}
	}
	i.Name = name
	host, path, hasPath := strings.Cut(name, "/")
	if !hasPath || !isRegistryHost(host) {
		path = name
	}
	for part := range strings.SplitSeq(path, "/") {
		if !repositoryPattern.MatchString(part) {
			return Image{}, fmt.Errorf("the name %q is not a repository's: %q is not lower-case letters, digits and "+
				"single separators", name, part)
		}
	}
	return i, nil
}

// withStored reads the name of an image in containers-storage: [STORE]NAME[:TAG][@DIGEST], or the image's ID.
func (i Image) withStored(text string) (Image, error) {
	store := ""
	if strings.HasPrefix(text, "[") {
		end := strings.Index(text, "]")
		if end < 0 {
			return Image{}, fmt.Errorf("the store in %q has no closing bracket", text)
		}
		store, text = text[:end+1], text[end+1:]
	}
	if ostree.IsChecksum(strings.TrimPrefix(text, "@")) {
		i.Name = store + text
		return i, nil
	}
	i, err := i.withRepository(text)
	i.Name = store + i.Name
	return i, err
}

// String returns the reference as in a configuration. Parsing it gives the same Image.
func (i Image) String() string {
	target := i.Name
	if i.Tag != "" {
		target += ":" + i.Tag
	}
	if i.Digest != "" {
		target += "@" + i.Digest
	}
	if i.Kind == ContainerImage && i.Verify == VerifyUnsaid {
		return target
	}
	return i.withScheme(target)
}

// Refspec returns the reference in the words of rpm-ostree: as rebase takes it, and as status and an origin file show
// it. A reference without a verification is unverified there. A reference with a digest leaves its tag out.
func (i Image) Refspec() string { return i.withScheme(i.Target()) }

// Target returns what is pulled, within its transport. With a digest it has no tag: the tools refuse references with
// both.
func (i Image) Target() string {
	switch {
	case i.Digest != "":
		return i.Name + "@" + i.Digest
	case i.Tag != "":
		return i.Name + ":" + i.Tag
	}
	return i.Name
}

// withScheme returns a container image's target with its verification and its transport before it.
func (i Image) withScheme(target string) string {
	if i.Kind == OSTreeCommit {
		if i.Remote == "" {
			return i.Ref + i.Checksum
		}
		return i.Remote + ":" + i.Ref + i.Checksum
	}
	from := string(i.Transport) + ":"
	if i.Transport == Registry {
		from = "docker://"
	}
	switch {
	case i.Verify == VerifyPolicy:
		return schemeSigned + ":" + from + target
	case i.Verify == VerifyByRemote:
		return schemeRemote + ":" + i.Remote + ":" + from + target
	case i.Transport == Registry:
		return schemeUnverifiedRegistry + ":" + target
	}
	return schemeUnverified + ":" + from + target
}

// Bootc returns the reference in the words of bootc switch: the values of --transport and of TARGET, and whether
// --enforce-container-sigpolicy is given. For an image that bootc can't take, the error is an *Error of the class
// Invalid.
func (i Image) Bootc() (transport, target string, enforce bool, err error) {
	switch {
	case i.Kind != ContainerImage:
		err = errors.New("bootc takes container images, and this is an ostree commit")
	case i.Verify == VerifyByRemote:
		err = errors.New("bootc does not verify images by the keys of an ostree remote")
	}
	if err != nil {
		return "", "", false, &ostree.Error{Class: ostree.Invalid, Doing: fmt.Sprintf("taking osImageURL %q", i), Err: err}
	}
	return string(i.Transport), i.Target(), i.Verify == VerifyPolicy, nil
}

// SatisfiedBy reports whether have, an image that a host runs, is what i asks for. reported is the digest that the host
// reports for have, "" if it reports none. If i has a digest or the checksum of a commit, that alone decides, and the
// source does not matter. The digest must be reported, or be in have's own reference, because the digest of a list for
// several architectures is never reported. Otherwise the names decide. How an image is verified makes no difference.
func (i Image) SatisfiedBy(have Image, reported string) bool {
	switch {
	case i.Kind != have.Kind:
		return false
	case i.Kind == OSTreeCommit && i.Checksum != "":
		return i.Checksum == have.Checksum || i.Checksum == reported
	case i.Kind == OSTreeCommit:
		return i.Remote == have.Remote && i.Ref == have.Ref
	case i.Digest != "":
		return i.Digest == have.Digest || i.Digest == reported
	case i.Transport == Registry && have.Transport == Registry:
		return i.expanded() == have.expanded() && cmp.Or(i.Tag, latest) == cmp.Or(have.Tag, latest)
	}
	return i.Transport == have.Transport && i.Name == have.Name && i.Tag == have.Tag
}

// latest is the tag that a registry assumes for a reference without one.
const latest = "latest"

// dockerHub is the registry of a name without a host.
const dockerHub = "docker.io"

// expanded returns the full name of a registry's image, as signature policies know it. A short name leaves parts out.
func (i Image) expanded() string {
	host, path, hasPath := strings.Cut(i.Name, "/")
	if !hasPath || !isRegistryHost(host) {
		host, path = dockerHub, i.Name
	}
	if host == "index."+dockerHub {
		host = dockerHub
	}
	if host == dockerHub && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	return host + "/" + path
}

// registryHost returns the host, with its port, of the image's registry. The result is "" if the image is not from a
// registry.
func (i Image) registryHost() string {
	if i.Kind != ContainerImage || i.Transport != Registry {
		return ""
	}
	host, _, _ := strings.Cut(i.expanded(), "/")
	return host
}
