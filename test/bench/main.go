// SPDX-License-Identifier: Apache-2.0

// Command bench measures what the agent costs on a real host: time, processor and memory, and by strace what waits for
// the disk, what is written, forked and reloaded; beside it, in the same run, the same work done the naive way. An
// update of the whole OS stands beside upstream's sequence. Then what agents and controllers cost a cluster, by its
// size.
//
// It prints "bench: <name> <value> <unit>" lines, a table, and each target with whether it was reached. It fails when a
// count misses its target; times depend on the machine, and never fail.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// binDir is where make build puts the binaries, from the folder that make runs in.
const binDir = "bin"

func run(ctx context.Context) error {
	r := &report{out: os.Stdout}
	w := newWorkload()
	if err := pure(r, w); err != nil {
		return err
	}
	if err := measurePrograms(ctx, r, binDir); err != nil {
		return err
	}
	if err := onHosts(ctx, r, w); err != nil {
		return err
	}
	if err := onCluster(ctx, r); err != nil {
		return err
	}
	if !r.finish() {
		return errors.New("benchmark: a count missed its target")
	}
	return nil
}

// switchRounds is how many hosts are switched, each with two boots.
const switchRounds = 3

func onHosts(ctx context.Context, r *report, w *workload) (err error) {
	if err := lab.Available(); err != nil && os.Getenv("LAB_INSTALL") != "1" {
		if os.Getenv("LAB") == "require" {
			return err
		}
		fmt.Fprintln(os.Stderr, "bench: nothing is measured on a host:", err)
		return nil
	}
	base, err := lab.Prepare(ctx, "", os.Stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "noderefit-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(dir)) }()
	helper, err := buildHelper(ctx, dir)
	if err != nil {
		return err
	}
	agent := filepath.Join(binDir, "machine-config-daemon")
	if _, err := os.Stat(agent); err != nil {
		if agent, err = node.Build(ctx, dir); err != nil {
			return err
		}
	}
	fresh := func() (*bench, error) { return newBench(ctx, base, agent, helper, w) }
	if err := measureHosts(ctx, r, fresh); err != nil {
		return err
	}
	return osUpdates(ctx, r, base, agent)
}

func measureHosts(ctx context.Context, r *report, fresh func() (*bench, error)) (err error) {
	b, err := fresh()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	all := map[string]*result{}
	show := func(steps []step, results map[string]*result) {
		for _, s := range steps {
			if res := results[s.name]; res != nil {
				r.step(s.name, res)
				all[s.name] = res
			}
		}
	}
	for _, steps := range [][]step{b.onRoot(), b.alive()} {
		if err := b.reset(ctx, true); err != nil {
			return err
		}
		results, err := b.run(ctx, rounds, steps)
		if err != nil {
			return err
		}
		show(steps, results)
	}
	results, err := switched(ctx, switchRounds, fresh)
	if err != nil {
		return err
	}
	show([]step{{name: "switch.first"}, {name: "switch.onefile"}}, results)
	ratios(r, all)
	return nil
}

// ratios hold the naive side of this run against ours. To the naive side one changed file is as much work as none.
func ratios(r *report, all map[string]*result) {
	for _, of := range [][2]string{{"first", "first"}, {"same", "same"}, {"onefile", "same"}, {"oneunit", "same"}} {
		ours, naive := all["apply."+of[0]], all["naive."+of[1]]
		r.figure("apply."+of[0]+".ratio", float64(naive.median().Wall)/float64(ours.median().Wall), "times")
	}
	r.figure("verify.ratio", float64(all["naive.verify"].median().Wall)/float64(all["verify"].median().Wall), "times")
	for name, limit := range map[string]time.Duration{
		"apply.first": 300 * time.Millisecond, "apply.same": 50 * time.Millisecond, "apply.onefile": 50 * time.Millisecond,
		"verify": 50 * time.Millisecond, "verify.owned": 50 * time.Millisecond,
	} {
		r.target(name, all[name].median().Wall, limit)
	}
	few, many := all["apply.onefile"].counts, all["apply.onefile300"].counts
	r.note(many.durable() == few.durable(), "apply.onefile", fmt.Sprintf(
		"%d fsyncs and syncfs with %d files, %d with %d", few.durable(), workFiles, many.durable(), manyFiles), true)
}
