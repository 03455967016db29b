// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/contents"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/layout"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/transaction"
)

// road returns the road of an update that boots on this host, or the reason why no road is possible. The text for
// status is kept.
func (h *Host) road(ctx context.Context) (transaction.Road, error) {
	if h.plain == nil {
		return h.usualRoad(), nil
	}
	road, why, err := chooseBootRoad(h.os, h.plain.Supported(ctx))
	if err == nil && h.transient {
		why = "/etc is transient, and recovery writes the configuration into it in each boot"
	}
	h.way = strings.TrimSuffix(string(road)+": "+why, ": ")
	if err != nil {
		h.way = "none: " + err.Error()
	}
	return road, err
}

// usualRoad returns the road of an update with a reboot on a host with nothing out of the ordinary.
func (h *Host) usualRoad() transaction.Road {
	switch {
	case h.plain != nil:
		return transaction.RoadSwitch
	case h.services != nil:
		return transaction.RoadInPlace
	}
	return transaction.RoadTree
}

// chooseBootRoad chooses between the switch road and the staged road. The staged road is for rpm-ostree, on hosts where
// switching is not possible. supported is the reason why switching is not possible, nil where it is.
func chooseBootRoad(os OS, supported error) (road transaction.Road, why string, err error) {
	if supported == nil {
		return transaction.RoadSwitch, "", nil
	}
	reason, is := errors.AsType[*ostree.Unsupported](supported)
	staged := []string{ostree.TooOld, ostree.Zipl, ostree.NoBootLink}
	if is && os == OSRpmOstree && slices.Contains(staged, reason.Reason) {
		return transaction.RoadStaged, reason.Detail, nil
	}
	return "", "", supported
}

// prepareStaged decides whether the update has a deployment of its own. It refuses files that the first boot could not
// write: such files would cost two boots.
func (h *Host) prepareStaged(ctx context.Context, a *attempt) error {
	u := a.update
	u.deploys = u.request.Checksum != u.booted.Checksum ||
		!slices.Equal(u.request.KernelArguments, u.booted.KernelArguments)
	if !u.deploys {
		// The files are for the deployment that runs. What somebody else has staged would boot instead of it.
		d, err := h.deployments.Foreign(ctx)
		if err != nil {
			return err
		}
		if u.reclaim = nil; d != nil {
			u.reclaim = []string{d.ID}
		}
	}
	if err := h.engine().Check(u.Update, a.compiled.Wants); err != nil || !u.deploys || u.release != nil || a.stages() {
		return err
	}
	var err error
	u.release, err = h.lockStaging(ctx, "apply", settling)
	return err
}

// staging returns the update of a as a transaction of the staged road.
func (h *Host) staging(a *attempt) transaction.Staged {
	u := a.update
	s := transaction.Staged{Update: u.Update, Road: u.road, Booted: u.booted.ID, Release: h.deployments.Release,
		Reclaim: u.reclaim}
	if u.deploys {
		s.Stage = func(ctx context.Context) (ostree.Deployment, error) { return h.stageDeployment(ctx, a) }
	}
	return s
}

// stageDeployment stages the deployment of an update. A boot after the composition has lost what was staged; then
// stageDeployment composes again, from content on the disk as far as possible, and judges another OS again.
func (h *Host) stageDeployment(ctx context.Context, a *attempt) (ostree.Deployment, error) {
	u, res := a.update, a.result
	kept := staged{Digest: u.cfg.Digest, Template: u.cfg.Template, Booted: u.booted.ID,
		Composed: osimage.Composed{Checksum: u.request.Checksum}, Layers: u.Revision.Layers}
	if u.want == nil {
		// The record lets a later unstage find the deployment if the update is dropped.
		if err := h.keepStaged(kept); err != nil {
			return ostree.Deployment{}, err
		}
	}
	d, err := h.deployments.Stage(ctx, u.request.Checksum, u.request.KernelArguments)
	if !errors.Is(err, rpmostree.ErrNotStaged) || u.want == nil {
		return d, errors.Join(err, h.followStaged(d))
	}
	h.say("pull", u.want.Image)
	if kept.Composed, err = h.composeOf(ctx, u.want); err != nil {
		return d, err
	}
	if kept.Composed.Checksum != u.request.Checksum {
		res.Warnings = append(res.Warnings, fmt.Sprintf("%s: %s, which was composed for %s, is not staged any more; "+
			"the staged commit is %s now", osField(res.Plan), u.request.Checksum, u.cfg.Name, kept.Composed.Checksum))
	}
	kept.System, kept.Layers = u.want.System, u.want.layers
	if err := errors.Join(h.keepStaged(kept), approves(u.cfg, u.approved, kept.Composed)); err != nil {
		return d, err
	}
	if kept.Composed.Checksum != u.request.Checksum {
		if err := h.judgeCommit(ctx, a, kept.Composed.Checksum); err != nil {
			return d, err
		}
	}
	d, err = h.deployments.Stage(ctx, kept.Composed.Checksum, u.request.KernelArguments)
	return d, errors.Join(err, h.followStaged(d))
}

// followStaged records the commit of the staged deployment in place of the composed one. rpm-ostree composes layered
// packages anew, into another commit, to change the kernel arguments. An apply that is repeated finds that commit.
func (h *Host) followStaged(d ostree.Deployment) error {
	if d.Checksum == "" {
		return nil // nothing was staged
	}
	s, err := h.staged()
	if err != nil || s == nil || s.Composed.Checksum == d.Checksum {
		return err
	}
	s.Composed.Checksum = d.Checksum
	return h.keepStaged(*s)
}

// bootedEtc returns the paths of the pending configuration in the /etc that has booted, and the paths there that others
// have changed. The vendor defaults, users and policy of that /etc count.
func (h *Host) bootedEtc(_ context.Context, r *transaction.Record) ([]files.Want, []string, error) {
	cfg, err := h.revision(&r.Pending.Revision)
	if err == nil {
		err = contents.Whole(cfg)
	}
	if err != nil {
		return nil, nil, err
	}
	old, err := h.revision(r.Committed)
	if errors.Is(err, errNoCopy) {
		h.say("apply", err.Error())
		err = nil
	}
	if err != nil {
		return nil, nil, err
	}
	var made, drifted []string
	if r.Committed != nil {
		made = r.Committed.Made
		if r.Committed.Digest == cfg.Digest {
			old = cfg
		}
	}
	drift, err := h.drift(old, &Result{})
	if err != nil {
		return nil, nil, err
	}
	for _, d := range drift {
		drifted = append(drifted, d.paths...)
	}
	slices.Sort(drifted)
	v := layout.View{Host: h.root}
	c, err := layout.Make(v, cfg, old, made)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", cfg.Name, err)
	}
	for _, w := range c.Warnings {
		h.say("apply", w)
	}
	wants, err := c.Below("/etc")
	return wants, slices.Compact(drifted), err
}

func (h *Host) view() layout.View { return layout.View{Host: h.root, Transient: h.transient} }

// bootEtc returns the paths of a revision in a transient /etc that has just begun, with the agent's own units.
func (h *Host) bootEtc(rev *transaction.Revision) ([]files.Want, error) {
	cfg, err := h.revision(rev)
	if err == nil {
		err = contents.Whole(cfg)
	}
	if err != nil {
		return nil, err
	}
	wants, err := layout.Booted(h.view(), cfg)
	return append(wants, h.installer().Wants()...), err
}
