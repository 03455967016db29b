// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/contents"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/sysext"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// whole returns a configuration as it counts on this host: with the delivered files, and with the contents that the
// host has fetched.
func (h *Host) whole(cfg *machineconfig.Config) *machineconfig.Config {
	return h.contents.Fill(cfg.Over(h.deliveries().Files))
}

// fetchContents brings the contents that the configuration has by reference. What can't be carried out for another
// reason is refused before anything is fetched.
func (h *Host) fetchContents(ctx context.Context, a *attempt) error {
	if !a.options.SkipOS {
		p, err := h.Plan(ctx, a.cfg, PlanOptions{Policy: a.options.Policy, SoftReboot: a.options.soft(),
			unasked: a.unasked})
		if err != nil {
			return err
		}
		if err := Unreconcilable(p); err != nil {
			return err
		}
	}
	var err error
	a.cfg, err = h.fetch(ctx, a.verb, a.cfg)
	return err
}

// fetch returns the configuration with all of its contents. stage holds the lock of staging already, and each other
// verb the host's lock. Contents are removed under both locks: the record of a host at work may not have the next
// configuration yet.
func (h *Host) fetch(ctx context.Context, verb string, cfg *machineconfig.Config) (*machineconfig.Config, error) {
	if len(contents.Lacking(cfg)) == 0 {
		return cfg, nil
	}
	if verb != agent.StageVerb.Name {
		release, err := h.lockStaging(ctx, verb, settling)
		if err != nil {
			return cfg, err
		}
		defer release()
	}
	if err := h.sweep(ctx, verb, cfg); err != nil {
		return cfg, err
	}
	done := h.pulling.Begin("contents of " + cfg.Name)
	defer done()
	h.contents.Say = h.pulling.Says
	err := h.contents.Fetch(ctx, cfg)
	if ostree.ClassOf(err) == ostree.Invalid {
		return cfg, &UnreachableError{Err: fmt.Errorf("%s can't be reached from here: %w", cfg.Name, err)}
	}
	return h.contents.Fill(cfg), err
}

// sweep removes the contents that neither the host's configurations nor next have. stage removes none while the host is
// at work.
func (h *Host) sweep(ctx context.Context, verb string, next *machineconfig.Config) error {
	if verb == agent.StageVerb.Name {
		release, busy := h.lockFile(ctx, hostLock, verb, "is at work", 0)
		if busy != nil {
			return nil
		}
		defer release()
	}
	r, err := h.store().Load()
	if err != nil || !h.exists(contents.Dir) {
		return err
	}
	keep := []*machineconfig.Config{next}
	revisions := []*transaction.Revision{r.Committed, r.Previous}
	if r.Pending != nil {
		revisions = append(revisions, &r.Pending.Revision)
	}
	for _, rev := range revisions {
		if cfg, err := h.document(rev); err == nil { // without its copy nothing can go back to it
			keep = append(keep, cfg)
		}
	}
	return h.contents.Sweep(keep...)
}

// judgeExtensions refuses extensions of the system that the OS which is to run would not merge.
func (h *Host) judgeExtensions(ctx context.Context, a *attempt) error {
	release, err := h.root.ReadFile("/usr/lib/os-release")
	if a.boots() && a.update.request.Checksum != a.booted.Checksum {
		release, err = h.plain.OSRelease(ctx, a.update.request.Checksum)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, w := range sysext.Judge(a.cfg, release, h.transient) {
		a.result.Plan.Unreconcilable = append(a.result.Plan.Unreconcilable,
			plan.Unreconcilable{Field: "storage.files " + w.Place, Reason: w.Reason})
	}
	return Unreconcilable(a.result.Plan)
}

// extensionsCheck asks whether the extensions of a configuration are merged, as the configuration has them.
func (h *Host) extensionsCheck(cfg *machineconfig.Config) transaction.Check {
	return transaction.Check{Name: "system extensions", Run: func(context.Context) error {
		root, err := files.Open(ostree.EveryonesRoot())
		if err != nil {
			return err
		}
		return errors.Join(sysext.Merged(root, cfg), root.Close())
	}}
}

// mergeAnew has the extensions merged that recovery has written after systemd looked for them.
func (h *Host) mergeAnew(ctx context.Context, revisions ...*transaction.Revision) error {
	var units []string
	for _, rev := range revisions {
		if cfg, err := h.revision(rev); err == nil && h.services != nil {
			units = append(units, sysext.Units(cfg)...)
		}
	}
	slices.Sort(units)
	for _, unit := range slices.Compact(units) {
		if err := h.services.merge(ctx, unit); err != nil {
			return err
		}
	}
	return nil
}

// merge has a unit merge extensions anew.
func (s *services) merge(ctx context.Context, unit string) error {
	return s.with(ctx, jobTimeout, func(ctx context.Context, m *systemd.Manager) error {
		return m.ReloadUnit(ctx, unit)
	})
}

// rereadEtc lays the extensions of /etc over what was written below them, for programs to see it.
func (s *services) rereadEtc(ctx context.Context) error {
	if !ostree.EtcExtended() {
		return nil
	}
	return s.merge(ctx, sysext.ConfextUnit)
}
