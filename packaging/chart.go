// SPDX-License-Identifier: Apache-2.0

// Package packaging carries the Helm chart for programs that install it without a checkout. In the chart's folder links
// stand for the files that the chart shares with kustomize and with package api. The go command embeds no links, so
// Chart joins the files themselves.
package packaging

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

//go:embed all:helm/noderefit
//go:embed kustomize/base/objects kustomize/base/namespace.yaml kustomize/pools/pools.yaml
//go:embed kustomize/templates/controllerconfig.yaml kustomize/page/rbac-page.yaml kustomize/server/rbac-server.yaml
//go:embed kustomize/monitoring/podmonitor.yaml kustomize/monitoring/prometheusrule.yaml
//go:embed kustomize/monitoring/network-monitoring.yaml kustomize/server/network-server.yaml
//go:embed packages/postremove.sh packages/state.sh
var embedded embed.FS

// linked says where each link of the chart leads, below kustomize; a folder stands for all files in it. The link crds
// is not among them: the definitions are api.CRDs.
var linked = map[string]string{
	"templates/objects":             "base/objects",
	"files/namespace.yaml":          "base/namespace.yaml",
	"files/pools.yaml":              "pools/pools.yaml",
	"files/controllerconfig.yaml":   "templates/controllerconfig.yaml",
	"files/network-monitoring.yaml": "monitoring/network-monitoring.yaml",
	"files/network-server.yaml":     "server/network-server.yaml",
	"files/podmonitor.yaml":         "monitoring/podmonitor.yaml",
	"files/prometheusrule.yaml":     "monitoring/prometheusrule.yaml",
	"files/rbac-page.yaml":          "page/rbac-page.yaml",
	"files/rbac-server.yaml":        "server/rbac-server.yaml",
}

// Chart returns the files of the chart but the definitions, by their paths in the chart.
func Chart() (map[string][]byte, error) {
	all := map[string][]byte{}
	if err := join(all, "", "helm/noderefit"); err != nil {
		return nil, err
	}
	for at, from := range linked {
		if err := join(all, at, "kustomize/"+from); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// join adds a file, or all files below a folder, at a place of the chart.
func join(all map[string][]byte, at, from string) error {
	err := fs.WalkDir(embedded, from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := embedded.ReadFile(name)
		all[strings.TrimPrefix(path.Join(at, strings.TrimPrefix(name, from)), "/")] = data
		return err
	})
	if err != nil {
		return fmt.Errorf("reading %s of the program's own chart: %w", from, err)
	}
	return nil
}

// HostRemoval returns the shell script that takes the agent away from a host: that of the packages after their removal,
// whose first argument is purge.
func HostRemoval() (string, error) {
	script, err := embedded.ReadFile("packages/postremove.sh")
	if err != nil {
		return "", fmt.Errorf("reading the program's own script of a removal: %w", err)
	}
	state, err := embedded.ReadFile("packages/state.sh")
	if err != nil {
		return "", fmt.Errorf("reading the program's own script of a removal: %w", err)
	}
	return strings.Replace(string(script), "\n. ./state.sh\n", "\n"+string(state), 1), nil
}
