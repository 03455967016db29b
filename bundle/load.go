// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Load copies the images of a bundle into a registry, with the digests that they have, and returns the bundle's list.
// Before anything is copied, all that the bundle has is compared with the digests. What the registry has is not copied
// again: a command that was stopped goes on where it was.
func Load(ctx context.Context, dir, registry string, say Say) (*List, error) {
	list, err := Read(dir)
	if err != nil {
		return nil, err
	}
	targets, err := list.targets(registry)
	if err != nil {
		return nil, err
	}
	say("checking %d bytes", list.Bytes)
	if err := list.verify(dir); err != nil {
		return nil, fmt.Errorf("the bundle %s is damaged: %w; carry it over again, or save it again", dir, err)
	}
	at, err := layout.FromPath(dir)
	if err != nil {
		return nil, err
	}
	for i, t := range targets {
		say("image %d of %d: %s", i+1, len(targets), t.ref)
		if err := push(ctx, at, t); err != nil {
			return nil, fmt.Errorf("loading the image %s: %w", t.ref, err)
		}
	}
	return list, nil
}

// target is something that is copied to a registry.
type target struct {
	ref  name.Reference
	what v1.Hash
}

// targets returns where everything goes. Two images that would have one name there are an error.
func (l *List) targets(registry string) ([]target, error) {
	var all []target
	taken := map[string]v1.Hash{}
	add := func(ref name.Reference, what v1.Hash) error {
		if other, is := taken[ref.String()]; is && other != what {
			return fmt.Errorf("two images of the bundle would be %s, %s and %s: make a bundle of each", ref, other, what)
		}
		taken[ref.String()] = what
		all = append(all, target{ref, what})
		return nil
	}
	for _, image := range l.Images {
		p, err := image.parse()
		if err != nil {
			return nil, err
		}
		repository, err := p.at(registry)
		if err != nil {
			return nil, err
		}
		var ref name.Reference = repository.Digest(p.manifest.String())
		if p.tag != "" {
			ref = repository.Tag(p.tag)
		}
		err = add(ref, p.manifest)
		if p.signature != nil {
			err = errors.Join(err, add(repository.Tag(signatureTag(p.manifest)), *p.signature))
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func push(ctx context.Context, at layout.Path, t target) error {
	root, err := at.ImageIndex()
	if err != nil {
		return err
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range manifest.Manifests {
		switch {
		case d.Digest != t.what:
		case d.MediaType.IsIndex():
			index, err := root.ImageIndex(d.Digest)
			if err != nil {
				return err
			}
			return remote.WriteIndex(t.ref, index, options(ctx)...)
		default:
			image, err := root.Image(d.Digest)
			if err != nil {
				return err
			}
			return remote.Write(t.ref, image, options(ctx)...)
		}
	}
	return fmt.Errorf("the bundle's index.json does not name %s", t.what)
}

// verify compares everything that a bundle has with its digests. The error names the first file that differs. A file
// that the list does not name is one that nothing was compared with, and is refused.
func (l *List) verify(dir string) error {
	listed := map[string]string{}
	for _, f := range l.Files {
		listed[f.Path] = f.Digest
	}
	if err := walk(dir, func(at string, info fs.FileInfo) error {
		file := filepath.Join(dir, filepath.FromSlash(at))
		if at == "index.json" && info.Size() > largest {
			return tooLarge(file)
		}
		if !strings.HasPrefix(at, filesDir+"/") {
			return nil
		}
		digest, is := listed[at]
		if !is {
			return fmt.Errorf("%s is not in %s", file, listName)
		}
		delete(listed, at)
		h, err := v1.NewHash(digest)
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		return compare(file, h)
	}); err != nil {
		return err
	}
	if missing := slices.Sorted(maps.Keys(listed)); len(missing) > 0 {
		return fmt.Errorf("%s is missing", filepath.Join(dir, filepath.FromSlash(missing[0])))
	}
	v := verifier{dir: dir, seen: map[v1.Hash]bool{}}
	for _, image := range l.Images {
		p, err := image.parse()
		if err != nil {
			return err
		}
		if err := v.manifest(p.manifest); err != nil {
			return err
		}
		if p.signature != nil {
			if err := v.manifest(*p.signature); err != nil {
				return err
			}
		}
	}
	return nil
}

// verifier follows manifests, and compares each blob once.
type verifier struct {
	dir  string
	seen map[v1.Hash]bool
}

func (v *verifier) blob(h v1.Hash) (path string, again bool, err error) {
	path = filepath.Join(v.dir, "blobs", h.Algorithm, h.Hex)
	if v.seen[h] {
		return path, true, nil
	}
	v.seen[h] = true
	return path, false, compare(path, h)
}

// manifest compares a manifest or an index, and all that it names.
func (v *verifier) manifest(h v1.Hash) error {
	path, again, err := v.blob(h)
	if again || err != nil {
		return err
	}
	data, err := readSmall(path)
	if err != nil {
		return err
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(data))
	if err == nil && len(index.Manifests) > 0 {
		for _, d := range index.Manifests {
			if err := v.manifest(d.Digest); err != nil {
				return err
			}
		}
		return nil
	}
	image, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, d := range append(image.Layers, image.Config) {
		if !d.MediaType.IsDistributable() {
			continue
		}
		if _, _, err := v.blob(d.Digest); err != nil {
			return err
		}
	}
	return nil
}

// largest is how large a list or a manifest may be that is read into memory; no registry takes a larger manifest.
const largest = 100 << 20

func tooLarge(path string) error { return fmt.Errorf("%s is larger than %d bytes", path, largest) }

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, largest+1))
	if err == nil && len(data) > largest {
		err = tooLarge(path)
	}
	return data, err
}

// compare compares a file with its digest.
func compare(path string, want v1.Hash) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing", path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	have, err := v1.Hasher(want.Algorithm)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, err := io.Copy(have, f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if got := fmt.Sprintf("%x", have.Sum(nil)); got != want.Hex {
		return fmt.Errorf("%s has the digest %s:%s", path, want.Algorithm, got)
	}
	return nil
}
