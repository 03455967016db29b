// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	operatorv1 "github.com/openshift/api/operator/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// policies has one entry for each action. %s is the action of /etc/policy/quiet.
const policies = `apiVersion: operator.openshift.io/v1
kind: MachineConfiguration
metadata:
  name: cluster
spec:
  managementState: Managed
  nodeDisruptionPolicy:
    files:
    - {path: /etc/policy/quiet, actions: [%s]}
    - {path: /etc/policy/a.conf, actions: [{type: Reload, reload: {serviceName: a.service}}]}
    - {path: /etc/policy/b.conf, actions: [{type: Restart, restart: {serviceName: b.service}}]}
    - {path: /etc/policy/c.conf, actions: [{type: None}]}
    - {path: /etc/policy/many, actions: [{type: Restart, restart: {serviceName: b.service}},
        {type: Reload, reload: {serviceName: a.service}}, {type: DaemonReload}]}
    - {path: /etc/policy/drain, actions: [{type: Drain}]}
    - {path: /etc/policy/reboot, actions: [{type: Reboot}]}
    - {path: /etc/policy/tree, actions: [{type: Reload, reload: {serviceName: b.service}}]}
    - {path: /etc/systemd/system.conf.d, actions: [{type: DaemonReload}]}
    units:
    - {name: a.service, actions: [{type: DaemonReload}, {type: Restart, restart: {serviceName: a.service}}]}
    - {name: b.service, actions: [{type: DaemonReload}, {type: Restart, restart: {serviceName: b.service}}]}
    - {name: c.service, actions: [{type: DaemonReload}, {type: Restart, restart: {serviceName: c.service}}]}
    sshkey:
      actions: [{type: Reload, reload: {serviceName: a.service}}]
`

// counted is a unit that writes what happens to it into /run/policy.log, with what its configuration says, and does not
// start while that is "fail".
const counted = `[Service]
ExecStartPre=/bin/sh -c 'if grep -qs fail /etc/policy/%N.conf; then echo "fail %N" >>/run/policy.log; exit 1; fi'
ExecStartPre=/bin/sh -c 'echo "start %N $$(cat /etc/policy/%N.conf)" >>/run/policy.log'
ExecStart=/bin/sleep infinity
ExecReload=/bin/sh -c 'echo "reload %N $$(cat /etc/policy/%N.conf)" >>/run/policy.log'
[Install]
WantedBy=multi-user.target
`

// host is what one MachineConfig says.
type host struct {
	files, units map[string]string
	key          string
}

func (h host) String() string {
	files, units := []map[string]any{}, []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(h.files)) {
		files = append(files, map[string]any{"path": name, "mode": 0o644, "overwrite": true,
			"contents": map[string]string{"source": "data:," + url.PathEscape(h.files[name])}})
	}
	for _, name := range slices.Sorted(maps.Keys(h.units)) {
		units = append(units, map[string]any{"name": name, "enabled": true, "contents": h.units[name]})
	}
	config := map[string]any{"ignition": map[string]string{"version": "3.2.0"},
		"storage": map[string]any{"files": files}, "systemd": map[string]any{"units": units}}
	if h.key != "" {
		config["passwd"] = map[string]any{"users": []map[string]any{{"name": "core", "sshAuthorizedKeys": []string{h.key}}}}
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": mcfgv1.GroupVersion.String(), "kind": "MachineConfig",
		"metadata": map[string]any{"name": "70-policy", "labels": map[string]string{api.Role: "worker"}},
		"spec":     map[string]any{"config": config},
	})
	if err != nil {
		return err.Error() // kubectl will say that this is no document
	}
	return string(text)
}

// TestDisruptionPolicies has a real host do each action for changes that come from MachineConfigs, and looks at the units
// and at the kernel for what became of it.
func TestDisruptionPolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes; test/hosts/node and test/clusters/run have its parts")
	}
	ctx, f := start(t, fleet.Options{Hosts: []string{"w0"}, Kwok: []string{"k0"}})
	ctx, cancel := context.WithTimeoutCause(ctx, 3*patience, errors.New("the scenario takes too long"))
	defer cancel()
	n := f.Node("w0")
	host := host{files: map[string]string{"/etc/policy/a.conf": "1", "/etc/policy/b.conf": "1"},
		units: map[string]string{"a.service": counted, "b.service": counted}}
	seen := 0
	// happened are the lines of the log since the last look.
	happened := func() []string {
		t.Helper()
		text, err := n.Output(ctx, "cat", "/run/policy.log")
		must(t, err)
		lines := strings.Split(strings.TrimSpace(text), "\n")
		since := lines[seen:]
		seen = len(lines)
		return since
	}
	// reach applies the configuration and waits until the host has it.
	reach := func() {
		t.Helper()
		_, after := change(ctx, t, f, host.String())
		must(t, f.WaitAt(ctx, after, "w0"), f.WaitPool(ctx, "worker", "updated", fleet.Updated(1)))
	}
	// does reaches a configuration, at which this has to happen and nothing more: boots and drains are counted.
	does := func(t *testing.T, boots int, drains bool, want ...string) {
		t.Helper()
		booted, drained := n.Boots(), cordons(ctx, t, f)
		reach()
		if got := n.Boots() - booted; got != boots {
			t.Errorf("it booted %d times", got)
		}
		if got := cordons(ctx, t, f) != drained; got != drains {
			t.Errorf("it was drained: %t", got)
		}
		if boots > 0 {
			seen = 0 // /run is new
			return
		}
		if got := happened(); !slices.Equal(got, want) {
			t.Errorf("%q happened, not %q", got, want)
		}
	}
	must(t, f.Apply(ctx, fmt.Sprintf(policies, "{type: None}")))

	t.Run("the status shows what is in force", func(t *testing.T) {
		must(t, fleet.Until(ctx, "the status is there", func(ctx context.Context) (bool, string, error) {
			text, err := f.Kubectl(ctx, "get", "machineconfiguration", "cluster", "-o", "json")
			var o operatorv1.MachineConfiguration
			if err == nil {
				err = json.Unmarshal([]byte(text), &o)
			}
			p := o.Status.NodeDisruptionPolicyStatus.ClusterPolicies
			has := func(path string, action operatorv1.NodeDisruptionPolicyStatusActionType) bool {
				return slices.ContainsFunc(p.Files, func(f operatorv1.NodeDisruptionPolicyStatusFile) bool {
					return f.Path == path && f.Actions[0].Type == action
				})
			}
			return o.Status.ObservedGeneration == o.Generation && has("/etc/containers/registries.conf", "Special") &&
				has("/etc/policy/drain", "Drain") && len(p.SSHKey.Actions) == 1 && p.SSHKey.Actions[0].Reload != nil, text, err
		}))
	})
	t.Run("units come live, systemd reads them before they start", func(t *testing.T) {
		_, err := n.Output(ctx, "touch", "/run/policy.log")
		must(t, err)
		seen = 1 // of an empty file
		booted := n.Boots()
		reach()
		seen = 0
		if got, want := happened(), []string{"start b 1", "start a 1"}; !slices.Equal(got, want) || n.Boots() != booted {
			t.Errorf("%q happened, not %q, and it booted %d times", got, want, n.Boots()-booted)
		}
		told(ctx, t, f, "w0", "ServiceRestart", "a.service")
	})
	t.Run("Reload and Restart, once each and in order", func(t *testing.T) {
		host.files["/etc/policy/a.conf"], host.files["/etc/policy/b.conf"] = "2", "2"
		host.files["/etc/policy/tree/x"], host.files["/etc/policy/tree/y"] = "1", "1"
		does(t, 0, false, "reload a 2", "start b 2")
		told(ctx, t, f, "w0", "ServiceReload", "a.service")
	})
	t.Run("several actions of one entry", func(t *testing.T) {
		host.files["/etc/policy/many"] = "1"
		does(t, 0, false, "start b 2", "reload a 2")
	})
	t.Run("DaemonReload, and what keys ask for", func(t *testing.T) {
		host.files["/etc/systemd/system.conf.d/10-policy.conf"] = "[Manager]\nDefaultTimeoutStopSec=77s\n"
		host.key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJbR2lPgqIxKpmxSTC1kZ8nOQ4Xt0mUc1fD0yJ0uVQ5R admin@example"
		does(t, 0, false, "reload a 2")
		text, err := n.Output(ctx, "systemctl", "show", "-P", "DefaultTimeoutStopUSec")
		must(t, err)
		if strings.TrimSpace(text) != "1min 17s" {
			t.Errorf("systemd has not read its files again: %s", text)
		}
	})
	t.Run("Drain", func(t *testing.T) {
		host.files["/etc/policy/drain"] = "1"
		does(t, 0, true)
	})
	t.Run("Special", func(t *testing.T) {
		reloads := func() int {
			text, err := n.Output(ctx, "cat", "/run/testos/crio.log")
			must(t, err)
			return strings.Count(text, "reload")
		}
		before := reloads()
		host.files["/etc/containers/registries.conf"] = `unqualified-search-registries = ["a.example"]`
		does(t, 0, false)
		host.files["/etc/containers/registries.conf"] = `unqualified-search-registries = ["b.example"]`
		does(t, 0, true)
		if got := reloads() - before; got != 2 {
			t.Errorf("crio was reloaded %d times", got)
		}
	})
	t.Run("None, and a change of the policy, which is no rollout and counts from the next update on", func(t *testing.T) {
		before, err := f.Configuration(ctx, "worker")
		must(t, err, f.Apply(ctx, fmt.Sprintf(policies, "{type: Reload, reload: {serviceName: a.service}}")))
		host.files["/etc/policy/quiet"] = "1"
		does(t, 0, false, "reload a 2")
		must(t, f.Apply(ctx, fmt.Sprintf(policies, "{type: None}")))
		delete(host.files, "/etc/policy/quiet")
		does(t, 0, false)
		// What was there before is there again, so in between nothing was rendered for the policy's sake.
		after, err := f.Configuration(ctx, "worker")
		must(t, err)
		if after != before {
			t.Errorf("the pool is at %s, and was at %s", after, before)
		}
	})
	t.Run("an action that fails takes everything back, and the actions are done again", func(t *testing.T) {
		booted := n.Boots()
		before, err := f.Configuration(ctx, "worker")
		must(t, err)
		host.files["/etc/policy/a.conf"], host.files["/etc/policy/b.conf"] = "3", "fail"
		host.units["c.service"] = counted
		host.files["/etc/policy/c.conf"] = "1"
		host.files["/etc/policy/tree/x"] = "2"
		_, bad := change(ctx, t, f, host.String())
		must(t, f.WaitNodeSays(ctx, "w0", "rolled back, and serving", func(says api.Node, o *corev1.Node) bool {
			return says.State == api.RolledBack && says.Current == before && !o.Spec.Unschedulable &&
				strings.Contains(says.Reason, "b.service") && strings.Contains(says.Reason, "/etc/policy/b.conf") &&
				!strings.Contains(says.Reason, "after going back") && len(says.Quarantined) == 1 && says.Quarantined[0].Config == bad
		}))
		if got, want := happened(), []string{"reload a 3", "fail b", "reload a 2", "start b 2"}; !slices.Equal(got, want) {
			t.Errorf("%q happened, not %q", got, want)
		}
		for path, want := range map[string]string{"a.conf": "2", "b.conf": "2", "tree/x": "1"} {
			if text, err := n.Output(ctx, "cat", "/etc/policy/"+path); err != nil || text != want {
				t.Errorf("%s is %q, %v", path, text, err)
			}
		}
		for _, path := range []string{"/etc/policy/c.conf", "/etc/systemd/system/c.service"} {
			if _, _, exit, err := n.Exec(ctx, nil, "test", "-e", path); err != nil || exit == 0 {
				t.Errorf("%s is still there: %d, %v", path, exit, err)
			}
		}
		told(ctx, t, f, "w0", "FailedServiceRestart", "b.service")
		explains(ctx, t, f, "w0", progress.RolledBack, "b.service")
		must(t, f.WaitPool(ctx, "worker", "stopped", func(p *mcfgv1.MachineConfigPool) bool {
			return fleet.Condition(p, mcfgv1.MachineConfigPoolDegraded) && fleet.Condition(p, api.PoolQuarantined)
		}))
		// Another mind heals it, and what was taken back comes after all.
		host.files["/etc/policy/b.conf"] = "4"
		reach()
		if got, want := happened(), []string{"reload a 3", "start b 4", "start c 1"}; !slices.Equal(got, want) {
			t.Errorf("%q happened, not %q", got, want)
		}
		if n.Boots() != booted {
			t.Errorf("it booted %d times", n.Boots()-booted)
		}
	})
	t.Run("a unit that started is stopped when it is taken back, and when it goes", func(t *testing.T) {
		active := func() string {
			text, _, _, err := n.Exec(ctx, nil, "systemctl", "is-active", "c.service")
			must(t, err)
			return strings.TrimSpace(string(text))
		}
		if got := active(); got != "active" {
			t.Errorf("c.service is %s", got)
		}
		delete(host.units, "c.service")
		delete(host.files, "/etc/policy/c.conf")
		delete(host.files, "/etc/policy/tree/x") // has a rule of its own: b is reloaded
		does(t, 0, false, "reload b 4")
		if got := active(); got != "inactive" {
			t.Errorf("c.service is %s without a unit file", got)
		}
	})
	t.Run("Reboot", func(t *testing.T) {
		host.files["/etc/policy/reboot"] = "1"
		host.files["/etc/policy/a.conf"] = "5"
		does(t, 1, true)
	})
}
