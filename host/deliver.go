// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/layout"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// certificatesPath is the record of the certificates that were delivered beside the configurations. All deployments
// share the record. So the newest delivery counts for each of them, independent of its configuration.
const certificatesPath = transaction.StateDir + "/certificates.json"

// delivered is the record at certificatesPath.
type delivered struct {
	// ResourceVersion is that of the ControllerConfig that brought the files.
	ResourceVersion string                   `json:"resourceVersion"`
	Files           []machineconfig.Delivery `json:"files"` // by path
	// Made are directories that were made for the delivered files alone, and are removed with the last of these files.
	Made []string `json:"made,omitempty"`
	// Leaving are the final states of paths that are not delivered any more, kept until these states are reached. An
	// interrupted change leaves no other trace of the state that was to come back.
	Leaving []leaving `json:"leaving,omitempty"`
	// Due are paths whose actions are still to be done.
	Due []string `json:"due,omitempty"`
}

// leaving is the final state of a path that is not delivered any more.
type leaving struct {
	Path string     `json:"path"`
	Node files.Node `json:"node"`
	Data []byte     `json:"data,omitempty"`
}

func (l leaving) want() files.Want {
	w := files.Want{Path: l.Path, Node: l.Node, Kind: "file"}
	w.Node.Data = l.Data
	return w
}

// DeliverOptions are the options of deliver.
type DeliverOptions struct {
	Policy *plan.Policy
}

// Delivery is the result of deliver.
type Delivery struct {
	// ResourceVersion is that of the ControllerConfig; empty: the ControllerConfig has none.
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Written and Removed are the paths that have changed.
	Written []string `json:"written,omitempty"`
	Removed []string `json:"removed,omitempty"`
}

// deliveries reads the record. A damaged record blocks nothing: the next delivery writes the record anew.
func (h *Host) deliveries() *delivered {
	d := &delivered{}
	data, err := h.root.ReadFile(certificatesPath)
	if err == nil {
		err = json.Unmarshal(data, d)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			h.say("certificates", fmt.Sprintf("reading %s: %s; the delivered files are not known", certificatesPath, err))
		}
		return &delivered{}
	}
	return d
}

func (h *Host) keepDeliveries(d *delivered) error {
	data, err := json.Marshal(d)
	if err == nil {
		err = h.root.WriteRecord(certificatesPath, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("recording the delivered files: %w", err)
	}
	return nil
}

func (d *delivered) has(name string) bool {
	return slices.ContainsFunc(d.Files, func(f machineconfig.Delivery) bool { return f.Path == name })
}

// delivering is a prepared change from one delivery to the next.
type delivering struct {
	old, now *delivered
	cfg      *machineconfig.Config // without any delivered file
	wants    []files.Want
	changed  []files.Want // those whose path is not as wanted
}

// deliver prepares the change by the rules of an update, for these paths alone. A path that is not delivered any more
// gets the configuration's content, the vendor's, or what an admin had there before.
func (h *Host) deliver(cfg *machineconfig.Config, old, now *delivered) (*delivering, error) {
	v := h.view()
	next, before := cfg.Over(now.Files), cfg.Over(old.Files)
	if next == before {
		same := *cfg
		next = &same
	}
	c, err := layout.Make(v, next, before, old.Made)
	if err != nil {
		return nil, err
	}
	if err := c.Only(slices.Concat(old.Files, now.Files), old.Made); err != nil {
		return nil, err
	}
	if h.plain != nil {
		if err := c.Writable(); err != nil {
			return nil, err
		}
	}
	for _, l := range old.Leaving {
		c.Wants = append(c.Wants, l.want())
	}
	out := &delivering{old: old, now: now, cfg: cfg, wants: c.Wants}
	for _, w := range c.Wants {
		d, err := v.Compare(w)
		if err != nil {
			return nil, fmt.Errorf("comparing %s: %w", w.Path, err)
		}
		if len(d) == 0 {
			continue
		}
		if w.Kind != "" {
			out.changed = append(out.changed, w)
		}
		if !now.has(w.Path) {
			now.Leaving = append(now.Leaving, leaving{w.Path, w.Node, w.Node.Data})
		}
	}
	now.Made = c.Made
	now.Due = slices.Clone(old.Due)
	if slices.ContainsFunc(out.changed, func(w files.Want) bool { return w.Path == machineconfig.TrustBundlePath }) &&
		!slices.Contains(now.Due, machineconfig.TrustBundlePath) {
		now.Due = append(now.Due, machineconfig.TrustBundlePath)
	}
	return out, nil
}

// same reports whether the new record differs from the old one in nothing but its origin.
func (d *delivering) same() bool {
	return len(d.changed)+len(d.old.Leaving)+len(d.now.Leaving) == 0 && slices.Equal(d.old.Due, d.now.Due) &&
		slices.Equal(d.old.Made, d.now.Made) &&
		slices.EqualFunc(d.old.Files, d.now.Files, func(a, b machineconfig.Delivery) bool {
			return a.Path == b.Path && a.Mode == b.Mode && string(a.Data) == string(b.Data)
		})
}

// result names the changed paths.
func (d *delivering) result(version string) *Delivery {
	out := &Delivery{ResourceVersion: version}
	for _, w := range d.changed {
		switch w.Node.Type {
		case files.Absent:
			out.Removed = append(out.Removed, w.Path)
		default:
			out.Written = append(out.Written, w.Path)
		}
	}
	return out
}

// Deliver writes the certificates of a ControllerConfig beside the configuration, so that certificates can be renewed
// while a pool is paused. Deliver is a transaction that changes neither the configuration nor the deployment of a
// rollback. The record of the delivery decides: from then on these paths hold the delivered content, with every
// configuration of the host. A wrong field is an error, and its earlier content stays; everything else is delivered
// first.
func (h *Host) Deliver(ctx context.Context, cc *mcfgv1.ControllerConfig, o DeliverOptions) (*Result, error) {
	res := &Result{Reboot: RebootNone}
	r, err := h.store().Load()
	if err != nil {
		return h.result(ctx, res, r), err
	}
	cfg, err := h.deliverable(ctx, r)
	if err != nil {
		return h.result(ctx, res, r), err
	}
	old := h.deliveries()
	if len(old.Leaving) > 0 { // the last delivery was interrupted
		if err := h.redeliver(ctx, r); err != nil {
			return h.result(ctx, res, r), err
		}
		old = h.deliveries()
	}
	now := &delivered{ResourceVersion: cc.ResourceVersion}
	var problems []error
	now.Files, problems = machineconfig.Deliveries(&cc.Spec, old.Files)
	name := "ControllerConfig " + cmp.Or(cc.Name, api.ControllerConfig)
	for i, err := range problems {
		problems[i] = fmt.Errorf("%s: %w; the file keeps the contents that were delivered before", name, err)
	}
	d, err := h.deliver(cfg, old, now)
	if err == nil {
		err = h.writeDelivery(ctx, r, d)
	}
	if err == nil {
		res.Delivered = d.result(cc.ResourceVersion)
		err = h.afterDelivery(ctx, d.now, cfg, o.Policy, res)
	}
	if err != nil {
		err = fmt.Errorf("delivering the certificates of %s: %w", name, err)
	}
	return h.result(ctx, res, r), errors.Join(slices.Concat(problems, []error{err})...)
}

// deliverable returns the host's configuration, where no operation is under way that may roll that configuration back.
func (h *Host) deliverable(ctx context.Context, r *transaction.Record) (*machineconfig.Config, error) {
	booted, err := h.booted(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Pending != nil:
		return nil, &Refused{Err: fmt.Errorf("delivering certificates: the update to %s is under way (%s)",
			r.Pending.Config, r.Pending.Phase)}
	case r.Committed == nil || r.Committed.Digest == "":
		return nil, &Refused{Err: errors.New("delivering certificates: this host has no committed configuration")}
	case r.Committed.Deployment != booted.ID:
		return nil, &Refused{Err: errors.New("delivering certificates: the booted deployment is not that of the " +
			"committed configuration: run apply")}
	}
	return h.document(r.Committed)
}

// writeDelivery makes the host's paths as d wants them.
func (h *Host) writeDelivery(ctx context.Context, r *transaction.Record, d *delivering) error {
	if d.same() {
		return nil
	}
	drift, err := h.compare(d.cfg.Over(d.old.Files))
	if err != nil {
		return err
	}
	u := transaction.Update{Revision: *r.Committed, Wants: d.wants}
	for _, is := range drift {
		if slices.ContainsFunc(d.changed, func(w files.Want) bool { return w.Path == is.Path }) {
			u.Drifted = append(u.Drifted, is.Path)
		}
	}
	slices.Sort(u.Drifted)
	u.Drifted = slices.Compact(u.Drifted)
	decided := false
	u.Decide = func(made []string) error {
		for _, dir := range made {
			if !slices.Contains(d.now.Made, dir) {
				d.now.Made = append(d.now.Made, dir)
			}
		}
		decided = true
		return h.keepDeliveries(d.now)
	}
	if err := h.engine().Mend(ctx, r, u); err != nil {
		if decided {
			err = errors.Join(err, h.keepDeliveries(d.old))
		}
		return err
	}
	if len(d.now.Leaving)+len(d.old.Leaving) == 0 {
		return nil
	}
	d.now.Leaving = nil
	return h.keepDeliveries(d.now)
}

// afterDelivery does the actions that make a delivery count, and repeats them until they succeed. Only the bundle that
// people add needs actions: the kubelet and the container runtimes read the other files by themselves. The policy
// decides what afterDelivery may disrupt, except that drains and reboots are left out.
func (h *Host) afterDelivery(ctx context.Context, now *delivered, cfg *machineconfig.Config, policy *plan.Policy,
	res *Result) error {
	if len(now.Due) == 0 {
		return nil
	}
	actions, left, err := deliveryActions(now.Due, cfg, policy)
	if err != nil {
		return err
	}
	res.Warnings = append(res.Warnings, left...)
	if h.services != nil {
		for _, a := range actions {
			h.say("act", strings.TrimSpace(string(a.Type)+" "+a.Service))
			if a.Type == plan.ActionDaemonReload {
				err = h.services.Reload(ctx)
			} else {
				err = h.services.Act(ctx, a, false)
			}
			if err != nil {
				return err
			}
		}
	}
	now.Due = nil
	return h.keepDeliveries(now)
}

// deliveryActions returns the actions that a policy has for a change of these paths, and warnings about actions that
// are left out.
func deliveryActions(paths []string, cfg *machineconfig.Config, policy *plan.Policy) ([]plan.Action, []string, error) {
	from, to := *cfg, *cfg
	without := func(list []machineconfig.File) []machineconfig.File {
		return slices.DeleteFunc(slices.Clone(list), func(f machineconfig.File) bool {
			return slices.Contains(paths, f.Path)
		})
	}
	from.Files, to.Files = without(cfg.Files), without(cfg.Files)
	for _, p := range paths {
		to.Files = append(to.Files, machineconfig.File{Path: p, Mode: 0o644, Contents: []byte("another")})
	}
	slices.SortFunc(to.Files, func(a, b machineconfig.File) int { return cmp.Compare(a.Path, b.Path) })
	p, err := plan.Make(&from, &to, plan.Options{Policy: policy})
	if err != nil {
		return nil, nil, err
	}
	var out []plan.Action
	var left []string
	for _, a := range p.Actions {
		switch a.Type {
		case plan.ActionReload, plan.ActionRestart, plan.ActionDaemonReload:
			out = append(out, a)
		case plan.ActionReboot, plan.ActionDrain:
			left = append(left, fmt.Sprintf("a delivery never does a %s, which the policy asks for because of %s: "+
				"running programs may not have read the delivered files", strings.ToLower(string(a.Type)), a.Because))
		}
	}
	return out, left, nil
}

// redeliver restores the delivered files where a boot has brought older files: an older deployment has an older /etc.
// redeliver runs before the kubelet, so the next Deliver does the actions.
func (h *Host) redeliver(ctx context.Context, r *transaction.Record) error {
	old := h.deliveries()
	if len(old.Files)+len(old.Leaving) == 0 {
		return nil
	}
	cfg, err := h.deliverable(ctx, r)
	if errors.As(err, new(*Refused)) {
		return nil // the update under way began with the delivered files, and no delivery happens meanwhile
	}
	if err != nil {
		return err
	}
	again := &delivered{ResourceVersion: old.ResourceVersion, Files: slices.Clone(old.Files)}
	d, err := h.deliver(cfg, old, again)
	if err != nil || len(d.changed)+len(old.Leaving) == 0 {
		return err
	}
	var names []string
	for _, w := range d.changed {
		names = append(names, w.Path)
	}
	h.say("certificates", strings.Join(names, " "))
	return h.writeDelivery(ctx, r, d)
}

// Paths returns the paths that were written or removed, sorted.
func (d *Delivery) Paths() []string {
	set := map[string]bool{}
	for _, p := range slices.Concat(d.Written, d.Removed) {
		set[p] = true
	}
	return slices.Sorted(maps.Keys(set))
}
