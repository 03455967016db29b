// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/lab"
)

// earlyPath is a file that early boot reads, so that recovery boots once more after a change.
const earlyPath = "/etc/sysctl.d/50-crash.conf"

// early returns a document with another file, which early boot reads.
func early(document []byte, contents string) []byte {
	file := fmt.Sprintf(`"storage":{"files":[{"path":%q,"mode":420,"contents":{"source":"data:,%%23%s"}},`, earlyPath, contents)
	return []byte(strings.Replace(string(document), `"storage":{"files":[`, file, 1))
}

// inPlaceHost is a host without ostree, with the pictures of its two configurations.
func inPlaceHost(ctx context.Context, t *testing.T, loader lab.Loader,
	change func(document []byte, variant string) []byte) *crashHost {
	t.Helper()
	docs := map[string][]byte{}
	for _, variant := range []string{"a", "b"} {
		docs[variant] = change(hostDocument(variant), variant)
	}
	h := emptyHostAs(ctx, t, docs, lab.Options{WithoutOSTree: true, Loader: loader})
	h.takeBoth(ctx)
	return h
}

func asItIs(document []byte, _ string) []byte { return document }

// inPlace runs a test on the two kinds of hosts without ostree.
func inPlace(t *testing.T, test func(ctx context.Context, t *testing.T, loader lab.Loader)) {
	t.Helper()
	for _, loader := range []lab.Loader{lab.GRUB, lab.Entries} {
		t.Run(string(loader), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			test(ctx, t, loader)
		})
	}
}

// TestPowerCutAtEveryPointInPlace cuts what TestPowerCutAtEveryPoint cuts, on hosts without ostree.
func TestPowerCutAtEveryPointInPlace(t *testing.T) {
	inPlace(t, func(ctx context.Context, t *testing.T, loader lab.Loader) {
		t.Helper()
		h := inPlaceHost(ctx, t, loader, asItIs)
		h.cutUpdates(ctx)
		if loader == lab.GRUB || !testing.Short() { // no boot loader has a part in what follows
			h.cutReboots(ctx)
			h.cutUnhealthy(ctx)
		}
	})
}

// TestPowerCutOnTheWayBackInPlace cuts what TestPowerCutOnTheWayBack cuts, on hosts without ostree.
func TestPowerCutOnTheWayBackInPlace(t *testing.T) {
	inPlace(t, func(ctx context.Context, t *testing.T, loader lab.Loader) {
		t.Helper()
		inPlaceHost(ctx, t, loader, asItIs).cutWaysBack(ctx, badDocument)
	})
}

// TestPowerCutInPlaceWhereEarlyBootReadsTheChange cuts where one more boot is needed: early boot has read what recovery
// then changed, or put back.
func TestPowerCutInPlaceWhereEarlyBootReadsTheChange(t *testing.T) {
	inPlace(t, func(ctx context.Context, t *testing.T, loader lab.Loader) {
		t.Helper()
		h := inPlaceHost(ctx, t, loader, early)
		boots := h.Boots()
		if err := h.moveTo(ctx, h.other()); err != nil || h.Boots() != boots+2 {
			t.Errorf("the update took %d boots: %v", h.Boots()-boots, err)
		}
		for _, point := range sample("reread", "again", "clock", "apply "+earlyPath, "prove") {
			at, err := h.cutAt(ctx, "recover", point, h.other())
			report(t, "recover cut at "+at, err)
		}
		w := &wayBack{crashHost: h, document: func(n int) []byte { return early(badDocument(n), fmt.Sprintf("bad-%d", n)) }}
		for _, point := range sample("prove taken back", "recover returned", "prove given up", "prove undo "+earlyPath) {
			verb, name, _ := strings.Cut(point, " ")
			at, err := w.cutAt(ctx, verb, name)
			report(t, verb+" cut at "+at, err)
		}
	})
}
