// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// verdictTimeout is short because the host boots in a second or two; ten minutes is what a real one gets by default.
const verdictTimeout = time.Minute

// onHost is the demo on a host that really boots.
func (d *demo) onHost(ctx context.Context) (err error) {
	d.line(d.style("1", "Noderefit: a node goes from one whole configuration to the next, and comes back from a bad one"))
	d.line("")
	d.say("The node is a real ostree host: Debian as an ostree deployment, booted with systemd in a container on this " +
		"machine. Only its kernel is this machine's, so a reboot takes a second and its kernel arguments are those " +
		"that its boot loader entry gives to its init. It stands for one node of a pool; there is no cluster.")
	d.say("$ is a prompt on this machine, host# one on the node. Each line after a prompt was really typed; " +
		"long output is cut, and SHA-256 digests are shortened.")
	d.where()

	n, err := d.boot(ctx)
	if err != nil {
		return err
	}
	h := &demoHost{demo: d, Node: n}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, h.keepJournal())
		}
		d.leave(n.Close)
	}()
	for _, step := range []func(context.Context) error{d.rendered, h.plan, h.forward, h.inside, h.breakIt, h.refused} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if d.shell && d.last {
		if err := h.prompt(); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) boot(ctx context.Context) (*node.Node, error) {
	d.act("A host boots", "It has an operating system and no configuration of ours. The first time on a machine, "+
		"its operating system is made and kept in a cache.")
	began := time.Now()
	slow := d.wait("making the operating system")
	base, err := lab.Prepare(ctx, "", slow)
	slow.done()
	if err != nil {
		return nil, err
	}
	n, err := node.New(ctx, base, filepath.Join(d.absolute(d.bin), "machine-config-daemon"), lab.Options{Name: "infra-0"})
	if err != nil {
		return nil, err
	}
	d.event(began, "booted "+n.BootedDeployment())
	h := &demoHost{demo: d, Node: n}
	if _, err := h.do(ctx, "machine-config-daemon status", 0, nil); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// keepJournal leaves what the host logged where it can be read when the host is gone.
func (h *demoHost) keepJournal() error {
	text, err := h.Journal(context.Background())
	if err != nil {
		return err
	}
	file, err := os.CreateTemp("", "noderefit-demo-*.journal")
	if err != nil {
		return fmt.Errorf("keeping the host's journal: %w", err)
	}
	_, err = file.WriteString(text)
	fmt.Fprintln(os.Stderr, "The host's journal is in", file.Name())
	return errors.Join(err, file.Close())
}

// host is the demo with its host.
type demoHost struct {
	*demo
	*node.Node
}

// do types a command on the host, and fails when it does not end with that exit code. A code below zero is that of a
// command which the host's own reboot may stop.
func (h *demoHost) do(ctx context.Context, command string, want int, trim func([]string) []string) (string, error) {
	h.typed("host#", command)
	began := time.Now()
	out, _, exit, err := h.Exec(ctx, nil, "sh", "-c", "exec 2>&1\n"+command)
	if err != nil {
		return "", err
	}
	h.printed(trimmed(string(out), trim))
	h.took(began, max(0, exit))
	if exit != want && want >= 0 || exit > 0 && want < 0 {
		return "", failed(command, exit, string(out))
	}
	return string(out), nil
}

// rebooting is what do expects of a command that reboots the host.
const rebooting = -1

// copied puts a rendered configuration on the host.
func (h *demoHost) copied(name string) error {
	data, err := os.ReadFile(filepath.Join(h.work, name))
	if err != nil {
		return err
	}
	_, err = h.Document(name, data)
	return err
}

func (h *demoHost) plan(ctx context.Context) error {
	h.act("The plan, before anything happens", "The host (to which the file was copied) says what would change on it, "+
		"what that disrupts, and which change asks for it. Nothing is touched.")
	if err := h.copied("good.yaml"); err != nil {
		return err
	}
	_, err := h.do(ctx, "machine-config-daemon plan --desired /var/tmp/good.yaml", 0, collapse)
	return err
}

func (h *demoHost) forward(ctx context.Context) error {
	h.act("The switch", "A second deployment is made with its own /etc and kernel arguments while the host runs on, "+
		"untouched. One rename in the boot loader decides; the reboot has nothing left to do. After it the host proves "+
		"that it is healthy, and only then the configuration counts.")
	began := time.Now()
	if _, err := h.do(ctx, "machine-config-daemon apply --config /var/tmp/good.yaml --verdict-timeout "+
		verdictTimeout.String(), rebooting, withoutPlan); err != nil {
		return err
	}
	s, err := h.watch(ctx, began)
	if err != nil {
		return err
	}
	if s.State != transaction.Done {
		return fmt.Errorf("applying the good configuration: the host says %s: %s", s.State, s.Reason)
	}
	_, err = h.do(ctx, "machine-config-daemon status", 0, nil)
	return err
}

func (h *demoHost) inside(ctx context.Context) error {
	h.act("What is there now", "Files in the new deployment's /etc and outside any deployment (/usr/local is below "+
		"/var), units, keys and arguments; verify compares everything that the configuration manages.")
	for _, command := range []string{
		"cat /etc/chrony.conf /etc/testinfra; echo",
		"ls -l /usr/local/bin/kubeinit_kubevirt_extra_config_script",
		"tr '\\0' ' ' < /proc/1/cmdline; echo",
		"systemctl is-active kubelet crio nodeip-configuration ovs-configuration",
		"machine-config-daemon verify",
	} {
		if _, err := h.do(ctx, command, 0, nil); err != nil {
			return err
		}
	}
	return nil
}

func (h *demoHost) breakIt(ctx context.Context) error {
	h.act("A bad configuration", "Somebody adds a drop-in that makes the container runtime start a program which does "+
		"not exist. No parser can see that, so it is applied. The booted host fails its checks (failed units, and the "+
		"check script that the pool ships) and goes back, with nobody's help.")
	if _, _, err := h.here(ctx, "tail -n 20 "+mistake+"/70-infra-crio-debug.bu", nil); err != nil {
		return err
	}
	if err := h.render(ctx, "bad.yaml", documents+" "+mistake); err != nil {
		return err
	}
	if err := h.copied("bad.yaml"); err != nil {
		return err
	}
	if _, err := h.do(ctx, "machine-config-daemon plan --desired /var/tmp/bad.yaml", 0, collapse); err != nil {
		return err
	}
	began := time.Now()
	if _, err := h.do(ctx, "machine-config-daemon apply --config /var/tmp/bad.yaml --verdict-timeout "+
		verdictTimeout.String(), rebooting, withoutPlan); err != nil {
		return err
	}
	s, err := h.watch(ctx, began)
	if err != nil {
		return err
	}
	if s.State != transaction.RolledBack {
		return fmt.Errorf("applying the bad configuration: the host says %s, not %s", s.State, transaction.RolledBack)
	}
	for _, command := range []string{
		"machine-config-daemon status",
		"systemctl is-active crio; ls /etc/systemd/system/crio.service.d",
		"machine-config-daemon verify",
	} {
		if _, err := h.do(ctx, command, 0, nil); err != nil {
			return err
		}
	}
	return nil
}

func (h *demoHost) refused(ctx context.Context) error {
	h.act("The same content under another name", "The revision is in quarantine on this host, and it is known by its "+
		"content: a new name does not get it in again. Correcting the document does, and so does --lift-quarantine.")
	const rename = "sed 's/name: rendered-infra-.*/name: try-once-more/' /var/tmp/bad.yaml > /var/tmp/renamed.yaml"
	if _, err := h.do(ctx, rename, 0, nil); err != nil {
		return err
	}
	const unreachable = 3
	_, err := h.do(ctx, "machine-config-daemon apply --config /var/tmp/renamed.yaml", unreachable, nil)
	return err
}

// poll is how often the host is asked where it is: a fraction of a boot, so that each phase is seen.
const poll = 100 * time.Millisecond

// patience is how long an update may take, with its way back.
const patience = verdictTimeout + time.Minute

// watch tells what the host does by itself until nothing is under way any more.
func (h *demoHost) watch(ctx context.Context, began time.Time) (*host.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the host takes too long"))
	defer cancel()
	h.line("")
	said, last := map[string]bool{}, ""
	boots := h.Boots()
	tell := func(text string) { // once: a phase that goes on over a reboot is no news after it
		if last = text; !said[text] {
			h.event(began, text)
			said[text] = true
		}
	}
	for {
		s, err := h.Status(ctx)
		if now := h.Boots(); now != boots {
			boots = now
			tell(fmt.Sprintf("boot %d, of deployment %s", boots, h.BootedDeployment()))
		}
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("waiting for the host, last seen %q: %w", last, context.Cause(ctx))
		case err != nil || len(s.Deployments) == 0: // on its way down or up
		case s.Config.Pending == "":
			tell(sentence(s))
			_, err := h.WaitRunning(ctx)
			return s, err
		default:
			tell(sentence(s))
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

// sentence is a status in one line.
func sentence(s *host.Status) string {
	text := string(s.State)
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return strings.TrimSpace(text)
}

// prompt leaves the host to whoever is at the terminal.
func (h *demoHost) prompt() error {
	h.line("")
	h.say("The host is yours; the demo cleans up when this shell exits.")
	cmd, err := h.Command(context.Background(), "bash", "-l")
	if err != nil {
		return err
	}
	cmd.Dir = "/"
	return interactive(cmd)
}

// interactive runs a shell for whoever is at the terminal.
func interactive(cmd *exec.Cmd) error {
	signal.Ignore(os.Interrupt) // it belongs to the shell
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	_ = cmd.Run() // how the last command in the shell ended is nobody's business
	return nil
}
