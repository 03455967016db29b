// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
)

// The keys in the metadata of a commit that bootc has made of an image.
const (
	metaDigest   = "ostree.manifest-digest"
	metaManifest = "ostree.manifest"
)

const (
	// layerRefs is where bootc has a ref for each layer of its images.
	layerRefs = "ostree/container/blob/"
	// baseRef holds the composed commit as well as ostree.ComposedRef does. bootc's clean-up takes the commits below
	// ostree/container/baseimage for those of deployments, and keeps their layers. Without it bootc would prune the layers
	// of a commit that no deployment has yet, and then would fail for good on the deployment.
	baseRef = "ostree/container/baseimage/" + ostree.ComposedRef
)

// layerPattern matches the digest of a layer, by any algorithm.
var layerPattern = regexp.MustCompile(`^[a-z0-9]+:[0-9a-f]+$`)

// heldRefs are all refs that hold what was composed.
var heldRefs = []string{ostree.ComposedRef, baseRef}

// lostLayer returns the ref of a commit's first layer if there is no such ref, and "" if all is well. bootc needs the
// first layer alone, and fetches the others again where they are missing. A commit that is of no image has no layers.
// No fork.
func (b *Driver) lostLayer(checksum string) (string, error) {
	texts, err := b.plain.CommitTexts(checksum)
	if err != nil || texts[metaManifest] == "" {
		return "", err
	}
	var manifest struct {
		Layers []struct {
			Digest string `json:"digest"`
		} `json:"layers"`
	}
	if err := json.Unmarshal([]byte(texts[metaManifest]), &manifest); err != nil {
		return "", fmt.Errorf("reading the manifest of %s: %w", checksum, err)
	}
	if len(manifest.Layers) == 0 || !layerPattern.MatchString(manifest.Layers[0].Digest) {
		return "", fmt.Errorf("reading the manifest of %s: its first layer has no digest", checksum)
	}
	ref := layerRefs + strings.ReplaceAll(manifest.Layers[0].Digest, ":", "_3A_")
	commit, err := b.plain.RefCommit(ref)
	if err != nil || commit != "" {
		return "", err
	}
	return ref, nil
}

// originsDir is the directory of the origin files that bootc gets to see in the place of others.
const originsDir = stateDir + ".origins"

// masks returns binds that hide from bootc that a deployment is of an image, for each deployment that has lost a layer.
// Otherwise bootc would do nothing at all on this host. To bootc such a deployment is of a plain commit. The deployment
// itself stays as it is, bootable too. One fork.
func (b *Driver) masks(ctx context.Context) ([]systemd.Bind, error) {
	if err := os.RemoveAll(b.host(originsDir)); err != nil {
		return nil, err
	}
	deployments, err := b.plain.Status(ctx)
	if err != nil {
		return nil, err
	}
	var binds []systemd.Bind
	for i, d := range deployments {
		lost, err := b.lostLayer(d.Checksum)
		if err != nil {
			return nil, err
		}
		if lost == "" || d.Staged {
			continue
		}
		source := originsDir + "/" + strconv.Itoa(i)
		err = errors.Join(os.MkdirAll(b.host(originsDir), 0o755),
			os.WriteFile(b.host(source), []byte("[origin]\nrefspec="+d.Checksum+"\n"), 0o644))
		if err != nil {
			return nil, err
		}
		binds = append(binds, systemd.Bind{Source: source, At: "/sysroot" + d.Dir + ".origin"})
	}
	return binds, nil
}
