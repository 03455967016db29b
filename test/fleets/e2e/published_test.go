// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// published has the documents that people pass on about MachineConfigs, as they wrote them, by name.
func published(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, "machineconfig/testdata/published.yaml"))
	must(t, err)
	out := map[string]string{}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		var object struct {
			Metadata struct{ Name string }
		}
		must(t, yaml.Unmarshal([]byte(document), &object))
		out[object.Metadata.Name] = document
	}
	return out
}

// coreKey is a key for the user that everybody's hosts have.
const coreKey = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 99-worker-ssh
  labels:
    machineconfiguration.openshift.io/role: worker
spec:
  config:
    ignition:
      version: 3.2.0
    passwd:
      users:
      - name: core
        sshAuthorizedKeys:
        - ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJbR2lPgqIxKpmxSTC1kZ8nOQ4Xt0mUc1fD0yJ0uVQ5R admin@example
`

// What people pass on to each other, with the commands that stand beside it, does here what they say that it does. The
// steps share one fleet; each begins where the one before ended.
func TestWhatPeopleHavePublishedWorksOnRealNodes(t *testing.T) {
	ctx, f := start(t, fleet.Options{Hosts: []string{"w0", "w1"}})
	documents := published(t)
	for _, step := range []struct {
		name string
		run  func(context.Context, *testing.T, *fleet.Fleet, map[string]string)
	}{
		{"time servers, a script, a kernel argument, and a pool of infra nodes", publishedPools},
		{"huge pages for a master", publishedHugePages},
		{"a pool that is paused for a while, an SSH key, and a mirror", publishedPause},
		{"a realtime kernel where there is none to be had", publishedRealtime},
		{"a rendered configuration that somebody deletes", publishedDeletion},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the step takes too long"))
			defer cancel()
			step.run(ctx, t, f, documents)
		})
		if !ok {
			t.FailNow()
		}
	}
}

// settled waits until a pool has rendered and its nodes are at what it rendered.
func settled(ctx context.Context, t *testing.T, f *fleet.Fleet, pool string, nodes ...string) {
	t.Helper()
	must(t, fleet.Until(ctx, "pool "+pool+" is settled on "+strings.Join(nodes, ", "),
		func(ctx context.Context) (bool, string, error) {
			p, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(ctx, pool, metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			for _, name := range nodes {
				says, _, err := f.Says(ctx, name)
				if err != nil || says.Current != p.Spec.Configuration.Name || says.State != api.Done {
					return false, says.Reason, err
				}
			}
			return p.Status.ObservedGeneration == p.Generation && fleet.Updated(len(nodes))(p), "", nil
		}))
}

// asked waits until a pool's configuration was made of all of these MachineConfigs and of none of the others.
func asked(ctx context.Context, t *testing.T, f *fleet.Fleet, pool string, of ...string) {
	t.Helper()
	must(t, f.WaitPool(ctx, pool, "made of "+strings.Join(of, ", "), func(p *mcfgv1.MachineConfigPool) bool {
		var names []string
		for _, source := range p.Spec.Configuration.Source {
			names = append(names, source.Name)
		}
		slices.Sort(names)
		return slices.Equal(names, slices.Sorted(slices.Values(of)))
	}))
}

func arguments(ctx context.Context, t *testing.T, n *fleet.Node) string {
	t.Helper()
	text, err := n.Output(ctx, "sh", "-c", "tr '\\0' ' ' </proc/1/cmdline")
	must(t, err)
	return text
}

func reads(ctx context.Context, t *testing.T, n *fleet.Node, path, prefix string) {
	t.Helper()
	if text, err := n.Output(ctx, "cat", path); err != nil || !strings.HasPrefix(text, prefix) {
		t.Errorf("%s on %s: %q, %v", path, n.Name, text, err)
	}
}

func lacks(ctx context.Context, t *testing.T, n *fleet.Node, path string) {
	t.Helper()
	if _, _, exit, err := n.Exec(ctx, nil, "test", "-e", path); err != nil || exit == 0 {
		t.Errorf("%s is on %s: %d, %v", path, n.Name, exit, err)
	}
}

const script = "/usr/local/bin/kubeinit_kubevirt_extra_config_script"

func publishedPools(ctx context.Context, t *testing.T, f *fleet.Fleet, documents map[string]string) {
	w0, w1, booted := f.Node("w0"), f.Node("w1"), boots(f)
	workers := []string{"50-examplecorp-chrony", "99-kubeinit-extra-config-worker", "05-worker-kernelarg-selinuxoff",
		"test-file"}
	var all []string
	for _, name := range append([]string{"infra", "50-infra"}, workers...) {
		all = append(all, documents[name])
	}
	// Paused, the nodes take all of it in one go, however long it takes to apply.
	_, err := f.Kubectl(ctx, "patch", "--type=merge", `--patch={"spec":{"paused":true}}`, "machineconfigpool/worker")
	must(t, err, f.Apply(ctx, strings.Join(all, "\n---\n")))
	workers = append(workers, "00-worker")
	asked(ctx, t, f, "worker", workers...)
	asked(ctx, t, f, "infra", append([]string{"50-infra"}, workers...)...)
	_, err = f.Kubectl(ctx, "label", "node", "w1", "node-role.kubernetes.io/worker-")
	must(t, err)
	_, err = f.Kubectl(ctx, "label", "node", "w1", "node-role.kubernetes.io/infra=")
	must(t, err)
	settled(ctx, t, f, "infra", "w1")
	if w0.Boots() != booted["w0"] {
		t.Errorf("w0 of the paused pool has booted")
	}
	_, err = f.Kubectl(ctx, "patch", "--type=merge", `--patch={"spec":{"paused":false}}`, "machineconfigpool/worker")
	must(t, err)
	settled(ctx, t, f, "worker", "w0")
	bootedOnce(t, f, booted, "w0", "w1")
	for _, n := range []*fleet.Node{w0, w1} {
		reads(ctx, t, n, "/etc/chrony.conf", "server foo.example.net maxdelay 0.4 offline\n")
		reads(ctx, t, n, script, "#!/usr/bin/bash\n")
		reads(ctx, t, n, "/etc/test", "hello world\n")
		if text, err := n.Output(ctx, "stat", "-c", "%a", script); err != nil || strings.TrimSpace(text) != "755" {
			t.Errorf("mode of the script on %s: %q, %v", n.Name, text, err)
		}
		if text := arguments(ctx, t, n); !strings.Contains(text, " selinux=0") {
			t.Errorf("%s was started with %s", n.Name, text)
		}
	}
	reads(ctx, t, w1, "/etc/testinfra", "test")
	lacks(ctx, t, w0, "/etc/testinfra")
}

func publishedHugePages(ctx context.Context, t *testing.T, f *fleet.Fleet, documents map[string]string) {
	w1, booted := f.Node("w1"), boots(f)
	must(t, f.Apply(ctx, strings.ReplaceAll(documents["infra"], "infra", "master")),
		f.Apply(ctx, documents["99-master-kargs-hugepage"]))
	asked(ctx, t, f, "master", "00-worker", "05-worker-kernelarg-selinuxoff", "50-examplecorp-chrony",
		"99-kubeinit-extra-config-worker", "99-master-kargs-hugepage", "test-file")
	_, err := f.Kubectl(ctx, "label", "node", "w1", "node-role.kubernetes.io/infra-", "node-role.kubernetes.io/master=")
	must(t, err)
	settled(ctx, t, f, "master", "w1")
	bootedOnce(t, f, booted, "w1")
	// The order of the three means something to the kernel.
	text := arguments(ctx, t, w1)
	if !strings.Contains(text, " default_hugepagesz=1G hugepagesz=1G hugepages=32") || !strings.Contains(text, " selinux=0") {
		t.Errorf("w1 was started with %s", text)
	}
	lacks(ctx, t, w1, "/etc/testinfra")
}

func publishedPause(ctx context.Context, t *testing.T, f *fleet.Fleet, documents map[string]string) {
	w0, booted := f.Node("w0"), boots(f)
	_, err := f.Kubectl(ctx, "patch", "--type=merge", `--patch={"spec":{"paused":true}}`, "machineconfigpool/worker")
	must(t, err)
	_, after := change(ctx, t, f, coreKey)
	must(t, f.WaitPool(ctx, "worker", "says that it is paused", func(p *mcfgv1.MachineConfigPool) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c mcfgv1.MachineConfigPoolCondition) bool {
			return c.Type == mcfgv1.MachineConfigPoolUpdating && c.Status == corev1.ConditionFalse &&
				strings.Contains(c.Message, "paused; will not update to "+after)
		})
	}))
	const keys = "/home/core/.ssh/authorized_keys.d/ignition"
	lacks(ctx, t, w0, keys)
	_, err = f.Kubectl(ctx, "patch", "--type=merge", `--patch={"spec":{"paused":false}}`, "machineconfigpool/worker")
	must(t, err)
	settled(ctx, t, f, "worker", "w0")
	settled(ctx, t, f, "master", "w1")
	reads(ctx, t, w0, keys, "ssh-ed25519 AAAA")
	_, _ = change(ctx, t, f, documents["tmp"])
	settled(ctx, t, f, "worker", "w0")
	reads(ctx, t, w0, "/etc/containers/registries.conf", "[[registry]]")
	settled(ctx, t, f, "master", "w1")
	if !maps.Equal(boots(f), booted) {
		t.Errorf("a key or a mirror takes no reboot: %v, %v before", boots(f), booted)
	}
}

func publishedRealtime(ctx context.Context, t *testing.T, f *fleet.Fleet, documents map[string]string) {
	booted := boots(f)
	_, _ = change(ctx, t, f, documents["99-worker-realtime"])
	must(t, f.WaitNodeSays(ctx, "w0", "says what can't be done, and serves", func(says api.Node, n *corev1.Node) bool {
		return says.State == api.Unreconcilable && strings.Contains(says.Reason, "kernelType") && !n.Spec.Unschedulable
	}))
	if text, _, err := f.Refit(ctx, "explain", "w0"); err != nil || !strings.Contains(text, "kernelType") {
		t.Errorf("explain: %s, %v", text, err)
	}
	remove(ctx, t, f, "99-worker-realtime")
	settled(ctx, t, f, "worker", "w0")
	settled(ctx, t, f, "master", "w1")
	if !maps.Equal(boots(f), booted) {
		t.Errorf("booted: %v, %v before", boots(f), booted)
	}
}

func publishedDeletion(ctx context.Context, t *testing.T, f *fleet.Fleet, _ map[string]string) {
	config, err := f.Configuration(ctx, "worker")
	must(t, err)
	booted := boots(f)
	old, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(ctx, config, metav1.GetOptions{})
	must(t, err)
	remove(ctx, t, f, config)
	must(t, fleet.Until(ctx, "the rendered configuration is back", func(ctx context.Context) (bool, string, error) {
		mc, err := f.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(ctx, config, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, "it is not there", nil
		}
		if err != nil {
			return false, "", err
		}
		c, err := machineconfig.Parse(mc)
		return err == nil && mc.UID != old.UID && machineconfig.NamedBy(config, c.Digest), mc.Name, err
	}))
	settled(ctx, t, f, "worker", "w0")
	if !maps.Equal(boots(f), booted) {
		t.Errorf("booted: %v, %v before", boots(f), booted)
	}
}
