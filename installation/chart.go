// SPDX-License-Identifier: Apache-2.0

// Package installation is Noderefit itself in a cluster: what an installation has, and in which order it goes in.
// What it has is what the Helm chart makes, which the program carries.
//
//	release, err := installation.NewRelease(version, registry)
//	...
//	objects, err := release.Render(values)
//	...
//	c, err := installation.Connect(config, version, os.Stdout)
//	...
//	err = c.Install(ctx, installation.Install{Release: release, Values: values})
package installation

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/packaging"
)

// Values are what people set of the chart's values.
type Values = map[string]any

// ReadValues reads the values of a command line: files, later ones over earlier ones, settings as NAME=VALUE over
// these, and the registry of the images. base is below all of them, and is not changed.
func ReadValues(base Values, files, settings []string, registry string,
	read func(string) ([]byte, error),
) (Values, error) {
	values := loader.MergeMaps(base, Values{})
	for _, file := range files {
		data, err := read(file)
		if err != nil {
			return nil, fmt.Errorf("flag --values: %w", err)
		}
		more, err := loader.LoadValues(bytes.NewReader(data))
		if err != nil {
			return nil, cli.Usagef("flag --values: reading %s: %w", file, err)
		}
		values = loader.MergeMaps(values, more)
	}
	for _, setting := range settings {
		more, err := strvals.Parse(setting)
		if err != nil {
			return nil, cli.Usagef("flag --set: %q: %w", setting, err)
		}
		values = loader.MergeMaps(values, more)
	}
	if registry != "" {
		values = loader.MergeMaps(values, Values{"image": Values{"registry": registry}})
	}
	return values, nil
}

// Release is a version of Noderefit, with the chart that the program carries.
type Release struct {
	// Version is that of the program.
	Version string
	files   map[string][]byte
	chart   *chart.Chart
}

// NewRelease returns the release that a program of a version carries, with the registry in which its images are; an
// empty registry has to be set by people.
func NewRelease(version, registry string) (*Release, error) {
	files, err := packaging.Chart()
	if err != nil {
		return nil, err
	}
	entries, err := api.CRDs.ReadDir("crds")
	if err != nil {
		return nil, fmt.Errorf("reading the program's own definitions: %w", err)
	}
	for _, entry := range entries {
		if files["crds/"+entry.Name()], err = api.CRDs.ReadFile("crds/" + entry.Name()); err != nil {
			return nil, fmt.Errorf("reading the program's own definitions: %w", err)
		}
	}
	r := &Release{Version: version, files: stamped(files, version, registry)}
	var all []*archive.BufferedFile
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		all = append(all, &archive.BufferedFile{Name: name, Data: r.files[name]})
	}
	if r.chart, err = loader.LoadFiles(all); err != nil {
		return nil, fmt.Errorf("reading the program's own chart: %w", err)
	}
	return r, nil
}

// Files returns the files of the chart by their paths.
func (r *Release) Files() map[string][]byte { return r.files }

// Patterns of stamped.
var (
	chartVersion    = regexp.MustCompile(`(?m)^version: .*`)
	chartAppVersion = regexp.MustCompile(`(?m)^appVersion: .*`)
	noRegistry      = regexp.MustCompile(`(?m)^  registry: ""$`)
	partOf          = regexp.MustCompile(`(?m)^( *labels:\n)( *)(app\.kubernetes\.io/part-of: noderefit)$`)
	metadata        = regexp.MustCompile(`(?m)^metadata:$`)
	labels          = regexp.MustCompile(`(?m)^  labels:$`)
)

// stamped writes a version into a chart, as packaging/release.sh does: into Chart.yaml, which gives images their tag,
// and onto each object but the pools. What is no version, as that of a program that go build made, leaves all as it is.
func stamped(files map[string][]byte, version, registry string) map[string][]byte {
	out := maps.Clone(files)
	if registry != "" {
		out["values.yaml"] = noRegistry.ReplaceAll(out["values.yaml"], []byte("  registry: "+registry))
	}
	if parsed(version) == nil {
		return out
	}
	out["Chart.yaml"] = chartVersion.ReplaceAll(out["Chart.yaml"], []byte("version: "+strings.TrimPrefix(version, "v")))
	out["Chart.yaml"] = chartAppVersion.ReplaceAll(out["Chart.yaml"], []byte("appVersion: "+version))
	line := "app.kubernetes.io/version: " + version
	for name, data := range out {
		switch folder, _, _ := strings.Cut(name, "/"); {
		case path.Ext(name) != ".yaml":
		case folder == "templates" || folder == "files":
			out[name] = partOf.ReplaceAll(data, []byte("${1}${2}${3}\n${2}"+line))
		case folder == "crds":
			if !labels.Match(data) {
				data = first(metadata, data, "metadata:\n  labels:")
			}
			out[name] = first(labels, data, "  labels:\n    app.kubernetes.io/part-of: noderefit\n    "+line)
		}
	}
	return out
}

// first replaces the first match.
func first(pattern *regexp.Regexp, data []byte, with string) []byte {
	at := pattern.FindIndex(data)
	if at == nil {
		return data
	}
	return slices.Concat(data[:at[0]], []byte(with), data[at[1]:])
}

// parsed returns a semantic version, nil where the text is none.
func parsed(version string) *semver.Version {
	v, err := semver.StrictNewVersion(strings.TrimPrefix(version, "v"))
	if err != nil || !strings.HasPrefix(version, "v") {
		return nil
	}
	return v
}

// takes refuses a Kubernetes that the chart refuses.
func (r *Release) takes(kubernetes string) error {
	constraint, err := semver.NewConstraint(r.chart.Metadata.KubeVersion)
	if err != nil {
		return fmt.Errorf("reading the program's own chart: kubeVersion: %w", err)
	}
	v, err := semver.NewVersion(kubernetes)
	if err != nil {
		return fmt.Errorf("reading the cluster's version %q: %w", kubernetes, err)
	}
	// A vendor's suffix is no release candidate.
	if plain, err := v.SetPrerelease(""); err == nil {
		v = &plain
	}
	if !constraint.Check(v) {
		return fmt.Errorf("the cluster is Kubernetes %s, and Noderefit needs %s", kubernetes, r.chart.Metadata.KubeVersion)
	}
	return nil
}

// Render returns the objects that the chart makes of people's values, definitions first, in the order in which they go
// in. It makes the namespace too, unless the values say otherwise.
func (r *Release) Render(values Values) ([]*unstructured.Unstructured, error) {
	values = loader.MergeMaps(Values{"createNamespace": true}, values)
	full, err := util.ToRenderValues(r.chart, values, common.ReleaseOptions{
		Name: "noderefit", Namespace: api.Namespace, Revision: 1, IsInstall: true,
	}, common.DefaultCapabilities)
	if err != nil {
		return nil, cli.Usagef("reading the values: %w", ownWords(err))
	}
	texts, err := engine.Render(r.chart, full)
	if err != nil {
		return nil, cli.Usagef("making the objects: %w", ownWords(err))
	}
	for name, data := range r.files {
		if strings.HasPrefix(name, "crds/") {
			texts[name] = string(data)
		}
	}
	var all []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if path.Ext(name) != ".yaml" {
			continue
		}
		objects, err := decode(texts[name])
		if err != nil {
			return nil, fmt.Errorf("making the objects of %s: %w", name, err)
		}
		all = append(all, objects...)
	}
	slices.SortStableFunc(all, func(a, b *unstructured.Unstructured) int { return stageOf(a) - stageOf(b) })
	return all, nil
}

// Images returns the references of all images that an installation of a registry may have, sorted.
func (r *Release) Images(registry string) ([]string, error) {
	objects, err := r.Render(Values{"image": Values{"registry": registry}, "server": Values{"enabled": true}})
	if err != nil {
		return nil, err
	}
	var images []string
	for _, object := range objects {
		images = append(images, imagesIn(object.Object)...)
	}
	slices.Sort(images)
	return slices.Compact(images), nil
}

// imagesIn returns the images of the containers of an object.
func imagesIn(value any) (images []string) {
	switch value := value.(type) {
	case map[string]any:
		if image, is := value["image"].(string); is && value["name"] != nil {
			images = append(images, image)
		}
		for _, field := range value {
			images = append(images, imagesIn(field)...)
		}
	case []any:
		for _, element := range value {
			images = append(images, imagesIn(element)...)
		}
	}
	return images
}

// around are the words that Helm's library puts around those of the chart, and of its schema.
var around = regexp.MustCompile(`(?s)^execution error at \([^)]*\): |^values don't meet the specifications of .*?\n- `)

// ownWords leaves of an error what the chart itself says.
func ownWords(err error) error {
	return errors.New(strings.TrimSpace(around.ReplaceAllString(err.Error(), "")))
}

func decode(text string) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

// WriteYAML writes objects as kubectl apply takes them.
func WriteYAML(w io.Writer, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		data, err := yaml.Marshal(object.Object)
		if err != nil {
			return fmt.Errorf("writing %s: %w", nameOf(object), err)
		}
		if _, err := fmt.Fprintf(w, "---\n%s", data); err != nil {
			return err
		}
	}
	return nil
}
