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

// composer is the part of the host's OS manager that the agent needs: it brings an OS to the disk while the node
// serves. A composed OS boots only after a deployment of it is materialised and made the default.
type composer interface {
	// Current returns the content of the booted deployment.
	Current(ctx context.Context) (osimage.System, error)
	// Compose may take minutes. A second composition of the same OS costs nothing.
	Compose(ctx context.Context, s osimage.System) (osimage.Composed, error)
	// Present reports whether the result of Compose is still complete.
	Present(ctx context.Context, s osimage.System, c osimage.Composed) (bool, error)
	// Drop removes what was composed; deployments of it stay.
	Drop(ctx context.Context) error
}

// current returns the running OS: the booted deployment stays the same while this process runs.
func (h *Host) current(ctx context.Context) (osimage.System, error) {
	if h.system == nil {
		s, err := h.composer.Current(ctx)
		if err != nil {
			return s, fmt.Errorf("reading which deployment the host runs: %w", err)
		}
		h.system = &s
	}
	return *h.system, nil
}

// asksForOS reports whether cfg asks for anything of the OS but kernel arguments.
func asksForOS(cfg *machineconfig.Config) bool { return cfg.OSImageURL != "" || asksForPackages(cfg) }

func asksForPackages(cfg *machineconfig.Config) bool {
	return len(cfg.Extensions) > 0 || cmp.Or(cfg.KernelType, machineconfig.KernelDefault) != machineconfig.KernelDefault
}

// effective returns the OS settings that are in effect on the host, in the terms of the configurations. It does not
// matter which configuration, person or tool brought them. A plan starts from there. Packages that are not ours are in
// effect for a configuration that asks for them; a configuration without them can't take them back.
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

// wanted is a system to compose, and the part of the system that is ours once it runs.
type wanted struct {
	osimage.System

	layers transaction.Layers
	// choose adapts the packages to the release of the image, where the image is another one.
	choose rpmostree.Choose
}

// wanted returns the system that cfg makes of the current one. Packages that others have layered stay, and packages of
// the base that others have removed stay removed. p receives the package names when they are those of another release.
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
		p.NamePackages(c, platform)
		return s.Packages, s.Removed, nil
	}
	return w, nil
}

// layer returns the packages of now without our former ones and with the wanted ones, and which of all these are ours.
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

// StagedPath is the record of the OS that was composed for a configuration, kept for its apply.
const StagedPath = transaction.StateDir + "/staged.json"

// staged is what was composed for the configuration with that digest; Composed is empty while the composition runs. By
// the time of the apply a ref may name another commit, and the remote may be away: neither must affect a drained node.
type staged struct {
	Digest   string `json:"digest"`
	Template string `json:"template,omitempty"` // the digest without the node's values, where there are some
	// Booted is the deployment that the OS was composed from: on another deployment the OS would take back what has
	// changed since.
	Booted string `json:"booted"`
	// System is the requested system, with the package names of the release that ran.
	System   osimage.System   `json:"system"`
	Composed osimage.Composed `json:"composed"`
	// Layers are our part of the composed OS, with the package names of the composed release.
	Layers transaction.Layers `json:"layers,omitzero"`
	// Line is what another owner of kernel arguments had staged: the composition removes that. Line outlives the composed
	// OS, until another deployment is booted. Then it is alone in the record, with Booted.
	Line *ostree.CommandLine `json:"line,omitempty"`
}

// staged returns the record of what was composed, nil where there is none. A record that can't be parsed is empty, with
// an error.
func (h *Host) staged() (*staged, error) {
	data, err := h.root.ReadFile(StagedPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading which OS was staged: %w", err)
	}
	s := &staged{}
	if err := json.Unmarshal(data, s); err != nil {
		return &staged{}, fmt.Errorf("reading which OS was staged: parsing %s: %w", StagedPath, err)
	}
	return s, nil
}

// lineAlone reports whether the record is of nothing but Line.
func (s *staged) lineAlone() bool { return s.Digest == "" && s.Line != nil }

func (h *Host) keepStaged(s staged) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := h.root.MkdirAll(transaction.StateDir, 0o700); err != nil {
		return err
	}
	if err := h.root.WriteRecord(StagedPath, data, 0o600); err != nil {
		return fmt.Errorf("recording the staged OS: %w", err)
	}
	return nil
}

// unstage removes what was composed for the configuration with that digest, for any with "". Most of the time there is
// nothing.
func (h *Host) unstage(ctx context.Context, digest string) error {
	if h.composer == nil || !h.exists(StagedPath) {
		return nil
	}
	// A running composition decides, and the staged OS may be its own.
	release, err := h.lockStaging(ctx, "unstage", 0)
	if errors.As(err, new(*Refused)) {
		return nil
	}
	if err != nil {
		return err
	}
	defer release()
	return h.letGo(ctx, digest)
}

// letGo does the work of unstage under the lock of staging.
func (h *Host) letGo(ctx context.Context, digest string) error {
	s, err := h.staged()
	if s == nil {
		return err
	}
	if err == nil && digest != "" && s.Digest != digest {
		return nil
	}
	lasts := false
	if s.Line != nil {
		booted, err := h.booted(ctx)
		if err != nil {
			return err
		}
		lasts = s.Booted == booted.ID
	}
	if s.lineAlone() {
		if lasts {
			return nil
		}
		return h.root.Remove(StagedPath)
	}
	whole := s.Composed.Checksum != ""
	if whole {
		// From here on the staged OS is incomplete: an operation that continues after an interruption must see that.
		s.Composed = osimage.Composed{}
		if err := h.keepStaged(*s); err != nil {
			return err
		}
	}
	err = h.composer.Drop(ctx)
	h.deployments.Changed()
	if err != nil {
		return fmt.Errorf("removing the staged OS: %w", err)
	}
	if !whole {
		// A boot loses what an interrupted composition had staged, and leaves its checkout, which no other program knows of.
		if err := h.plain.Cleanup(ctx); err != nil {
			return fmt.Errorf("removing the staged OS: %w", err)
		}
	}
	if lasts {
		return h.keepStaged(staged{Booted: s.Booted, Line: s.Line})
	}
	return h.root.Remove(StagedPath)
}

// stagedFor returns what was composed for the configuration, nil where there is nothing.
func (h *Host) stagedFor(cfg *machineconfig.Config, booted string, want osimage.System) *staged {
	s, err := h.staged()
	if err != nil || s == nil || s.Composed.Checksum == "" || s.Digest != cfg.Digest || s.Booted != booted ||
		!reflect.DeepEqual(s.System, want) {
		return nil
	}
	return s
}

// compose brings the system to the disk: the OS that was staged for this very configuration, or else the current
// content of its image. The space is checked before the pull, which takes minutes.
func (h *Host) compose(ctx context.Context, a *attempt, booted string, want *wanted) (osimage.Composed, error) {
	cfg, approved, res := a.cfg, a.options.Approved, a.result
	field := osField(res.Plan)
	var before *staged
	if !a.stages() || a.asStaged {
		before = h.stagedFor(cfg, booted, want.System)
	}
	if before != nil {
		there, err := h.composer.Present(ctx, want.System, before.Composed)
		if err != nil {
			return osimage.Composed{}, fmt.Errorf("%s: %w", field, err)
		}
		if there {
			if err := approves(cfg, approved, before.Composed); err != nil {
				return osimage.Composed{}, err
			}
			want.layers = before.Layers
			return before.Composed, h.moved(ctx, cfg, want.System, before.Composed, res)
		}
	}
	if err := transaction.DeploymentSpace(ctx, h.root); err != nil {
		return osimage.Composed{}, err
	}
	// If the update is dropped, unstage must find what an interrupted composition leaves.
	keep := staged{Digest: cfg.Digest, Template: cfg.Template, Booted: booted, System: want.System}
	if len(a.wishing) > 0 {
		keep.Line = &a.line
	}
	if err := h.keepStaged(keep); err != nil {
		return osimage.Composed{}, err
	}
	done := h.pulling.Begin(strings.TrimSpace(want.Image + " " + strings.Join(want.Packages, " ")))
	c, err := h.composeOf(ctx, want)
	done()
	if err != nil {
		return c, notComposed(res.Plan, field, err)
	}
	if before != nil && osDigest(c) != osDigest(before.Composed) {
		res.Warnings = append(res.Warnings, fmt.Sprintf("%s: %s, which was staged for %s, is gone from the repository; "+
			"the image is %s now", field, osDigest(before.Composed), cfg.Name, osDigest(c)))
	}
	// The composed OS is kept even without approval: callers learn which OS it is, and use nothing else of it.
	keep.Composed, keep.Layers = c, want.layers
	err = h.keepStaged(keep)
	return c, errors.Join(err, approves(cfg, approved, c))
}

// osDigest returns the name by which people know an OS: the digest of the image, or the checksum of the commit.
func osDigest(c osimage.Composed) string { return cmp.Or(c.Base, c.Checksum) }

// approves refuses an OS other than the approved one.
func approves(cfg *machineconfig.Config, approved string, c osimage.Composed) error {
	if approved == "" || osDigest(c) == approved {
		return nil
	}
	return &Refused{Err: NotApproved(cfg.Name, osDigest(c), approved)}
}

// NotApproved returns the error of an OS other than the approved one.
func NotApproved(config, is, approved string) error {
	return fmt.Errorf("%s has the OS %s now, and the OS %s was approved: name the image by its digest, or approve "+
		"the present OS", config, is, approved)
}

// choosingComposer is a composer that layers packages.
type choosingComposer interface {
	// ComposeFor composes s with the packages that choose returns for its image. They are known once the image was pulled.
	ComposeFor(ctx context.Context, s osimage.System, choose rpmostree.Choose) (osimage.Composed, error)
}

func (h *Host) composeOf(ctx context.Context, want *wanted) (osimage.Composed, error) {
	defer h.deployments.Changed()
	if c, is := h.composer.(choosingComposer); is && want.choose != nil {
		return c.ComposeFor(ctx, want.System, want.choose)
	}
	return h.composer.Compose(ctx, want.System)
}

// notComposed returns the error of an OS that can't be had now, or never: then the plan names the reason too.
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

// admit checks an image against the signature policy that the configuration itself brings. The tools check only the
// host's own policy: a pull under the old policy does not meet the demands that only the new policy makes.
func (h *Host) admit(cfg *machineconfig.Config, image string) (string, error) {
	admitted, err := h.admitted(cfg, image)
	if err != nil || admitted == nil || admitted.Verify != osimage.VerifyPolicy {
		return image, err
	}
	return admitted.String(), nil
}

// admitSource checks an image that packages are taken from in the same way.
func (h *Host) admitSource(cfg *machineconfig.Config, image string) error {
	if image != "" {
		if _, err := osimage.ParseSource(image); err != nil {
			return err
		}
	}
	_, err := h.admitted(cfg, image)
	return osimage.OfExtensions(err)
}

// admitted returns an image as the policy of cfg admits it, nil where cfg brings no policy.
func (h *Host) admitted(cfg *machineconfig.Config, image string) (*osimage.Image, error) {
	at := slices.IndexFunc(cfg.Files, func(f machineconfig.File) bool {
		return f.Path == osimage.PolicyPath && !f.NoContents
	})
	if at < 0 || image == "" || h.os == OSOstree {
		return nil, nil
	}
	policy, err := osimage.ParsePolicy(osimage.PolicyPath, cfg.Files[at].Contents)
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

// moved warns where an image names another commit by now than the staged one, which is used.
func (h *Host) moved(ctx context.Context, cfg *machineconfig.Config, want osimage.System, c osimage.Composed,
	res *Result) error {
	if h.os != OSOstree || want.Image == "" {
		return nil
	}
	now, err := h.plain.Named(ctx, want.Image)
	if err == nil && now != c.Checksum {
		res.Warnings = append(res.Warnings, fmt.Sprintf("osImageURL: %s names %s now; the update uses %s, which "+
			"was staged for %s", want.Image, cmp.Or(now, "no commit"), c.Checksum, cfg.Name))
	}
	return err
}

// osField returns the first field of the configuration that makes the plan change the OS.
func osField(p *plan.Plan) string {
	for _, kind := range []plan.Kind{plan.OSImage, plan.KernelType, plan.Extensions} {
		if slices.ContainsFunc(p.Changes, func(c plan.Change) bool { return c.Kind == kind }) {
			return kind.Field()
		}
	}
	return "spec"
}

// catalogue returns the packages of kernel types and extensions, and the platform of this host in that catalogue. An
// admin's addition that can't be read counts as empty: the next configuration may repair it.
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
		h.say("plan", fmt.Sprintf("continuing without %s: %s", plan.CataloguePath, message.OneLine(err.Error())))
		h.known, err = plan.NewCatalogue(nil)
	}
	h.platform = plan.ParsePlatform(release, runtime.GOARCH)
	return h.known, h.platform, err
}

// packages returns what cfg's kernel type and extensions mean on this host: packages to layer, and packages of the base
// to remove for them.
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

// layersDrift compares the running kernel and the deployment's packages with cfg's. layers, where known, are the
// packages that cfg meant on this host; its OS may be another release by now, with other packages.
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

// runningKernel returns the type of the running kernel. A container runs the kernel of its own host, which proves
// nothing.
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

// lacking returns the entries of want that have does not contain.
func lacking(have, want []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(p string) bool { return slices.Contains(have, p) })
}
