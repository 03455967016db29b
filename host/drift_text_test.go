// SPDX-License-Identifier: Apache-2.0

package host

import (
	"strings"
	"testing"
)

// More people read journals than may read the files, and a digest of a short secret is as good as the secret.
func TestWarningsOfDriftHoldNoDigests(t *testing.T) {
	text := driftText(Drift{Kind: "file", Path: "/etc/a", What: "contents", Expected: "sha256:1111", Found: "sha256:2222"})
	if !strings.Contains(text, "file /etc/a: contents") || strings.Contains(text, "sha256") {
		t.Errorf("%q", text)
	}
	if text := driftText(Drift{Kind: "kargs", What: "missing", Expected: "secret=1"}); text != "kargs: missing" {
		t.Errorf("%q", text)
	}
}
