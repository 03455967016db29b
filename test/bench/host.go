// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
	"github.com/noderefit/noderefit/transaction"
)

// Where the host finds what the benchmark brings. The agent is where a package would have put it.
const (
	agentPath  = "/usr/local/bin/machine-config-daemon"
	helperPath = "/var/tmp/inhost"
)

// rounds is how often each step is timed; the figure is the median.
const rounds = 7

// bench is one host with the agent and the documents on it.
type bench struct {
	*node.Node
	docs map[string]string // path on the host, by name
}

// buildHelper compiles what runs on the host, as a static binary.
func buildHelper(ctx context.Context, dir string) (string, error) {
	return programs.Build(ctx, dir, "test/bench/inhost")
}

// newBench boots a host. helper may be left out by who measures no time.
func newBench(ctx context.Context, base *lab.Base, agent, helper string, w *workload) (*bench, error) {
	n, err := node.New(ctx, base, agent, lab.Options{Name: "bench"})
	if err != nil {
		return nil, err
	}
	b := &bench{Node: n, docs: map[string]string{}}
	if err := b.furnish(helper, w); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return b, nil
}

func (b *bench) furnish(helper string, w *workload) error {
	for name, data := range map[string][]byte{
		"c1": w.hundred.c1, "c2": w.hundred.c2, "u2": w.hundred.u2, "m1": w.many.c1, "m2": w.many.c2, "owned": w.owned,
		"policy": policy(),
	} {
		ext := ".json"
		if name == "policy" {
			ext = ".yaml"
		}
		at, err := b.Document("bench-"+name+ext, data)
		if err != nil {
			return err
		}
		b.docs[name] = at
	}
	data, err := decoded(w.hundred.c1)
	if err != nil {
		return err
	}
	if b.docs["naive"], err = b.Document("bench-naive.json", data); err != nil || helper == "" {
		return err
	}
	if data, err = os.ReadFile(helper); err != nil {
		return err
	}
	return os.WriteFile(b.HostPath(helperPath), data, 0o755)
}

// decoded is a document as the naive side reads it, so that no parser of ours or of Ignition's counts against it.
func decoded(doc []byte) ([]byte, error) {
	cfg, err := machineconfig.Parse(object(doc))
	if err != nil {
		return nil, err
	}
	var files, units []map[string]any
	for _, f := range cfg.Files {
		files = append(files, map[string]any{"path": f.Path, "mode": f.Mode, "contents": f.Contents})
	}
	for _, u := range cfg.Units {
		var dropins []map[string]any
		for _, d := range u.Dropins {
			dropins = append(dropins, map[string]any{"name": d.Name, "contents": d.Contents})
		}
		units = append(units, map[string]any{"name": u.Name, "contents": u.Contents, "enabled": u.Enabled, "mask": u.Mask,
			"dropins": dropins})
	}
	return json.Marshal(map[string]any{"files": files, "units": units})
}

// workPaths match everything that the workload, the agent and the naive side leave on a host but the agent's own
// installation.
var workPaths = []string{
	"/etc/bench.d", "/usr/local/benchbin", "/var/lib/bench", "/etc/bench-originals",
	"/etc/systemd/system/bench*", "/etc/systemd/system/multi-user.target.wants/bench*",
	"/etc/machine-config-daemon", "/var/home/core/.ssh",
	"/var/lib/machine-config-daemon/boot.json", "/var/lib/machine-config-daemon/configs",
	"/var/lib/machine-config-daemon/transactions", "/var/lib/machine-config-daemon/drift",
}

var installedPaths = []string{
	"/var/lib/machine-config-daemon", "/run/machine-config-daemon",
	"/etc/systemd/system/machine-config-daemon-*", "/etc/systemd/system/sysinit.target.wants/machine-config-daemon-*",
}

// reset takes the workload away, and with bare the agent's installation too.
func (b *bench) reset(ctx context.Context, bare bool) error {
	patterns := workPaths
	if bare {
		patterns = slices.Concat(workPaths, installedPaths)
	}
	for _, p := range patterns {
		names, err := filepath.Glob(b.HostPath(p))
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := lab.RemoveTree(name); err != nil {
				return fmt.Errorf("resetting the host: %w", err)
			}
		}
	}
	_, err := b.Output(ctx, "systemctl", "daemon-reload")
	return err
}

// cost is what inhost prints.
type cost struct {
	Wall time.Duration `json:"wall"`
	CPU  time.Duration `json:"cpu"`
	Host time.Duration `json:"host"`
	RSS  int64         `json:"rss"`
}

// measure runs argv on the host and says what it cost.
func (b *bench) measure(ctx context.Context, argv ...string) (cost, error) {
	var c cost
	out, err := b.Output(ctx, append([]string{helperPath, "measure"}, argv...)...)
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal([]byte(out), &c)
}

// step is one thing that is measured, in the order in which a round does them: each starts from what the one before
// left.
type step struct {
	name   string // "" for what only goes back
	argv   []string
	before func(ctx context.Context) error // not measured; nil for nothing
}

func (b *bench) apply(doc string, flags ...string) []string {
	return append([]string{agentPath, "apply", "--config", b.docs[doc], "--no-reboot"}, flags...)
}

func (b *bench) naive(verb string) []string { return []string{helperPath, verb, b.docs["naive"]} }

// result is what is known of one step.
type result struct {
	counts counts
	costs  []cost
}

// median is each figure's own median.
func (r *result) median() cost {
	at := func(of func(cost) int64) int64 {
		var all []int64
		for _, c := range r.costs {
			all = append(all, of(c))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return cost{
		Wall: time.Duration(at(func(c cost) int64 { return int64(c.Wall) })),
		CPU:  time.Duration(at(func(c cost) int64 { return int64(c.CPU) })),
		Host: time.Duration(at(func(c cost) int64 { return int64(c.Host) })),
		RSS:  at(func(c cost) int64 { return c.RSS }),
	}
}

// run traces the steps once, which warms the caches too, and then measures them n times.
func (b *bench) run(ctx context.Context, n int, steps []step) (map[string]*result, error) {
	out := map[string]*result{}
	for round := range n + 1 {
		for _, s := range steps {
			if s.before != nil {
				if err := s.before(ctx); err != nil {
					return nil, err
				}
			}
			var err error
			var c cost
			switch {
			case s.name == "":
				_, err = b.Output(ctx, s.argv...)
			case round == 0:
				out[s.name] = &result{}
				out[s.name].counts, err = trace(ctx, b.Node, s.argv...)
			default:
				c, err = b.measure(ctx, s.argv...)
				out[s.name].costs = append(out[s.name].costs, c)
			}
			if err != nil {
				return nil, fmt.Errorf("step %s of round %d: %w", s.name, round, err)
			}
		}
	}
	return out, nil
}

// onRoot are the steps of apply on the running host's own root without its boot loader, which is what upstream's
// once-from does, and of the naive side. Both stand in one round, so that whatever else the machine does meanwhile is
// the same to both. A policy says that nothing needs a reboot: a change that does would wait for one.
func (b *bench) onRoot() []step {
	none := func(doc string) []string { return b.apply(doc, "--os", "none", "--policy", b.docs["policy"]) }
	return []step{
		{name: "apply.bare", argv: none("c1"), before: func(ctx context.Context) error { return b.reset(ctx, true) }},
		{name: "apply.first", argv: none("c1"), before: func(ctx context.Context) error { return b.reset(ctx, false) }},
		{name: "apply.same", argv: none("c1")},
		{name: "apply.onefile", argv: none("c2")},
		{argv: none("c1")},
		{name: "apply.oneunit", argv: none("u2")},
		{argv: none("c1")},
		{name: "plan.onefile", argv: []string{agentPath, "plan", "--desired", b.docs["c2"]}},
		{name: "verify", argv: []string{agentPath, "verify"}},
		{argv: none("owned")},
		{name: "verify.owned", argv: []string{agentPath, "verify"}},
		{argv: none("m1")},
		{name: "apply.onefile300", argv: none("m2")},
		{name: "naive.first", argv: b.naive("apply"), before: func(ctx context.Context) error { return b.reset(ctx, false) }},
		{name: "naive.same", argv: b.naive("apply")},
		{name: "naive.verify", argv: b.naive("verify")},
	}
}

// alive are the steps of the road that a host of an ostree takes when the policy says that nothing needs a reboot.
func (b *bench) alive() []step {
	live := func(doc string) []string { return b.apply(doc, "--policy", b.docs["policy"]) }
	return []step{
		{name: "live.first", argv: live("c1"), before: func(ctx context.Context) error { return b.reset(ctx, false) }},
		{name: "live.same", argv: live("c1")},
		{name: "live.onefile", argv: live("c2")},
		{argv: live("c1")},
		{name: "live.oneunit", argv: live("u2")},
	}
}

// switched measures the switch up to the commit, each time on a host of its own: what it makes can't be unmade without
// a boot. The first host is traced.
func switched(ctx context.Context, n int, fresh func() (*bench, error)) (map[string]*result, error) {
	out := map[string]*result{}
	for round := range n + 1 {
		b, err := fresh()
		if err != nil {
			return nil, err
		}
		if err := errors.Join(b.switchOnce(ctx, round == 0, out), b.Close()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (b *bench) switchOnce(ctx context.Context, traced bool, out map[string]*result) error {
	for _, s := range []step{
		{name: "switch.first", argv: b.apply("c1")},
		{name: "switch.onefile", argv: b.apply("c2"), before: func(ctx context.Context) error {
			if err := b.Reboot(ctx); err != nil {
				return err
			}
			s, err := b.WaitState(ctx, transaction.Done, transaction.RolledBack, transaction.Degraded)
			if err == nil && s.State != transaction.Done {
				err = fmt.Errorf("the host is %s: %s", s.State, s.Reason)
			}
			return err
		}},
	} {
		if s.before != nil {
			if err := s.before(ctx); err != nil {
				return err
			}
		}
		if out[s.name] == nil {
			out[s.name] = &result{}
		}
		var err error
		if traced {
			out[s.name].counts, err = trace(ctx, b.Node, s.argv...)
		} else {
			var c cost
			c, err = b.measure(ctx, s.argv...)
			out[s.name].costs = append(out[s.name].costs, c)
		}
		if err != nil {
			return fmt.Errorf("step %s: %w", s.name, err)
		}
	}
	return nil
}
