// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/noderefit/noderefit/test/standin/bootc/fault"
)

// registries is where the images of the registries and of containers-storage are, a directory for each repository.
const registries = "/var/lib/bootc-stand-in"

// Parts of an OCI image layout.
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	index struct {
		Version   int          `json:"schemaVersion"`
		Manifests []descriptor `json:"manifests"`
	}
	manifest struct {
		Version int          `json:"schemaVersion"`
		Config  descriptor   `json:"config"`
		Layers  []descriptor `json:"layers"`
	}
	imageConfig struct {
		Architecture string `json:"architecture"`
		Created      string `json:"created"`
		Config       struct {
			Labels map[string]string `json:"Labels"` //nolint:tagliatelle // OCI's own spelling
		} `json:"config"`
	}
)

// A repository with a file of such a name in it is for those who have credentials, whatever they are, or is reached by
// a proxy alone.
const (
	privateMark = "private"
	authFile    = "/run/ostree/auth.json"
	proxiedMark = "proxied"
)

const refName = "org.opencontainers.image.ref.name"

// layout is a directory with images, and which of them is meant, by tag or by digest; "" is the only one.
type layout struct{ dir, tag, digest string }

// at finds where a reference leads.
func at(r reference) (layout, error) {
	name, digest, _ := strings.Cut(r.Image, "@")
	switch r.Transport {
	case "oci":
		dir, tag, _ := strings.Cut(r.Image, ":")
		return layout{dir: dir, tag: tag}, nil
	case "registry", "containers-storage":
		tag := "latest"
		if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
			name, tag = name[:colon], name[colon+1:]
		}
		return layout{dir: filepath.Join(registries, r.Transport, name), tag: tag, digest: digest}, nil
	}
	return layout{}, failf("Unknown transport '%s'", r.Transport)
}

func (l layout) read(d descriptor) ([]byte, error) {
	algorithm, hexed, _ := strings.Cut(d.Digest, ":")
	data, err := os.ReadFile(filepath.Join(l.dir, "blobs", algorithm, hexed))
	if err != nil {
		return nil, err
	}
	if digestOf(data) != d.Digest {
		return nil, fmt.Errorf("the blob %s is damaged", d.Digest)
	}
	return data, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// write adds a blob.
func (l layout) write(mediaType string, data []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digestOf(data), Size: len(data)}
	path := filepath.Join(l.dir, "blobs", "sha256", strings.TrimPrefix(d.Digest, "sha256:"))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return d, err
	}
	return d, os.WriteFile(path, data, 0o644)
}

func (l layout) index() (i index, err error) {
	text, err := os.ReadFile(filepath.Join(l.dir, "index.json"))
	if err == nil {
		err = json.Unmarshal(text, &i)
	}
	return i, err
}

// find is the descriptor of the manifest.
func (l layout) find() (descriptor, error) {
	i, err := l.index()
	if err != nil {
		return descriptor{}, err
	}
	for _, d := range i.Manifests {
		switch {
		case l.digest != "" && d.Digest != l.digest:
		case l.digest == "" && l.tag != "" && d.Annotations[refName] != l.tag:
		default:
			return d, nil
		}
	}
	return descriptor{}, fmt.Errorf("reading manifest %s in %s: manifest unknown", l.tag+l.digest, l.dir)
}

// pack makes an image of a commit of the host's repository.
func pack(ctx context.Context, repo string, labels []string, ref, target string) error {
	transport, name, _ := strings.Cut(target, ":")
	l, err := at(reference{Image: name, Transport: transport})
	if err != nil {
		return err
	}
	checksum, err := tool(ctx, "ostree", "--repo="+repo, "rev-parse", ref)
	if err != nil {
		return err
	}
	config := imageConfig{Architecture: runtime.GOARCH, Created: "2025-01-01T00:00:00Z"}
	config.Config.Labels = map[string]string{"ostree.commit": checksum}
	const bootable = "ostree.bootable"
	is, err := tool(ctx, "ostree", "--repo="+repo, "show", "--print-metadata-key="+bootable, checksum)
	if err == nil {
		config.Config.Labels[bootable] = is
	}
	for _, label := range labels {
		key, value, _ := strings.Cut(label, "=")
		config.Config.Labels[key] = value
	}
	var m manifest
	m.Version = 2
	layer, err := l.write("application/vnd.oci.image.layer.v1.tar", []byte(checksum+"\n"))
	if err != nil {
		return err
	}
	m.Layers = []descriptor{layer}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if m.Config, err = l.write("application/vnd.oci.image.config.v1+json", text); err != nil {
		return err
	}
	if text, err = json.Marshal(m); err != nil {
		return err
	}
	d, err := l.write("application/vnd.oci.image.manifest.v1+json", text)
	if err != nil {
		return err
	}
	i, err := l.index()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	next := index{Version: 2}
	for _, old := range i.Manifests {
		if old.Annotations[refName] == l.tag {
			old.Annotations = nil // it can still be had by its digest
		}
		if old.Digest != d.Digest && transport != "oci" {
			next.Manifests = append(next.Manifests, old)
		}
	}
	if l.tag != "" {
		d.Annotations = map[string]string{refName: l.tag}
	}
	next.Manifests = append(next.Manifests, d)
	if text, err = json.Marshal(next); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(l.dir, "index.json"), text, 0o644); err != nil {
		return err
	}
	version := []byte(`{"imageLayoutVersion":"1.0.0"}`)
	if err := os.WriteFile(filepath.Join(l.dir, "oci-layout"), version, 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, d.Digest)
	return err
}

// fetched is an image in the repository: a commit that says in its metadata what image it is.
type fetched struct {
	checksum string
	digest   string
	config   imageConfig
}

const (
	metaDigest   = "ostree.manifest-digest"
	metaManifest = "ostree.manifest"
	metaConfig   = "ostree.container.image-config"
)

// pull fetches an image into the repository, unless it is there.
func pull(ctx context.Context, r reference) (*fetched, error) {
	if err := fault.Pass(fault.Manifest); err != nil {
		return nil, err
	}
	if r.signed() && insecurePolicy() {
		return nil, failf(preparing + "containers-policy.json specifies a default of " +
			"`insecureAcceptAnything`; refusing usage")
	}
	if have, err := query(ctx, r.ref()); err == nil && strings.HasSuffix(r.Image, "@"+have.digest) {
		return have, nil // nobody is asked
	}
	l, err := at(r)
	if err != nil {
		return nil, err
	}
	d, err := l.fetch(ctx, r)
	if tagged.MatchString(r.Image) && r.Transport == "registry" {
		//nolint:staticcheck // its words
		err = errors.New("Docker references with both a tag and digest are currently not supported")
	}
	if _, proxied := os.Stat(filepath.Join(l.dir, proxiedMark)); proxied == nil && os.Getenv("HTTPS_PROXY") == "" {
		err = fmt.Errorf("pinging container registry of %s: no route to host", l.dir)
	}
	if _, private := os.Stat(filepath.Join(l.dir, privateMark)); err == nil && private == nil {
		if _, missing := os.Stat(authFile); missing != nil {
			err = fmt.Errorf("reading manifest %s in %s: authentication required", l.tag+l.digest, l.dir)
		}
	}
	if err != nil {
		return nil, failf(preparing+"failed to invoke method OpenImage: %w", err)
	}
	var m manifest
	var config imageConfig
	text, err := l.read(d)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil {
		if text, err = l.read(m.Config); err == nil {
			err = json.Unmarshal(text, &config)
		}
	}
	if err != nil || len(m.Layers) != 1 {
		return nil, failf(preparing+"%w", err)
	}
	if config.Config.Labels["containers.bootc"] == "" && config.Config.Labels["ostree.bootable"] == "" {
		return nil, failf(preparing + "Target image does not have ostree.bootable label")
	}
	ref := r.ref()
	if have, err := query(ctx, ref); err == nil && have.digest == d.Digest {
		return have, nil
	}
	tell(pulling(d.Digest, m.Layers[0], 0))
	if err := fault.Pass(fault.Layers); err != nil {
		return nil, err
	}
	tell(pulling(d.Digest, m.Layers[0], 1))
	tell(steps("importing", "Importing Image", d.Digest, 0, "importing"))
	layer, err := l.read(m.Layers[0])
	if err != nil {
		return nil, failf("Pulling: Importing: %w", err)
	}
	base := strings.TrimSpace(string(layer))
	if _, err := tool(ctx, "ostree", "refs", "--force", "--create="+m.Layers[0].ref(), base); err != nil {
		return nil, failf("Pulling: Importing: %w", err)
	}
	manifest, err := l.read(d)
	if err != nil {
		return nil, failf("Pulling: Importing: %w", err)
	}
	checksum, err := tool(ctx, "ostree", "commit", "--branch="+ref, "--tree=ref="+base,
		"--no-bindings", "--timestamp="+config.Created, "--add-metadata-string="+metaDigest+"="+d.Digest,
		"--add-metadata-string="+metaManifest+"="+string(manifest), "--add-metadata-string="+metaConfig+"="+string(text))
	if err != nil {
		return nil, failf("Pulling: Importing: %w", err)
	}
	tell(steps("importing", "Importing Image", d.Digest, 1, "importing"))
	return &fetched{checksum: checksum, digest: d.Digest, config: config}, nil
}

// insecurePolicy says whether the host's policy accepts by default whatever there is. bootc fails without a policy; the
// hosts of the lab have none, and that counts as the policy which distributions ship.
func insecurePolicy() bool {
	text, err := os.ReadFile("/etc/containers/policy.json")
	if errors.Is(err, fs.ErrNotExist) {
		text, err = os.ReadFile("/usr/share/containers/policy.json")
	}
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	var policy struct {
		Default []struct {
			Type string `json:"type"`
		} `json:"default"`
	}
	return json.Unmarshal(text, &policy) != nil ||
		len(policy.Default) == 1 && policy.Default[0].Type == "insecureAcceptAnything"
}

// query reads what image a commit is, named by its checksum or a ref. The first layer of the image has to be there.
func query(ctx context.Context, commit string) (*fetched, error) {
	checksum, err := tool(ctx, "ostree", "rev-parse", commit)
	if err != nil {
		return nil, err
	}
	digest, err := meta(ctx, metaDigest, checksum)
	if err != nil {
		return nil, failf("Reading manifest data from commit: Missing ostree.manifest-digest metadata on merge commit")
	}
	m, err := manifestOf(ctx, checksum)
	if err != nil {
		return nil, failf("Reading manifest data from commit: %w", err)
	}
	if _, err := tool(ctx, "ostree", "rev-parse", m.Layers[0].ref()); err != nil {
		return nil, failf("Missing base image ref %s", m.Layers[0].ref())
	}
	text, err := meta(ctx, metaConfig, checksum)
	if err != nil {
		return nil, err
	}
	f := &fetched{checksum: checksum, digest: digest}
	return f, json.Unmarshal([]byte(text), &f.config)
}

func meta(ctx context.Context, key, checksum string) (string, error) {
	text, err := tool(ctx, "ostree", "show", "--print-metadata-key="+key, checksum)
	return strings.ReplaceAll(strings.Trim(text, "'"), `\'`, `'`), err
}

// manifestOf is the manifest of the image that a commit is.
func manifestOf(ctx context.Context, checksum string) (m manifest, err error) {
	text, err := meta(ctx, metaManifest, checksum)
	if err == nil {
		err = json.Unmarshal([]byte(text), &m)
	}
	if err == nil && len(m.Layers) == 0 {
		err = errors.New("No layers found") //nolint:staticcheck // its words
	}
	return m, err
}

const (
	// imageRefs, layerRefs and baseRefs are where the refs of images are, of their layers, and of commits whose layers
	// others want to keep.
	imageRefs = "ostree/container/image"
	layerRefs = "ostree/container/blob"
	baseRefs  = "ostree/container/baseimage"

	// preparing is what bootc does before it has an image's manifest.
	preparing = "Preparing import: Fetching manifest: "
)

// ref is the ref that holds a layer.
func (d descriptor) ref() string { return layerRefs + "/" + escaped(d.Digest) }

// podman is the reference as podman is asked for it.
func (r reference) podman() string {
	if r.Transport == "registry" {
		return r.Image
	}
	return r.Transport + ":" + r.Image
}

// ref is the ref that holds an image.
func (r reference) ref() string {
	from := r.Transport + ":"
	if r.Transport == "registry" {
		from = "docker://"
	}
	return imageRefs + "/" + escaped(from+r.Image)
}

// escaped makes a part of a ref of any text. A slash after a letter or a digit stays, and a _ is doubled.
func escaped(text string) string {
	var name strings.Builder
	word := false
	for i, c := range []byte(text) {
		before := word
		word = c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		switch {
		case word, c == '-', c == '/' && before && i < len(text)-1:
			name.WriteByte(c)
		case c == '_':
			name.WriteString("__")
		default:
			fmt.Fprintf(&name, "_%02X_", c)
		}
	}
	return name.String()
}
