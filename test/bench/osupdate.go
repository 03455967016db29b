// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/transaction"
)

// What the update brings besides another image: a kernel of another type, an extension, and a kernel argument.
var (
	newKernel    = []string{"kernel-rt-core", "kernel-rt-modules", "kernel-rt-modules-extra"}
	newExtension = "usbguard"
	newArgument  = "bench=b"
	newImage     = rpmostree.Remote + ":" + rpmostree.RefV4
)

// newFile is part of both configurations, and has the name of the one that the host is on.
const newFile = "/etc/bench-os.conf"

// osCost is what the update costs on one side.
type osCost struct {
	serving  time.Duration // before the cordon, while the node still serves
	cordoned time.Duration // between the drain and the request of the reboot
	made     made
	// written are the bytes that the processes of the host have made dirty in the page cache of its disk: whole pages,
	// those of temporary files and, as far as the file system lets the kernel see them, of new directories among them.
	// What a link or an inode takes is not.
	written uint64
	reboots int
	forks   int // of everything on the host but rpm-ostree's daemon, which forks in the stand-in alone
}

// osSide is a way to do the update.
type osSide struct {
	prepare func(ctx context.Context, h *osHost) error // to the configuration before; not measured
	// stage is done while the node serves (nil for nothing), update from the end of the drain to the request of a reboot.
	stage, update []string
	// shutdown is what is left for the shutdown to do.
	shutdown []string
	settle   func(ctx context.Context, h *osHost) error // waits until everything after the boot is done; nil for nothing
}

// osHost is a host with rpm-ostree and the agent.
type osHost struct {
	*node.Node
}

// osRounds is how many hosts are updated on each side to take the time.
const osRounds = 3

// osUpdates measures the update by the agent and, beside it, as upstream's agent asks rpm-ostree for it, each time on a
// fresh host. Both stand in one round, so that whatever else the machine does meanwhile is the same to both; one more
// host of each is traced, up to the reboot.
func osUpdates(ctx context.Context, r *report, base *lab.Base, agent string) (err error) {
	dir, err := os.MkdirTemp("", "noderefit-bench-os-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(dir)) }()
	program, err := rpmostree.Build(ctx, dir)
	if err != nil {
		return err
	}
	sides := []osSide{agentSide(), upstreamSide()}
	prepared, err := rpmostree.Prepare(ctx, base, program, rpmostree.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prepared.Close()) }()
	costs := make([][]osCost, len(sides))
	for round := range osRounds + 1 {
		for i, side := range sides {
			measure := timed
			if round == osRounds {
				measure = forked
			}
			var c osCost
			do := func(h *osHost) (err error) {
				c, err = measure(ctx, h, side)
				return err
			}
			if err := onOSHost(ctx, prepared.Base(), agent, do); err != nil {
				return fmt.Errorf("measuring an update of the OS: %w", err)
			}
			costs[i] = append(costs[i], c)
		}
	}
	r.osUpdate(typical(costs[0]), typical(costs[1]))
	return nil
}

// typical is the median of what differs from time to time, each figure's own, and the most that was counted of the
// rest. A figure that is not known of a run is zero there, and left out.
func typical(costs []osCost) osCost {
	var all osCost
	var serving, cordoned []time.Duration
	var written []uint64
	for _, c := range costs {
		if c.cordoned > 0 {
			serving, cordoned, written = append(serving, c.serving), append(cordoned, c.cordoned), append(written, c.written)
		}
		all.made.transactions = max(all.made.transactions, c.made.transactions)
		all.made.composes = max(all.made.composes, c.made.composes)
		all.made.deployments = max(all.made.deployments, c.made.deployments)
		all.reboots, all.forks = max(all.reboots, c.reboots), max(all.forks, c.forks)
	}
	slices.Sort(serving)
	slices.Sort(cordoned)
	slices.Sort(written)
	middle := len(cordoned) / 2
	all.serving, all.cordoned, all.written = serving[middle], cordoned[middle], written[middle]
	return all
}

// onOSHost does something on a fresh host that has booted.
func onOSHost(ctx context.Context, base *lab.Base, agent string, do func(*osHost) error) (err error) {
	machine, err := base.Boot(ctx, lab.Options{Name: "bench-os"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	n, err := node.On(machine, agent)
	if err != nil {
		return err
	}
	return do(&osHost{n})
}

// agentSide is what the head of a node has its host do.
func agentSide() osSide {
	const doc = "/var/tmp/bench-os-b.json"
	return osSide{
		prepare: func(ctx context.Context, h *osHost) error {
			at := h.HostPath("/etc/machine-config-daemon")
			if err := errors.Join(os.MkdirAll(at, 0o755),
				os.WriteFile(filepath.Join(at, "packages.yaml"), []byte(osPackages()), 0o644)); err != nil {
				return err
			}
			if _, err := h.Document(filepath.Base(doc), osDocument("b", map[string]any{
				"osImageURL": newImage, "kernelType": "realtime", "extensions": []string{newExtension},
				"kernelArguments": []string{newArgument},
			})); err != nil {
				return err
			}
			if _, _, err := h.Apply(ctx, osDocument("a", nil), "--no-reboot"); err != nil {
				return err
			}
			return errors.Join(h.Reboot(ctx), h.done(ctx, "a"))
		},
		stage:  []string{agentPath, "stage", "--config", doc},
		update: []string{agentPath, "apply", "--config", doc, "--no-reboot"},
		settle: func(ctx context.Context, h *osHost) error { return h.done(ctx, "b") },
	}
}

// upstreamSide is upstream's sequence (applyLayeredOSChanges) in one script. It is favoured: what it asks rpm-ostree in
// between is left out, there is no other kernel to be reset first, and the merge of /etc and the boot loader, which it
// leaves to the shutdown, is not in its time.
func upstreamSide() osSide {
	kernel := "rpm-ostree override remove " + strings.Join(rpmostree.KernelPackages, " ") +
		" --install " + strings.Join(newKernel, " --install ")
	return osSide{
		prepare: func(context.Context, *osHost) error { return nil },
		update: []string{"/bin/sh", "-ec", strings.Join([]string{
			"echo b >" + newFile,
			"rpm-ostree cleanup -p",
			"rpm-ostree rebase --experimental " + newImage,
			"rpm-ostree kargs --append=" + newArgument,
			kernel,
			"rpm-ostree update --install " + newExtension,
		}, "\n")},
		shutdown: []string{"systemctl", "stop", "ostree-finalize-staged.service"},
	}
}

// osPackages are an admin's packages for the OS of the lab, which no table of the agent's knows.
func osPackages() string {
	return "systems:\n- ids: [debian]\n  kernels:\n" +
		"    default: {packages: [" + strings.Join(rpmostree.KernelPackages, ", ") + "]}\n" +
		"    realtime: {packages: [" + strings.Join(newKernel, ", ") + `], release: '\+rt'}` + "\n" +
		"  extensions: {" + newExtension + ": [" + newExtension + "]}\n"
}

// osDocument is a MachineConfig whose one file has its name, and more of its spec.
func osDocument(name string, spec map[string]any) []byte {
	all := map[string]any{"config": map[string]any{
		"ignition": map[string]any{"version": "3.2.0"},
		"storage": map[string]any{"files": []map[string]any{
			{"path": newFile, "overwrite": true, "contents": source([]byte(name+"\n"), false)},
		}},
	}}
	maps.Copy(all, spec)
	data, err := json.Marshal(map[string]any{
		"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
		"metadata": map[string]any{"name": name}, "spec": all,
	})
	if err != nil {
		panic(err) // nothing in it can fail to encode
	}
	return data
}

// timed does the update to its end.
func timed(ctx context.Context, h *osHost, side osSide) (c osCost, err error) {
	if err := side.prepare(ctx, h); err != nil {
		return c, err
	}
	before, err := h.written(ctx)
	if err != nil {
		return c, err
	}
	boots := h.Boots()
	watched, err := watch(h.Host)
	if err != nil {
		return c, err
	}
	c, err = h.phases(ctx, side)
	after, err2 := h.written(ctx)
	made, err3 := watched.close()
	if err := errors.Join(err, err2, err3); err != nil {
		return c, err
	}
	c.made, c.written = made, after-before
	if err := h.Reboot(ctx); err != nil {
		return c, err
	}
	if side.settle != nil {
		if err := side.settle(ctx, h); err != nil {
			return c, err
		}
	}
	c.reboots = h.Boots() - boots
	return c, h.updated(ctx)
}

// forked does the update up to the reboot, and counts the processes. The time that it takes is strace's.
func forked(ctx context.Context, h *osHost, side osSide) (c osCost, err error) {
	if err := side.prepare(ctx, h); err != nil {
		return c, err
	}
	c.forks, err = traceForks(ctx, h.Node, func() error {
		_, err := h.phases(ctx, side)
		return err
	})
	return c, err
}

// phases does what comes before the reboot, and what that leaves to its shutdown.
func (h *osHost) phases(ctx context.Context, side osSide) (c osCost, err error) {
	if c.serving, err = h.step(ctx, side.stage); err != nil {
		return c, err
	}
	if c.cordoned, err = h.step(ctx, side.update); err != nil {
		return c, err
	}
	_, err = h.step(ctx, side.shutdown)
	return c, err
}

// step runs argv as a service, so that everything of it is a descendant of the host's PID 1, and returns how long it
// took. None takes none.
func (h *osHost) step(ctx context.Context, argv []string) (time.Duration, error) {
	if argv == nil {
		return 0, nil
	}
	run := []string{"systemd-run", "--quiet", "--wait", "--collect", "--pipe", "--unit=bench-step",
		"--property=StandardOutput=null", "--"}
	start := time.Now()
	_, err := h.Output(ctx, append(run, argv...)...)
	return time.Since(start), err
}

// done waits until the agent is done with a configuration, and with what it cleans up after the verdict.
func (h *osHost) done(ctx context.Context, name string) error {
	s, err := h.WaitState(ctx, transaction.Done, transaction.RolledBack, transaction.Degraded)
	if err != nil {
		return err
	}
	if s.State != transaction.Done || s.Config.Committed != name || s.OS != host.OSRpmOstree {
		return fmt.Errorf("the host is %s with %s on %s: %s", s.State, s.Config.Committed, s.OS, s.Reason)
	}
	for {
		out, _, _, err := h.Exec(ctx, nil, "systemctl", "is-active", transaction.ProveUnit)
		if state := strings.TrimSpace(string(out)); err != nil || state != "active" && state != "activating" {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// updated refuses a host on which something of the update is not there: what has not been done costs nothing.
func (h *osHost) updated(ctx context.Context) error {
	for path, want := range map[string]string{"/usr/lib/testos/version": "v4", newFile: "b"} {
		if found, err := h.Output(ctx, "cat", path); err != nil || strings.TrimSpace(found) != want {
			return fmt.Errorf("after the update %s is %q instead of %q (%w)", path, found, want, err)
		}
	}
	if !slices.Contains(strings.Fields(h.Kargs()), newArgument) {
		return fmt.Errorf("after the update the kernel's command line is %q, without %s", h.Kargs(), newArgument)
	}
	text, err := h.Output(ctx, "rpm-ostree", "status", "--json", "--booted")
	if err != nil {
		return err
	}
	var status struct {
		Deployments []struct {
			Requested []string `json:"requested-packages"`      //nolint:tagliatelle // rpm-ostree's key
			Removed   []string `json:"requested-base-removals"` //nolint:tagliatelle // rpm-ostree's key
		} `json:"deployments"`
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		return fmt.Errorf("reading rpm-ostree's status: %w", err)
	}
	if len(status.Deployments) != 1 {
		return fmt.Errorf("after the update %d deployments are booted", len(status.Deployments))
	}
	d := status.Deployments[0]
	for _, of := range []struct {
		what       string
		found, has []string
	}{
		{"layered", d.Requested, append([]string{newExtension}, newKernel...)},
		{"left out", d.Removed, rpmostree.KernelPackages},
	} {
		want := slices.Sorted(slices.Values(of.has))
		if found := slices.Sorted(slices.Values(of.found)); !slices.Equal(found, want) {
			return fmt.Errorf("after the update %v are %s instead of %v", found, of.what, want)
		}
	}
	return nil
}

// osUpdate prints both sides, and holds ours against what is promised.
func (r *report) osUpdate(ours, upstream osCost) {
	for _, f := range []struct {
		name string
		of   func(osCost) float64
		unit string
	}{
		{"transactions", func(c osCost) float64 { return float64(c.made.transactions) }, "transactions"},
		{"composes", func(c osCost) float64 { return float64(c.made.composes) }, "composes"},
		{"deployments", func(c osCost) float64 { return float64(c.made.deployments) }, "deployments"},
		{"written", func(c osCost) float64 { return float64(c.written) / 1e6 }, "MB"},
		{"reboots", func(c osCost) float64 { return float64(c.reboots) }, "reboots"},
		{"forks", func(c osCost) float64 { return float64(c.forks) }, "forks"},
		{"serving", func(c osCost) float64 { return c.serving.Seconds() }, "s"},
		{"cordoned", func(c osCost) float64 { return c.cordoned.Seconds() }, "s"},
	} {
		r.figure("osupdate."+f.name, f.of(ours), f.unit)
		r.figure("osupdate."+f.name+".upstream", f.of(upstream), f.unit)
	}
	r.figure("osupdate.cordoned.ratio", float64(upstream.cordoned)/float64(ours.cordoned), "times")
	r.figure("osupdate.written.ratio", float64(upstream.written)/float64(ours.written), "times")
	for _, ch := range judgeOSUpdate(ours) {
		r.note(ch.reached, "osupdate", ch.what, true)
	}
	r.note(ours.cordoned < upstream.cordoned, "osupdate.cordoned", fmt.Sprintf(
		"%.1f s between drain and reboot, %.1f the way upstream does it", ours.cordoned.Seconds(),
		upstream.cordoned.Seconds()), false)
}
