// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/systemd"
)

func TestTheHandsPassAnOrderOn(t *testing.T) {
	t.Parallel()
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	order := &api.StageOrder{Config: "rendered-worker-b", Digest: "sha256:x", MinFreeMebibytes: 512, IOWeight: 10, CPUWeight: 20,
		Bandwidth: 20 << 20}
	for _, c := range []struct {
		verb    agent.Verb
		order   *api.StageOrder
		ordered bool
	}{{agent.StageVerb, order, true}, {agent.StageVerb, nil, false}, {agent.ApplyVerb, order, false}} {
		call := &call{hands: &Client{root: root}, verb: c.verb, request: &Request{Name: "rendered-worker-b", Order: c.order}}
		dir := fmt.Sprintf("/run/%s-%t", c.verb.Name, c.ordered)
		argv, err := call.handOver(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, flag := range []string{"--as-staged", "--min-free=512", "--cpu-weight=20", "--io-weight=10", "--bandwidth=20971520"} {
			if slices.Contains(argv, flag) != c.ordered {
				t.Errorf("%s, ordered %t: %v", c.verb.Name, c.ordered, argv)
			}
		}
		if goes := c.verb.Name == agent.ApplyVerb.Name; slices.Contains(argv, "--approved=sha256:x") != goes {
			t.Errorf("%s is told what was approved: %t; %v", c.verb.Name, !goes, argv)
		}
		if unit := call.command(dir, argv); (unit.Weights == systemd.Weights{CPU: 20, IO: 10}) != c.ordered {
			t.Errorf("%s, ordered %t: %+v", c.verb.Name, c.ordered, unit)
		}
	}
}

// A policy's method overrules what the agent was told. An order to boot the machine, or to restart the userspace alone,
// goes before both.
func TestTheHandsNameTheRebootMethodOfThePolicy(t *testing.T) {
	t.Parallel()
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	full, soft := &api.RebootOrder{ID: "one"}, &api.RebootOrder{ID: "one", Soft: true}
	for i, c := range []struct {
		method api.RebootMethod
		order  *api.RebootOrder
		verb   agent.Verb
		flags  string
	}{
		{"", nil, agent.ApplyVerb, "--soft-reboot=auto"}, {api.RebootFull, nil, agent.ApplyVerb, ""},
		{api.RebootSoft, nil, agent.ApplyVerb, "--soft-reboot=auto"}, {api.RebootSoft, full, agent.ApplyVerb, ""},
		{api.RebootKexec, nil, agent.ApplyVerb, "--reboot-method=kexec"},
		{api.RebootCommand, full, agent.ApplyVerb, "--reboot-method=command"},
		{api.RebootKexec, nil, agent.PlanVerb, ""}, {api.RebootSoft, nil, agent.PlanVerb, "--soft-reboot=auto"},
		{api.RebootKexec, full, agent.RebootVerb, "--reboot-method=kexec"},
		{api.RebootKexec, soft, agent.RebootVerb, "--soft"}, {api.RebootSoft, full, agent.RebootVerb, ""},
	} {
		hands := &Client{root: root, options: Options{SoftReboot: true}}
		call := &call{hands: hands, verb: c.verb, request: &Request{Name: "b", Reboot: c.order, Method: c.method}}
		argv, err := call.handOver(fmt.Sprintf("/run/%d", i))
		if err != nil {
			t.Fatal(err)
		}
		flags := slices.DeleteFunc(argv, func(a string) bool {
			return !strings.HasPrefix(a, "--soft") && !strings.HasPrefix(a, "--reboot-method")
		})
		if got := strings.Join(flags, " "); got != c.flags {
			t.Errorf("%q, %+v, %s: %q, want %q", c.method, c.order, c.verb.Name, got, c.flags)
		}
	}
}

// An order to boot the machine is not carried out by a restart of the userspace.
func TestTheHandsAllowASoftRebootWhereNoOtherIsOrdered(t *testing.T) {
	t.Parallel()
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	for i, c := range []struct {
		order *api.RebootOrder
		soft  bool
	}{{nil, true}, {&api.RebootOrder{ID: "one", Soft: true}, true}, {&api.RebootOrder{ID: "one"}, false}} {
		hands := &Client{root: root, options: Options{SoftReboot: true}}
		call := &call{hands: hands, verb: agent.ApplyVerb, request: &Request{Name: "rendered-worker-b", Reboot: c.order}}
		argv, err := call.handOver(fmt.Sprintf("/run/%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(argv, "--soft-reboot=auto") != c.soft {
			t.Errorf("%+v: %v", c.order, argv)
		}
	}
}
