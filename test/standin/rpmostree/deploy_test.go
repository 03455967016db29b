// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
)

// always are the keys that every deployment has in status --json.
var always = []string{
	"base-commit-meta", "base-local-replacements", "base-remote-replacements", "base-removals", "booted", "checksum",
	"gpg-enabled", "id",
	"origin", "osname", "packages", "pinned", "regenerate-initramfs", "requested-base-local-replacements",
	"requested-base-removals", "requested-local-fileoverride-packages", "requested-local-packages", "requested-packages",
	"serial", "staged", "timestamp", "unlocked", "version",
}

func TestStatusHasTheKeysThatDriversRead(t *testing.T) {
	h := share(t)
	text := h.ok("status", "--json")
	at := -1
	for _, key := range []string{
		`"deployments" : [`, `"gpg-enabled" : false`, `"transaction" : null`, `"cached-update" : null`, `"update-driver" : null`,
	} {
		next := strings.Index(text, key)
		if next < at {
			t.Errorf("%s is missing or out of order:\n%s", key, text)
		}
		at = max(at, next)
	}
	s := h.status()
	d := s.Deployments[0]
	if got := slices.Sorted(maps.Keys(d)); len(s.Deployments) != 1 || !slices.Equal(got, always) {
		t.Errorf("%d deployments, the keys are %q", len(s.Deployments), got)
	}
	for key, want := range map[string]any{
		"booted": true, "staged": false, "pinned": false, "unlocked": "none", "osname": lab.OS, "serial": 0.0,
		"origin": lab.RefV1, "version": "v1", "timestamp": 1735689600.0, "regenerate-initramfs": false,
		"id": lab.OS + "-" + d.text("checksum") + ".0", "checksum": strings.Split(h.BootedDeployment(), "/")[1][:64],
	} {
		if d[key] != want {
			t.Errorf("%s is %v, want %v", key, d[key], want)
		}
	}
	for _, key := range []string{"packages", "requested-packages", "base-removals", "base-local-replacements"} {
		if list, ok := d[key].([]any); !ok || len(list) != 0 {
			t.Errorf("%s is %v, want an empty list", key, d[key])
		}
	}
	if a := h.run("rpm-ostree", "status", "--pending-exit-77"); a.exit != 0 {
		t.Errorf("with nothing pending: exit %d", a.exit)
	}
	usage, last, _ := strings.Cut(h.run("rpm-ostree", "nonsense").stderr, "\nerror: ")
	if !strings.Contains(usage, "Usage:\n  rpm-ostree [OPTION…] COMMAND") || !strings.HasPrefix(last, "Unknown command") {
		t.Errorf("a command that there is not: %s, then %s", usage, last)
	}
	if got := h.ok("--version"); !strings.Contains(got, "rpm-ostree:\n Version: '2") || !strings.Contains(got, "  - container\n") {
		t.Errorf("the version is %q", got)
	}
	a := h.run("unshare", "--mount", "sh", "-c", "mount -t tmpfs none /run; exec rpm-ostree status")
	if a.exit != 1 || !strings.HasPrefix(a.stderr, "error: This system was not booted via libostree.") {
		t.Errorf("not booted from ostree: exit %d: %s", a.exit, a.stderr)
	}
}

func TestTransactionsBuildOnOneAnotherAndLeaveOneStagedDeployment(t *testing.T) {
	h := boot(t)
	booted := h.status().Deployments[0]
	h.shell("echo mine >/etc/mine.conf; echo drifted >/etc/testos/default.conf")
	h.refused("Old and new refs are equal: "+lab.RefV1, "rebase", lab.RefV1)
	if h.run("rpm-ostree", "rebase", "no/such/ref").exit != 1 || len(h.status().Deployments) != 1 {
		t.Error("a ref that there is not has left something")
	}

	h.ok("rebase", lab.RefV2, "--skip-purge", lock)
	d := h.staged()
	if d.text("origin") != lab.RefV2 || d.text("version") != "v2" || !h.locked() {
		t.Errorf("rebased to %v, locked %t", d, h.locked())
	}
	// Since 2024.6 it does not show locks of its own making.
	if value, ok := d[lockedKey]; ok {
		t.Errorf("the lock is shown: %v", value)
	}
	if h.arguments() != initial {
		t.Errorf("the kernel arguments are %q", h.arguments())
	}
	if entries := h.shell("ls /boot/loader/entries"); strings.Contains(entries, "\n") {
		t.Errorf("the boot loader has %q", entries)
	}
	if a := h.run("rpm-ostree", "status", "--pending-exit-77"); a.exit != 77 {
		t.Errorf("with something pending: exit %d", a.exit)
	}

	h.ok("kargs", "--append=first", lock)
	h.ok("kargs", "--append=second")
	s := h.status()
	if d := s.Deployments[0]; len(s.Deployments) != 2 || !d.yes("staged") || d.text("origin") != lab.RefV2 ||
		h.arguments() != initial+" first second" {
		t.Errorf("a chain has made %v with %q", s.Deployments, h.arguments())
	}
	if h.locked() {
		t.Error("the lock is inherited")
	}
	// What ostree does without it is noticed. A lock of ostree's making is not shown either.
	before := h.staged().text("id")
	h.shell("ostree admin deploy --os=" + lab.OS + " --stage " + lab.RefV2)
	h.until("it is noticed", func() bool { return h.staged().text("id") != before })
	h.shell("ostree admin " + strings.TrimPrefix(lock, "--"))
	h.ok("reload")
	if value, ok := h.staged()[lockedKey]; ok || !h.locked() {
		t.Errorf("a lock that ostree made is shown: %v", value)
	}

	// A locked one is left alone, and what is staged is gone with /run.
	if err := h.Reboot(h.ctx); err != nil {
		t.Fatal(err)
	}
	if s := h.status(); len(s.Deployments) != 1 || s.Deployments[0].text("id") != booted.text("id") {
		t.Errorf("after a reboot with a locked one there are %v", s.Deployments)
	}
	h.ok("rebase", lab.RefV2)
	h.ok("kargs", "--append=first")
	h.shell("echo late >/etc/late.conf")
	if err := h.Reboot(h.ctx); err != nil {
		t.Fatal(err)
	}
	s = h.status()
	if d := s.Deployments[0]; !d.yes("booted") || d.text("origin") != lab.RefV2 || len(s.Deployments) != 2 {
		t.Fatalf("after the reboot there are %v", s.Deployments)
	}
	if got := h.shell("cat /usr/lib/testos/version /etc/mine.conf /etc/testos/default.conf /etc/testos/new.conf /etc/late.conf"); got != "v2\nmine\ndrifted\nnew in v2\nlate" {
		t.Errorf("the new deployment has %q", got)
	}
	// What is appended comes after ostree=, which keeps its place.
	if line := h.Kargs(); !strings.HasPrefix(line, initial+" ostree=/") || !strings.HasSuffix(line, " first") {
		t.Errorf("it was booted with %q", line)
	}
	if refs := strings.Fields(h.shell("ostree refs")); slices.Contains(refs, lab.RefV1) {
		t.Errorf("a rebase has left the old ref: %q", refs)
	}

	rollBackAndCleanUp(h)
}

// rollBackAndCleanUp goes on with a host that has a rollback deployment.
func rollBackAndCleanUp(h *host) {
	t := h.t
	order := func() string {
		var all []string
		for _, d := range h.status().Deployments {
			name := d.text("version")
			if d.yes("booted") {
				name += "*"
			}
			if d.yes("staged") {
				name += "+"
			}
			if d.yes("pinned") {
				name += "!"
			}
			all = append(all, name)
		}
		return strings.Join(all, " ")
	}
	expect := func(want string) {
		if got := order(); got != want {
			t.Errorf("the deployments are %q, want %q", got, want)
		}
	}
	expect("v2* v1")
	rollback := h.status().Deployments[1]
	said := h.ok("rollback")
	if want := "Moving '" + strings.TrimPrefix(rollback.text("id"), lab.OS+"-") + "' to be first deployment\n"; !strings.HasPrefix(said, want) {
		t.Errorf("rollback said %q, want %q", said, want)
	}
	expect("v1 v2*")
	if next, err := lab.DefaultEntry(h.Sysroot()); err != nil || strings.Contains(next.Deployment, h.status().Deployments[1].text("checksum")) {
		t.Errorf("a rollback is not immediate: %v, %v", next, err)
	}
	h.ok("rollback") // takes it back: there is no other one
	expect("v2* v1")

	h.ok("kargs", "--append=staged")
	expect("v2+ v2* v1")
	h.refused("Staged deployment (remove with cleanup -p)", "rollback")
	h.refused("cleanup: At least one cleanup option must be specified", "cleanup")
	h.shell("ostree admin pin 2")
	h.ok("cleanup", "-r")
	expect("v2+ v2* v1!")
	h.ok("cleanup", "-p")
	expect("v2* v1!")
	if said := h.ok("cleanup", "-p"); said != "Deployments unchanged.\n" {
		t.Errorf("a cleanup with nothing to do said %q", said)
	}
	h.ok("cleanup", "-b")
	h.ok("cleanup", "-m")
	h.shell("ostree admin pin --unpin 1")
	h.ok("cleanup", "-r")
	expect("v2*")
	h.refused("No rollback deployment found", "rollback")
}

func TestRebaseTakesEveryFormOfASource(t *testing.T) {
	h := boot(t)
	commit := func(ref string) string {
		t.Helper()
		c, err := Commit(h.ctx, h.Host, ref)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	v2, v4 := commit(lab.RefV2), commit(RefV4)
	said := h.ok("upgrade")
	if !strings.HasSuffix(said, "No upgrade available.\n") || len(h.status().Deployments) != 1 {
		t.Errorf("an upgrade with nothing new said %q", said)
	}
	if a := h.run("rpm-ostree", "upgrade", "--unchanged-exit-77"); a.exit != 77 {
		t.Errorf("an upgrade with nothing new: exit %d", a.exit)
	}
	for _, c := range []struct {
		name     string
		args     []string
		checksum string
		origin   string
	}{
		{"a ref of a remote", []string{Remote + ":" + RefV4}, v4, Remote + ":" + RefV4},
		{"another repository of the machine", []string{"/var/lib/rpm-ostree-stand-in/repo:" + lab.RefV2}, v2, v2},
		{"a checksum after a colon", []string{":" + v4}, v4, v4},
		{"a bare checksum with where it is from", []string{v2, "--custom-origin-url=build.example", "--custom-origin-description=a build"}, v2, v2},
		{"a ref and a revision of it", []string{Remote + ":" + RefV4, v4}, v4, Remote + ":" + RefV4},
		{"a ref and a version of it", []string{Remote + ":" + lab.RefV2, "v2"}, v2, Remote + ":" + lab.RefV2},
	} {
		h.ok(append([]string{"rebase"}, c.args...)...)
		d := h.staged()
		if d.text("checksum") != c.checksum || d.text("origin") != c.origin {
			t.Errorf("%s: %s of %s, want %s of %s", c.name, d.text("checksum"), d.text("origin"), c.checksum, c.origin)
		}
		if d["custom-origin"] != nil && !slices.Equal(d.list("custom-origin"), []string{"build.example", "a build"}) {
			t.Errorf("%s: the custom origin is %v", c.name, d["custom-origin"])
		}
	}
}
