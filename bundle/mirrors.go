// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"maps"
	"path"
	"slices"

	configv1 "github.com/openshift/api/config/v1"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
)

// mirrorsName is the name of the objects that Mirrors makes.
const mirrorsName = "noderefit-bundle"

// own are the names of Noderefit's images.
var own = []string{api.Daemon, api.Controller, api.Server}

// Mirrors returns the objects by which nodes pull the images of a bundle from the registry that they were loaded into,
// as YAML: an ImageDigestMirrorSet for all repositories, and an ImageTagMirrorSet for those with an image that a tag
// names. The result is empty if no image needs a mirror. The images of Noderefit need none: an installation names their
// registry. There is no mirrorSourcePolicy: NeverContactSource drains nodes, and containerd can't have that policy for
// a part of a registry.
func (l *List) Mirrors(registry string) ([]byte, error) {
	digests, tags := map[string]string{}, map[string]string{}
	for _, image := range l.Images {
		p, err := image.parse()
		if err != nil {
			return nil, err
		}
		at, err := p.at(registry)
		if err != nil {
			return nil, err
		}
		source, mirror := nodesName(p.repository), nodesName(at)
		if source == mirror || slices.Contains(own, path.Base(source)) {
			continue
		}
		digests[source] = mirror
		if p.tag != "" {
			tags[source] = mirror
		}
	}
	var out bytes.Buffer
	for _, set := range []struct {
		kind, field string
		from        map[string]string
	}{
		{"ImageDigestMirrorSet", "imageDigestMirrors", digests},
		{"ImageTagMirrorSet", "imageTagMirrors", tags},
	} {
		var mirrors []configv1.ImageDigestMirrors // those of tags have the same fields
		for _, source := range slices.Sorted(maps.Keys(set.from)) {
			mirrors = append(mirrors, configv1.ImageDigestMirrors{
				Source: source, Mirrors: []configv1.ImageMirror{configv1.ImageMirror(set.from[source])},
			})
		}
		if len(mirrors) == 0 {
			continue
		}
		data, err := yaml.Marshal(map[string]any{
			"apiVersion": configv1.GroupVersion.String(), "kind": set.kind,
			"metadata": map[string]any{"name": mirrorsName}, "spec": map[string]any{set.field: mirrors},
		})
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(data)
	}
	return out.Bytes(), nil
}
