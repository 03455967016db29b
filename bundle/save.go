// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Say tells people how far a command is.
type Say func(format string, args ...any)

// Save writes a bundle into a directory, which it makes. In a directory that has a bundle, what the new bundle needs
// stays and the rest goes: a command that was stopped goes on where it was. A directory with anything else is refused.
//
// Images come with all their platforms, since a digest is of all of them, and with the signature that cosign keeps
// beside an image. The credentials are those of docker and podman.
func Save(ctx context.Context, dir string, contents Contents, say Say) (*List, error) {
	names := slices.Compact(slices.Sorted(slices.Values(contents.Images)))
	for _, image := range names {
		if _, _, err := parseName(image); err != nil {
			return nil, err
		}
	}
	store, err := open(dir)
	if err != nil {
		return nil, err
	}
	list := &List{Header: header, Version: contents.Version, Images: []Image{}, Left: append([]string{}, contents.Left...)}
	for i, image := range names {
		say("image %d of %d: %s", i+1, len(names), image)
		saved, err := store.pull(ctx, image)
		if err != nil {
			return nil, fmt.Errorf("saving the image %s: %w", image, err)
		}
		list.Images = append(list.Images, saved)
	}
	if err := store.collect(); err != nil {
		return nil, fmt.Errorf("removing former images of the bundle %s: %w", dir, err)
	}
	if list.Files, err = writeFiles(dir, contents.Files); err != nil {
		return nil, fmt.Errorf("saving files into the bundle %s: %w", dir, err)
	}
	if list.Bytes, err = size(dir); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := flush(filepath.Join(dir, "blobs")); err != nil {
		return nil, fmt.Errorf("making the bundle %s durable: %w", dir, err)
	}
	return list, writeFile(filepath.Join(dir, listName), append(data, '\n'))
}

// store is the OCI layout of a bundle.
type store struct{ layout.Path }

// unfinished is in a directory from the first to the last write of a bundle, and becomes the list. So a command that
// was stopped finds its own directory again, and takes no other for it.
const unfinished = listName + ".new"

// open begins a layout in a directory that has nothing, or a bundle. Of the latter all blobs stay that are whole.
func open(dir string) (store, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return store{}, err
	}
	ours := len(entries) == 0
	for _, e := range entries {
		if !slices.Contains([]string{"blobs", "index.json", "oci-layout", listName, unfinished, filesDir}, e.Name()) {
			return store{}, fmt.Errorf("%s has %s, which is of no bundle: name an empty directory", dir, e.Name())
		}
		ours = ours || e.Name() == listName || e.Name() == unfinished
	}
	if !ours {
		return store{}, fmt.Errorf("%s has no %s, so its %s is of no bundle: name an empty directory", dir, listName,
			entries[0].Name())
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return store{}, err
	}
	if _, err := size(dir); err != nil { // before the first write, which a link may lead elsewhere
		return store{}, err
	}
	// Without its list the directory is no bundle until all is there.
	if err := os.WriteFile(filepath.Join(dir, unfinished), nil, 0o644); err != nil {
		return store{}, err
	}
	if err := os.Remove(filepath.Join(dir, listName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return store{}, err
	}
	blobs := filepath.Join(dir, "blobs")
	if err := errors.Join(os.MkdirAll(blobs, 0o755), scrub(blobs)); err != nil {
		return store{}, err
	}
	at, err := layout.Write(dir, empty.Index)
	return store{at}, err
}

// walk calls each for all files of a bundle, by their slash-separated paths. A link is refused: what is written and
// removed through it, or read from it, is not the bundle's.
func walk(dir string, each func(at string, info fs.FileInfo) error) error {
	return fs.WalkDir(os.DirFS(dir), ".", func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is neither a file nor a directory: remove it", filepath.Join(dir, filepath.FromSlash(at)))
		}
		return each(at, info)
	})
}

// scrub removes all blobs that do not have the digest in their names, as a command leaves them that was killed.
func scrub(blobs string) error {
	return walk(blobs, func(at string, _ fs.FileInfo) error {
		file := filepath.Join(blobs, filepath.FromSlash(at))
		if compare(file, v1.Hash{Algorithm: path.Dir(at), Hex: path.Base(at)}) == nil {
			return nil
		}
		return os.Remove(file)
	})
}

func options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
}

// pull copies an image and its signature from their registry.
func (s store) pull(ctx context.Context, image string) (Image, error) {
	repository, _, err := parseName(image)
	if err != nil {
		return Image{}, err
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		return Image{}, err
	}
	manifest, err := s.copy(ctx, ref, image)
	if err != nil {
		return Image{}, err
	}
	saved := Image{Name: image, Digest: manifest.String()}
	signature, err := s.copy(ctx, repository.Tag(signatureTag(manifest)), signatureName(image))
	if said, is := errors.AsType[*transport.Error](err); is && said.StatusCode == http.StatusNotFound {
		return saved, nil
	}
	if err != nil {
		return Image{}, fmt.Errorf("its signature: %w", err)
	}
	saved.Signature = signature.String()
	return saved, nil
}

// signatureName is the name of an image's signature in the layout.
func signatureName(image string) string { return image + " signature" }

// copy copies what a reference names into the layout, under a name.
func (s store) copy(ctx context.Context, ref name.Reference, as string) (v1.Hash, error) {
	found, err := remote.Get(ref, options(ctx)...)
	if err != nil {
		return v1.Hash{}, err
	}
	annotated := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": as})
	switch {
	case found.MediaType.IsIndex():
		index, err := found.ImageIndex()
		if err != nil {
			return v1.Hash{}, err
		}
		return found.Digest, s.AppendIndex(index, annotated)
	case found.MediaType.IsImage():
		image, err := found.Image()
		if err != nil {
			return v1.Hash{}, err
		}
		return found.Digest, s.AppendImage(image, annotated)
	}
	return v1.Hash{}, fmt.Errorf("the registry has a %s there, which is no image", found.MediaType)
}

// collect removes the blobs that no image of the bundle has.
func (s store) collect() error {
	unused, err := s.GarbageCollect()
	for _, blob := range unused {
		err = cmp.Or(err, s.RemoveBlob(blob))
	}
	return err
}

// writeFiles replaces the files of a bundle.
func writeFiles(dir string, files map[string][]byte) ([]File, error) {
	if err := os.RemoveAll(filepath.Join(dir, filesDir)); err != nil {
		return nil, err
	}
	all := []File{}
	for _, at := range slices.Sorted(maps.Keys(files)) {
		f := File{Path: path.Join(filesDir, at), Digest: digest(files[at])}
		if !fs.ValidPath(at) {
			return nil, fmt.Errorf("%q is no path within a bundle", at)
		}
		to := filepath.Join(dir, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return nil, err
		}
		if err := writeFile(to, files[at]); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// flush makes all files below a directory durable. A power cut after the list would otherwise leave a list of blobs
// that are not whole.
func flush(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := root.OpenFile(at, os.O_RDWR, 0) // Windows flushes only what can be written
		if err != nil {
			return err
		}
		return cmp.Or(f.Sync(), f.Close())
	})
}

// writeFile writes a file that is there whole or not at all.
func writeFile(at string, data []byte) error {
	beside := at + path.Ext(unfinished)
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := cmp.Or(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(beside))
	}
	return os.Rename(beside, at)
}

func digest(data []byte) string {
	h, _, _ := v1.SHA256(bytes.NewReader(data)) // a reader of memory has no error
	return h.String()
}

// size returns the bytes of all files of a bundle.
func size(dir string) (total int64, err error) {
	err = walk(dir, func(_ string, info fs.FileInfo) error {
		total += info.Size()
		return nil
	})
	return total, err
}
