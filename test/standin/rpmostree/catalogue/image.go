// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Where a host has images: below each of the first two an OCI layout for each name, such as
// Registries/quay.example/os/node for docker://quay.example/os/node.
const (
	Registries = "/var/lib/rpm-ostree-stand-in/registries"
	Storage    = "/var/lib/rpm-ostree-stand-in/containers-storage"
)

// Commits is a repository of ostree's on the host with the commits that images are based on.
const Commits = "/var/lib/rpm-ostree-stand-in/repo"

// baseAnnotation is the commit in Commits on which the image's one layer lies. Real images of an OS have the whole of
// it in layers.
const baseAnnotation = "rpm-ostree.stand-in.base"

// Image is a container image of an OS: a commit, and what lies over it.
type Image struct {
	Base    string            // checksum of a commit in Commits
	Version string            // label org.opencontainers.image.version
	Files   map[string]string // contents by absolute path; /etc is at /usr/etc
	Digest  string            // of the manifest, sha256:..., set by who writes or reads it
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	Manifests     []descriptor `json:"manifests"`
}

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	refName      = "org.opencontainers.image.ref.name"
	version      = "org.opencontainers.image.version"
)

// created is the time that every image has, so that equal ones have equal digests.
var created = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// WriteLayout writes an image into the OCI layout at dir under a tag, beside what is there, and returns its digest. A
// tag that there is moves.
func (i Image) WriteLayout(dir, tag string) (string, error) {
	digest, err := i.write(dir, tag)
	if err != nil {
		return "", fmt.Errorf("writing an image to %s: %w", dir, err)
	}
	return digest, nil
}

func (i Image) write(dir, tag string) (string, error) {
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		return "", err
	}
	layer, err := i.layer()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"created": created, "architecture": "amd64", "os": "linux",
		"config": map[string]any{"Labels": map[string]string{version: i.Version}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return "", err
	}
	m := manifest{SchemaVersion: 2, MediaType: manifestType,
		Annotations: map[string]string{baseAnnotation: i.Base, version: i.Version}}
	if m.Config, err = writeBlob(dir, configType, config); err != nil {
		return "", err
	}
	blob, err := writeBlob(dir, layerType, layer)
	if err != nil {
		return "", err
	}
	m.Layers = []descriptor{blob}
	data, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	entry, err := writeBlob(dir, manifestType, data)
	if err != nil {
		return "", err
	}
	entry.Annotations = map[string]string{refName: tag}

	all, err := readIndex(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	all.SchemaVersion = 2
	all.Manifests = slices.DeleteFunc(all.Manifests, func(d descriptor) bool { return d.Annotations[refName] == tag })
	all.Manifests = append(all.Manifests, entry)
	if data, err = json.Marshal(all); err != nil {
		return "", err
	}
	return entry.Digest, errors.Join(
		os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644),
		os.WriteFile(filepath.Join(dir, "index.json"), data, 0o644))
}

// layer is the image's layer.
func (i Image) layer() ([]byte, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	made := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(i.Files)) {
		parts := strings.Split(strings.Trim(path, "/"), "/")
		for n := 1; n < len(parts); n++ {
			dir := strings.Join(parts[:n], "/") + "/"
			if !made[dir] {
				made[dir] = true
				if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}); err != nil {
					return nil, err
				}
			}
		}
		content := i.Files[path]
		header := tar.Header{Typeflag: tar.TypeReg, Name: strings.Join(parts, "/"), Mode: 0o644, Size: int64(len(content))}
		if err := archive.WriteHeader(&header); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(archive, content); err != nil {
			return nil, err
		}
	}
	err := archive.Close()
	return buffer.Bytes(), err
}

// writeBlob adds a blob to a layout.
func writeBlob(dir, kind string, data []byte) (descriptor, error) {
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	err := os.WriteFile(filepath.Join(dir, "blobs/sha256", name), data, 0o644)
	return descriptor{MediaType: kind, Digest: "sha256:" + name, Size: len(data)}, err
}

func readIndex(dir string) (index, error) {
	var all index
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return all, err
	}
	return all, json.Unmarshal(data, &all)
}

// ErrUnknown is that there is no such image.
var ErrUnknown = errors.New("manifest unknown")

// ReadLayout finds the image with a tag or a digest (sha256:...) in the layout at dir, and says where its layer is.
// Where there is none the error is ErrUnknown.
func ReadLayout(dir, tagOrDigest string) (i Image, layer string, err error) {
	all, err := readIndex(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return i, "", ErrUnknown
	}
	if err != nil {
		return i, "", fmt.Errorf("reading the layout %s: %w", dir, err)
	}
	digest := tagOrDigest
	if !strings.HasPrefix(digest, "sha256:") {
		at := slices.IndexFunc(all.Manifests, func(d descriptor) bool { return d.Annotations[refName] == tagOrDigest })
		if at < 0 {
			return i, "", ErrUnknown
		}
		digest = all.Manifests[at].Digest
	}
	blob := func(digest string) string { return filepath.Join(dir, "blobs", strings.Replace(digest, ":", "/", 1)) }
	data, err := os.ReadFile(blob(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return i, "", ErrUnknown
	}
	var m manifest
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err == nil && len(m.Layers) != 1 {
		err = fmt.Errorf("%d layers, and the stand-in knows of one", len(m.Layers))
	}
	if err != nil {
		return i, "", fmt.Errorf("reading the layout %s: %w", dir, err)
	}
	i = Image{Base: m.Annotations[baseAnnotation], Version: m.Annotations[version], Digest: digest}
	return i, blob(m.Layers[0].Digest), nil
}
