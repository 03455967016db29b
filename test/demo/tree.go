// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// onTree is the demo on a directory that looks like a host.
func (d *demo) onTree(ctx context.Context) error {
	d.line(d.style("1", "Noderefit: a node goes from one whole configuration to the next"))
	d.line("")
	d.say("The node is a directory that looks like a host. It does not boot and runs nothing. So this part leaves out " +
		"the reboot, kernel arguments, the proof after the boot, the return from a bad configuration by itself and its " +
		"quarantine, and restarts of services. As root on Debian, make demo shows them on hosts that boot.")
	d.say("$ is a prompt on this machine. Each line after it was really typed; long output is cut.")
	d.where()

	for _, step := range []func(context.Context) error{
		d.makeTree, d.rendered, d.planTree, d.applyTree, d.lookAtTree, d.driftTree, d.backTree,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) tree() string { return filepath.Join(d.work, "host") }

// treeFiles is what makes a directory look like a host: users, vendor defaults, and the units that are there.
var treeFiles = map[string]string{
	"etc/passwd":      "root:x:0:0:root:/root:/bin/bash\ncore:x:1000:1000:core:/var/home/core:/bin/bash\n",
	"etc/group":       "root:x:0:\ncore:x:1000:\n",
	"etc/shadow":      "root:!:20000::::::\ncore:!:20000::::::\n",
	"etc/chrony.conf": "pool vendor.example iburst\n",
	"usr/lib/systemd/system/crio.service": "[Unit]\nDescription=Container runtime\n\n" +
		"[Service]\nExecStart=/usr/bin/crio\n\n[Install]\nWantedBy=multi-user.target\n",
	"usr/lib/systemd/system/containerd.service": "[Unit]\nDescription=Container runtime\n\n" +
		"[Service]\nExecStart=/usr/bin/containerd\n\n[Install]\nWantedBy=multi-user.target\n",
	"usr/lib/systemd/system/kubelet.service": "[Unit]\nDescription=Kubelet\n\n[Service]\nExecStart=/usr/bin/kubelet\n\n" +
		"[Install]\nWantedBy=multi-user.target\n",
	"usr/lib/systemd/system-preset/80-host.preset": "enable kubelet.service\nenable crio.service\ndisable *\n",
	"var/home/core/.ssh/.keep":                     "",
}

func (d *demo) makeTree(ctx context.Context) error {
	d.act("A directory that looks like a host",
		"It has users, a few units and one file in /etc that the vendor put there.")
	for name, text := range treeFiles {
		at := filepath.Join(d.tree(), name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			return err
		}
	}
	_, _, err := d.here(ctx, "find $W/host -type f | sort", nil)
	return err
}

// must types a command of the agent on the tree and fails when it does not end with that exit code.
func (d *demo) must(ctx context.Context, want int, trim func([]string) []string, arguments string) error {
	command := d.bin + "/machine-config-daemon " + arguments
	out, exit, err := d.here(ctx, command, trim)
	if err == nil && exit != want {
		err = failed(command, exit, out)
	}
	return err
}

// The exit codes that the story needs.
const (
	exitUnreachable = 3
	exitDrift       = 4
)

func (d *demo) planTree(ctx context.Context) error {
	d.act("The plan, before anything happens", "What would change, what it would disrupt, and which change asks for it. "+
		"A directory has no kernel arguments, and a configuration is taken whole or not at all: so this one is refused.")
	return d.must(ctx, exitUnreachable, collapse, "plan --root $W/host --desired $W/good.yaml")
}

func (d *demo) applyTree(ctx context.Context) error {
	d.act("Applied, without its kernel arguments", "--skip-os takes the rest, and status goes on saying what is missing. "+
		"Everything is staged beside its target, one rename of the boot record decides, and then come the renames.")
	if err := d.must(ctx, exitUnreachable, collapse, "apply --root $W/host --config $W/good.yaml"); err != nil {
		return err
	}
	return d.must(ctx, 0, withoutPlan, "apply --root $W/host --config $W/good.yaml --skip-os")
}

func (d *demo) lookAtTree(ctx context.Context) error {
	d.act("What is there now", "Files, enabled units and keys; verify compares everything that the configuration manages.")
	for _, command := range []string{
		"cat $W/host/etc/chrony.conf $W/host/etc/testinfra; echo",
		"cd $W/host && ls -l usr/local/bin/kubeinit_kubevirt_extra_config_script",
		"ls $W/host/etc/systemd/system/multi-user.target.wants | head -n 5",
		"find $W/host -type f | wc -l",
	} {
		if _, _, err := d.here(ctx, command, nil); err != nil {
			return err
		}
	}
	return d.must(ctx, 0, nil, "verify --root $W/host")
}

func (d *demo) driftTree(ctx context.Context) error {
	d.act("Somebody changes a managed file", "verify finds it. The next apply warns, keeps the changed file aside, and "+
		"puts the configured one back: drift is told and never an obstacle.")
	if _, _, err := d.here(ctx, "echo 'server my.own.example' >> $W/host/etc/chrony.conf", nil); err != nil {
		return err
	}
	if err := d.must(ctx, exitDrift, nil, "verify --root $W/host"); err != nil {
		return err
	}
	if err := d.must(ctx, 0, withoutPlan, "apply --root $W/host --config $W/good.yaml --skip-os"); err != nil {
		return err
	}
	_, _, err := d.here(ctx, "cat $W/host/var/lib/machine-config-daemon/drift/*/etc/chrony.conf", nil)
	return err
}

func (d *demo) backTree(ctx context.Context) error {
	d.act("Forward to a mistake, and back", "A booted host would find by itself that this drop-in starts a program which "+
		"does not exist. Here a person does, and goes back.")
	if err := d.render(ctx, "bad.yaml", documents+" "+mistake); err != nil {
		return err
	}
	if err := d.must(ctx, 0, withoutPlan, "apply --root $W/host --config $W/bad.yaml --skip-os"); err != nil {
		return err
	}
	dropins := "ls $W/host/etc/systemd/system/crio.service.d"
	if _, _, err := d.here(ctx, dropins, nil); err != nil {
		return err
	}
	if err := d.must(ctx, 0, withoutPlan, "rollback --root $W/host"); err != nil {
		return err
	}
	out, _, err := d.here(ctx, dropins, nil)
	if err == nil && strings.Contains(out, "50-debug.conf") {
		err = fmt.Errorf("rolling back: the drop-in is still there: %s", out)
	}
	return err
}
