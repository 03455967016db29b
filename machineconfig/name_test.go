// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"strings"
	"testing"
)

func TestTheNameOfARenderedConfigurationSaysItsPoolAndItsContent(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	for name, want := range map[string]struct {
		pool  string
		named bool
	}{
		"rendered-worker-" + digest[:nameDigits]:             {"worker", true},
		"rendered-gpu-a-" + digest[:nameDigits]:              {"gpu-a", true},
		"rendered-worker-" + strings.Repeat("0", nameDigits): {"worker", false},
		"rendered-worker-" + strings.Repeat("g", nameDigits): {"", false},
		"rendered-worker-" + digest[:nameDigits-1]:           {"", false},
		"rendered-" + digest[:nameDigits]:                    {"", true},
		digest[:nameDigits]:                                  {"", false},
		"50-worker":                                          {"", false},
	} {
		if pool, named := PoolOf(name), NamedBy(name, digest); pool != want.pool || named != want.named {
			t.Errorf("%s: pool %q, named by the digest: %t", name, pool, named)
		}
	}
	if NamedBy("rendered-worker-", "") {
		t.Error("a name stands for no digest")
	}
}
