// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/machineconfig"
)

// openTree is a host that is a directory; the same one again for the same dir.
func openTree(t *testing.T, dir string) *Host {
	t.Helper()
	h, err := Open(dir, OSNone, func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func isRefused(err error) bool { return errors.As(err, new(*Refused)) }

func TestOneStagesAtATime(t *testing.T) {
	dir := t.TempDir()
	first, second := openTree(t, dir), openTree(t, dir)
	release, err := first.lockStaging(t.Context(), "apply", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.lockStaging(t.Context(), "unstage", 0); !isRefused(err) || !strings.Contains(err.Error(), "apply, pid") {
		t.Errorf("while another has it: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cfg := &machineconfig.Config{Name: cfgB, Digest: strings.Repeat("b", 64)}
	if res, err := second.Stage(ended, cfg, ApplyOptions{}); !isRefused(err) || res.Status == nil {
		t.Errorf("stage while another has it: %v, result %+v", err, res)
	}
	if err := second.Lock(t.Context(), "prove"); err != nil {
		t.Errorf("whoever composes keeps others from the host: %v", err)
	}
	time.AfterFunc(200*time.Millisecond, release)
	after, err := second.lockStaging(t.Context(), "stage", settling)
	if err != nil {
		t.Fatalf("when the other has done: %v", err)
	}
	after()
}
