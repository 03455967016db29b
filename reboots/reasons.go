// SPDX-License-Identifier: Apache-2.0

// Package reboots finds what wants a reboot of a host: packages, kernels, deployments of other programs, and hooks.
// What was read is a Seen; the reasons are a function of it.
package reboots

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/transaction"
)

// Seen is what was read of a host. The zero value of a field means that nothing of that kind was found.
type Seen struct {
	// Required is Debian's sentinel, nil where the host has none.
	Required *Required
	// Running is the release of the running kernel, and Kernels are those that are installed. Both are empty on a host
	// with ostree.
	Running string
	Kernels []Kernel
	// Next is the deployment that boots next and that is not ours.
	Next *Deployment
	// Configuration is the name of a configuration that is committed and whose reboot is left to people, and Committed is
	// since when.
	Configuration string
	Committed     time.Time
	// Answers are what programs of the host have said that take their time.
	Answers Answers
}

// Required is /run/reboot-required.
type Required struct {
	Text     string
	Packages []string
	Since    time.Time
}

// Kernel is an installed kernel.
type Kernel struct {
	Release string
	Since   time.Time
}

// Deployment is a deployment that another program or a person has staged, or made the default.
type Deployment struct {
	ID, Checksum, Version string
	Staged                bool
	Since                 time.Time
}

// Answers are what programs said when they were last asked.
type Answers struct {
	// Needs are the packages that needs-restarting names; NeedsReboot reports whether it wants a reboot.
	NeedsReboot bool     `json:"needsReboot,omitempty"`
	Needs       []string `json:"needs,omitempty"`
	// Hook is the path of the hook that wants a reboot, and Said is the first line that it has printed.
	Hook string `json:"hook,omitempty"`
	Said string `json:"said,omitempty"`
}

// The limits of what is shown.
const (
	packagesShown = 20
	messageLimit  = 300
)

// Reasons returns why the host wants a reboot, sorted by kind, nil where nothing does. A reason that was there before
// keeps its time. What is withheld is no reason.
func Reasons(s Seen, withheld []transaction.Withheld, before *api.RebootWanted, now time.Time) *api.RebootWanted {
	var out []api.RebootReason
	add := func(kind api.RebootKind, since time.Time, packages []string, format string, args ...any) {
		text := message.Cut(message.OneLine(fmt.Sprintf(format, args...)), messageLimit)
		r := api.RebootReason{Kind: kind, Message: text, Since: now}
		if !since.IsZero() && since.Before(now) {
			r.Since = since
		}
		if was := reason(before, kind); was != nil && was.Since.Before(r.Since) && same(kind, was.Message, text) {
			r.Since = was.Since
		}
		r.Since = r.Since.UTC().Truncate(time.Second)
		r.Packages = slices.Compact(slices.Sorted(slices.Values(packages)))
		r.More = max(len(r.Packages)-packagesShown, 0)
		r.Packages = r.Packages[:len(r.Packages)-r.More]
		out = append(out, r)
	}
	if c := s.Configuration; c != "" {
		add(api.RebootConfiguration, s.Committed, nil, "%s is committed, and the next boot leads to it", c)
	}
	if d := s.Next; d != nil && withholds(withheld, api.RebootDeployment, d.Checksum) == nil {
		how := "was made the default"
		if d.Staged {
			how = "was staged"
		}
		what := d.ID
		if d.Version != "" {
			what += ", version " + d.Version + ","
		}
		add(api.RebootDeployment, d.Since, nil, "deployment %s %s by a person or another program, and boots next", what, how)
	}
	if s.Answers.Hook != "" {
		add(api.RebootHook, time.Time{}, nil, "%s: %s", s.Answers.Hook, cmp.Or(s.Answers.Said, "wants a reboot"))
	}
	if k := newest(s.Running, s.Kernels); k != nil && withholds(withheld, api.RebootKernel, k.Release) == nil {
		add(api.RebootKernel, k.Since, nil, "kernel %s is installed, and %s runs", k.Release, s.Running)
	}
	if texts, packages, since := byPackages(s); len(texts) > 0 {
		add(api.RebootPackages, since, packages, "%s", strings.Join(texts, "; "))
	}
	if len(out) == 0 {
		return nil
	}
	slices.SortFunc(out, func(a, b api.RebootReason) int { return cmp.Compare(a.Kind, b.Kind) })
	return &api.RebootWanted{Reasons: out}
}

// byPackages returns what packages say: Debian's sentinel and needs-restarting.
func byPackages(s Seen) (texts, packages []string, since time.Time) {
	if r := s.Required; r != nil {
		texts = append(texts, sentinelPath+": "+cmp.Or(r.Text, "a restart is required"))
		packages, since = append(packages, r.Packages...), r.Since
	}
	if s.Answers.NeedsReboot {
		texts = append(texts, "needs-restarting: packages were updated since the boot")
		packages = append(packages, s.Answers.Needs...)
	}
	return texts, packages, since
}

// same reports whether a reason is still the same cause. Of a kernel, a deployment and a configuration a new one is a
// new cause; packages add up.
func same(kind api.RebootKind, was, is string) bool {
	return kind == api.RebootPackages || kind == api.RebootHook || was == is
}

func reason(w *api.RebootWanted, kind api.RebootKind) *api.RebootReason {
	if w == nil {
		return nil
	}
	for i := range w.Reasons {
		if w.Reasons[i].Kind == kind {
			return &w.Reasons[i]
		}
	}
	return nil
}

func withholds(all []transaction.Withheld, kind api.RebootKind, subject string) *transaction.Withheld {
	for i := range all {
		if all[i].Kind == string(kind) && all[i].Subject == subject {
			return &all[i]
		}
	}
	return nil
}

// Next returns the deployment that boots next, where that is neither the booted one nor, by its ID, ours.
func Next(all []ostree.Deployment, ours func(id string) bool) *ostree.Deployment {
	at := slices.IndexFunc(all, func(d ostree.Deployment) bool { return d.Staged && !d.Locked })
	if at < 0 {
		at = slices.IndexFunc(all, func(d ostree.Deployment) bool { return d.Default })
	}
	if at < 0 || all[at].Booted || ours(all[at].ID) {
		return nil
	}
	return &all[at]
}

// newest returns the newest installed kernel of the running one's flavour. The result is nil if no kernel is newer than
// the running one.
func newest(running string, kernels []Kernel) *Kernel {
	var found *Kernel
	if running == "" {
		return nil
	}
	for i := range kernels {
		k := &kernels[i]
		if flavour(k.Release) != flavour(running) || compareReleases(k.Release, running) <= 0 {
			continue
		}
		if found == nil || compareReleases(k.Release, found.Release) > 0 {
			found = k
		}
	}
	return found
}

// releaseParts splits a kernel's release into its version and its flavour: 6.1.0-25-cloud-amd64 is 6.1.0-25 and
// cloud-amd64; 5.14.0-427.el9.x86_64+rt is 5.14.0-427.el9.x86_64 and rt.
func releaseParts(release string) (version []string, flavour string) {
	base, plus, _ := strings.Cut(release, "+")
	var words []string
	for i, part := range strings.Split(base, "-") {
		if i < 2 || part != "" && part[0] >= '0' && part[0] <= '9' {
			version = append(version, part)
		} else {
			words = append(words, part)
		}
	}
	if plus != "" {
		words = append(words, "+"+plus)
	}
	return version, strings.Join(words, "-")
}

func flavour(release string) string {
	_, f := releaseParts(release)
	return f
}

// compareReleases compares the versions of two releases, part by part, as package managers do.
func compareReleases(a, b string) int {
	left, _ := releaseParts(a)
	right, _ := releaseParts(b)
	for i := range min(len(left), len(right)) {
		if c := compareVersions(left[i], right[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(left), len(right))
}

// compareVersions compares two versions by their runs of digits and of letters. Digits are newer than letters.
func compareVersions(a, b string) int {
	for {
		a, b = strings.TrimLeft(a, "._~"), strings.TrimLeft(b, "._~")
		if a == "" || b == "" {
			return cmp.Compare(len(a), len(b))
		}
		x, y := run(a), run(b)
		a, b = a[len(x):], b[len(y):]
		digits := isDigit(x[0])
		if digits != isDigit(y[0]) {
			if digits {
				return 1
			}
			return -1
		}
		if digits {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if c := cmp.Compare(len(x), len(y)); c != 0 {
				return c
			}
		}
		if c := strings.Compare(x, y); c != 0 {
			return c
		}
	}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// run returns the run of digits, or of other bytes, at the begin of a text that is not empty.
func run(text string) string {
	for i := range len(text) {
		if isDigit(text[i]) != isDigit(text[0]) || strings.IndexByte("._~", text[i]) >= 0 {
			return text[:i]
		}
	}
	return text
}

// parseNeeds reads what needs-restarting -r printed. It exits with 1 for a reboot and for its own errors alike.
func parseNeeds(output string) (packages []string, wants bool) {
	for line := range strings.Lines(output) {
		text := strings.TrimSpace(line)
		wants = wants || strings.Contains(text, "Reboot is required") || strings.Contains(text, "reboot is required")
		if name, is := strings.CutPrefix(text, "* "); is {
			packages = append(packages, strings.TrimSpace(name))
		} else if name, _, is := strings.Cut(text, " -> "); is && !strings.Contains(name, " ") {
			packages = append(packages, name) // of RHEL 7
		}
	}
	return packages, wants
}

// Answer is the output of the command wants-reboot.
type Answer struct {
	// Reasons are sorted by kind. There is none where nothing wants a reboot.
	Reasons []api.RebootReason `json:"reasons"`
	// Withheld are deployments and kernels that want no reboot any more, because the host has tried them.
	Withheld []transaction.Withheld `json:"withheld,omitempty"`
	// Warnings are the programs that could not be asked.
	Warnings []string `json:"warnings,omitempty"`
}

// WriteText writes the answer for people.
func (a *Answer) WriteText(w io.Writer) error {
	if len(a.Reasons) == 0 {
		if _, err := fmt.Fprintln(w, "Nothing wants a reboot."); err != nil {
			return err
		}
	}
	for _, line := range a.Lines() {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// Lines returns a line for people for each reason, and for each thing that is withheld.
func (a *Answer) Lines() []string {
	var out []string
	for _, r := range a.Reasons {
		out = append(out, fmt.Sprintf("%s since %s: %s", r.Kind, r.Since.Format(time.RFC3339), r.Text()))
	}
	for _, h := range a.Withheld {
		out = append(out, fmt.Sprintf("Not counted since %s: %s %s: %s", h.Since.Format(time.RFC3339),
			strings.ToLower(h.Kind), h.Subject, h.Why))
	}
	return out
}
