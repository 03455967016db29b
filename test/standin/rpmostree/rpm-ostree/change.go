// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/godbus/dbus/v5"
)

// changeArguments is KernelArgs: another deployment of the same base with other arguments. What is layered is composed
// anew, out of the package cache, and is another commit each time: the commit has the time in it.
func changeArguments(existing string, p patch, options vardict) func(context.Context, *transaction) error {
	return func(ctx context.Context, t *transaction) error {
		all, err := readDeployments(ctx)
		if err != nil {
			return err
		}
		var arguments []string
		var changed bool
		if final, ok := options["final-kernel-args"].Value().(string); ok {
			arguments, changed = splitArguments(final), final != existing
		} else if arguments, changed, err = p.apply(existing); err != nil {
			return err
		}
		if !changed {
			t.say("No changes.")
			return nil
		}
		first := all[0]
		checksum, err := recompose(ctx, t, first)
		if err != nil {
			return err
		}
		wanted := staging{first.os, checksum, first.origin, arguments, options.yes(lockFlag)}
		if err := stage(ctx, t, wanted); err != nil {
			return err
		}
		return rebootIf(ctx, options.yes("reboot"))
	}
}

// cleanup is Cleanup: kinds are base, pending-deploy, rollback-deploy and repomd.
func cleanup(kinds []string) func(context.Context, *transaction) error {
	return func(ctx context.Context, t *transaction) error {
		pending, rollback := slices.Contains(kinds, "pending-deploy"), slices.Contains(kinds, "rollback-deploy")
		if pending || rollback {
			if err := removeDeployments(ctx, t, pending, rollback); err != nil {
				return err
			}
		}
		if slices.Contains(kinds, "base") {
			return cleanRepository(ctx)
		}
		return nil
	}
}

// removeDeployments removes what comes before the booted one, what comes after it, or both; nothing that is pinned.
func removeDeployments(ctx context.Context, t *transaction, pending, rollback bool) error {
	all, err := readDeployments(ctx)
	if err != nil {
		return err
	}
	booted := bootedDeployment(all)
	if booted == nil {
		return guess("Not currently booted into an OSTree system")
	}
	removed := 0
	// From the end: each one that goes moves those after it.
	for _, d := range slices.Backward(all) {
		asked := d.index < booted.index && pending || d.index > booted.index && rollback
		if d.os != booted.os || d.pinned || !asked {
			continue
		}
		if _, err := tool(ctx, "admin", "undeploy", strconv.Itoa(d.index)); err != nil {
			return err
		}
		removed++
	}
	if removed == 0 {
		t.say("Deployments unchanged.")
		return nil
	}
	return cleanRepository(ctx)
}

// rollBack is Rollback: the one after the booted one becomes the first or, where there is none, the booted one.
func rollBack(options vardict) func(context.Context, *transaction) error {
	return func(ctx context.Context, t *transaction) error {
		all, err := readDeployments(ctx)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(all, func(d *deployment) bool { return d.booted })
		switch {
		case len(all) < 2 || at < 0:
			return original("No rollback deployment found")
		case all[0].staged:
			return original("Staged deployment (remove with cleanup -p)")
		case at+1 < len(all):
			at++
		}
		t.say("Moving '%s.%d' to be first deployment", all[at].checksum, all[at].serial)
		if at > 0 {
			if _, err := tool(ctx, "admin", "set-default", strconv.Itoa(at)); err != nil {
				return err
			}
		}
		return rebootIf(ctx, options.yes("reboot"))
	}
}

// unlockAndReboot is FinalizeDeployment: the staged one is unlocked, and the machine reboots.
func unlockAndReboot(options vardict) func(context.Context, *transaction) error {
	return func(ctx context.Context, _ *transaction) error {
		all, err := readDeployments(ctx)
		if err != nil {
			return err
		}
		if !all[0].staged {
			return original("No pending staged deployment found")
		}
		c, err := readCommit(all[0].checksum)
		if err != nil {
			return err
		}
		found := c.base()
		base, err := readCommit(found)
		if err != nil {
			return err
		}
		expected := options.text("checksum")
		if strings.HasPrefix(expected, "sha256:") {
			found = base.text("ostree.manifest-digest")
		}
		if expected != "" && expected != found {
			return original("Expected staged base checksum %s, but found %s", expected, found)
		}
		if err := inhibited(ctx); err != nil {
			return err
		}
		switch {
		case all[0].locked && ofOld():
			if err := os.Remove(lockedFile); err != nil {
				return err
			}
		case all[0].locked:
			if _, err := tool(ctx, "admin", lockFlag, "--unlock"); err != nil {
				return err
			}
		case !options.yes("allow-unlocked"):
			return original("Staged deployment already unlocked")
		}
		return reboot(ctx)
	}
}

// rebootIf reboots where that was asked for. What has been staged stays so if the machine must not.
func rebootIf(ctx context.Context, asked bool) error {
	if !asked {
		return nil
	}
	if err := inhibited(ctx); err != nil {
		return err
	}
	return reboot(ctx)
}

// rebooting is that nothing may be begun any more.
var rebooting = make(chan struct{}, 1)

func reboot(ctx context.Context) error {
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer bus.Close()
	select {
	case rebooting <- struct{}{}:
	default:
	}
	return bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
		CallWithContext(ctx, "org.freedesktop.systemd1.Manager.StartUnit", 0, "reboot.target", "replace-irreversibly").Err
}

// inhibited refuses a reboot that somebody blocks.
func inhibited(ctx context.Context) error {
	bus, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer bus.Close()
	var all []struct {
		What, Who, Why, Mode string
		UID, PID             uint32
	}
	err = bus.Object("org.freedesktop.login1", "/org/freedesktop/login1").
		CallWithContext(ctx, "org.freedesktop.login1.Manager.ListInhibitors", 0).Store(&all)
	if err != nil {
		return original("Checking systemd inhibitor locks: %v", err)
	}
	text, n := "", 0
	for _, i := range all {
		if strings.Contains(i.What, "shutdown") && i.Mode == "block" {
			if n++; n == 1 {
				text = "Reboot blocked by a systemd inhibitor lock in `block` mode\nHeld by: " + i.Who + "\nReason: " + i.Why
			}
		}
	}
	if n > 1 {
		text += fmt.Sprintf("\nand %d other blocking inhibitor lock(s)\nUse `systemd-inhibit --list` to see details", n-1)
	}
	if n > 0 {
		return errors.New(text)
	}
	return nil
}
