// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/provision"
	"github.com/noderefit/noderefit/reboots"
	"github.com/noderefit/noderefit/transaction"
)

// Status is the output of status with -o json.
type Status struct {
	Config struct {
		Committed string `json:"committed"`
		Pending   string `json:"pending"`
		Previous  string `json:"previous"`
	} `json:"config"`
	State  transaction.State `json:"state"`
	Phase  string            `json:"phase"`
	Reason string            `json:"reason"`
	// Stuck means that no unit on the host moves the pending update on; Reason has the cause.
	Stuck bool `json:"stuck,omitempty"`
	// Unreadable means that the boot record can't be used: which configuration is committed or pending is not known.
	Unreadable bool   `json:"unreadable,omitempty"`
	Since      string `json:"since"` // RFC 3339; "" on a host that was never touched
	OS         OS     `json:"os"`
	// Road is the road of the next update with a reboot, or the reason why no road is possible.
	Road  string `json:"road"`
	apart string // Previous, where it has the name of what is committed
	// BootLimit is how often a new deployment may boot unproved before the boot loader itself rolls back, or why the boot
	// loader never does. Only the command status sets BootLimit, on hosts with ostree.
	BootLimit string `json:"bootLimit,omitempty"`
	// Host is the kind of the host, with its boot loader where it has no ostree, and Promises is what an update with a
	// reboot keeps there. Only the command status sets them.
	Host        string                    `json:"host,omitempty"`
	Promises    string                    `json:"promises,omitempty"`
	Deployments []DeploymentStatus        `json:"deployments"`
	Transaction *transaction.Progress     `json:"transaction"`
	Quarantined []transaction.Quarantined `json:"quarantined"`
	// Staged is the digest of the configuration whose OS was composed and not booted yet, or is being composed; "unknown"
	// where the digest can't be read.
	Staged string `json:"staged,omitempty"`
	// StagedOS is the digest of the staged image, or the checksum of the staged commit; "" while the OS is being composed.
	StagedOS string `json:"stagedOs,omitempty"`
	// Pulling is the part of the staged OS that is being brought to the disk at the moment.
	Pulling *osimage.Pulling `json:"pulling,omitempty"`
	// Checks are the check scripts' answers in the verdict on the committed configuration; nil: they were not asked.
	Checks *api.Checks `json:"checks,omitempty"`
	// NeedsReboot means that the pending configuration is committed, and that its reboot is left to people.
	NeedsReboot bool `json:"needsReboot,omitempty"`
	// Rebooted is what became of the latest ordered reboot, nil where none was ordered.
	Rebooted *api.Rebooted `json:"rebooted,omitempty"`
	// RebootWay is how the latest reboot was made, nil where a full one was asked for.
	RebootWay *api.RebootWay `json:"rebootWay,omitempty"`
	// RebootWanted is why the host wants a reboot, nil where nothing does. RebootsWithheld want none any more, because the
	// host has tried them.
	RebootWanted    *api.RebootWanted      `json:"rebootWanted,omitempty"`
	RebootsWithheld []transaction.Withheld `json:"rebootsWithheld,omitempty"`
	// Irreconcilable is what the committed configuration has else than the machine was made with.
	Irreconcilable []provision.Difference `json:"irreconcilable,omitempty"`
	// Skipped names the OS changes that --skip-os left out of the committed configuration.
	Skipped []string `json:"skipped"`
}

// madeWith is where the host keeps what the machine was made with.
const madeWith = transaction.StateDir + "/installed.json"

// DeploymentStatus is a bootable deployment, and its contents.
type DeploymentStatus struct {
	ID      string `json:"id"`
	Booted  bool   `json:"booted"`
	Default bool   `json:"default"`
	// Staged means that the next orderly shutdown makes the deployment the default, unless it is Locked.
	Staged          bool     `json:"staged"`
	Locked          bool     `json:"locked"`
	Version         string   `json:"version,omitempty"`
	Config          string   `json:"config,omitempty"`
	KernelArguments []string `json:"kernelArguments"`
}

// Readable returns an error where the caller may not read the host's record; on a host only root may.
func (h *Host) Readable() error {
	if _, err := h.store().Load(); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; run it as root", err)
	}
	return nil
}

// Status reads the state of the host. A record that can't be used is part of the answer.
func (h *Host) Status(ctx context.Context) *Status {
	r, err := h.store().Load()
	_, _ = h.road(ctx) // the answer contains its error
	s := h.statusOf(ctx, r)
	h.stuck(ctx, r, s)
	s.Host = h.kind()
	s.Promises = transaction.Promises(transaction.Road(strings.SplitN(s.Road, ":", 2)[0]), h.setsArguments())
	if h.grub != nil {
		s.BootLimit = fmt.Sprint(h.grub.Limit(), " boots")
		if err := h.grub.Counts(); err != nil {
			tries, uncounted := h.plain.Tries()
			if s.BootLimit = fmt.Sprint(tries, " boots"); tries == 0 {
				s.BootLimit = "none: " + message.OneLine(cmp.Or(uncounted, err).Error())
			}
		}
	}
	if err != nil {
		s.State, s.Reason = transaction.Degraded, err.Error()
	} else if cfg, err := h.document(r.Committed); err == nil {
		if s.Irreconcilable, err = provision.Differing(h.root, madeWith, cfg); err != nil {
			h.say("status", err.Error())
		}
	} else if s.State == transaction.Done {
		s.State, s.Reason = transaction.Degraded, message.OneLine(err.Error())
	}
	return s
}

// kind names the kind of the host, as the table of promises in docs/os-updates.md does.
func (h *Host) kind() string {
	switch {
	case h.composefs != "":
		return h.composefs.String()
	case h.plain != nil:
		return strings.Replace("host of "+string(h.os), " ostree", " plain ostree", 1)
	case h.loader != nil:
		return "host of packages; boot loader: " + h.loader.String()
	case h.services != nil:
		return "host of ostree, worked without it"
	}
	return "directory"
}

func (h *Host) statusOf(ctx context.Context, r *transaction.Record) *Status {
	s := &Status{OS: h.os, Road: cmp.Or(h.way, string(h.usualRoad())), Deployments: []DeploymentStatus{},
		Quarantined: []transaction.Quarantined{}, Skipped: []string{}}
	if h.composefs != "" {
		s.OS = OS(h.composefs.String())
	}
	if r == nil {
		s.State, s.Reason, s.Unreadable = transaction.Degraded, "the boot record can't be used: no command acts on it", true
		h.listDeployments(ctx, s, &transaction.Record{})
		return s
	}
	s.State, s.Reason = r.State, r.Reason
	if !r.Since.IsZero() {
		s.Since = r.Since.Format(time.RFC3339)
	}
	if r.Committed != nil {
		s.Config.Committed = r.Committed.Config
		s.Skipped = append(s.Skipped, r.Committed.Skipped...)
		s.Checks = h.checked(r.Committed.Config)
	}
	if r.Previous != nil {
		s.Config.Previous = r.Previous.Config
		if c := r.Committed; c != nil && c.Config == r.Previous.Config && c.Digest != r.Previous.Digest {
			s.apart = " (other content: digest " + r.Previous.Digest[:min(8, len(r.Previous.Digest))] + ")"
		}
	}
	if r.Pending != nil {
		s.Config.Pending, s.Phase = r.Pending.Config, string(r.Pending.Phase)
	}
	s.Quarantined = append(s.Quarantined, r.Quarantined...)
	progress, err := h.store().Progress(r)
	if err != nil {
		s.State, s.Reason = transaction.Degraded, err.Error()
	}
	s.Staged, s.StagedOS = h.stagedDigest()
	s.Transaction, s.Pulling = progress, h.pulling.Read()
	h.listDeployments(ctx, s, r)
	s.RebootsWithheld, s.Rebooted, s.NeedsReboot = r.Withheld, reboots.Shown(r.Rebooted), r.Pending.NeedsReboot()
	s.RebootWay = reboots.ShownWay(r.Way)
	if s.RebootWanted, err = h.wantsReboot(ctx, r, nil); err != nil {
		h.say("status", err.Error()) // the answer has the reason where it is about the deployments
	}
	return s
}

// stagedDigest returns the configuration whose OS was composed last, and that OS; "" where the OS was used or removed.
func (h *Host) stagedDigest() (config, os string) {
	if h.composer == nil {
		return "", ""
	}
	s, err := h.staged()
	switch {
	case err == nil && (s == nil || s.lineAlone()):
		return "", ""
	case err != nil || s.Digest == "":
		return "unknown", ""
	}
	return cmp.Or(s.Template, s.Digest), osDigest(s.Composed)
}

func (h *Host) listDeployments(ctx context.Context, s *Status, r *transaction.Record) {
	if h.plain == nil {
		return
	}
	ds, err := h.deployments.Status(ctx)
	if err != nil {
		if s.Reason != "" {
			s.Reason += "; "
		}
		s.Reason += "reading deployments: " + message.OneLine(err.Error())
		return
	}
	names := map[string]string{}
	for _, rev := range []*transaction.Revision{r.Previous, r.Committed} {
		if rev != nil {
			names[rev.Deployment] = rev.Config
		}
	}
	if r.Pending != nil && r.Pending.Deployment != "" {
		names[r.Pending.Deployment] = r.Pending.Config
	}
	for _, d := range ds {
		s.Deployments = append(s.Deployments, DeploymentStatus{ID: d.ID, Booted: d.Booted, Default: d.Default,
			Staged: d.Staged, Locked: d.Locked, Version: d.Version, Config: names[d.ID],
			KernelArguments: append([]string{}, d.KernelArguments...)})
	}
}

// Clone returns a copy that its owner may change.
func (s *Status) Clone() *Status {
	c := *s
	c.Deployments = slices.Clone(s.Deployments)
	c.Quarantined = slices.Clone(s.Quarantined)
	c.Skipped = slices.Clone(s.Skipped)
	if s.Transaction != nil {
		t := *s.Transaction
		c.Transaction = &t
	}
	return &c
}
