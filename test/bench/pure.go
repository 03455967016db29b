// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"time"

	"github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/test/lab"
)

// naiveParses is how often an agent that passes documents rather than what they mean parses one while it decides about
// an update: both for the difference, both again for the sets of files and units, and all four once more for what it
// can't reconcile.
const naiveParses = 8

// pure measures what needs no host, on one processor.
func pure(r *report, w *workload) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c1, c2 := object(w.hundred.c1), object(w.hundred.c2)
	ours, err := median(21, func() error {
		from, err := machineconfig.Parse(c1)
		if err != nil {
			return err
		}
		to, err := machineconfig.Parse(c2)
		if err != nil {
			return err
		}
		p, err := plan.Make(from, to, plan.Options{})
		if err == nil && len(p.Changes) != 1 {
			err = fmt.Errorf("the plan has %d changes, not 1", len(p.Changes))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("measuring the difference: %w", err)
	}
	naive, err := median(5, func() error {
		var last [2]types.Config
		for i := range naiveParses {
			cfg, rep, err := v3_6.ParseCompatibleVersion([][]byte{c1.Spec.Config.Raw, c2.Spec.Config.Raw}[i%2])
			if err != nil {
				return fmt.Errorf("%w: %s", err, rep)
			}
			last[i%2] = cfg
		}
		if reflect.DeepEqual(last[0], last[1]) {
			return fmt.Errorf("no difference seen")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("measuring the difference: %w", err)
	}
	r.compare("diff", ours, naive)
	r.target("diff and reconcile", ours, 20*time.Millisecond)

	var small, large time.Duration
	for _, m := range []struct {
		n      int
		limit  time.Duration
		result *time.Duration
	}{{50, 8 * time.Millisecond, &small}, {200, 32 * time.Millisecond, &large}} {
		docs := newGenerator().fragments(m.n)
		ours, err := median(21, func() error {
			_, _, err := machineconfig.Merge("worker", docs, nil)
			return err
		})
		if err != nil {
			return fmt.Errorf("measuring the merge: %w", err)
		}
		naive, err := median(5, func() error { return mergeStepwise(docs) })
		if err != nil {
			return fmt.Errorf("measuring the merge: %w", err)
		}
		r.compare(fmt.Sprintf("merge.%d", m.n), ours, naive)
		r.target(fmt.Sprintf("merge of %d", m.n), ours, m.limit)
		*m.result = ours
	}
	r.figure("merge.200to50", float64(large)/float64(small), "times")
	return nil
}

// mergeStepwise merges each document into everything so far.
func mergeStepwise(docs []*machineconfig.Document) error {
	var out types.Config
	for i, d := range docs {
		cfg, rep, err := v3_6.ParseCompatibleVersion(d.Object.Spec.Config.Raw)
		if err != nil {
			return fmt.Errorf("%w: %s", err, rep)
		}
		if i == 0 {
			out = cfg
			continue
		}
		out = v3_6.Merge(out, cfg)
	}
	return nil
}

// median is of n runs after one to warm up.
func median(n int, do func() error) (time.Duration, error) {
	if err := do(); err != nil {
		return 0, err
	}
	var all []time.Duration
	for range n {
		start := time.Now()
		if err := do(); err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[n/2], nil
}

// start measures what a start of a program costs: the least of several, since other work of the machine adds to each.
// The helper starts the program, because the largest resident set of a process is at least that of its parent.
func start(ctx context.Context, helper, program string) (least cost, err error) {
	const tries = 20
	for try := range tries {
		out, err := exec.CommandContext(ctx, helper, "start", program, "--version").Output()
		if err != nil {
			return least, fmt.Errorf("starting %s: %w", program, err)
		}
		var c cost
		if err := json.Unmarshal(out, &c); err != nil {
			return least, fmt.Errorf("starting %s: %w", program, err)
		}
		if try == 0 {
			least = c
		}
		least.CPU, least.RSS = min(least.CPU, c.CPU), min(least.RSS, c.RSS)
	}
	return least, nil
}

// starts prints what a start of each of the agent's programs costs. Each command of people and each boot starts the
// program of the host.
func starts(ctx context.Context, r *report, helper, dir string) error {
	for _, p := range []struct{ program, name string }{{agent.Program, "start"}, {agent.RunProgram, "start.run"}} {
		c, err := start(ctx, helper, filepath.Join(dir, p.program))
		if err != nil {
			return err
		}
		mb := float64(c.RSS) / 1e6
		r.figure(p.name+".cpu", milliseconds(c.CPU), "ms")
		r.figure(p.name+".rss", mb, "MB")
		if p.program == agent.Program {
			r.target(p.name+".cpu", c.CPU, maxStart)
			r.note(mb <= maxResident, p.name+".rss", fmt.Sprintf("%.1f MB of at most %d", mb, maxResident), true)
		}
	}
	return nil
}

// measurePrograms prints how large the programs in dir are, and what a start of the agent's costs.
func measurePrograms(ctx context.Context, r *report, dir string) (err error) {
	work, err := os.MkdirTemp("", "noderefit-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(work)) }()
	helper, err := buildHelper(ctx, work)
	if err != nil {
		return err
	}
	if err := sizes(r, dir); err != nil {
		return err
	}
	return starts(ctx, r, helper, dir)
}

// sizes prints how large the binaries in dir are.
func sizes(r *report, dir string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		mb := float64(info.Size()) / 1e6
		r.figure("binary."+filepath.Base(name), mb, "MB")
		if filepath.Base(name) == agent.Program {
			r.note(mb <= maxProgram, "binary "+agent.Program, fmt.Sprintf("%.1f MB of at most %d", mb, maxProgram), true)
		}
		if filepath.Base(name) == agent.RunProgram {
			r.note(mb <= maxInPod, "binary "+agent.RunProgram, fmt.Sprintf("%.1f MB of at most %d", mb, maxInPod), true)
		}
	}
	return nil
}
