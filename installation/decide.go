// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"errors"
	"fmt"
	"strings"

	"github.com/noderefit/noderefit/api"
)

// phase is how far the plugin has come with an installation.
type phase string

// A command that was killed leaves an installation that is not installed, and goes on from there.
const (
	installing phase = "Installing"
	upgrading  phase = "Upgrading"
	installed  phase = "Installed"
	removing   phase = "Removing"
)

// record is what the plugin notes of an installation, in the ConfigMap recordName.
type record struct {
	// Version is the one that goes in, or is in. From are the others that may be at work during an upgrade.
	Version string   `json:"version"`
	From    []string `json:"from,omitempty"`
	Phase   phase    `json:"phase"`
	// Values are what people set. A command that goes on, and an upgrade, begin with them.
	Values Values `json:"values,omitempty"`
	// Objects are those of the installation, during an upgrade those of all versions.
	Objects []reference `json:"objects,omitempty"`
}

const recordName = "noderefit-installation"

// helmRelease is a release that Helm has made of the chart.
type helmRelease struct{ name, namespace string }

// found is what a cluster has, as the decisions need it.
type found struct {
	// openShift says by what the cluster is known for an OpenShift; empty: it is none.
	openShift string
	// strangers are objects of the names of ours that somebody else's program is behind, such as an MCO of its own.
	strangers []string
	// record is nil where the plugin has not installed.
	record *record
	// helm is the release that the objects belong to.
	helm *helmRelease
	// others are objects of Noderefit's that neither the plugin nor Helm has made: kustomize, or kubectl apply.
	others []string
}

// foreign refuses a cluster that another machine-config-operator belongs to.
func (f *found) foreign() error {
	switch {
	case f.openShift != "":
		return fmt.Errorf("this cluster is an OpenShift: %s; its machine-config-operator does this job, and the two must "+
			"not run side by side", f.openShift)
	case len(f.strangers) > 0:
		return fmt.Errorf("another machine-config-operator is installed: %s does not belong to Noderefit; remove it first",
			strings.Join(f.strangers, ", "))
	}
	return nil
}

// byOthers refuses to touch what Helm or somebody with kubectl has installed.
func (f *found) byOthers() error {
	switch {
	case f.record != nil:
		return nil
	case f.helm != nil:
		return fmt.Errorf("release %s of Helm in namespace %s has installed Noderefit here: go on with helm upgrade %[1]s "+
			"--namespace %[2]s", f.helm.name, f.helm.namespace)
	case len(f.others) > 0:
		return fmt.Errorf("kustomize or kubectl apply has installed Noderefit here (%s): go on with kubectl apply "+
			"--server-side of the new version's manifests", some(f.others))
	}
	return nil
}

// decideInstall decides whether a version with these values may go in. Where changed is true, people have said values
// that are not those of the record. definitions are the versions of the definitions in the cluster, which an
// uninstallation leaves.
func decideInstall(f *found, definitions []string, version string, changed bool) error {
	if err := errors.Join(f.foreign(), f.byOthers()); err != nil {
		return err
	}
	for _, v := range definitions {
		if f.record == nil && newer(v, version) {
			return fmt.Errorf("the definitions in this cluster are of version %s, as an uninstallation leaves them, and this "+
				"program is %s: older definitions would drop fields of your objects; install %[1]s or a newer version", v, version)
		}
	}
	switch r := f.record; {
	case r == nil:
		return nil
	case r.Phase == removing:
		return errors.New("an uninstallation has begun and has not ended: end it with kubectl refit uninstall")
	case r.Phase == upgrading:
		return fmt.Errorf("an upgrade to the version %s of Noderefit has begun and has not ended: go on with kubectl refit "+
			"upgrade", r.Version)
	case r.Version != version:
		return fmt.Errorf("the version %s of Noderefit is installed already, and this program is %s: use kubectl refit "+
			"upgrade", r.Version, version)
	case changed && r.Phase == installed:
		return fmt.Errorf("the version %s of Noderefit is installed already, with other values: use kubectl refit upgrade",
			r.Version)
	}
	return nil
}

// some lists names, and counts those that are too many for a line.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Labels of all objects of an installation.
const (
	partOfLabel  = "app.kubernetes.io/part-of"
	partOfValue  = "noderefit"
	versionLabel = "app.kubernetes.io/version"
)

// workloads are the objects by which an installation is known, and which an MCO of another origin would have too.
var workloads = []reference{
	{"apps", "v1", "Deployment", api.Namespace, "machine-config-operator"},
	{"apps", "v1", "Deployment", api.Namespace, api.Controller},
	{"apps", "v1", "DaemonSet", api.Namespace, api.Daemon},
	{"apps", "v1", "DaemonSet", api.Namespace, api.Server},
}
