// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// rollout has what the demo on a cluster applies, in the repository.
const rollout = "test/demo/rollout"

// workers are the nodes of the demo.
var workers = []string{"worker-0", "worker-1", "worker-2"}

// onFleet is the demo on a cluster whose nodes are hosts that really boot.
func (d *demo) onFleet(ctx context.Context) (err error) {
	d.line(d.style("1", "Noderefit: a pool of nodes goes from one configuration to the next, and stops at a bad one"))
	d.line("")
	d.say("The control plane is a real one: etcd, kube-apiserver, controller manager and scheduler, on this machine. " +
		"The workers are real ostree hosts, booted with systemd in containers, each with kubelet and agent. Only their " +
		"container runtime is on paper, and their kernel is this machine's, so a reboot takes a second.")
	d.say("Each line after a $ was really typed; long output is cut.")
	d.where()
	f, err := d.raised(ctx)
	if err != nil {
		return err
	}
	p := &pool{demo: d, Fleet: f}
	for _, step := range []func(context.Context) error{p.adopt, p.preview, p.forward, p.mistake, p.revert} {
		if err := step(ctx); err != nil {
			if ctx.Err() == nil {
				err = errors.Join(err, p.keepLogs(ctx))
			}
			return err
		}
	}
	if d.shell && d.last {
		d.line("")
		d.say("The cluster is yours; the demo cleans up when this shell exits.")
		if err := interactive(d.command(context.Background(), "bash -i")); err != nil {
			return err
		}
	}
	return nil
}

// pool is the demo with its cluster.
type pool struct {
	*demo
	*fleet.Fleet
}

// raise brings the cluster up.
func (d *demo) raise(ctx context.Context, log io.Writer) (*fleet.Fleet, error) {
	if _, err := d.kubebox.wait(log); err != nil {
		return nil, err
	}
	base, err := lab.Prepare(ctx, "", log)
	if err != nil {
		return nil, err
	}
	f, err := fleet.Start(ctx, base, fleet.Options{Bin: d.absolute(d.bin), Repository: d.repo, Hosts: workers,
		Verdict: verdictTimeout})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// lower removes the cluster, if there is one.
func (d *demo) lower() error {
	if d.fleet == nil {
		return nil
	}
	d.fleet.end()
	f := d.fleet.made
	d.fleet = nil
	if f == nil {
		return nil
	}
	return f.Close()
}

// raised waits for the cluster, and puts the commands that are typed where the shell finds them.
func (d *demo) raised(ctx context.Context) (*fleet.Fleet, error) {
	text := "The first time on a machine, the control plane is built and the workers' operating system is made, which " +
		"takes some minutes; both are kept in a cache."
	if d.several {
		text = "It has come up while the host was shown. " + text
	}
	d.act("A cluster with three workers", text)
	began := time.Now()
	slow := d.wait("making ready")
	f, err := d.fleet.wait(slow)
	slow.done()
	if err != nil {
		return nil, err
	}
	kubebox, err := d.kubebox.wait(slow)
	if err != nil {
		return nil, err
	}
	d.event(began, "the cluster is up")
	path := filepath.Join(d.work, "bin")
	if err := errors.Join(os.Mkdir(path, 0o755), os.Symlink(kubebox, filepath.Join(path, "kubectl"))); err != nil {
		return nil, err
	}
	d.env = append(d.env, "KUBECONFIG="+f.Kubeconfig,
		fmt.Sprintf("PATH=%s:%s:%s", path, d.absolute(d.bin), os.Getenv("PATH")))
	return f, d.types(ctx, "kubectl get nodes", "kubectl apply -f "+rollout+"/20-shop.yaml")
}

func (d *demo) absolute(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(d.repo, path)
}

// adopt gives the pool its first configuration.
func (p *pool) adopt(ctx context.Context) error {
	p.act("The nodes are adopted", "A pool, the controllers and the agents come to nodes that nobody had configured. "+
		"Each plans from nothing. What it lacks here is a key, for which nobody has to move.")
	if err := p.do(ctx, "kubectl apply -f "+rollout+"/10-pool.yaml"); err != nil {
		return err
	}
	if _, err := p.StartController(ctx); err != nil {
		return err
	}
	if err := p.StartAgents(ctx); err != nil {
		return err
	}
	if err := p.updated(ctx); err != nil {
		return err
	}
	return p.types(ctx, "kubectl get mcp", "kubectl refit status")
}

func (p *pool) updated(ctx context.Context) error {
	return p.await(ctx, "updated", fleet.Updated(len(workers)))
}

// await waits until the pool is what it is to be.
func (p *pool) await(ctx context.Context, what string, is func(*mcfgv1.MachineConfigPool) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the pool takes too long"))
	defer cancel()
	return p.WaitPool(ctx, "worker", what, is)
}

// next are the documents that the pool gets.
const nextDocuments = "-f test/demo/documents/05-worker-kernelarg-selinuxoff.yaml" +
	" -f test/demo/documents/50-examplecorp-chrony.yaml"

func (p *pool) preview(ctx context.Context) error {
	p.act("What would happen", "Before anything is applied: what changes on which nodes, which change asks for a drain "+
		"or a reboot, in which order, and what would be in the way.")
	return p.do(ctx, "kubectl refit plan worker "+nextDocuments)
}

func (p *pool) forward(ctx context.Context) error {
	p.act("The rollout", "One node at a time: planned and staged while it serves, then cordoned, drained within the "+
		"budgets, switched, rebooted, and judged before the next one begins.")
	seen := p.WatchReady(ctx, "shop")
	if err := p.do(ctx, "kubectl apply "+nextDocuments); err != nil {
		return err
	}
	if exit, err := p.follow(ctx, "kubectl refit watch worker"); err != nil || exit != 0 {
		return errors.Join(err, fmt.Errorf("watching the rollout: exit code %d", exit))
	}
	if err := p.updated(ctx); err != nil {
		return err
	}
	if err := p.types(ctx, "kubectl get mcp,nodes"); err != nil {
		return err
	}
	p.line("")
	p.say(fmt.Sprintf("Meanwhile the workload had never fewer than %d of its 3 pods ready; its budget asks for 2.",
		seen.Least()))
	return nil
}

func (p *pool) mistake(ctx context.Context) error {
	p.act("A bad configuration", "With this one the kubelet does not start. The first node tries it, fails its verdict, "+
		"and goes back by itself. It serves on; the content is in quarantine, and no other node gets it.")
	if err := p.types(ctx, "tail -n 8 "+rollout+"/70-worker-kubelet.yaml",
		"kubectl apply -f "+rollout+"/70-worker-kubelet.yaml"); err != nil {
		return err
	}
	// A pool that has not begun yet is at its end, and a watch that settles soon would believe so.
	if err := p.await(ctx, "at work", func(p *mcfgv1.MachineConfigPool) bool {
		return !fleet.Updated(len(workers))(p)
	}); err != nil {
		return err
	}
	if exit, err := p.follow(ctx, "kubectl refit watch worker --settle 1s"); err != nil || exit != 1 {
		return errors.Join(err, fmt.Errorf("watching the rollout of a bad configuration: exit code %d", exit))
	}
	if err := p.await(ctx, "in quarantine", func(p *mcfgv1.MachineConfigPool) bool {
		return fleet.Condition(p, api.PoolQuarantined)
	}); err != nil {
		return err
	}
	return p.types(ctx, "kubectl get mcp,nodes", "kubectl refit explain worker")
}

func (p *pool) revert(ctx context.Context) error {
	p.act("Taking it back", "The document is deleted, and that is all: nobody touches a node.")
	if err := p.do(ctx, "kubectl delete machineconfig 70-worker-kubelet"); err != nil {
		return err
	}
	if err := p.updated(ctx); err != nil {
		return err
	}
	return p.types(ctx, "kubectl get mcp", "kubectl refit status")
}

// keepLogs leaves what there is to find out why the demo did not go as it should.
func (p *pool) keepLogs(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "noderefit-demo-logs-")
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range p.Nodes {
		text, err := n.Journal(ctx)
		errs = append(errs, err, os.WriteFile(filepath.Join(dir, n.Name+".journal"), []byte(text), 0o600))
	}
	for i, c := range p.Controllers() {
		errs = append(errs, os.WriteFile(filepath.Join(dir, fmt.Sprintf("controllers-%d.log", i)), []byte(c.Log()), 0o600))
	}
	fmt.Fprintln(os.Stderr, "The hosts' journals and the controllers' logs are in", dir)
	return errors.Join(errs...)
}

// types types commands that have to succeed.
func (d *demo) types(ctx context.Context, commands ...string) error {
	for _, c := range commands {
		run := d.do
		if strings.HasPrefix(c, "kubectl get ") || strings.HasPrefix(c, "kubectl refit status") {
			run = d.table
		}
		if err := run(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// table types a command that prints tables, which are shown as wide as they are once names are short.
func (d *demo) table(ctx context.Context, command string) error {
	d.typed("$", command)
	out, err := d.command(ctx, command).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	for _, l := range tabulated(splitLines(string(out))) {
		d.line("    " + d.style("2", l))
	}
	return nil
}

func (d *demo) do(ctx context.Context, command string) error {
	out, exit, err := d.here(ctx, command, nil)
	if err == nil && exit != 0 {
		err = failed(command, exit, out)
	}
	return err
}

// follow types a command and shows each line as it comes.
func (d *demo) follow(ctx context.Context, command string) (int, error) {
	d.typed("$", command)
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, patience*3, errors.New("the rollout takes too long"))
	defer cancel()
	cmd := d.command(ctx, command)
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		for lines := bufio.NewScanner(read); lines.Scan(); {
			d.printed([]string{strings.TrimRight(lines.Text(), " ")})
		}
	}()
	err := cmd.Run()
	_ = write.Close()
	<-shown
	var status *exec.ExitError
	if ctx.Err() != nil {
		return -1, context.Cause(ctx)
	}
	if err != nil && !errors.As(err, &status) {
		return -1, fmt.Errorf("running %s: %w", command, err)
	}
	exit := cmd.ProcessState.ExitCode()
	d.took(began, exit)
	return exit, nil
}

// command is a line for the shell, to be run as it is typed.
func (d *demo) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir = d.repo
	cmd.Env = append(append(os.Environ(), "W="+d.work), d.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}
