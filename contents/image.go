// SPDX-License-Identifier: Apache-2.0

package contents

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"runtime"
	"strings"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/registries"
)

// maxManifest is the largest size of a manifest.
const maxManifest = 4 << 20

// fetchImage brings the one layer of an image: from a mirror that the host has for it, or from its registry.
func (f *fetcher) fetchImage(ctx context.Context, r *machineconfig.Reference) error {
	registry, repository, digest, _ := r.Image()
	text, err := f.root.ReadFile(registries.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	conf, err := registries.Parse(text)
	if err != nil {
		return failure{ostree.NeedsAdmin, fmt.Errorf("reading %s: %w", registries.Path, err)}
	}
	places, err := conf.Pull(registry + "/" + repository)
	if err != nil {
		return failure{ostree.NeedsAdmin, err}
	}
	var failed []error
	for _, place := range places {
		err := f.fetchLayer(ctx, r, place, digest)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if place != registry+"/"+repository {
			err = fmt.Errorf("mirror %s: %w", place, err)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// fetchLayer brings the one layer of an image from a repository.
func (f *fetcher) fetchLayer(ctx context.Context, r *machineconfig.Reference, place, digest string) error {
	host, repository := registries.Split(place)
	if host == "docker.io" {
		host = "registry-1.docker.io"
	}
	trip := &login{base: f.base, host: host, scope: "repository:" + repository + ":pull"}
	var err error
	if trip.user, trip.password, err = osimage.Login(f.root.ReadFile, place); err != nil {
		return failure{ostree.NeedsAdmin, err}
	}
	client, at := clientOf(trip), "https://"+host+"/v2/"+repository
	layer, err := oneLayer(ctx, client, at, digest, true)
	if err != nil {
		return err
	}
	return f.bring(ctx, r, []source{{client: client, url: at + "/blobs/" + layer, digest: layer}})
}

// descriptor is what a manifest says of a part.
type descriptor struct {
	Digest   string `json:"digest"`
	Platform struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// oneLayer returns the digest of the one layer that an image has. index means that the image may be an index of
// one for each architecture.
func oneLayer(ctx context.Context, client *http.Client, at, digest string, index bool) (string, error) {
	data, err := manifest(ctx, client, at+"/manifests/"+digest, digest)
	if err != nil {
		return "", err
	}
	var found struct {
		Layers    []descriptor `json:"layers"`
		Manifests []descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(data, &found); err != nil {
		return "", failure{ostree.Invalid, fmt.Errorf("reading the manifest: %w", err)}
	}
	if index && len(found.Manifests) > 0 {
		for _, m := range found.Manifests {
			if m.Platform.OS == "linux" && m.Platform.Architecture == runtime.GOARCH {
				return oneLayer(ctx, client, at, m.Digest, false)
			}
		}
		return "", failure{ostree.Invalid, fmt.Errorf("the index has no manifest for linux/%s", runtime.GOARCH)}
	}
	if len(found.Layers) != 1 {
		return "", failure{ostree.Invalid, fmt.Errorf("the manifest has %d layers, and the contents of a file are one",
			len(found.Layers))}
	}
	layer := found.Layers[0].Digest
	if !strings.HasPrefix(layer, "sha256:") || !osimage.IsDigest(layer) {
		return "", failure{ostree.Invalid, errors.New("the digest of the layer in the manifest is not one of sha256")}
	}
	return layer, nil
}

// manifest returns a manifest, verified by its digest.
func manifest(ctx context.Context, client *http.Client, url, digest string) ([]byte, error) {
	ctx, stop := context.WithTimeout(ctx, stall)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, failure{ostree.Invalid, err}
	}
	req.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, "+
		"application/vnd.docker.distribution.manifest.v2+json, "+
		"application/vnd.docker.distribution.manifest.list.v2+json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, away(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, answered(resp)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return nil, away(ctx, err)
	}
	sum := sha256.Sum256(data)
	if got := "sha256:" + hex.EncodeToString(sum[:]); len(data) > maxManifest || !strings.EqualFold(got, digest) {
		return nil, failure{ostree.Invalid, fmt.Errorf("the manifest has the digest %s, and %s is wanted", got, digest)}
	}
	return data, nil
}
