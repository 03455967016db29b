// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/transaction"
)

const (
	kernelLoaded = "kernel loaded" // the fault point
	byKexec      = "--reboot-method=kexec"
	kexecLog     = "/var/tmp/kexec"
)

// playedKexec plays the program and the kernel, which loads no other one on a lab host. In memory it keeps whether a
// kernel is loaded, and on the disk what it was asked for.
const playedKexec = `mkdir -p /usr/local/sbin
cat >/usr/local/sbin/kexec <<'E'
#!/bin/sh
echo "$1 $2" >>` + kexecLog + `
case "$2" in
-l) echo 1 >/sys/kernel/kexec_loaded ;;
-u) echo 0 >/sys/kernel/kexec_loaded ;;
esac
E
chmod 755 /usr/local/sbin/kexec`

// loads has the kernel of this boot say whether it has loaded another one: no at first.
const loads = `[ -d /run/kernel ] || {
	mkdir -p /run/kernel
	mount --bind /run/kernel /sys/kernel
}
echo 0 >/sys/kernel/kexec_loaded
rm -f ` + kexecLog

// cutLoaded cuts a host between the load of a kernel and the reboot, and takes the reboot back there.
func (h *crashHost) cutLoaded(ctx context.Context) {
	h.t.Helper()
	// Where the boot loader counts boots, no kernel is loaded.
	if err := os.WriteFile(filepath.Join(h.Sysroot(), filepath.Dir(environment), "grub.cfg"), nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
	report(h.t, "apply cut at "+kernelLoaded, h.cutAtLoad(ctx))
	for _, name := range sample("another configuration", "rollback", "left to people", "another method") {
		report(h.t, "apply killed at "+kernelLoaded+", then "+name, h.killedAtLoad(ctx, name))
	}
}

// cutAtLoad pulls the plug once the kernel is loaded. The commit came before, so the host ends on it, and takes no
// kernel that another program loads afterwards for its own.
func (h *crashHost) cutAtLoad(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*limit)
	defer cancel()
	to, boots := h.other(), h.Boots()
	if err := h.shell(ctx, loads); err != nil {
		return err
	}
	h.flags = append(h.flags, byKexec)
	_, err := h.cutAt(ctx, "apply", kernelLoaded, to)
	h.flags = h.flags[:len(h.flags)-1]
	if err != nil {
		return err
	}
	s, err := h.Status(ctx)
	if err != nil {
		return err
	}
	ran, err := h.Output(ctx, "cat", kexecLog)
	if w := s.RebootWay; err == nil && (h.at != to || h.Boots() != boots+1 || ran != "-s -l\n" || w == nil ||
		w.Took != api.RebootFull || !strings.Contains(w.Why, "started as Kexec")) {
		err = fmt.Errorf("%w: after %d boots the host is on %s, says %+v, and has run kexec %q", errLost, h.Boots()-boots,
			h.at, w, ran)
	}
	if err = errors.Join(err, h.shell(ctx, loads+"\necho 1 >/sys/kernel/kexec_loaded")); err != nil {
		return err
	}
	for _, args := range [][]string{{h.other(), "--no-reboot"}, {h.at}} {
		if _, exit, err := h.Apply(ctx, h.docs[args[0]], args[1:]...); err != nil {
			return fmt.Errorf("applying %q: exit %d, %w", args, exit, err)
		}
	}
	return errors.Join(h.hasLoaded(ctx, "1"), h.stays(ctx))
}

// hasLoaded holds the kernel to having loaded another one, "1", or none, "0".
func (h *crashHost) hasLoaded(ctx context.Context, want string) error {
	out, err := h.Output(ctx, "cat", "/sys/kernel/kexec_loaded")
	if err == nil && strings.TrimSpace(out) != want {
		err = fmt.Errorf("%w: kexec_loaded is %q, want %s", errTorn, out, want)
	}
	return err
}

// killedAtLoad kills the agent once the kernel is loaded, and gives the reboot up: the kernel must not stay.
func (h *crashHost) killedAtLoad(ctx context.Context, then string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*limit)
	defer cancel()
	to := h.other()
	if err := errors.Join(h.shell(ctx, loads), h.ask("apply", "kill", kernelLoaded)); err != nil {
		return err
	}
	if res, _, err := h.Apply(ctx, h.docs[to], byKexec); err == nil {
		return fmt.Errorf("%w: the agent was not killed: %+v", errLost, res)
	}
	if err := errors.Join(h.askNothing(), h.hasLoaded(ctx, "1")); err != nil {
		return err
	}
	if then == "another method" {
		err := h.moveTo(ctx, to)
		if err != nil {
			return err
		}
		ran, err := h.Output(ctx, "cat", kexecLog)
		if err == nil && ran != "-s -l\n-s -u\n" {
			err = fmt.Errorf("%w: kexec was run as %q", errTorn, ran)
		}
		return errors.Join(err, h.stays(ctx))
	}
	var err error
	switch then {
	case "another configuration":
		_, _, err = h.Apply(ctx, h.docs[h.at])
	case "left to people":
		_, _, err = h.Apply(ctx, h.docs[to], "--no-reboot")
	}
	if err == nil && then != "rollback" {
		err = h.hasLoaded(ctx, "0")
	}
	if err == nil && then != "another configuration" {
		_, err = h.Output(ctx, "machine-config-daemon", "rollback")
	}
	if err = errors.Join(err, h.hasLoaded(ctx, "0")); err != nil {
		return err
	}
	if s, err := h.Status(ctx); err != nil || s.Config.Pending != "" || s.State != transaction.Done {
		return fmt.Errorf("%w: the host is not at rest: %+v, %w", errLost, s, err)
	}
	return h.stays(ctx)
}
