// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/test/lab"
)

// built is the stand-in, compiled once.
var built = sync.OnceValues(func() (string, error) {
	if Real() != "" {
		return "", nil
	}
	dir, err := os.MkdirTemp("", "bootc-stand-in-")
	if err != nil {
		return "", err
	}
	return Build(context.Background(), dir)
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := built(); err == nil && path != "" {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// scene is a host with bootc, for one test.
type scene struct {
	*testing.T

	ctx      context.Context //nolint:containedctx // the test's own
	host     *lab.Host
	registry *Registry
}

func newScene(t *testing.T) *scene {
	t.Helper()
	base := lab.Need(t)
	Need(t, base)
	binary, err := built()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	host, err := base.NewHost(ctx, "", lab.Options{Name: "bootc"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if journal, err := host.Journal(context.Background()); err == nil {
				t.Log(journal[max(0, len(journal)-3000):])
			}
		}
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := Install(ctx, host, binary); err != nil {
		t.Fatal(err)
	}
	if err := host.Start(ctx); err != nil {
		t.Fatal(err)
	}
	registry, err := NewRegistry(ctx, host, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{T: t, ctx: ctx, host: host, registry: registry}
	// Nothing here is about what a disk loses.
	s.must("ostree", "--repo=/ostree/repo", "config", "set", "core.fsync", "false")
	return s
}

// root is where this machine sees the root of the running host.
func (s *scene) root() string { return fmt.Sprintf("/proc/%d/root", s.host.Leader()) }

// run is a Runner for the present boot.
func (s *scene) run(ctx context.Context, argv ...string) ([]byte, error) {
	stdout, stderr, exit, err := s.host.Exec(ctx, nil, argv...)
	if err == nil && exit != 0 {
		err = fmt.Errorf("exit status %d", exit)
	}
	if err != nil {
		err = &ostree.CommandError{Argv: argv, Stderr: strings.TrimSpace(string(stderr)), Err: err}
	}
	return stdout, err
}

func (s *scene) must(argv ...string) string {
	s.Helper()
	text, err := s.host.Output(s.ctx, argv...)
	if err != nil {
		s.Fatal(err)
	}
	return strings.TrimSpace(text)
}

// fails runs what is to fail with exit status 1, and returns what it wrote to its standard error.
func (s *scene) fails(argv ...string) string {
	s.Helper()
	stdout, stderr, exit, err := s.host.Exec(s.ctx, nil, argv...)
	if err != nil {
		s.Fatal(err)
	}
	if exit != 1 {
		s.Fatalf("%s ended with %d: %s%s", strings.Join(argv, " "), exit, stdout, stderr)
	}
	return string(stderr)
}

func (s *scene) reboot() {
	s.Helper()
	if err := s.host.Reboot(s.ctx); err != nil {
		s.Fatal(err)
	}
}

// content says whether text has a part in it, and fails if not.
func (s *scene) content(text, part string) {
	s.Helper()
	if !strings.Contains(text, part) {
		s.Errorf("there is no %q in:\n%s", part, text)
	}
}

// commit makes a bootable commit of a ref with files put in, and gives it a ref.
func (s *scene) commit(ref, from string, files map[string]string) {
	s.Helper()
	s.commitOf(ref, from, files, "--bootable")
}

// commitOf makes a commit of a ref with files put in, and gives it a ref. A text that begins with linkTo is a link.
func (s *scene) commitOf(ref, from string, files map[string]string, options ...string) {
	s.Helper()
	tree := "/var/tmp/" + filepath.Base(ref)
	if err := os.MkdirAll(s.host.HostPath(tree), 0o755); err != nil {
		s.Fatal(err)
	}
	for name, text := range files {
		path := s.host.HostPath(tree + name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if to, is := strings.CutPrefix(text, linkTo); is {
			err = errors.Join(err, os.Symlink(to, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
		}
		if err != nil {
			s.Fatal(err)
		}
	}
	argv := append([]string{"ostree", "commit", "--branch=" + ref, "--no-bindings", "--owner-uid=0", "--owner-gid=0",
		"--tree=ref=" + from, "--tree=dir=" + tree}, options...)
	s.must(argv...)
}

const linkTo = "-> "

// encapsulate makes an image of a ref and returns its digest.
func (s *scene) encapsulate(ref, version, image string) string {
	s.Helper()
	s.must("mkdir", "-p", "/var/lib/images")
	return s.must("bootc", "internals", "ostree-ext", "container", "encapsulate", "--repo=/ostree/repo",
		"--label=org.opencontainers.image.version="+version, ref, image)
}

// Parts of bootc's status.
type (
	status struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       struct {
			Image     *reference `json:"image"`
			BootOrder string     `json:"bootOrder"`
		} `json:"spec"`
		Status struct {
			Staged         *entry  `json:"staged"`
			Booted         *entry  `json:"booted"`
			Rollback       *entry  `json:"rollback"`
			RollbackQueued bool    `json:"rollbackQueued"`
			Type           *string `json:"type"`
		} `json:"status"`
	}
	entry struct {
		Image *struct {
			Image   reference `json:"image"`
			Version string    `json:"version"`
			Digest  string    `json:"imageDigest"`
		} `json:"image"`
		Incompatible bool   `json:"incompatible"`
		Store        string `json:"store"`
		OSTree       struct {
			Stateroot string `json:"stateroot"`
			Checksum  string `json:"checksum"`
			Serial    int    `json:"deploySerial"`
		} `json:"ostree"`
	}
	reference struct {
		Image     string `json:"image"`
		Transport string `json:"transport"`
	}
)

// id is the deployment as the lab and ostree name it.
func (e *entry) id() string {
	if e == nil {
		return ""
	}
	return fmt.Sprintf("%s/%s.%d", e.OSTree.Stateroot, e.OSTree.Checksum, e.OSTree.Serial)
}

// of is the image and its digest, "" for none.
func (e *entry) of() string {
	if e == nil || e.Image == nil {
		return ""
	}
	return e.Image.Image.Transport + ":" + e.Image.Image.Image + " " + e.Image.Digest
}

// status asks bootc on the host, wrapped in what is before.
func (s *scene) status(before ...string) status {
	s.Helper()
	var got status
	text := s.must(append(before, "bootc", "status", "--json")...)
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		s.Fatalf("bootc status printed %q: %v", text, err)
	}
	if got.APIVersion != "org.containers.bootc/v1" || got.Kind != "BootcHost" {
		s.Errorf("bootc status is of %s %s", got.APIVersion, got.Kind)
	}
	if got.Status.Booted.id() != s.host.BootedDeployment() {
		s.Errorf("bootc says that %s is booted, and %s is", got.Status.Booted.id(), s.host.BootedDeployment())
	}
	return got
}
