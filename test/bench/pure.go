// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
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

// starts measures what a start of the host's program costs: the least of several, since other work of the machine adds
// to each.
func starts(r *report, program string) error {
	const tries = 20
	cpu, rss := time.Hour, int64(0)
	for range tries {
		cmd := exec.Command(program, "--version")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("starting %s: %w", program, err)
		}
		cpu = min(cpu, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok && (rss == 0 || u.Maxrss < rss) {
			rss = u.Maxrss
		}
	}
	mb := float64(rss) * 1024 / 1e6
	r.figure("start.cpu", milliseconds(cpu), "ms")
	r.figure("start.rss", mb, "MB")
	r.target("start.cpu", cpu, maxStart)
	r.note(mb <= maxResident, "start.rss", fmt.Sprintf("%.1f MB of at most %d", mb, maxResident), true)
	return nil
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
			if err := starts(r, name); err != nil {
				return err
			}
		}
		if filepath.Base(name) == agent.Program+"-run" {
			r.note(mb <= maxInPod, "binary "+agent.Program+"-run", fmt.Sprintf("%.1f MB of at most %d", mb, maxInPod), true)
		}
	}
	return nil
}
