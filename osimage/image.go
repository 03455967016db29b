// SPDX-License-Identifier: Apache-2.0

// Package osimage says what the OS of a deployment is: the image that a configuration names, whether the host's policy
// for signatures lets it in, what it has become on the disk, and what the tools that pull it say when they fail.
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

// ImageKind says what an Image is.
type ImageKind string

// The kinds of images.
const (
	ContainerImage ImageKind = "container image"
	OSTreeCommit   ImageKind = "ostree commit"
)

// Transport is where a container image is read from, by the name that the tools of containers have for it.
type Transport string

// The transports. What the others name is a path on the host, but for ContainersStorage.
const (
	Registry          Transport = "registry"
	ContainersStorage Transport = "containers-storage"
	OCIDirectory      Transport = "oci"
	OCIArchive        Transport = "oci-archive"
	DockerArchive     Transport = "docker-archive"
	PlainDirectory    Transport = "dir"
)

var transports = []Transport{Registry, ContainersStorage, OCIDirectory, OCIArchive, DockerArchive, PlainDirectory}

// Verification is what a reference says about the signatures of a container image.
type Verification string

// The verifications. One that is unsaid is settled by Policy.Admit.
const (
	VerifyUnsaid   Verification = ""              // a bare reference: whatever the host's policy demands
	VerifyNothing  Verification = "unverified"    // the reference wants no verification
	VerifyPolicy   Verification = "policy"        // by the host's policy, which must demand a signature
	VerifyByRemote Verification = "ostree remote" // the commit in the image, by the keys of an ostree remote
)

// Image is an osImageURL that was parsed. Two of them are == if they say the same in the same words; whether they name
// the same system is another question, see SatisfiedBy.
type Image struct {
	Kind ImageKind
	// Remote is an ostree remote: that which has the commit ("" for one that is in the host's repository), or that whose
	// keys verify a container image (VerifyByRemote).
	Remote string
	// Ref or Checksum, 64 hex digits, is of an OSTreeCommit.
	Ref      string
	Checksum string

	// The others are of a ContainerImage.

	Verify    Verification
	Transport Transport
	// Name is the repository with its registry's host, as it was written; of containers-storage it may have the store in
	// brackets before it, or be the ID of an image; of other transports it is an absolute path.
	Name string
	// Tag is what follows the name after a colon, without the digest. In an archive it may be a reference of its own.
	Tag    string
	Digest string // sha256:..., of the manifest
}

// Words before the first colon that say how the signatures of a container image are verified.
const (
	SchemeSigned             = "ostree-image-signed"
	SchemeUnverified         = "ostree-unverified-image"
	schemeUnverifiedRegistry = "ostree-unverified-registry"
	SchemeRemote             = "ostree-remote-image"
	schemeRemoteRegistry     = "ostree-remote-registry"
)

var schemes = []string{
	schemeUnverifiedRegistry, SchemeUnverified, SchemeSigned, schemeRemoteRegistry, SchemeRemote,
}

// What schemes begin with; no remote may, so that a scheme with a slip of the pen is not taken for one.
var schemePattern = regexp.MustCompile(`^ostree-(?:image|unverified|remote)[a-z-]*$`)

var (
	remotePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	// The host of a registry, with its port.
	hostPattern = regexp.MustCompile(
		`^(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:]+\])` +
			`(?::[0-9]{1,5})?$`)
	repositoryPattern = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`)
	tagPattern        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	// DigestPattern is the digest of an image.
	DigestPattern = regexp.MustCompile(`^(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})$`)
)

// maxImage is the longest osImageURL that is taken, in bytes: a repository has up to 255, and paths may be long.
const maxImage = 4096

// ParseImage parses an osImageURL. It is one of
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
// Of those without a scheme, one is a container image if it has an @, or if what is before its first slash is the host
// of a registry: localhost, a name with a dot in it, or anything with a port. So fedora:fedora/stable is a ref, and
// fedora:5000/stable and my.remote/stable are not. The others are of ostree, whose remote can't have the name of a
// transport.
//
// An error is an *Error of the class Invalid that names osImageURL and the part of it that is wrong.
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
	case SchemeSigned:
		image.Verify = VerifyPolicy
	case SchemeUnverified, schemeUnverifiedRegistry:
		image.Verify = VerifyNothing
	case SchemeRemote, schemeRemoteRegistry:
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

// parseBare reads what has no scheme.
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
			transport, SchemeUnverified)
	}
	if parts == nil {
		return Image{}, errors.New("it is neither a container image (HOST/NAME[:TAG][@DIGEST]) " +
			"nor an ostree commit (REF, REMOTE:REF or a checksum)")
	}
	image := Image{Kind: OSTreeCommit, Remote: parts[1]}
	if ostree.ChecksumPattern.MatchString(parts[2]) {
		image.Checksum = parts[2]
	} else {
		image.Ref = parts[2]
	}
	return image, nil
}

// isRegistryHost tells what stands before the first slash of a reference from the first part of a path or of a ref.
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
		if !DigestPattern.MatchString(digest) {
			return Image{}, fmt.Errorf("the digest %q is not sha256: and 64 hex digits in lower case", digest)
		}
		i.Digest = digest
	}
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		name, i.Tag = name[:colon], name[colon+1:]
		if !tagPattern.MatchString(i.Tag) {
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
	if ostree.ChecksumPattern.MatchString(strings.TrimPrefix(text, "@")) {
		i.Name = store + text
		return i, nil
	}
	i, err := i.withRepository(text)
	i.Name = store + i.Name
	return i, err
}

// String is the reference as a configuration would have it. To parse it gives the same Image.
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

// Refspec is the reference in the words of rpm-ostree: what rebase takes, and what status and an origin file show. One
// that says nothing about signatures is unverified there, and one with a digest leaves its tag out.
func (i Image) Refspec() string { return i.withScheme(i.Target()) }

// Target is what is pulled, within its transport. With a digest there is no tag: the tools refuse references with both.
func (i Image) Target() string {
	switch {
	case i.Digest != "":
		return i.Name + "@" + i.Digest
	case i.Tag != "":
		return i.Name + ":" + i.Tag
	}
	return i.Name
}

// withScheme puts before the target of a container image how it is verified and the transport.
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
		return SchemeSigned + ":" + from + target
	case i.Verify == VerifyByRemote:
		return SchemeRemote + ":" + i.Remote + ":" + from + target
	case i.Transport == Registry:
		return schemeUnverifiedRegistry + ":" + target
	}
	return SchemeUnverified + ":" + from + target
}

// Bootc is the reference in the words of bootc switch: the values of --transport and of TARGET, and whether
// --enforce-container-sigpolicy is given. What bootc can't take is an *Error of the class Invalid.
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

// SatisfiedBy says whether have, an image that a host runs, is what i asks for. reported is the digest that the host
// reports of have, "" if it reports none. If i has a digest (or the checksum of a commit), that alone decides, from
// wherever it came: it must be the reported one, or the one in have's own reference, because the digest of a list for
// several architectures is never the reported one. Else the names decide. What verifies it makes no difference.
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

// latest is the tag of a reference to a registry that has none.
const latest = "latest"

// dockerHub is the registry of a name without a host.
const dockerHub = "docker.io"

// expanded is the name of a registry's image with what a short one leaves out, as signature policies know it.
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

// registryHost is the host, with its port, of the registry that the image is pulled from, "" if it is from elsewhere.
func (i Image) registryHost() string {
	if i.Kind != ContainerImage || i.Transport != Registry {
		return ""
	}
	host, _, _ := strings.Cut(i.expanded(), "/")
	return host
}
