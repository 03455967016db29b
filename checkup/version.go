// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

// Versions are the versions of the parts of an installation, and their JSON. A version is empty where the plugin cannot
// tell it.
type Versions struct {
	api.Header

	Version int    `json:"version"`
	Plugin  string `json:"plugin"`
	// Server is the version of Kubernetes.
	Server string `json:"server,omitempty"`
	// Definitions, Controller and Agents count the objects of each version.
	Definitions map[string]int `json:"definitions,omitempty"`
	Controller  map[string]int `json:"controller,omitempty"`
	Agents      map[string]int `json:"agents,omitempty"`
	// Unsupported are pairs of versions that do not go together.
	Unsupported []string `json:"unsupported,omitempty"`
}

// PluginVersion is the version of the plugin alone.
func PluginVersion(plugin string) Versions {
	return Versions{Header: api.NewHeader("Versions"), Version: documentVersion, Plugin: plugin}
}

// Versions reads the versions of all parts. What can't be read is missing, and in the error.
func (c *Cluster) Versions(ctx context.Context) (Versions, error) {
	f := &facts{plugin: c.options.Plugin, namespace: c.options.Namespace}
	f.server.is, f.server.err = c.kube.Discovery().ServerVersion()
	if f.server.err != nil {
		return PluginVersion(f.plugin), fmt.Errorf("asking the API server for its version: %w", f.server.err)
	}
	c.readDefinitions(ctx, f)
	c.readPods(ctx, f)
	c.readDeployment(ctx, f)
	v := readVersions(f)
	for _, s := range v.skews() {
		v.Unsupported = append(v.Unsupported, s.String())
	}
	return v, errors.Join(f.definitions.err, f.pods.err, f.deployment.err)
}

// versionLabel is the label of everything that a release installs.
const versionLabel = "app.kubernetes.io/version"

// versionOf is the version in the label of an object, or else the tag of its image. It is empty where neither says one.
func versionOf(labels map[string]string, image string) string {
	if v := labels[versionLabel]; v != "" {
		return v
	}
	repository, _, _ := strings.Cut(image, "@")
	if at := strings.LastIndex(repository, ":"); at > strings.LastIndex(repository, "/") && repository[at+1:] != "latest" {
		return repository[at+1:]
	}
	return ""
}

func readVersions(f *facts) Versions {
	v := PluginVersion(f.plugin)
	v.Definitions, v.Controller, v.Agents = map[string]int{}, map[string]int{}, map[string]int{}
	if f.server.is != nil {
		v.Server = f.server.is.GitVersion
	}
	for _, crd := range f.definitions.is {
		if crd != nil {
			v.Definitions[crd.Labels[versionLabel]]++
		}
	}
	for i := range f.pods.is {
		p := &f.pods.is[i]
		image := firstImage(p.Spec.Containers)
		switch p.Labels["k8s-app"] {
		case api.Controller:
			v.Controller[versionOf(p.Labels, image)]++
		case api.Daemon:
			v.Agents[versionOf(p.Labels, image)]++
		}
	}
	if d := f.deployment.is; d != nil && len(v.Controller) == 0 {
		v.Controller[versionOf(d.Labels, firstImage(d.Spec.Template.Spec.Containers))] = 0
	}
	return v
}

func firstImage(containers []corev1.Container) string {
	if len(containers) == 0 {
		return ""
	}
	return containers[0].Image
}

// skews returns the pairs of versions that are not supported.
func (v Versions) skews() []Mismatch {
	parts := map[Part][]string{
		plugin: {v.Plugin}, Definitions: slices.Sorted(maps.Keys(v.Definitions)),
		Controller: slices.Sorted(maps.Keys(v.Controller)), Agents: slices.Sorted(maps.Keys(v.Agents)),
	}
	return Skews(parts)
}

func (v Versions) String() string {
	parts := []string{"plugin " + v.Plugin}
	for _, part := range []struct {
		name   Part
		counts map[string]int
	}{{Definitions, v.Definitions}, {Controller, v.Controller}, {Agents, v.Agents}} {
		if len(part.counts) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", part.name, sortedCounts(part.counts)))
		}
	}
	return strings.Join(parts, ", ")
}

// WriteText writes the versions for people.
func (v Versions) WriteText(w io.Writer) error {
	if v.Server == "" {
		_, err := fmt.Fprintf(w, "kubectl-refit %s\n", v.Plugin)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "plugin\t%s\n", v.Plugin)
	for _, part := range []struct {
		name   Part
		counts map[string]int
	}{{Definitions, v.Definitions}, {Controller, v.Controller}, {Agents, v.Agents}} {
		fmt.Fprintf(tw, "%s\t%s\n", part.name, cmp.Or(sortedCounts(part.counts), "not installed"))
	}
	fmt.Fprintf(tw, "server\tKubernetes %s\n", v.Server)
	for _, text := range v.Unsupported {
		fmt.Fprintf(tw, "warning: %s\n", text)
	}
	return tw.Flush()
}
