// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"

	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
)

func TestImageIsOursOnlyWhenPodmanSaysThatItWasNotThere(t *testing.T) {
	for script, want := range map[string]struct{ there, fails bool }{
		"exit 0":                                 {there: true},
		"exit 1":                                 {},
		"echo 'Error: no space' >&2; exit 1":     {fails: true},
		"echo 'Error: no storage' >&2; exit 125": {fails: true},
		"exit 125":                               {fails: true},
		"kill -9 $$":                             {fails: true},
	} {
		podman := func(ctx context.Context, argv ...string) ([]byte, error) {
			output, err := ostree.Exec(ctx, "sh", "-c", script)
			command, failed := errors.AsType[*ostree.CommandError](err)
			if !failed {
				return output, err
			}
			exit, _ := errors.AsType[*exec.ExitError](err)
			ended := systemd.Ended{Result: "exit-code", Status: int32(exit.ExitCode())}
			if !exit.Exited() {
				ended = systemd.Ended{Result: "signal", Status: int32(syscall.SIGKILL)}
			}
			return output, &ostree.CommandError{Argv: argv, Stderr: command.Stderr, Err: ended}
		}
		if there, err := imageExists(t.Context(), podman, "quay.io/os/extensions:1"); there != want.there ||
			(err != nil) != want.fails {
			t.Errorf("%s: %v, %v", script, there, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := imageExists(gone, ostree.Exec, "quay.io/os/extensions:1"); err == nil {
		t.Error("nobody was asked, and there is an answer")
	}
}
