// SPDX-License-Identifier: Apache-2.0

package transcript

import (
	"regexp"
	"strings"
)

// masks are what differs from run to run, and the words that stand for it. Earlier ones come first.
var masks = []struct {
	of   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\b\d{2}:\d{2}:\d{2}\b`), "TIME"},
	{regexp.MustCompile(`\b(machine-config-daemon|noderefit-uninstall)-[a-z0-9]{5}\b`), "$1-POD"},
	{regexp.MustCompile(`\b(machine-config-controller)-[a-z0-9]{8,10}-[a-z0-9]{5}(_[0-9a-f-]{36}|\b)`), "$1-POD"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ms|[smhd]))+\b`), "AGE"},
	{regexp.MustCompile(`\bKubernetes v\d+\.\d+\.\d+\S*`), "Kubernetes VERSION"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// Masked returns an output without what differs from run to run: times, durations, suffixes of pods, the version of
// Kubernetes, and the widths of columns, which follow from these.
func Masked(output string) string {
	for _, m := range masks {
		output = m.of.ReplaceAllString(output, m.with)
	}
	lines := strings.Split(output, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}
