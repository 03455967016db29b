// SPDX-License-Identifier: Apache-2.0

// Package bootc puts a bootc on hosts of the lab: the stand-in of the folder bootc, or a real one.
//
// The tests are of two kinds. The contract says what bootc does, as far as the project depends on it; with BOOTC in the
// environment, the path of a real bootc of this machine, it is that which has to keep it. Some of the others need the
// faults of the stand-in.
package bootc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// Real is the real bootc that the tests are to use, "" for the stand-in.
func Real() string { return os.Getenv("BOOTC") }

// program and podman are where a host finds bootc and podman, which the stand-in is too.
const (
	program = "/usr/local/bin/bootc"
	podman  = "/usr/local/bin/podman"
)

// Build compiles the stand-in into dir as a static binary and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	return programs.Build(ctx, dir, "test/standin/bootc/bootc")
}

// Install puts a bootc on a host, running or not: binary, which Build made, or the real one.
func Install(ctx context.Context, host *lab.Host, binary string) error {
	if Real() == "" {
		return errors.Join(put(host, binary, program), put(host, binary, podman))
	}
	policy := host.HostPath("/etc/containers/policy.json")
	return errors.Join(installReal(ctx, host, Real(), program), os.MkdirAll(filepath.Dir(policy), 0o755),
		os.WriteFile(policy, []byte(`{"default":[{"type":"insecureAcceptAnything"}]}`), 0o644))
}

// installReal puts a program of this machine on a host, with those of its libraries that the host lacks.
func installReal(ctx context.Context, host *lab.Host, from, to string) error {
	const libraries = "/usr/local/lib/of-the-machine"
	real := filepath.Join(libraries, filepath.Base(from))
	// A static program has none, which ldd calls a failure.
	listing, _ := exec.CommandContext(ctx, "ldd", from).Output()
	for line := range strings.Lines(string(listing)) {
		_, rest, found := strings.Cut(line, " => ")
		path, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if !found || path == "" {
			continue
		}
		there, err := filepath.Glob(host.HostPath("/usr/lib/*/" + filepath.Base(path)))
		if err != nil {
			return err
		}
		if len(there) > 0 {
			continue
		}
		if err := put(host, path, filepath.Join(libraries, filepath.Base(path))); err != nil {
			return err
		}
	}
	if err := put(host, from, real); err != nil {
		return fmt.Errorf("putting %s on a lab host: %w", from, err)
	}
	script := fmt.Sprintf("#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s \"$@\"\n", libraries, real)
	at := host.HostPath(to)
	return errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(script), 0o755))
}

func put(host *lab.Host, from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	at := host.HostPath(to)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, data, 0o755)
}
