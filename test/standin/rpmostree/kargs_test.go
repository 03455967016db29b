// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
)

var initial = strings.Join(lab.KernelArguments, " ")

func TestKernelArgumentsArePatched(t *testing.T) {
	h := share(t)
	if got := h.ok("kargs"); !strings.Contains(got, " ostree=/ostree/boot.") {
		t.Errorf("the booted deployment has %q, without ostree=", got)
	}
	for _, c := range []struct {
		name string
		args string
		want string // all arguments after it, "" for no change
	}{
		{"deletes come before appends", "--append=b=1 --append=a --append-if-missing=c --delete=rw", "b=1 a c"},
		{"what is missing is appended, and an append is never too many", "--append-if-missing=b=2 --append-if-missing=a --append=b=1",
			"b=1 a c b=1 b=2"},
		{"one of several values is replaced; what is appended was not there before", "--replace=b=2=3 --append=z --delete-if-present=z",
			"b=1 a c b=1 b=3 z"},
		{"one of equal values is deleted", "--delete-if-present=b=1 --delete-if-present=c", "a b=1 b=3 z"},
		{"what is there is not missing, what is absent not deleted", "--append-if-missing=a --delete-if-present=b=2", ""},
	} {
		before := h.status().Deployments[0].text("id")
		said := h.ok(append([]string{"kargs"}, strings.Fields(c.args)...)...)
		changed := h.status().Deployments[0].text("id") != before
		if c.want == "" {
			if changed || said != "No changes.\n" {
				t.Errorf("%s: changed %t: %q", c.name, changed, said)
			}
			continue
		}
		want := strings.Replace(initial, " rw", "", 1) + " " + c.want
		if got := h.arguments(); got != want || !changed {
			t.Errorf("%s: got %q, want %q", c.name, got, want)
		}
	}
	for _, c := range []struct{ args, text string }{
		{"--delete=absent", "No key 'absent' found"},
		{"--delete=b", "Multiple values for key 'b' found"},
		{"--delete=a=1", "No karg 'a=1' found"},
		{"--replace=absent=1", "No key 'absent' found"},
		{"--replace=b=1", "Multiple values for key 'b' found"},
		{"--replace=b=9=1", "No karg 'b=9' found"},
		{"--delete=a --replace=b=1", "Cannot specify both --delete and --replace"},
	} {
		h.refused(c.text, append([]string{"kargs"}, strings.Fields(c.args)...)...)
	}
	before := h.status().Deployments[0].text("id")
	for _, c := range []struct {
		args []string
		exit int
	}{
		{[]string{"--append-if-missing=a", "--unchanged-exit-77"}, 77},
		{[]string{"--append-if-missing=a"}, 0},
		{[]string{"--append=a", `--append=quoted="x y"`, "--unchanged-exit-77"}, 0},
	} {
		if a := h.run(append([]string{"rpm-ostree", "kargs"}, c.args...)...); a.exit != c.exit {
			t.Errorf("kargs %s: exit %d, want %d: %s", c.args, a.exit, c.exit, a.stderr)
		}
	}
	if h.status().Deployments[0].text("id") == before {
		t.Error("an append of what is there changed nothing")
	}
	if got := h.ok("kargs"); !strings.HasSuffix(got, " quoted=\"x y\"\n") {
		t.Errorf("a quoted argument has become %q", got)
	}
	if got := h.ok("kargs", "--deploy-index=1"); !strings.HasPrefix(got, initial+" ostree=") {
		t.Errorf("the booted deployment has %q", got)
	}
}
