// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/systemd"
)

var one, two = strings.Repeat("1", 64), strings.Repeat("2", 64)

// lists has ostree's lists of deployments: with what TuneD has staged, and without.
const (
	listStaged = "  testos 1.1 (staged)\n* testos 1.0\n"
	listBooted = "* testos 1.0\n"
)

// runner plays ostree and rpm-ostree. The commits are empty.
func runner(version string, list *string) ostree.Runner {
	return func(_ context.Context, argv ...string) ([]byte, error) {
		switch line := strings.Join(argv, " "); {
		case line == "ostree --version":
			return []byte("libostree:\n Version: '" + version + "'\n"), nil
		case strings.HasPrefix(line, "ostree admin "):
			return []byte(strings.NewReplacer(" 1.", " "+one+".", " 2.", " "+two+".").Replace(*list)), nil
		case strings.HasSuffix(line, "rpm-ostree status --json"):
			return []byte(`{"deployments":[{"osname":"testos","checksum":"` + one + `","serial":0,"booted":true}]}`), nil
		}
		return nil, &ostree.CommandError{Argv: argv, Stderr: "error: No such file or directory", Err: errors.New("exit status 1")}
	}
}

// played is a host with ostree of that version and the deployments of list. TuneD owns isolcpus=1 in the booted one, and
// other arguments in the staged one.
func played(t *testing.T, version string, list *string) *Host {
	t.Helper()
	dir := t.TempDir()
	staged, err := os.ReadFile("../ostree/testdata/staged-extra")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"run/ostree-booted":                "",
		ostree.StagedState:                 string(staged),
		"ostree/repo/config":               "[core]\nrepo_version=1\n",
		"usr/lib/os-release":               "ID=fedora\nVERSION_ID=43\n",
		"usr/lib/ostree/prepare-root.conf": "",
		"boot/loader.1/entries/ostree-1-testos.conf": "version 1\noptions isolcpus=1 ostree=/ostree/boot.1/testos/7c32/0\n" +
			"x-options-source-tuned isolcpus=1\n",
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"boot/loader":                 "loader.1",
		"ostree/boot.1/testos/7c32/0": "../../../deploy/testos/deploy/" + one + ".0",
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "ostree/deploy"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := openTree(t, dir)
	h.os = OSRpmOstree
	h.plain = ostree.NewPlain(runner(version, list), dir)
	h.deployments = &rpmostree.Deployments{Plain: h.plain}
	return h
}

func TestArgumentsThatOthersHaveStagedAreTakenAlongOrLost(t *testing.T) {
	for version, along := range map[string]bool{"2025.6": true, "2023.5": false} {
		list := listStaged
		p, err := played(t, version, &list).Plan(t.Context(), &machineconfig.Config{Name: "a", KernelArguments: []string{"a=1"}},
			PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(p.Warnings, "; ")
		if warned := strings.Contains(text, "kernel arguments of tuned are staged"); warned != along || len(p.Lost) > 0 == along {
			t.Errorf("ostree %s: the plan warns %q, and loses %q", version, p.Warnings, p.Lost)
		}
	}
}

// manager is an OS manager that composes the commit two, or fails.
type manager struct {
	fails error
	gone  bool
	base  string
}

func (manager) Current(context.Context) (osimage.System, error) {
	return osimage.System{Image: one}, nil
}

func (m manager) Compose(context.Context, osimage.System) (osimage.Composed, error) {
	return osimage.Composed{Checksum: two, Base: m.base}, m.fails
}

func (m manager) Present(context.Context, osimage.System, osimage.Composed) (bool, error) {
	return !m.gone, nil
}

func (manager) Drop(context.Context) error { return nil }

// noUnits is a system manager without units.
type noUnits struct{}

func (noUnits) Run(context.Context, systemd.Command) (systemd.Ended, error) {
	return systemd.Ended{}, errors.New("it runs none")
}

func (noUnits) Service(context.Context, string) (systemd.Service, error) {
	return systemd.Service{State: "inactive"}, nil
}

func (noUnits) ActiveState(context.Context, string) (string, error) { return "inactive", nil }

func (noUnits) Kill(context.Context, string, syscall.Signal) error { return nil }

func (noUnits) Stop(context.Context, string) error { return nil }

// planned is an attempt that changes the image, and has its plan.
func planned() *attempt {
	cfg := &machineconfig.Config{Name: configB, Digest: digestOfB}
	return &attempt{cfg: cfg, update: &update{cfg: cfg, want: &wanted{}},
		result: &Result{Plan: &plan.Plan{Changes: []plan.Change{{Kind: plan.OSImage}}}}}
}

func TestWhatIsComposedAtTheLastMomentIsJudged(t *testing.T) {
	list := listBooted
	h := played(t, "2023.5", &list)
	h.composer = manager{}
	h.deployments.Driver = rpmostree.New(runner("2023.5", &list), &ostree.Tools{Units: noUnits{}, Root: h.root.Path()}, h.plain)
	three := strings.Repeat("3", 64)
	a := planned()
	a.booted.Checksum = one
	a.update.request.Checksum = three
	_, err := h.stageDeployment(t.Context(), a)
	if _, is := errors.AsType[*UnreachableError](err); !is || !strings.Contains(err.Error(), "osImageURL") ||
		len(a.result.Plan.Unreconcilable) != 1 {
		t.Errorf("%v, %+v", err, a.result.Plan)
	}
	if h.exists(StagedPath) {
		t.Error("what was refused is still staged")
	}
}

func TestPackagesThatAreComposedAnewAreNoOtherImage(t *testing.T) {
	for base, warned := range map[string]bool{"sha256:x": false, "sha256:y": true} {
		list := listBooted
		h := played(t, "2025.6", &list)
		h.composer = manager{gone: true, base: base}
		kept := staged{Digest: digestOfB, Booted: "b", Composed: osimage.Composed{Checksum: one, Base: "sha256:x"}}
		if err := h.keepStaged(kept); err != nil {
			t.Fatal(err)
		}
		a := planned()
		if _, err := h.compose(t.Context(), a, "b", &wanted{}); err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(a.result.Warnings, "; "); strings.Contains(text, "is gone from the repository") != warned {
			t.Errorf("%s instead of sha256:x: %q", base, text)
		}
	}
}

func TestRecordOfWhatWasStagedIsNamedWhereItIsBroken(t *testing.T) {
	h := openTree(t, t.TempDir())
	if err := h.keepStaged(staged{}); err != nil {
		t.Fatal(err)
	}
	if err := h.root.WriteRecord(StagedPath, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.followStaged(ostree.Deployment{Checksum: one}); err == nil || !strings.Contains(err.Error(), StagedPath) {
		t.Error(err)
	}
}

// A composition removes what TuneD has staged: from then on the record is all that knows of it.
func TestArgumentsThatOthersHaveStagedOutliveEachComposition(t *testing.T) {
	list := listStaged
	h := played(t, "2025.6", &list)
	booted := "testos/" + one + ".0"
	read := func() *attempt {
		t.Helper()
		a := planned()
		h.deployments.Changed()
		if err := h.readBooted(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	wished := func(after string, want bool) {
		t.Helper()
		a := read()
		if got := a.line.Extra["x-options-source-tuned"] == "isolcpus=1-3 nohz=full"; got != want || slices.Contains(a.wishing, "tuned") != want {
			t.Errorf("%s: %q wish %+v", after, a.wishing, a.line)
		}
	}
	compose := func(m manager) {
		t.Helper()
		h.composer = m
		if _, err := h.compose(t.Context(), read(), booted, &wanted{}); (err != nil) != (m.fails != nil) {
			t.Fatal(err)
		}
		list = listBooted
	}
	compose(manager{fails: errors.New("no route to host")})
	wished("a composition that fails", true)
	compose(manager{gone: true})
	wished("a composition that is repeated", true)
	for range 2 {
		if err := h.letGo(t.Context(), digestOfB); err != nil {
			t.Fatal(err)
		}
		wished("an update that is dropped", true)
	}
	if s := h.Status(t.Context()); s.Staged != "" || s.StagedOS != "" {
		t.Errorf("status says that %q %q is staged", s.Staged, s.StagedOS)
	}
	if err := h.unstage(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	wished("nothing more to drop", true)

	// What somebody stages after that counts instead, and another deployment ends it.
	list = strings.Replace(listStaged, "1.1", "2.1", 1)
	wished("somebody else stages", false)
	list = strings.ReplaceAll(listBooted, "1.0", "1.2")
	wished("another deployment boots", false)
	if err := h.unstage(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if h.exists(StagedPath) {
		t.Error("the record outlives its deployment")
	}
}

func TestADeploymentWithoutArgumentsHasAnEmptyListOfThem(t *testing.T) {
	t.Parallel()
	list := listBooted + "  testos 2.0\n"
	s := played(t, "2025.6", &list).Status(t.Context())
	if len(s.Deployments) != 2 {
		t.Fatalf("%+v", s)
	}
	for _, d := range s.Deployments {
		if d.KernelArguments == nil {
			t.Errorf("the JSON has null: %+v", d)
		}
	}
}

// Programs are asked between the record and the list of deployments. An update may commit in that time.
func TestAnUpdateThatCommitsMeanwhileIsNobodyElsesDeployment(t *testing.T) {
	for commits, blamed := range map[bool]bool{false: true, true: false} {
		list := listStaged
		h := played(t, "2025.6", &list)
		h.bootID = func() string { return "b" }
		before, err := h.store().Load()
		if err != nil {
			t.Fatal(err)
		}
		h.plain = ostree.NewPlain(func(ctx context.Context, argv ...string) ([]byte, error) {
			if commits {
				after := *before
				after.Returning = "testos/" + one + ".1"
				write(t, h, &after)
			}
			return runner("2025.6", &list)(ctx, argv...)
		}, h.root.Path())
		h.deployments = &rpmostree.Deployments{Plain: h.plain}
		wanted, err := h.wantsReboot(t.Context(), before, nil)
		if err != nil || (wanted != nil) != blamed {
			t.Errorf("an update commits: %t: %+v, %v", commits, wanted, err)
		}
	}
}
