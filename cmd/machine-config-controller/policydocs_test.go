// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

// What the pages show is what a reader applies: whole policies, parts of a spec, and gates.
func TestThePoliciesOfThePagesAreAccepted(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
			policy := block[1]
			if strings.HasPrefix(policy, "- name: ") {
				gate := strings.ReplaceAll(strings.TrimSpace(policy), "\n", "\n    ")
				policy = "spec:\n  stages:\n  - name: canary\n    gates:\n    " + gate + "\n"
			}
			switch {
			case strings.Contains(policy, "kind: RolloutPolicy"):
			case filepath.Base(page) == "rollout-policies.md" && strings.HasPrefix(policy, "spec:\n"):
				if !strings.Contains(policy, "\n  pools:") {
					policy += "  pools: [any]\n"
				}
				policy = "apiVersion: noderefit.dev/v1alpha1\nkind: RolloutPolicy\nmetadata: {name: part}\n" + policy
			default:
				continue
			}
			checked++
			if _, err := policyFile(written(t, policy)); err != nil {
				t.Errorf("%s: %v\n%s", page, err, policy)
			}
		}
	}
	if checked < 8 {
		t.Errorf("only %d policies were found", checked)
	}
}
