// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// softHost is a host that has pendingJSON's deployments, with entries for these, and an ostree that only takes notes.
type softHost struct {
	root, json string
	ran        []string
	fail       map[string]error
}

func newSoftHost(t *testing.T) *softHost {
	t.Helper()
	h := &softHost{root: t.TempDir(), json: pendingJSON, fail: map[string]error{}}
	for _, dir := range []string{"etc", "run/ostree", "boot/loader/entries", "ostree/boot.1/testos", "usr/lib/ostree"} {
		if err := os.MkdirAll(filepath.Join(h.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(
		os.WriteFile(filepath.Join(h.root, "boot/loader/entries/1.conf"),
			[]byte("version 1\noptions ostree=/ostree/boot.1/testos/0\n"), 0o644),
		os.Symlink("../../../ostree/deploy/testos/deploy/"+one+".1", filepath.Join(h.root, "ostree/boot.1/testos/0")))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *softHost) run(_ context.Context, argv ...string) ([]byte, error) {
	line := strings.Join(argv[1:], " ")
	if line == "admin status --json" {
		return []byte(h.json), nil
	}
	h.ran = append(h.ran, line)
	if err := h.fail[line]; err != nil {
		return nil, err
	}
	switch line {
	case "admin prepare-soft-reboot 0":
		h.json = strings.Replace(h.json, `"soft-reboot-target": false`, `"soft-reboot-target": true`, 1)
	case "admin prepare-soft-reboot --reset":
		h.json = strings.ReplaceAll(h.json, `"soft-reboot-target": true`, `"soft-reboot-target": false`)
	case "admin boot-complete":
		return nil, os.Remove(filepath.Join(h.root, nextRootNote))
	case "--version":
		return []byte("libostree:\n Version: '2025.7'\n"), nil
	}
	return nil, nil
}

func TestSoftRebootIsPreparedOnceAndTakenBack(t *testing.T) {
	ctx := context.Background()
	h := newSoftHost(t)
	p := NewPlain(h.run, h.root)
	const next, booted = "testos/" + one + ".1", "testos/" + one + ".0"
	const prepare, reset = "admin prepare-soft-reboot 0", "admin prepare-soft-reboot --reset"
	did := func(what string, err error, want ...string) {
		t.Helper()
		if err != nil || !slices.Equal(h.ran, want) {
			t.Errorf("%s: %v: ran %q, want %q", what, err, h.ran, want)
		}
		h.ran = nil
	}
	did("preparing", p.PrepareSoftReboot(ctx, next), prepare)
	did("preparing again", p.PrepareSoftReboot(ctx, next), reset, prepare)
	did("making it the default, which it is", p.SetDefault(ctx, next))
	did("taking back", p.ResetSoftReboot(ctx), reset)
	did("taking back again", p.ResetSoftReboot(ctx))
	did("preparing", p.PrepareSoftReboot(ctx, next), prepare)
	if err := p.SetDefault(ctx, booted); err == nil || h.ran[0] != reset {
		t.Errorf("going to another default: %v: ran %q", err, h.ran)
	}
	h.ran = nil
	did("preparing", p.PrepareSoftReboot(ctx, next), prepare)
	if err := p.Discard(ctx, next); err == nil || h.ran[0] != reset {
		t.Errorf("discarding: %v: ran %q", err, h.ran)
	}

	h.fail[prepare] = &CommandError{Argv: []string{"ostree"}, Err: errors.New("exit status 1"),
		Stderr: "error: Cannot soft-reboot to deployment with different kernel state"}
	if err := p.PrepareSoftReboot(ctx, next); err == nil || !strings.Contains(err.Error(), "different kernel state") {
		t.Errorf("with another kernel: %v", err)
	}
	h.fail = map[string]error{}
	if err := p.PrepareSoftReboot(ctx, "testos/"+one+".7"); err == nil {
		t.Error("a deployment that is not there was prepared")
	}
}

func TestOSTreeIsToldThatASoftRebootIsOver(t *testing.T) {
	ctx := context.Background()
	h := newSoftHost(t)
	p := NewPlain(h.run, h.root)
	if _, err := p.Status(ctx); err != nil || len(h.ran) > 0 {
		t.Errorf("without any: %v, ran %q", err, h.ran)
	}
	note := filepath.Join(h.root, nextRootNote)
	if err := os.WriteFile(note, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Status(ctx); err != nil || !slices.Equal(h.ran, []string{"admin boot-complete"}) {
		t.Errorf("after one: %v, ran %q", err, h.ran)
	}
	if err := os.WriteFile(note, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// One that came up on the deployment before: what it was to lead to had been taken away.
	before := filepath.Join(h.root, "ostree/deploy/testos/deploy", one+".0")
	if err := errors.Join(os.MkdirAll(before, 0o755), os.Symlink(filepath.Join(h.root, "etc"), filepath.Join(before, "etc"))); err != nil {
		t.Fatal(err)
	}
	h.ran = nil
	ds, err := p.Status(ctx)
	if at := slices.IndexFunc(ds, func(d Deployment) bool { return d.Booted }); err != nil || len(h.ran) > 0 || at < 0 ||
		ds[at].ID != "testos/"+one+".0" {
		t.Errorf("after one that led back: %v, ran %q, %+v", err, h.ran, ds)
	}
	if err := os.RemoveAll(before); err != nil {
		t.Fatal(err)
	}
	h.fail["admin boot-complete"] = errors.New("exit status 1")
	if _, err := p.Status(ctx); err == nil {
		t.Error("what ostree says of the deployments was believed though it does not know that one is over")
	}
}

func TestHostThatCannotRebootSoftlyIsRefusedWithTheReason(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct{ version, config, want string }{
		{"2025.2", "[composefs]\nenabled=true\n", "2025.3 is the first"},
		{"2025.3", "[sysroot]\nreadonly=true\n", "composefs"},
		{"2025.3", "[composefs]\nenabled=no\n", "composefs"},
		{"2025.3", "[composefs]\nenabled=true\n", ""},
		{"2026.4", "[composefs]\nenabled=verity\n", ""},
	} {
		h := newSoftHost(t)
		if err := os.WriteFile(filepath.Join(h.root, "usr/lib/ostree/prepare-root.conf"), []byte(c.config), 0o644); err != nil {
			t.Fatal(err)
		}
		p := NewPlain(func(ctx context.Context, argv ...string) ([]byte, error) {
			if argv[1] == "--version" {
				return []byte("libostree:\n Version: '" + c.version + "'\n"), nil
			}
			return h.run(ctx, argv...)
		}, h.root)
		err := p.SoftReboots(ctx)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("ostree %s, %q: %v", c.version, c.config, err)
		}
	}
}
