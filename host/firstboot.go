// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/provision"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// ignitionPreset is Ignition's own list of the units that Ignition was told to enable. systemd has applied the list
// once, and must not apply it again when a later configuration leaves a unit to the presets.
const ignitionPreset = "/etc/systemd/system-preset/20-ignition.preset"

// RebootPatience is how long a reboot may take from its start until the host is gone. After that time something blocks
// the reboot.
const RebootPatience = 10 * time.Minute

// FirstbootOptions are the options of a first boot.
type FirstbootOptions struct {
	RebootOptions

	// SkipOS completes the rest of a configuration whose OS changes the host can't make.
	SkipOS bool
}

// Firstboot completes a machine that was made from the MachineConfig in the file at from, an absolute path of the host.
// A machine that already has everything adopts the configuration; what Ignition can't do is done in one transaction,
// with at most one reboot. The file stays until the machine is complete, so an interrupted completion starts again. A
// machine that has a configuration was completed before, and does not return to the MachineConfig that the machine was
// made from.
func (h *Host) Firstboot(ctx context.Context, from string, o FirstbootOptions) (*Result, error) {
	res := &Result{Reboot: RebootNone}
	r, err := h.store().Load()
	if err != nil {
		return h.result(ctx, res, r), err
	}
	err = h.firstboot(ctx, r, from, o, res)
	if err == nil && res.Reboot == RebootStarted {
		err = h.leave(ctx)
	}
	return h.result(ctx, res, r), err
}

// leave waits until the shutdown ends this process. Units that wait for the machine to be complete would start if the
// process ended earlier.
func (h *Host) leave(ctx context.Context) error {
	h.say("firstboot", "waits for the reboot")
	late := time.NewTimer(RebootPatience)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-late.C:
		return fmt.Errorf("the reboot has not begun within %s: systemctl list-jobs and systemd-inhibit show "+
			"what delays the reboot", RebootPatience)
	}
}

func (h *Host) firstboot(ctx context.Context, r *transaction.Record, from string, o FirstbootOptions,
	res *Result) error {
	cfg, arguments, err := provision.MadeFrom(h.root, from)
	if errors.Is(err, fs.ErrNotExist) {
		h.say("firstboot", "there is nothing to complete: the file "+from+" does not exist")
		return nil
	}
	if err != nil {
		return err
	}
	booted, err := h.booted(ctx)
	if err != nil {
		return err
	}
	if h.services != nil {
		h.services.early = &systemd.Early{Unit: api.FirstbootUnit, Say: h.say}
	}
	adopted := false
	if !completed(r, cfg, booted.ID) {
		if err := h.root.Remove(ignitionPreset); err != nil {
			return err
		}
		if err := provision.Keep(h.root, madeWith, cfg); err != nil {
			return err
		}
		if err := h.apply(ctx, &attempt{record: r, result: res, cfg: cfg, arguments: arguments, unasked: true,
			options: ApplyOptions{RebootOptions: o.RebootOptions, SkipOS: o.SkipOS}}); err != nil {
			return err
		}
		if !completed(r, cfg, booted.ID) {
			return nil // a boot follows
		}
		adopted = res.Plan != nil && len(res.Plan.Changes) == 0
	}
	return h.retire(from, adopted)
}

// completed reports whether the machine has been completed: the host has the configuration that it was made from, or a
// later one. A configuration that waits only for its verdict counts: that verdict is given while the units that waited
// for us start. A record with another deployment than the booted one belongs to an earlier installation whose /var was
// kept.
func completed(r *transaction.Record, cfg *machineconfig.Config, booted string) bool {
	if p := r.Pending; p != nil && p.Digest == cfg.Digest {
		return p.Phase == transaction.PhaseProve && p.Deployment == booted
	} else if p != nil && p.Deployment == booted {
		return r.Committed != nil
	}
	return r.Committed != nil && r.Committed.Digest != "" && r.Committed.Deployment == booted
}

// retire removes the file that asked for the completion. As in OpenShift the file is deleted where the machine already
// matched it. Else the file is renamed, so that people see what the machine was made from.
func (h *Host) retire(from string, adopted bool) error {
	if adopted {
		return h.root.Remove(from)
	}
	dir, name := path.Split(from)
	return h.root.Replace(dir, name, from+".bak")
}
