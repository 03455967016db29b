// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/transaction"
)

// composer is the host's OS manager, as far as it is needed: it brings an OS to the disk while the node serves. What it
// composed boots when a deployment of it is materialised and made the default, and not before.
type composer interface {
	// Current is what the booted deployment is.
	Current(ctx context.Context) (osimage.System, error)
	// Compose may take minutes. To compose the same again costs nothing.
	Compose(ctx context.Context, s osimage.System) (osimage.Composed, error)
	// Present says whether what Compose gave is still there whole.
	Present(ctx context.Context, s osimage.System, c osimage.Composed) (bool, error)
	// Drop lets go of what was composed; deployments of it stay.
	Drop(ctx context.Context) error
}

// current is what runs: the booted deployment stays the same for as long as we do.
func (h *Host) current(ctx context.Context) (osimage.System, error) {
	if h.system == nil {
		s, err := h.composer.Current(ctx)
		if err != nil {
			return s, fmt.Errorf("reading what the host runs: %w", err)
		}
		h.system = &s
	}
	return *h.system, nil
}

// asksForOS says whether cfg says anything of the OS but kernel arguments.
func asksForOS(cfg *machineconfig.Config) bool { return cfg.OSImageURL != "" || asksForPackages(cfg) }

func asksForPackages(cfg *machineconfig.Config) bool {
	return len(cfg.Extensions) > 0 || cmp.Or(cfg.KernelType, machineconfig.KernelDefault) != machineconfig.KernelDefault
}

// effective is what is in effect on the host of what configurations say of the OS, whichever of them, or whoever else,
// has brought it: what a plan starts from. Packages that are not ours are in effect for who asks for them, and nothing
// that a configuration without them could take back.
func (h *Host) effective(ctx context.Context, old, cfg *machineconfig.Config,
	ours transaction.Layers) (*plan.OS, error) {
	asked := asksForOS(cfg) || old != nil && asksForOS(old) || len(ours.Packages) > 0
	if h.composer == nil || !asked {
		return nil, nil
	}
	now, err := h.current(ctx)
	if err != nil {
		return nil, err
	}
	os := &plan.OS{ImageURL: now.Image, KernelType: machineconfig.KernelDefault}
	for _, c := range []*machineconfig.Config{old, cfg} {
		if c != nil && c.OSImageURL != "" && now.Runs(c.OSImageURL) {
			os.ImageURL = c.OSImageURL
		}
	}
	if h.os != OSRpmOstree {
		return os, nil
	}
	c, platform, err := h.catalogue()
	if err != nil {
		return nil, err
	}
	has := func(packages []string, asked bool) bool {
		mine := asked || slices.ContainsFunc(packages, func(p string) bool { return slices.Contains(ours.Packages, p) })
		return len(packages) > 0 && len(lacking(now.Packages, packages)) == 0 && mine
	}
	for _, kernel := range []string{machineconfig.KernelRealtime, machineconfig.Kernel64kPages} {
		if packages, _, err := c.Packages(platform, kernel, nil); err == nil && has(packages, kernel == cfg.KernelType) {
			os.KernelType = kernel
		}
	}
	for _, x := range c.Extensions(platform) {
		if has(c.Extension(platform, x), slices.Contains(cfg.Extensions, x)) {
			os.Extensions = append(os.Extensions, x)
		}
	}
	return os, nil
}

// wanted is a system to compose, and what of it is ours once it runs.
type wanted struct {
	osimage.System

	layers transaction.Layers
	// choose, where the image is another one, makes the rest what it is on that image's release.
	choose rpmostree.Choose
}

// wanted is what cfg makes of the current system. Packages that somebody else has layered stay, as do packages of the
// base that somebody else has taken out. p is told the names of packages when they are those of another release.
func (h *Host) wanted(ctx context.Context, cfg *machineconfig.Config, image string, ours transaction.Layers,
	p *plan.Plan) (*wanted, error) {
	now, err := h.current(ctx)
	if err != nil {
		return nil, err
	}
	layered := func(install, remove []string) (s osimage.System, mine transaction.Layers) {
		s.Image, mine.Wanted = image, install
		if asksForPackages(cfg) && h.os == OSRpmOstree {
			s.Source = cfg.ExtensionsImage
		}
		s.Packages, mine.Packages = layer(now.Packages, ours.Packages, install)
		s.Removed, mine.Removed = layer(now.Removed, ours.Removed, remove)
		return s, mine
	}
	install, remove, err := h.packages(cfg)
	another := image != "" && h.os == OSRpmOstree && asksForPackages(cfg)
	if err != nil && (!another || !errors.As(err, new(plan.NotKnown))) {
		return nil, err
	}
	w := &wanted{}
	w.System, w.layers = layered(install, remove)
	if !another {
		return w, nil
	}
	c, _, err := h.catalogue()
	if err != nil {
		return nil, err
	}
	w.choose = func(osRelease []byte) ([]string, []string, error) {
		platform := plan.ParsePlatform(osRelease, runtime.GOARCH)
		install, remove, err := c.Packages(platform, cfg.KernelType, cfg.Extensions)
		if err != nil {
			return nil, nil, err
		}
		var s osimage.System
		s, w.layers = layered(install, remove)
		namePackages(p, c, platform)
		return s.Packages, s.Removed, nil
	}
	return w, nil
}

// layer is what there is without what was ours, and with what is wanted; and what of that is ours.
func layer(now, owned, want []string) (all, ours []string) {
	for _, p := range now {
		if !slices.Contains(owned, p) {
			all = append(all, p)
		}
	}
	for _, p := range want {
		if !slices.Contains(all, p) {
			all, ours = append(all, p), append(ours, p)
		}
	}
	slices.Sort(all)
	slices.Sort(ours)
	return all, ours
}

// StagedPath is where what was composed for a configuration is kept for its apply.
const StagedPath = transaction.StateDir + "/staged.json"

// staged is what was composed for the configuration of that digest, empty while it is being composed. What a ref names
// may be another commit by the time of the apply, and the remote may be away: neither is to matter to a node that is
// drained.
type staged struct {
	Digest string `json:"digest"`
	// Booted is the deployment that it was composed from: of another one it would take back what has changed since.
	Booted string `json:"booted"`
	// System is what was asked for, by the names that the release that ran has for packages.
	System   osimage.System   `json:"system"`
	Composed osimage.Composed `json:"composed"`
	// Layers are what of it is ours, by the names that the release that was composed has.
	Layers transaction.Layers `json:"layers,omitzero"`
}

func (h *Host) keepStaged(s staged) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := h.root.MkdirAll(transaction.StateDir, 0o700); err != nil {
		return err
	}
	if err := h.root.WriteRecord(StagedPath, data, 0o600); err != nil {
		return fmt.Errorf("keeping what was staged: %w", err)
	}
	return nil
}

// unstage lets go of what was composed for the configuration of that digest, for any with "". Most of the time nothing
// was.
func (h *Host) unstage(ctx context.Context, digest string) error {
	if h.composer == nil || !h.exists(StagedPath) {
		return nil
	}
	// Who composes now has the say, and what is there may be its.
	release, err := h.lockStaging(ctx, "unstage", 0)
	if errors.As(err, new(*Refused)) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	data, err := h.root.ReadFile(StagedPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading what was staged: %w", err)
	}
	var s staged
	if json.Unmarshal(data, &s) == nil && digest != "" && s.Digest != digest {
		return nil
	}
	whole := s.Composed.Checksum != ""
	if whole {
		// From here on it is not: who goes on after a cut has to see that.
		s.Composed = osimage.Composed{}
		if err := h.keepStaged(s); err != nil {
			return err
		}
	}
	err = h.composer.Drop(ctx)
	h.deployments.changed()
	if err != nil {
		return fmt.Errorf("letting go of what was staged: %w", err)
	}
	if !whole {
		// A boot loses what a compose that was cut short had staged, and leaves its checkout, of which nobody else knows.
		if err := h.plain.Cleanup(ctx); err != nil {
			return fmt.Errorf("letting go of what was staged: %w", err)
		}
	}
	return h.root.Remove(StagedPath)
}

// stagedFor is what was composed for the configuration, nil where nothing was.
func (h *Host) stagedFor(cfg *machineconfig.Config, booted string, want osimage.System) *staged {
	var s staged
	data, err := h.root.ReadFile(StagedPath)
	if err != nil || json.Unmarshal(data, &s) != nil || s.Composed.Checksum == "" || s.Digest != cfg.Digest ||
		s.Booted != booted || !reflect.DeepEqual(s.System, want) {
		return nil
	}
	return &s
}

// compose brings the system to the disk: what was staged for this very configuration, and otherwise what its image is
// now. Room is asked for before anything is pulled, which takes minutes.
func (h *Host) compose(ctx context.Context, cfg *machineconfig.Config, booted string, want *wanted,
	o ApplyOptions, res *Result) (osimage.Composed, error) {
	field := osField(res.Plan)
	var before *staged
	if !o.afresh || o.AsStaged {
		before = h.stagedFor(cfg, booted, want.System)
	}
	if before != nil {
		there, err := h.composer.Present(ctx, want.System, before.Composed)
		if err != nil {
			return osimage.Composed{}, fmt.Errorf("%s: %w", field, err)
		}
		if there {
			if err := approves(cfg, o.Approved, before.Composed); err != nil {
				return osimage.Composed{}, err
			}
			want.layers = before.Layers
			return before.Composed, h.moved(ctx, cfg, want.System, before.Composed, res)
		}
	}
	if err := h.deploymentSpace(ctx); err != nil {
		return osimage.Composed{}, err
	}
	// Whoever thinks better of it has to find what an interrupted one leaves.
	if err := h.keepStaged(staged{Digest: cfg.Digest, Booted: booted, System: want.System}); err != nil {
		return osimage.Composed{}, err
	}
	done := h.pull(strings.TrimSpace(want.Image + " " + strings.Join(want.Packages, " ")))
	c, err := h.composeOf(ctx, want)
	done()
	if err != nil {
		return c, notComposed(res.Plan, field, err)
	}
	if before != nil && c.Checksum != before.Composed.Checksum {
		res.Warnings = append(res.Warnings, fmt.Sprintf("%s: %s, which was staged for %s, is gone from the repository; "+
			"it is %s now", field, before.Composed.Checksum, cfg.Name, c.Checksum))
	}
	// It is kept though nobody has approved it: whoever asks is told what it is, and nothing else of it is used.
	err = h.keepStaged(staged{Digest: cfg.Digest, Booted: booted, System: want.System, Composed: c, Layers: want.layers})
	return c, errors.Join(err, approves(cfg, o.Approved, c))
}

// osDigest is what people call an OS by: the digest of the image, or the checksum of the commit.
func osDigest(c osimage.Composed) string { return cmp.Or(c.Base, c.Checksum) }

// approves refuses an OS that is not the one that was approved.
func approves(cfg *machineconfig.Config, approved string, c osimage.Composed) error {
	if approved == "" || osDigest(c) == approved {
		return nil
	}
	return &Refused{Err: NotApproved(cfg.Name, osDigest(c), approved)}
}

// NotApproved says that the OS is another one than the one that was approved.
func NotApproved(config, is, approved string) error {
	return fmt.Errorf("%s is %s by now, and %s was approved: name the image by its digest, or approve what it is now",
		config, is, approved)
}

// choosingComposer is a composer that layers packages.
type choosingComposer interface {
	// ComposeFor composes s with the packages that choose has for its image, which is known when it was pulled.
	ComposeFor(ctx context.Context, s osimage.System, choose rpmostree.Choose) (osimage.Composed, error)
}

func (h *Host) composeOf(ctx context.Context, want *wanted) (osimage.Composed, error) {
	defer h.deployments.changed()
	if c, is := h.composer.(choosingComposer); is && want.choose != nil {
		return c.ComposeFor(ctx, want.System, want.choose)
	}
	return h.composer.Compose(ctx, want.System)
}

// notComposed is the error of an OS that can't be had now, or at all: then the plan says so.
func notComposed(p *plan.Plan, field string, err error) error {
	if ostree.ClassOf(err) != ostree.Invalid {
		return fmt.Errorf("%s: %w", field, err)
	}
	if unknown, is := errors.AsType[plan.NotKnown](err); is {
		p.Unreconcilable = append(p.Unreconcilable, unknown...)
	} else {
		p.Unreconcilable = append(p.Unreconcilable, plan.Unreconcilable{Field: field, Reason: err.Error()})
	}
	return Unreconcilable(p)
}

// admit holds an image to the signature policy that the configuration itself brings, beside the host's own, which the
// tools read: what only the one that comes demands is not pulled by the one that goes.
func (h *Host) admit(cfg *machineconfig.Config, image string) (string, error) {
	admitted, err := h.admitted(cfg, image)
	if err != nil || admitted == nil || admitted.Verify != osimage.VerifyPolicy {
		return image, err
	}
	return admitted.String(), nil
}

// admitSource does so with an image that packages are taken from.
func (h *Host) admitSource(cfg *machineconfig.Config, image string) error {
	if image != "" {
		if _, err := osimage.ParseSource(image); err != nil {
			return err
		}
	}
	_, err := h.admitted(cfg, image)
	return osimage.OfExtensions(err)
}

// admitted is an image as the policy that cfg brings lets it in, nil where it brings none.
func (h *Host) admitted(cfg *machineconfig.Config, image string) (*osimage.Image, error) {
	at := slices.IndexFunc(cfg.Files, func(f machineconfig.File) bool {
		return f.Path == osimage.PolicyPath && !f.NoContents
	})
	if at < 0 || image == "" || h.os == OSOstree {
		return nil, nil
	}
	policy, err := osimage.ParsePolicy(cfg.Files[at].Contents)
	if err != nil {
		return nil, err
	}
	parsed, err := osimage.ParseImage(image)
	if err != nil {
		return nil, err
	}
	admitted, err := policy.Admit(parsed)
	return &admitted, err
}

// moved warns where an image names another commit by now than the one that was staged and is used.
func (h *Host) moved(ctx context.Context, cfg *machineconfig.Config, want osimage.System, c osimage.Composed,
	res *Result) error {
	if h.os != OSOstree || want.Image == "" {
		return nil
	}
	now, err := h.plain.Named(ctx, want.Image)
	if err == nil && now != c.Checksum {
		res.Warnings = append(res.Warnings, fmt.Sprintf("osImageURL: %s is %s by now; %s is what was staged for %s, "+
			"and is used", want.Image, cmp.Or(now, "no commit"), c.Checksum, cfg.Name))
	}
	return err
}

// osField is the first field of the configuration that has the plan change the OS.
func osField(p *plan.Plan) string {
	for _, kind := range []plan.Kind{plan.OSImage, plan.KernelType, plan.Extensions} {
		if slices.ContainsFunc(p.Changes, func(c plan.Change) bool { return c.Kind == kind }) {
			return kind.Field()
		}
	}
	return "spec"
}

// catalogue knows the packages of kernel types and extensions, and platform is which of them this host has. What an
// admin added and nobody can read counts as nothing: it may be what the next configuration mends.
func (h *Host) catalogue() (*plan.Catalogue, plan.Platform, error) {
	if h.known != nil {
		return h.known, h.platform, nil
	}
	release, err := h.root.ReadFile("/etc/os-release")
	if errors.Is(err, fs.ErrNotExist) {
		release, err = h.root.ReadFile("/usr/lib/os-release")
	}
	if err != nil {
		return nil, plan.Platform{}, fmt.Errorf("reading os-release: %w", err)
	}
	more, err := h.root.ReadFile(plan.CataloguePath)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		h.known, err = plan.NewCatalogue(more)
	}
	if err != nil {
		h.say("plan", fmt.Sprintf("without %s: %s", plan.CataloguePath, message.OneLine(err.Error())))
		h.known, err = plan.NewCatalogue(nil)
	}
	h.platform = plan.ParsePlatform(release, runtime.GOARCH)
	return h.known, h.platform, err
}

// packages are what cfg's kernel type and extensions mean on this host: packages to layer, and those of the base that
// make room for them.
func (h *Host) packages(cfg *machineconfig.Config) (install, remove []string, err error) {
	if !asksForPackages(cfg) {
		return nil, nil, nil
	}
	c, platform, err := h.catalogue()
	if err != nil {
		return nil, nil, err
	}
	return c.Packages(platform, cfg.KernelType, cfg.Extensions)
}

// layersDrift compares the kernel that runs, and the packages that the deployment has, with cfg's. layers, where it is
// known, is what cfg came to on this host; its OS may be another release by now, with other packages.
func (h *Host) layersDrift(cfg *machineconfig.Config, now osimage.System, layers *transaction.Layers) ([]Drift, error) {
	want := cmp.Or(cfg.KernelType, machineconfig.KernelDefault)
	if !asksForPackages(cfg) {
		return nil, nil
	}
	c, platform, err := h.catalogue()
	if err != nil {
		return nil, err
	}
	var out []Drift
	if want != machineconfig.KernelDefault {
		found, err := h.runningKernel(c, platform, want)
		if err != nil {
			return nil, err
		}
		if want != found {
			out = append(out, Drift{Kind: string(plan.KernelType), What: "contents", Expected: want, Found: found})
		}
	}
	missing := func(name string, packages []string) {
		out = append(out, Drift{Kind: string(plan.Extensions), Name: name, What: "missing",
			Expected: strings.Join(packages, " "), Found: "not layered"})
	}
	if layers != nil {
		if absent := lacking(now.Packages, layers.Wanted); len(absent) > 0 {
			missing(strings.Join(absent, " "), absent)
		}
		return out, nil
	}
	if packages, _, err := c.Packages(platform, want, nil); err == nil {
		if absent := lacking(now.Packages, packages); len(absent) > 0 {
			out = append(out, Drift{Kind: string(plan.KernelType), What: "contents", Expected: want,
				Found: "without " + strings.Join(absent, " ")})
		}
	}
	for _, x := range cfg.Extensions {
		packages := c.Extension(platform, x)
		if absent := lacking(now.Packages, packages); len(packages) == 0 || len(absent) > 0 {
			missing(x, absent)
		}
	}
	return out, nil
}

// runningKernel is the type of the kernel that runs. A container has that of its own host, which says nothing.
func (h *Host) runningKernel(c *plan.Catalogue, platform plan.Platform, want string) (string, error) {
	if h.exists("/run/systemd/container") {
		return want, nil
	}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return "", fmt.Errorf("asking which kernel runs: %w", err)
	}
	return c.RunningKernel(platform, unix.ByteSliceToString(uname.Release[:])), nil
}

// lacking is what want has and have has not.
func lacking(have, want []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(p string) bool { return slices.Contains(have, p) })
}
