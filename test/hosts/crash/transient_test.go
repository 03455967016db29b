// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"os"
	"testing"
	"time"
)

// transientHost is a host whose /etc ends with each boot.
func transientHost(ctx context.Context, t *testing.T, docs map[string][]byte) *crashHost {
	t.Helper()
	h := emptyHost(ctx, t, docs)
	if err := h.TransientEtc(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	return h
}

// TestPowerCutAtEveryPointWithATransientEtc cuts recovery where it writes the configuration in each boot: after an
// update, and while nothing is under way. The other verbs do what TestPowerCutAtEveryPoint cuts.
func TestPowerCutAtEveryPointWithATransientEtc(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	h := transientHost(ctx, t, map[string][]byte{"a": hostDocument("a"), "b": hostDocument("b")})
	h.toAndFro(ctx)
	h.everyPoint("recover", func() error { return h.moveTo(ctx, h.other()) }, func(point string) (string, error) {
		return h.cutAt(ctx, "recover", point, h.other())
	})
	h.everyPoint("recover", func() error {
		if err := h.Reboot(ctx); err != nil {
			return err
		}
		_, err := h.judge(ctx)
		return err
	}, func(point string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if err := h.ask("recover", "hang", point); err != nil {
			return "", err
		}
		go func() { _ = h.Reboot(ctx) }()
		_, err := h.hit(ctx)
		if err == nil {
			err = h.cut()
		}
		if err == nil {
			err = h.afterCut(ctx, h.at)
		}
		return point, err
	})
}

// TestPowerCutOfALiveChangeWithATransientEtc cuts a change without a reboot, of files in /etc and beside it.
func TestPowerCutOfALiveChangeWithATransientEtc(t *testing.T) {
	if testing.Short() {
		t.Skip("the other test cuts the same recovery")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	live := func(variant string) []byte {
		return document(variant, `"kernelArguments":["both=1"],`, `"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,`+variant+`%0A"}},
 {"path":"/etc/only-`+variant+`","mode":420,"contents":{"source":"data:,`+variant+`%0A"}},
 {"path":"/var/lib/crash/state","mode":384,"contents":{"source":"data:,`+variant+`%0A"}}]}`)
	}
	h := transientHost(ctx, t, map[string][]byte{"a": live("a"), "b": live("b")})
	policy := "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nspec:\n  nodeDisruptionPolicy:\n    files:\n"
	for _, path := range []string{"/etc", "/var/lib/crash"} {
		policy += "    - path: " + path + "\n      actions:\n      - type: None\n"
	}
	if err := os.WriteFile(h.HostPath("/var/tmp/policy.yaml"), []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	h.flags = []string{"--policy=/var/tmp/policy.yaml"}
	h.takeBoth(ctx)
	h.everyPoint("apply", func() error { return h.moveTo(ctx, h.other()) }, func(point string) (string, error) {
		return h.cutAt(ctx, "apply", point, h.other())
	})
}
