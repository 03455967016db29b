// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func readOf(t *testing.T, key, value string) Node {
	t.Helper()
	n, err := ReadNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: value}}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOnlyADigestIsBelievedOfWhatANodeHasStaged(t *testing.T) {
	t.Parallel()
	hex := strings.Repeat("0a", 32)
	for digest, believed := range map[string]bool{
		"": true, hex: true, "sha256:" + hex: true, "sha512:" + hex + hex: true,
		"x": false, "sha256:x": false, "sha256:" + hex + "0": false, "sha256:" + hex + "\nx": false, strings.ToUpper(hex): false,
		"sha512:" + hex: false, strings.Repeat("a", 100000): false,
	} {
		s := readOf(t, StagedKey, Encode(Staged{Config: "B", Digest: digest, Since: time.Now()})).Staged
		if s.Is("B") != believed || s.Failed("B") == believed || believed && s.Digest != digest || len(Encode(s)) > 300 {
			t.Errorf("%.80q: %.200v", digest, s)
		}
	}
	s := readOf(t, StagedKey, Encode(Staged{Config: "B", Error: strings.Repeat("no\n", 10000)})).Staged
	if !s.Failed("B") || len(s.Error) > 2*quarantineReason || strings.Contains(s.Error, "\n") {
		t.Errorf("%d bytes of an error", len(s.Error))
	}
	if s := readOf(t, StagedKey, Encode(Staged{Config: strings.Repeat("B", 1000)})).Staged; s != nil {
		t.Errorf("%.80v", s)
	}
}

func TestTheHoldOfADrainIsBelievedWithinBounds(t *testing.T) {
	t.Parallel()
	hold := DrainHold{Config: "B", Why: strings.Repeat("pods\n", 10000), Policy: &DrainPolicy{TimeoutSeconds: 1}}
	h := readOf(t, DrainHeldKey, Encode(hold)).DrainHeld
	if h == nil || h.Config != "B" || len(h.Why) > 2*ReasonLimit || strings.Contains(h.Why, "\n") || h.Policy.TimeoutSeconds != 1 {
		t.Errorf("%.80v", h)
	}
	hold.Why = "pods"
	if h := readOf(t, DrainHeldKey, Encode(hold)).DrainHeld; h == nil || h.Why != "pods" {
		t.Errorf("%v", h)
	}
	hold.Policy.SkipPodSelectors = make([]metav1.LabelSelector, 17)
	if h := readOf(t, DrainHeldKey, Encode(hold)).DrainHeld; h != nil {
		t.Errorf("%.80v", h)
	}
	hold.Policy, hold.Config = nil, strings.Repeat("B", 1000)
	if h := readOf(t, DrainHeldKey, Encode(hold)).DrainHeld; h != nil {
		t.Errorf("%.80v", h)
	}
}
