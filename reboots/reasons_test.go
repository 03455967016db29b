// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/transaction"
)

var now = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

func text(w *api.RebootWanted) []string {
	if w == nil {
		return nil
	}
	var out []string
	for _, r := range w.Reasons {
		line := fmt.Sprintf("%s %s ago: %s", r.Kind, now.Sub(r.Since), r.Message)
		if len(r.Packages) > 0 {
			line += fmt.Sprintf(" %v+%d", r.Packages, r.More)
		}
		out = append(out, line)
	}
	return out
}

func TestWhatWantsAReboot(t *testing.T) {
	many := strings.Fields(strings.Repeat("a b c d e f g h i j k l m n o p q r s t u v ", 2))
	kernel := []Kernel{{"6.1.0-25-amd64", ago(3 * time.Hour)}, {"6.1.0-26-amd64", ago(2 * time.Hour)}}
	tried := []transaction.Withheld{
		{Kind: "Deployment", Subject: "bad"}, {Kind: "Kernel", Subject: "6.1.0-26-amd64"},
	}
	before := func(kind api.RebootKind, message string) *api.RebootWanted {
		return &api.RebootWanted{Reasons: []api.RebootReason{{Kind: kind, Message: message, Since: ago(9 * time.Hour)}}}
	}
	for _, c := range []struct {
		what     string
		seen     Seen
		withheld []transaction.Withheld
		before   *api.RebootWanted
		want     []string
	}{
		{"nothing", Seen{}, tried, nil, nil},
		{"the sentinel, with packages that asked more than once", Seen{Required: &Required{Text: "System restart required",
			Packages: many, Since: ago(time.Hour)}}, nil, nil,
			[]string{"Packages 1h0m0s ago: /run/reboot-required: System restart required [a b c d e f g h i j k l m n o p q r s t]+2"}},
		{"an empty sentinel, first seen now", Seen{Required: &Required{}}, nil, nil,
			[]string{"Packages 0s ago: /run/reboot-required: a restart is required"}},
		{"the sentinel was written again", Seen{Required: &Required{Since: ago(time.Hour)}}, nil, before("Packages", "else"),
			[]string{"Packages 9h0m0s ago: /run/reboot-required: a restart is required"}},
		{"needs-restarting", Seen{Answers: Answers{NeedsReboot: true, Needs: []string{"kernel"}}}, nil, nil,
			[]string{"Packages 0s ago: needs-restarting: packages were updated since the boot [kernel]+0"}},
		{"a newer kernel", Seen{Running: "6.1.0-25-amd64", Kernels: kernel}, nil, nil,
			[]string{"Kernel 2h0m0s ago: kernel 6.1.0-26-amd64 is installed, and 6.1.0-25-amd64 runs"}},
		{"a newer kernel than the one that was waited for", Seen{Running: "6.1.0-25-amd64", Kernels: kernel}, nil,
			before("Kernel", "kernel 6.1.0-24-amd64 is installed"),
			[]string{"Kernel 2h0m0s ago: kernel 6.1.0-26-amd64 is installed, and 6.1.0-25-amd64 runs"}},
		{"a kernel that a reboot did not lead to", Seen{Running: "6.1.0-25-amd64", Kernels: kernel}, tried, nil, nil},
		{"a staged deployment", Seen{Next: &Deployment{ID: "os/c.0", Checksum: "c", Version: "41", Staged: true,
			Since: ago(time.Hour)}}, tried, nil, []string{
			"Deployment 1h0m0s ago: deployment os/c.0, version 41, was staged by a person or another program, and boots next"}},
		{"a deployment that did not prove healthy", Seen{Next: &Deployment{ID: "os/bad.0", Checksum: "bad"}}, tried, nil, nil},
		{"a hook, and a committed configuration, sorted", Seen{Configuration: "rendered-b", Committed: ago(time.Minute),
			Answers: Answers{Hook: "/etc/noderefit/hooks/reboot-wanted.d/10-leak", Said: "memory is lost"}}, nil, nil, []string{
			"Configuration 1m0s ago: rendered-b is committed, and the next boot leads to it",
			"Hook 0s ago: /etc/noderefit/hooks/reboot-wanted.d/10-leak: memory is lost"}},
		{"a file of the future", Seen{Required: &Required{Since: now.Add(time.Hour)}}, nil, nil,
			[]string{"Packages 0s ago: /run/reboot-required: a restart is required"}},
	} {
		if d := cmp.Diff(c.want, text(Reasons(c.seen, c.withheld, c.before, now))); d != "" {
			t.Errorf("%s:\n%s", c.what, d)
		}
	}
}

// A program that says the same after each boot wants no second one: the answer keeps its time over an ordered reboot.
func TestAWantThatAnOrderedRebootDidNotEndIsNoNewOne(t *testing.T) {
	root, err := files.OpenWritable(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	hook := Answers{Hook: "/etc/noderefit/hooks/reboot-wanted.d/10-leak", Said: "3 leaks"}
	ask := func(boot string, last *transaction.Rebooted, s Seen, at time.Time) []string {
		t.Helper()
		_, before := Recall(root, boot, last)
		wanted := Reasons(s, nil, before, at)
		if err := Keep(root, boot, s.Answers, wanted); err != nil {
			t.Fatal(err)
		}
		return text(wanted)
	}
	same := []string{"Hook 1h0m0s ago: " + hook.Hook + ": 3 leaks"}
	if d := cmp.Diff(same, ask("one", nil, Seen{Answers: hook}, ago(time.Hour))); d != "" {
		t.Error(d)
	}
	order := Ordered(root, "one", "id", "leaks")
	if d := cmp.Diff(same, ask("two", order, Seen{Answers: hook}, now)); d != "" {
		t.Errorf("after the ordered reboot:\n%s", d)
	}
	order.Boot = "two"
	if d := cmp.Diff([]string{"Hook 0s ago: " + hook.Hook + ": 3 leaks"}, ask("later", order, Seen{Answers: hook}, now)); d != "" {
		t.Errorf("after a later boot, which nobody ordered:\n%s", d)
	}
	// The program says no for a while: then its yes is a new one.
	ask("three", order, Seen{}, now)
	if d := cmp.Diff([]string{"Hook 0s ago: " + hook.Hook + ": 3 leaks"}, ask("three", order, Seen{Answers: hook}, now)); d != "" {
		t.Errorf("after a no:\n%s", d)
	}
	// What wants a reboot by a file that no boot inherits is new.
	ask("four", nil, Seen{Required: &Required{Since: ago(time.Hour)}}, now)
	order = Ordered(root, "four", "id", "packages")
	if d := cmp.Diff([]string{"Packages 1m0s ago: /run/reboot-required: a restart is required"},
		ask("five", order, Seen{Required: &Required{Since: ago(time.Minute)}}, now)); d != "" {
		t.Errorf("packages:\n%s", d)
	}
}

func TestWhichKernelIsNewer(t *testing.T) {
	for _, c := range []struct{ running, installed, want string }{
		{"6.1.0-25-amd64", "6.1.0-9-amd64", ""},
		{"6.1.0-25-amd64", "6.1.0-26-cloud-amd64", ""},
		{"6.1.0-25-amd64", "6.1.0-25-amd64", ""},
		{"6.8.0-40-generic", "6.8.0-40-generic 6.8.0-41-generic 6.8.0-45-lowlatency", "6.8.0-41-generic"},
		{"6.8.0-99-generic", "6.8.0-100-generic", "6.8.0-100-generic"},
		{"5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64 5.14.0-503.11.1.el9_5.x86_64+debug",
			"5.14.0-503.11.1.el9_5.x86_64"},
		{"5.14.0-427.13.1.el9_4.x86_64", "5.14.0-427.9.1.el9_4.x86_64", ""},
		{"5.14.0-427.13.1.el9_4.x86_64+rt", "5.14.0-503.11.1.el9_5.x86_64+rt 5.14.0-600.el9.x86_64",
			"5.14.0-503.11.1.el9_5.x86_64+rt"},
		{"6.9.7+bpo-amd64", "6.10.6+bpo-amd64", "6.10.6+bpo-amd64"},
		{"6.11.4-301.fc41.x86_64", "6.11.4-301.fc41.x86_64 6.12.0-1.fc41.x86_64", "6.12.0-1.fc41.x86_64"},
		{"6.8.0-rc1", "6.8.0", ""},
		{"", "6.8.0", ""},
	} {
		var kernels []Kernel
		for release := range strings.FieldsSeq(c.installed) {
			kernels = append(kernels, Kernel{Release: release})
		}
		got := ""
		if k := newest(c.running, kernels); k != nil {
			got = k.Release
		}
		if got != c.want {
			t.Errorf("%s runs, %s: %q, want %q", c.running, c.installed, got, c.want)
		}
	}
}

func TestWhatNeedsRestartingSays(t *testing.T) {
	for _, c := range []struct {
		what, output, packages string
		wants                  bool
	}{
		{"dnf 4", "Core libraries or services have been updated since boot-up:\n  * kernel\n  * systemd\n\n" +
			"Reboot is required to fully use these updates.\nMore information: https://access.redhat.com/solutions/27943\n",
			"kernel systemd", true},
		{"yum", "Core libraries or services have been updated:\n  kernel -> 3.10.0\n  glibc -> 2.17\n\n" +
			"Reboot is required to ensure that your system benefits from these updates.\n", "kernel glibc", true},
		{"an error of its own", "Error: Cannot open the database\n", "", false},
		{"nothing", "", "", false},
	} {
		packages, wants := parseNeeds(c.output)
		if strings.Join(packages, " ") != c.packages || wants != c.wants {
			t.Errorf("%s: %v %t", c.what, packages, wants)
		}
	}
}

func TestWhichDeploymentBootsNext(t *testing.T) {
	a := ostree.Deployment{ID: "a", Booted: true, Default: true}
	b := ostree.Deployment{ID: "b"}
	with := func(d ostree.Deployment, change func(*ostree.Deployment)) ostree.Deployment {
		change(&d)
		return d
	}
	was := with(a, func(d *ostree.Deployment) { d.Default = false })
	chosen := with(b, func(d *ostree.Deployment) { d.Default = true })
	staged := ostree.Deployment{ID: "s", Staged: true}
	locked := with(staged, func(d *ostree.Deployment) { d.Locked = true })
	for _, c := range []struct {
		what string
		all  []ostree.Deployment
		ours string
		want string
	}{
		{"the booted one", []ostree.Deployment{a, b}, "", ""},
		{"another default", []ostree.Deployment{chosen, was}, "", "b"},
		{"ours", []ostree.Deployment{chosen, was}, "b", ""},
		{"a staged one", []ostree.Deployment{staged, a, b}, "", "s"},
		{"a staged one that is locked", []ostree.Deployment{locked, a, b}, "", ""},
		{"a staged one before another default", []ostree.Deployment{staged, chosen, was}, "", "s"},
	} {
		got := ""
		if d := Next(c.all, func(id string) bool { return id == c.ours }); d != nil {
			got = d.ID
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
