// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/installation"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// removed takes the agent from hosts after kubectl has removed the rest. Nothing comes after it.
func removed(ctx context.Context, t *testing.T, s *scene) {
	const ours = "app.kubernetes.io/part-of=noderefit"
	for _, kinds := range []string{
		"deployments,daemonsets,poddisruptionbudgets,serviceaccounts,roles,rolebindings",
		"validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings",
	} {
		_, err := s.Kubectl(ctx, "delete", kinds, "--all-namespaces", "--selector", ours)
		must(t, err)
	}
	said := &strings.Builder{}
	c, err := installation.Connect(s.Config, "v1", said)
	must(t, err)
	release, err := installation.NewRelease("v1", "")
	must(t, err)
	registry, _, _ := strings.Cut(s.images.Ref(api.Daemon, "v1"), "/"+api.Daemon+":")
	err = c.Uninstall(ctx, installation.Removal{Change: installation.Change{
		Release: release, Values: func(base installation.Values) (installation.Values, error) {
			return installation.ReadValues(base, nil, []string{"image.tag=v1"}, registry, os.ReadFile)
		},
	}}, false, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	for _, name := range s.all() {
		left, err := s.Node(name).Output(ctx, "sh", "-c", traces)
		if err != nil || strings.TrimSpace(left) != "" {
			t.Errorf("%s has %s: %v", name, left, err)
		}
		kept, err := s.Node(name).Output(ctx, "cat", "/etc/00-worker.conf")
		if err != nil || kept == "" {
			t.Errorf("%s lost its configuration: %q, %v", name, kept, err)
		}
		unmarked(ctx, t, s.Fleet, name)
	}
}

// traces prints what is left of the agent on a host.
const traces = "find /etc/systemd /var/lib/machine-config-daemon /run/machine-config-daemon " +
	"-name '*machine-config-daemon*' -o -name '*noderefit*' 2>/dev/null; " +
	"systemctl list-units --all --no-legend 'machine-config-daemon*' 'noderefit*'; true"

// unmarked wants a Node that serves and has nothing of ours.
func unmarked(ctx context.Context, t *testing.T, f *fleet.Fleet, name string) {
	t.Helper()
	node, err := f.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	for key := range node.Annotations {
		if api.Owned(key) {
			t.Errorf("Node %s still has %s", name, key)
		}
	}
	if node.Spec.Unschedulable {
		t.Errorf("Node %s is cordoned", name)
	}
}
