// SPDX-License-Identifier: Apache-2.0

// Package bundle carries what an installation and its pools need to a cluster without a network: container images and
// files, in a directory that is an OCI image layout. A list names each of them by its digest.
//
//	list, err := bundle.Save(ctx, dir, bundle.Contents{Version: version, Images: images, Files: files}, say)
//	... the directory is carried to the other side ...
//	list, err := bundle.Read(dir)
//	err = bundle.Load(ctx, dir, "registry.of.yours", say)
//	mirrors, err := list.Mirrors("registry.of.yours")
package bundle

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
)

// Contents say what goes into a bundle.
type Contents struct {
	// Version is that of Noderefit.
	Version string
	// Images are references of images in registries, each with a tag, a digest, or both.
	Images []string
	// Files are written as they are, by their slash-separated paths below files/.
	Files map[string][]byte
	// Left are for List.Left.
	Left []string
}

// Add adds the images of a MachineConfig: its OS, and its extensions. An OS that no registry has is left.
func (c *Contents) Add(mc *mcfgv1.MachineConfig) error {
	for _, field := range []struct{ name, value string }{
		{"osImageURL", mc.Spec.OSImageURL},
		{"baseOSExtensionsContainerImage", mc.Spec.BaseOSExtensionsContainerImage},
	} {
		if field.value == "" {
			continue
		}
		image := registryImage(field.value)
		if image == "" {
			c.Left = append(c.Left, fmt.Sprintf("MachineConfig %s: %s: %s is not in a registry: take it to the nodes by "+
				"the way that it has", mc.Name, field.name, field.value))
			continue
		}
		if _, _, err := parseName(image); err != nil {
			return fmt.Errorf("MachineConfig %s: %s: %w", mc.Name, field.name, err)
		}
		c.Images = append(c.Images, image)
	}
	return nil
}

const label = `[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?` // of a host's name

// These match the osImageURLs of container images. The package osimage reads all of them, but is of Linux alone, and
// people have the plugin on macOS and Windows too. A fuzz target compares the two.
var (
	withScheme = regexp.MustCompile(`^ostree-(?:image|unverified|remote)[a-z-]*:`)
	inRegistry = regexp.MustCompile(`^ostree-(?:unverified-registry:|remote-registry:[^:]+:|` +
		`(?:unverified-image|image-signed|remote-image:[^:]+):(?:registry:|docker://))(.+)$`)
	hostName = regexp.MustCompile(`^(?:` + label + `(?:\.` + label + `)*|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?$`)
)

// hasHost reports whether a reference without a scheme begins with the host of a registry.
func hasHost(url string) bool {
	host, _, hasPath := strings.Cut(url, "/")
	return hasPath && hostName.MatchString(host) && (host == "localhost" || strings.ContainsAny(host, ".:"))
}

// registryImage returns the image of a registry that an osImageURL names, and "" for an OS that no registry has. With a
// digest the image has no tag.
func registryImage(url string) string {
	image := url
	if withScheme.MatchString(url) {
		parts := inRegistry.FindStringSubmatch(url)
		if parts == nil {
			return ""
		}
		image = parts[1]
	} else if !strings.Contains(url, "@") && !hasHost(url) {
		return ""
	}
	repository, digest, has := strings.Cut(image, "@")
	if !has {
		return image
	}
	if colon := strings.LastIndex(repository, ":"); colon > strings.LastIndex(repository, "/") {
		repository = repository[:colon]
	}
	return repository + "@" + digest
}

// AddPath adds a file, or all files of a directory, below manifests/. Hidden files, and links to directories, are
// passed over, as by those who read MachineConfigs.
func (c *Contents) AddPath(from string) error {
	from, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	above, base := os.DirFS(filepath.Dir(from)), filepath.Base(from)
	return fs.WalkDir(above, base, func(at string, d fs.DirEntry, err error) error {
		hidden := at != base && strings.HasPrefix(d.Name(), ".")
		switch {
		case err != nil:
			return err
		case d.IsDir() && hidden:
			return fs.SkipDir
		case d.IsDir() || hidden:
			return nil
		}
		info, err := fs.Stat(above, at)
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		data, err := fs.ReadFile(above, at)
		if err != nil {
			return err
		}
		to := path.Join("manifests", at)
		if _, taken := c.Files[to]; taken {
			return fmt.Errorf("two files of the bundle would be %s, one of them below %s: rename the file", to, from)
		}
		if c.Files == nil {
			c.Files = map[string][]byte{}
		}
		c.Files[to] = data
		return nil
	})
}

// Registry returns the registry with which an installation is made of the images of a bundle that were loaded into
// another registry. A bundle without the agent's image has none.
func (l *List) Registry(loadedInto string) string {
	for _, image := range l.Images {
		p, err := image.parse()
		if err != nil || path.Base(p.repository.RepositoryStr()) != api.Daemon {
			continue
		}
		if at, err := p.at(loadedInto); err == nil {
			return path.Dir(nodesName(at))
		}
	}
	return ""
}

// List is what a bundle has. Save writes it into the file bundle.json when everything else is there.
type List struct {
	api.Header

	// Version is that of Noderefit.
	Version string  `json:"version"`
	Images  []Image `json:"images"`
	Files   []File  `json:"files"`
	// Left says of each thing that was wanted, and that no bundle can have, which one it is and why.
	Left []string `json:"left"`
	// Bytes is the size of the bundle without the list.
	Bytes int64 `json:"bytes"`
}

// Image is a container image of a bundle.
type Image struct {
	// Name is the reference by which the image was found.
	Name string `json:"name"`
	// Digest is that of the image's manifest, or of its index where the image is for several platforms.
	Digest string `json:"digest"`
	// Signature is the digest of the signature that the registry keeps beside the image, if there is one.
	Signature string `json:"signature,omitempty"`
}

// File is a file of a bundle.
type File struct {
	// Path is slash-separated, and relative to the bundle.
	Path   string `json:"path"`
	Digest string `json:"digest"`
}

var header = api.NewHeader("Bundle")

const (
	listName = "bundle.json"
	filesDir = "files"
)

// Read returns the list of a bundle. A bundle that was not saved to its end has none.
func Read(dir string) (*List, error) {
	data, err := readSmall(filepath.Join(dir, listName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no bundle, or one that was not saved to its end: save it again", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the bundle %s: %w", dir, err)
	}
	list := &List{}
	if err := json.Unmarshal(data, list); err != nil {
		return nil, fmt.Errorf("reading %s of the bundle %s: %w", listName, dir, err)
	}
	if list.Header != header {
		return nil, fmt.Errorf("reading %s of the bundle %s: the document is a %s of %s, and this program reads a %s of %s",
			listName, dir, list.Kind, list.APIVersion, header.Kind, header.APIVersion)
	}
	for _, image := range list.Images {
		if _, err := image.parse(); err != nil {
			return nil, fmt.Errorf("reading %s of the bundle %s: %w", listName, dir, err)
		}
	}
	for _, f := range list.Files {
		if !fs.ValidPath(f.Path) || !strings.HasPrefix(f.Path, filesDir+"/") {
			return nil, fmt.Errorf("reading %s of the bundle %s: the path %q is not below %s/", listName, dir, f.Path, filesDir)
		}
	}
	return list, nil
}

// parsed is an Image whose names and digests are.
type parsed struct {
	repository name.Repository
	tag        string // "" if the reference has a digest
	manifest   v1.Hash
	signature  *v1.Hash
}

func (i Image) parse() (parsed, error) {
	repository, tag, err := parseName(i.Name)
	if err != nil {
		return parsed{}, err
	}
	p := parsed{repository: repository, tag: tag}
	if p.manifest, err = v1.NewHash(i.Digest); err != nil {
		return parsed{}, fmt.Errorf("image %s: %w", i.Name, err)
	}
	if i.Signature != "" {
		h, err := v1.NewHash(i.Signature)
		if err != nil {
			return parsed{}, fmt.Errorf("image %s: its signature: %w", i.Name, err)
		}
		p.signature = &h
	}
	return p, nil
}

// parseName returns the repository and the tag of a reference. A tag beside a digest is left out, as by those who pull:
// the digest decides.
func parseName(text string) (name.Repository, string, error) {
	ref, err := name.ParseReference(text)
	if err != nil {
		return name.Repository{}, "", fmt.Errorf("image %s: %w", text, err)
	}
	if tag, is := ref.(name.Tag); is {
		if !strings.HasSuffix(text, ":"+tag.TagStr()) {
			return name.Repository{}, "", fmt.Errorf("image %s: neither a tag nor a digest says which one", text)
		}
		return tag.Context(), tag.TagStr(), nil
	}
	return ref.Context(), "", nil
}

// signatureTag is the tag by which registries keep the signature of an image, as cosign has it.
func signatureTag(manifest v1.Hash) string { return manifest.Algorithm + "-" + manifest.Hex + ".sig" }

// CheckRegistry refuses what is neither a registry nor a path in one. A name without a host would be one of Docker Hub,
// and images and credentials would go there.
func CheckRegistry(registry string) error {
	host, _, _ := strings.Cut(registry, "/")
	if strings.Contains(registry, "://") || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return errors.New("the name does not begin with a host: give one with a dot or a port and without a scheme, " +
			"such as registry.of.yours or box:5000")
	}
	_, err := name.NewRepository(path.Join(registry, "os"))
	return err
}

// at returns the repository of another registry that an image goes to: below the registry, under the path that the
// image had in its own.
func (p parsed) at(registry string) (name.Repository, error) {
	repository, err := name.NewRepository(path.Join(registry, p.repository.RepositoryStr()))
	if err := cmp.Or(CheckRegistry(registry), err); err != nil {
		return name.Repository{}, fmt.Errorf("registry %s: %w", registry, err)
	}
	return repository, nil
}

// nodesName returns the name by which nodes know a repository: the library has Docker Hub under another one.
func nodesName(r name.Repository) string {
	if r.RegistryStr() == name.DefaultRegistry {
		return "docker.io/" + r.RepositoryStr()
	}
	return r.Name()
}
