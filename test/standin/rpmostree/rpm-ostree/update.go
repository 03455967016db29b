// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"

	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

// vardict is an a{sv}.
type vardict map[string]dbus.Variant

func (v vardict) text(key string) string {
	value, _ := v[key].Value().(string)
	return value
}

func (v vardict) yes(key string) bool {
	value, _ := v[key].Value().(bool)
	return value
}

func (v vardict) list(key string) []string {
	value, _ := v[key].Value().([]string)
	return value
}

// files are file descriptors: h, or av of h. Those of packages are ah in rpm-ostree, which the library sends and can't
// read.
func (v vardict) files(key string) []int {
	var fds []int
	switch value := v[key].Value().(type) {
	case []dbus.Variant:
		for _, one := range value {
			if fd, ok := one.Value().(dbus.UnixFD); ok {
				fds = append(fds, int(fd))
			}
		}
	case dbus.UnixFD:
		fds = append(fds, int(value))
	}
	return fds
}

// update is an UpdateDeployment: rebase, deploy, upgrade, install, uninstall, override and reset, alone or together.
type update struct {
	modifiers, options vardict

	all     []*deployment
	merge   *deployment
	origin  *origin
	old     string // base of the merge deployment
	base    string // of the new one
	changed bool
}

// title is what it is called in status.
func updateTitle(modifiers, options vardict) string {
	if line := options.text("initiating-command-line"); line != "" {
		return line
	}
	switch _, revision := modifiers["set-revision"]; {
	case modifiers.text("set-refspec") != "":
		return "rebase"
	case revision:
		return "deploy"
	case options.yes("no-pull-base"):
		return "install"
	}
	return "upgrade"
}

func (u *update) run(ctx context.Context, t *transaction) error {
	if over, err := u.check(t); err != nil || over {
		return err
	}
	var err error
	if u.all, err = readDeployments(ctx); err != nil {
		return err
	}
	// Everything starts from what is first, be it staged: so that one transaction builds on the one before.
	u.merge = u.all[0]
	u.origin = u.merge.origin
	merged, err := readCommit(u.merge.checksum)
	if err != nil {
		return err
	}
	u.old = merged.base()
	u.base = u.old
	oldSource := u.origin.Refspec
	for _, step := range []func(context.Context, *transaction) error{
		u.rebase, u.revise, u.requests, u.overrides, u.pull, u.removals,
	} {
		if err := step(ctx, t); err != nil {
			return err
		}
	}
	base, err := basePackages(ctx, u.base)
	if err != nil {
		return err
	}
	available, err := knownPackages()
	if err != nil && u.origin.assembled() {
		return err
	}
	if u.inImage(base) {
		t.say("No change.")
		return nil
	}
	var l layers
	if err := t.task("Resolving dependencies", func() (err error) {
		l, err = solve(u.origin, base, available)
		return err
	}); err != nil {
		return err
	}
	rebased := u.modifiers.text("set-refspec") != ""
	switch {
	case u.options.yes("dry-run"):
		l.announce(t)
		t.say("Exiting because of '--dry-run' option")
		return nil
	case !u.changed && !rebased:
		u.unchanged(t)
		return nil
	case u.options.yes("download-only"):
		t.say("Update downloaded.")
		return nil
	}
	checksum, err := layer(ctx, t, u.base, merged, u.origin, l)
	if err != nil {
		return err
	}
	arguments := splitArguments(u.merge.options)
	if err := stage(ctx, t, staging{u.merge.os, checksum, u.origin, arguments, u.options.yes(lockFlag)}); err != nil {
		return err
	}
	if rebased && !u.options.yes("skip-purge") && oldSource != "" && !checksumPattern.MatchString(oldSource) {
		_, _ = tool(ctx, "refs", "--repo="+repository, "--delete", oldSource) // rpm-ostree does not care either
	}
	return rebootIf(ctx, u.options.yes("reboot"))
}

// check refuses what can't go together, and registers an update driver; over says that this was all.
func (u *update) check(t *transaction) (over bool, err error) {
	rebased := u.modifiers.text("set-refspec") != ""
	_, revised := u.modifiers["set-revision"]
	overriding := len(u.modifiers.list("override-remove-packages"))+len(u.modifiers.list("override-reset-packages"))+
		len(u.modifiers.files("override-replace-local-packages")) > 0
	layering := len(u.modifiers.list("install-packages"))+len(u.modifiers.files("install-local-packages")) > 0
	switch {
	case !rebased && u.options.yes("skip-purge"):
		return false, original("Can't specify skip-purge if not setting a new refspec")
	case (rebased || revised) && u.options.yes("no-pull-base"):
		return false, original("Can't specify no-pull-base if setting a new refspec or revision")
	case u.options.yes("cache-only") && u.options.yes("download-only"):
		return false, original("Can't specify cache-only and download-only")
	case u.options.yes("dry-run") && u.options.yes("download-only"):
		return false, original("Can't specify dry-run and download-only")
	case len(u.modifiers.list("override-replace-packages")) > 0:
		return false, original("Non-local replacement overrides not implemented yet")
	case u.options.yes("no-overrides") && overriding:
		return false, original("Can't specify no-overrides if setting override modifiers")
	case (layering || overriding) && configured.get("LockLayering") == "true":
		return false, original("Cannot operate; `LockLayering=true` in configuration.")
	}
	if driver := u.options.text("register-driver"); driver != "" {
		if t.unit == "" {
			return false, errors.New("could not find caller systemd unit")
		}
		if err := (updateDriver{driver, t.unit}).register(); err != nil {
			return false, err
		}
		if u.modifiers.text("set-revision") == "" {
			t.say("Empty string revision found; registering update driver only")
			return true, nil
		}
	}
	return false, nil
}

// rebase gives the origin another source.
func (u *update) rebase(ctx context.Context, t *transaction) error {
	refspec := u.modifiers.text("set-refspec")
	if refspec == "" {
		u.origin.Override = cmp.Or(u.modifiers.text("set-revision"), u.keepOverride())
		return nil
	}
	o := u.origin
	if fds := u.modifiers.files("ex-local-repo-remote"); len(fds) == 1 {
		// Another repository on this machine: its commit is pulled, and the ref does not matter any more.
		repo := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fds[0])
		rev, err := tool(ctx, "rev-parse", "--repo="+repo, refspec)
		if err != nil {
			return err
		}
		if err := t.task("Pulling commit "+rev, func() error {
			_, err := tool(ctx, "pull-local", "--repo="+repository, repo, rev)
			return err
		}); err != nil {
			return original("Pulling commit %s from local repo: %v", rev, err)
		}
		refspec = rev
	}
	old := o.source()
	refspec = strings.TrimPrefix(refspec, ":")
	image, isImage := parseImage(refspec)
	if isImage {
		refspec = image.String()
	}
	if refspec == old && u.modifiers.text("set-revision") == "" {
		return original("Old and new refs are equal: %s", refspec)
	}
	url, description := u.custom()
	if (url != "" || description != "") && !isImage && !checksumPattern.MatchString(refspec) {
		return guess("Custom origin can only be used with a commit checksum")
	}
	o.Refspec, o.Container, o.Override, o.URL, o.Description = refspec, "", "", url, description
	if isImage {
		o.Refspec, o.Container = "", refspec
	}
	return nil
}

// keepOverride: what only changes packages leaves the base as pinned as it is; an upgrade does not.
func (u *update) keepOverride() string {
	if u.options.yes("no-pull-base") {
		return u.origin.Override
	}
	return ""
}

// custom is the option custom-origin, a pair.
func (u *update) custom() (url, description string) {
	pair, _ := u.options["custom-origin"].Value().([]any)
	if len(pair) == 2 {
		url, _ = pair[0].(string)
		description, _ = pair[1].(string)
	}
	return url, description
}

// revise pins the origin to a revision: a checksum, or the version of one of the ref's commits.
func (u *update) revise(ctx context.Context, t *transaction) error {
	revision := u.modifiers.text("set-revision")
	_, isImage := parseImage(u.origin.Container)
	switch checksum, pinned := strings.CutPrefix(revision, "revision="); {
	case revision == "":
		return nil
	case isImage && strings.HasPrefix(revision, "sha256:"):
		// Since 2025.7, as a commit of a ref: what is followed stays the name.
		u.origin.Override = revision
	case isImage:
		return guess("Cannot look up version while tracking a container image reference")
	case pinned || checksumPattern.MatchString(revision):
		t.say("Validating checksum '%s'", checksum)
		u.origin.Override = checksum
	default:
		version := strings.TrimPrefix(revision, "version=")
		t.say("Resolving version '%s'", version)
		var err error
		u.origin.Override, err = findVersion(ctx, u.origin, version)
		return err
	}
	return nil
}

// requests adds and removes requested packages.
func (u *update) requests(ctx context.Context, _ *transaction) error {
	o, idempotent := u.origin, u.options.yes("idempotent-layering")
	if u.options.yes("no-layering") {
		u.changed = u.changed || len(o.Requested)+len(o.Local) > 0
		o.Requested, o.Local = []string{}, []string{}
	}
	for _, name := range u.modifiers.list("uninstall-packages") {
		at := slices.Index(o.Requested, name)
		local := slices.IndexFunc(o.Local, func(l string) bool {
			p, err := localPackage(l)
			return err == nil && (p.Name == name || p.NEVRA() == name || l == name)
		})
		switch {
		case at >= 0:
			o.Requested = slices.Delete(o.Requested, at, at+1)
		case local >= 0:
			o.Local = slices.Delete(o.Local, local, local+1)
		case idempotent:
			continue
		default:
			return guess("Package/capability '%s' is not currently requested", name)
		}
		u.changed = true
	}
	install := u.modifiers.list("install-packages")
	// Since 2026.1 an image is not asked: see inImage.
	if len(install) > 0 && !u.options.yes("allow-inactive") && o.Container == "" {
		// Asked of the base that there is, not of the one that may be on its way.
		base, err := basePackages(ctx, u.old)
		if err != nil {
			return err
		}
		for _, name := range install {
			var by strings.Builder
			for _, p := range base {
				if p.Matches(name) {
					by.WriteString(" " + p.NEVRA())
				}
			}
			if by.Len() > 0 {
				return original("\"%s\" is already provided by:%s. Use --allow-inactive to explicitly require it.",
					name, by.String())
			}
		}
	}
	for _, name := range install {
		switch requested := slices.Contains(o.Requested, name); {
		case requested && idempotent:
		case requested:
			return original("Package/capability '%s' is already requested", name)
		default:
			o.Requested = append(o.Requested, name)
			u.changed = true
		}
	}
	for _, fd := range u.modifiers.files("install-local-packages") {
		name, p, err := importPackage(fd)
		if err != nil {
			return err
		}
		switch requested := slices.Contains(o.Local, name); {
		case requested && idempotent:
		case requested:
			return guess("Package '%s' is already layered", p.NEVRA())
		default:
			o.Local = append(o.Local, name)
			u.changed = true
		}
	}
	return nil
}

// inImage says whether all that is asked for is packages that a container image has itself. Since 2026.1 the requests
// are forgotten then, and that is no error.
func (u *update) inImage(base []catalogue.Package) bool {
	install := u.modifiers.list("install-packages")
	if u.origin.Container == "" || len(install) == 0 || u.modifiers.text("set-refspec") != "" || u.base != u.old ||
		len(u.modifiers.list("uninstall-packages"))+len(u.modifiers.list("override-remove-packages"))+
			len(u.modifiers.list("override-reset-packages")) > 0 {
		return false
	}
	return !slices.ContainsFunc(install, func(name string) bool { return !slices.ContainsFunc(base, matching(name)) })
}

// overrides resets overrides and adds replacements.
func (u *update) overrides(_ context.Context, _ *transaction) error {
	o := u.origin
	if u.options.yes("no-overrides") {
		u.changed = u.changed || len(o.Removed)+len(o.Replaced) > 0
		o.Removed, o.Replaced = []string{}, []string{}
	}
	for _, name := range u.modifiers.list("override-reset-packages") {
		removed := slices.IndexFunc(o.Removed, func(r string) bool { return r == name || strings.HasPrefix(name, r+"-") })
		replaced := slices.IndexFunc(o.Replaced, func(l string) bool {
			p, err := localPackage(l)
			return err == nil && (p.Name == name || p.NEVRA() == name)
		})
		switch {
		case removed >= 0:
			o.Removed = slices.Delete(o.Removed, removed, removed+1)
		case replaced >= 0:
			o.Replaced = slices.Delete(o.Replaced, replaced, replaced+1)
		default:
			return original("No overrides for package '%s'", name)
		}
		u.changed = true
	}
	for _, fd := range u.modifiers.files("override-replace-local-packages") {
		name, p, err := importPackage(fd)
		if err != nil {
			return err
		}
		o.Replaced = slices.DeleteFunc(o.Replaced, func(l string) bool {
			other, err := localPackage(l)
			return err == nil && other.Name == p.Name
		})
		o.Replaced = append(o.Replaced, name)
		u.changed = true
	}
	return nil
}

// pull fetches the base.
func (u *update) pull(ctx context.Context, t *transaction) error {
	if u.options.yes("no-pull-base") {
		return nil
	}
	if err := fault.Pass(ctx, fault.Pull); err != nil {
		return err
	}
	t.signal("PercentProgress", "Receiving objects", uint32(0))
	base, err := fetchBase(ctx, u.origin, u.options.yes("cache-only"))
	if err != nil {
		return err
	}
	t.signal("PercentProgress", "Receiving objects", uint32(100))
	t.signal("ProgressEnd")
	u.changed = u.changed || base != u.old
	u.base = base
	return nil
}

// removals adds the packages of the base that are to go. They have to be there.
func (u *update) removals(ctx context.Context, _ *transaction) error {
	names := u.modifiers.list("override-remove-packages")
	if len(names) == 0 {
		return nil
	}
	base, err := basePackages(ctx, u.base)
	if err != nil {
		return err
	}
	for _, name := range names {
		var found []string
		for _, p := range base {
			if p.Matches(name) {
				found = append(found, p.Name)
			}
		}
		switch {
		case len(found) == 0:
			return original("Package \"%s\" not found", name)
		case len(found) > 1:
			return original("Multiple packages match \"%s\"", name)
		case slices.Contains(u.origin.Removed, found[0]):
			return guess("Override already exists for package '%s'", found[0])
		}
		u.origin.Removed = append(u.origin.Removed, found[0])
		u.changed = true
	}
	return nil
}

// unchanged says why nothing was done.
func (u *update) unchanged(t *transaction) {
	_, revised := u.modifiers["set-revision"]
	switch {
	case checksumPattern.MatchString(u.origin.Refspec) && len(u.origin.Requested) == 0 && u.origin.Description != "":
		t.say("Pinned to commit by custom origin: %s", u.origin.Description)
	case checksumPattern.MatchString(u.origin.Refspec) && len(u.origin.Requested) == 0:
		t.say("Pinned to commit; no upgrade available")
	case !u.options.yes("no-pull-base") && !revised:
		t.say("No upgrade available.")
	default:
		t.say("No change.")
	}
}

// staging is a deployment to be staged.
type staging struct {
	os        string
	checksum  string
	origin    *origin
	arguments []string // ostree=, which ostree sets itself, keeps its place among them
	locked    bool
}

// stage stages a deployment in the place of one that is staged already. The lock is this one's own. Real rpm-ostree
// deploys at once where nothing is booted; nobody here calls it there.
func stage(ctx context.Context, t *transaction, s staging) error {
	if err := fault.Pass(ctx, fault.Stage); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rpm-ostree.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "origin")
	if err := os.WriteFile(file, []byte(s.origin.String()), 0o644); err != nil {
		return err
	}
	argv := []string{"admin", "deploy", "--os=" + s.os, "--stage", "--no-prune", "--origin-file=" + file, "--karg-none"}
	if s.locked && !ofOld() {
		argv = append(argv, "--"+lockFlag)
	}
	for _, argument := range s.arguments {
		argv = append(argv, "--karg-append="+argument)
	}
	if err := t.task("Staging deployment", func() error {
		_, err := tool(ctx, append(argv, s.checksum)...)
		return err
	}); err != nil {
		return err
	}
	if ofOld() {
		// Before 2024.6 the lock was this file alone.
		if s.locked {
			if err := os.WriteFile(lockedFile, nil, 0o600); err != nil {
				return err
			}
		}
		return cleanRepository(ctx)
	}
	// The tool writes the old lock file beside the state's own key, rpm-ostree the key alone.
	if err := os.Remove(lockedFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return cleanRepository(ctx)
}

// baseRef is where the bases of layered commits are held.
const baseRef = "rpmostree/base"

// cleanRepository holds what the deployments need, and removes what they do not.
func cleanRepository(ctx context.Context) error {
	all, err := readDeployments(ctx)
	if err != nil {
		return err
	}
	var bases []string
	for _, d := range all {
		c, err := readCommit(d.checksum)
		if err != nil {
			return err
		}
		if c.layered() && !slices.Contains(bases, c.parent) {
			bases = append(bases, c.parent)
		}
	}
	if err := pruneCache(all); err != nil {
		return err
	}
	listed, err := tool(ctx, "refs", "--repo="+repository, "--list", baseRef)
	if err != nil {
		return err
	}
	held := strings.Fields(listed)
	for i, base := range bases {
		ref := fmt.Sprintf("%s/%d", baseRef, i)
		if _, err := tool(ctx, "refs", "--repo="+repository, "--force", "--create="+ref, base); err != nil {
			return err
		}
		held = slices.DeleteFunc(held, func(h string) bool { return h == ref })
	}
	for _, ref := range held {
		if _, err := tool(ctx, "refs", "--repo="+repository, "--delete", ref); err != nil {
			return err
		}
	}
	_, err = tool(ctx, "admin", "cleanup")
	return err
}

// updateDriver is who alone is to update the machine. rpm-ostree has it as a GVariant, an a{sv}.
type updateDriver struct {
	Name string `json:"driver-name"`    //nolint:tagliatelle // rpm-ostree's key
	Unit string `json:"driver-sd-unit"` //nolint:tagliatelle // rpm-ostree's key
}

const driverFile = "/run/rpm-ostree/update-driver.gv"

func (d updateDriver) register() error {
	data := textVariant([2]string{"driver-name", d.Name}, [2]string{"driver-sd-unit", d.Unit})
	return errors.Join(os.MkdirAll(filepath.Dir(driverFile), 0o755), os.WriteFile(driverFile, data, 0o644))
}

// readDriver is the registered driver, nil if none.
func readDriver() (*updateDriver, error) {
	data, err := os.ReadFile(driverFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value, err := variant("a{sv}", data)
	texts, _ := value.(map[string]any)
	d := &updateDriver{}
	var named, ofUnit bool
	d.Name, named = texts["driver-name"].(string)
	d.Unit, ofUnit = texts["driver-sd-unit"].(string)
	switch {
	case err != nil:
		return nil, err
	case !named:
		return nil, original("could not find update driver name in %s", driverFile)
	case !ofUnit:
		return nil, original("could not find update driver systemd unit in %s", driverFile)
	}
	return d, nil
}

// configuration is the text of the daemon's own.
type configuration struct {
	mu   sync.Mutex
	text string
}

// configured is the configuration as the daemon has read it: at its start, and when it is told to.
var configured configuration

// read reads the file, which there need not be, and says whether it has changed.
func (c *configuration) read() (changed bool) {
	text, _ := os.ReadFile("/etc/rpm-ostreed.conf")
	c.mu.Lock()
	defer c.mu.Unlock()
	changed, c.text = c.text != string(text), string(text)
	return changed
}

// get is the value of a key.
func (c *configuration) get(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return parseKeyfile(c.text).get("Daemon", key)
}
