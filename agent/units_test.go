// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

func TestEveryUnitOfTheAgentsIsRefusedInAConfiguration(t *testing.T) {
	ours := []string{transaction.RecoverUnit, transaction.ProveUnit, plan.RebootUnit, hooks.Unit}
	for _, v := range Verbs {
		ours = append(ours, v.Unit())
	}
	slices.Sort(ours)
	if refused := slices.Sorted(slices.Values(plan.OwnUnits)); !slices.Equal(ours, refused) {
		t.Errorf("units %v, refused are %v", ours, refused)
	}
}

func TestEveryUnitOfTheAgentsHasItsDropinAndItsLinks(t *testing.T) {
	at := map[string]string{}
	for _, w := range Wants() {
		at[w.Path] = string(w.Node.Data) + w.Node.Target
	}
	for _, unit := range slices.Concat(plan.OwnUnits, rebootUnits) {
		text := at[path.Join(systemd.UnitDir, unit+".d", plan.OwnDropin)]
		if !strings.Contains(text, "ProtectSystem=no\n") || !strings.Contains(text, "ConditionPathExists=\n") {
			t.Errorf("%s: drop-in %q", unit, text)
		}
	}
	for _, unit := range BootUnits {
		text := at[path.Join(systemd.UnitDir, unit)]
		own := at[path.Join(systemd.UnitDir, unit+".d", plan.OwnDropin)]
		if strings.LastIndex(own, "Slice=") != strings.Index(own, "Slice=-.slice") {
			t.Errorf("%s has the limits of all services: %s", unit, own)
		}
		if err := systemd.Validate(systemd.Unit{Name: unit, Contents: text}); err != nil || text == "" {
			t.Errorf("%s: %q: %v", unit, text, err)
		}
		for _, target := range plan.WantedBy() {
			if to := at[path.Join(systemd.UnitDir, target+".wants", unit)]; to != path.Join(systemd.UnitDir, unit) {
				t.Errorf("%s in %s.wants leads to %q", unit, target, to)
			}
		}
	}
}

// TestSystemdTakesTheAgentsUnits asks this machine's systemd, where there is one. A host's own systemd may be newer or
// older, and ignores unknown settings.
func TestSystemdTakesTheAgentsUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze")
	}
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	i, err := NewInstaller(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range Wants() {
		if err := i.put(w); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(analyze, "--root="+root.Path(), "--man=no", "verify", transaction.ProveUnit,
		transaction.RecoverUnit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, plan.OwnDropin) || strings.Contains(line, "Unknown") {
			t.Error(line, err)
		}
	}
}

// TestThePackagedUnitsOfImagesAreThese holds the files for images with a transient /etc to what the agent looks for.
func TestThePackagedUnitsOfImagesAreThese(t *testing.T) {
	for name, want := range ImageUnits() {
		text, err := os.ReadFile("../packaging/systemd/transient-etc/" + name)
		if err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(string(text), "\n\n")
		if got != want {
			t.Errorf("%s is\n%s\nand not\n%s", name, got, want)
		}
		for _, line := range []string{"After=local-fs.target\n", "Before=systemd-tmpfiles-setup.service\n"} {
			if name == transaction.RecoverUnit && !strings.Contains(want, "\n"+line) {
				t.Errorf("%s has no %s", name, line)
			}
		}
	}
}
