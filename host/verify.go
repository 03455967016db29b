// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/kargs"
	"github.com/noderefit/noderefit/layout"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/sshkeys"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// DriftDeployment is the kind of drift in which the booted deployment is not the configuration's.
const DriftDeployment = "deployment"

// Drift is one aspect in which the host does not match its configuration. Expected and Found are digests, modes, ids or
// targets, never contents.
type Drift struct {
	Kind     string `json:"kind"`
	Path     string `json:"path,omitempty"`
	Name     string `json:"name,omitempty"`
	User     string `json:"user,omitempty"`
	What     string `json:"what"`
	Expected string `json:"expected"`
	Found    string `json:"found"`

	paths []string // to be kept before they are overwritten
	// exposed: users other than root can change the aspect at any time, for example their password. The difference is
	// drift then, but no part of a verdict: otherwise a user could have every configuration rolled back.
	exposed bool
}

// Subject names what differs: a path, a unit's name or a user.
func (d Drift) Subject() string { return d.Path + d.Name + d.User }

// key is the subject as layout.Subjects has it.
func (d Drift) key() string { return layout.Subject(d.Kind, d.Subject()) }

// Verification is the output of verify with -o json.
type Verification struct {
	Config string  `json:"config"`
	Drift  []Drift `json:"drift"`
	// Paths are the compared paths, where the caller asked for them; a path that ends in /* means all entries of a
	// directory.
	Paths []string `json:"paths,omitempty"`
	// Forced reports whether ForceFile exists.
	Forced bool `json:"forced,omitempty"`
}

// ForceFile is OpenShift's request to overwrite drift, against any policy of a pool. The operation that overwrites the
// drift removes the file.
const ForceFile = "/run/machine-config-daemon-force"

// Verify compares the host with cfg, or with its committed configuration where cfg is nil.
func (h *Host) Verify(ctx context.Context, cfg *machineconfig.Config) (*Verification, error) {
	r, err := h.store().Load()
	if err != nil {
		return nil, err
	}
	booted, err := h.booted(ctx)
	if err != nil {
		return nil, err
	}
	asked, rev := cfg != nil, r.Committed
	cfg = h.whole(cfg)
	if !asked {
		if p := r.Pending; p != nil && p.Deployment == booted.ID &&
			(p.Road == transaction.RoadSwitch || slices.Contains(booting, p.Road) && p.Phase == transaction.PhaseProve) {
			rev = &p.Revision
		}
		if cfg, err = h.revision(rev); err != nil {
			return nil, err
		}
	}
	if cfg == nil {
		return nil, errors.New("verifying: this host has no committed configuration; give one with --config")
	}
	out := &Verification{Config: cfg.Name, Forced: h.exists(ForceFile)}
	wants, drift, err := h.compared(cfg)
	if err != nil {
		return nil, err
	}
	out.Drift = drift
	if !asked && rev != nil && rev.Deployment != "" && booted.ID != "" && rev.Deployment != booted.ID {
		out.Drift = append(out.Drift, Drift{Kind: DriftDeployment, What: "another", Expected: rev.Deployment,
			Found: booted.ID})
	}
	if out.Paths, err = h.comparedPaths(cfg, wants); err != nil {
		return nil, err
	}
	if asked || rev == nil || len(rev.Skipped) == 0 {
		var layers *transaction.Layers
		if !asked && rev != nil {
			layers = &rev.Layers
		}
		drift, err := h.osDrift(ctx, cfg, booted, layers)
		if err != nil {
			return nil, err
		}
		out.Drift = append(out.Drift, drift...)
	}
	return out, nil
}

// drift compares the host with its last configuration, before that configuration is replaced.
func (h *Host) drift(old *machineconfig.Config, res *Result) ([]Drift, error) {
	if old == nil {
		return nil, nil
	}
	drift, err := h.compare(old)
	for _, d := range drift {
		res.Warnings = append(res.Warnings, "drift: "+driftText(d))
	}
	return drift, err
}

// driftText names the differing subject and aspect, but not the values: the text ends in journals, whose readers may
// not be allowed to read the file. A digest gives a short secret away.
func driftText(d Drift) string {
	return strings.TrimSpace(d.key()) + ": " + d.What
}

// comparedPaths returns the paths whose changes may be drift. A unit's enablement depends on links that may appear
// anywhere among the links of other units.
func (h *Host) comparedPaths(cfg *machineconfig.Config, wants []files.Want) ([]string, error) {
	var out []string
	for _, w := range wants {
		if w.Kind == "" {
			continue
		}
		out = append(out, w.Path)
		if w.HardTo != "" {
			out = append(out, w.HardTo)
		}
	}
	if slices.ContainsFunc(cfg.Users, func(u machineconfig.User) bool { return u.PasswordHash != nil }) {
		out = append(out, layout.ShadowPath)
	}
	if len(cfg.Units) > 0 {
		out = append(out, systemd.UnitDir+"/*")
		names, err := h.root.ReadDir(systemd.UnitDir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading %s: %w", systemd.UnitDir, err)
		}
		for _, name := range names {
			switch path.Ext(name) {
			case ".wants", ".requires", ".upholds":
				out = append(out, path.Join(systemd.UnitDir, name)+"/*")
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// compare returns where the host's files, units and users differ from cfg.
func (h *Host) compare(cfg *machineconfig.Config) ([]Drift, error) {
	_, drift, err := h.compared(cfg)
	return drift, err
}

// compared also returns the compared wants.
func (h *Host) compared(cfg *machineconfig.Config) ([]files.Want, []Drift, error) {
	v := h.view()
	c, err := layout.Make(v, cfg, cfg, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", cfg.Name, err)
	}
	out := []Drift{}
	for _, w := range c.Wants {
		if w.Kind == "" || w.Kind == "password" || w.Exists {
			continue
		}
		ds, err := v.Compare(w)
		if err != nil {
			return nil, nil, fmt.Errorf("comparing %s: %w", w.Path, err)
		}
		for _, d := range ds {
			out = append(out, driftOf(d))
			out[len(out)-1].exposed = h.root.Exposed(w.Path) != ""
		}
	}
	shadow, err := h.root.ReadFile(layout.ShadowPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("passwd.users: %w", err)
	}
	for _, user := range sshkeys.PasswordDrift(shadow, layout.ManagedUsers(cfg)) {
		out = append(out, Drift{Kind: "password", User: user, What: "contents",
			Expected: "the configured hash", Found: "another hash", exposed: true})
	}
	return c.Wants, slices.CompactFunc(out, func(a, b Drift) bool { // several links of one unit
		same := a.Kind == b.Kind && a.Subject() == b.Subject() && a.What == b.What
		return same && a.Kind == "unit"
	}), nil
}

func driftOf(d files.Difference) Drift {
	out := Drift{Kind: d.Want.Kind, What: string(d.What), Expected: d.Expected, Found: d.Found,
		paths: []string{d.Want.Path}}
	switch d.Want.Kind {
	case "sshkeys", "user":
		out.User = d.Want.Name
	case "unit", "dropin":
		out.Name = d.Want.Name
	default:
		out.Path = d.Want.Path
	}
	return out
}

// osDrift compares the running OS with the configuration's demands on the OS. layers are the packages that these
// demands meant on this host, nil where not known.
func (h *Host) osDrift(ctx context.Context, cfg *machineconfig.Config, booted ostree.Deployment,
	layers *transaction.Layers) ([]Drift, error) {
	if h.plain == nil && h.loader == nil {
		return nil, nil
	}
	var out []Drift
	line, err := kargs.Running(h.root.ReadFile)
	if err != nil {
		line = booted.KernelArguments
	}
	if missing := kargs.Missing(line, cfg.KernelArguments); len(missing) > 0 {
		out = append(out, Drift{Kind: "kargs", What: "missing", Expected: kargs.Join(missing),
			Found: "not on the command line"})
	}
	if h.plain == nil || !asksForOS(cfg) {
		return out, nil
	}
	now, err := h.current(ctx)
	if err != nil {
		return nil, err
	}
	if img := cfg.OSImageURL; img != "" && img != booted.Checksum && !now.Runs(img) {
		out = append(out, Drift{Kind: "osImage", What: "contents", Expected: img,
			Found: strings.TrimSpace(now.Image + " " + booted.Checksum)})
	}
	more, err := h.layersDrift(cfg, now, layers)
	return append(out, more...), err
}
