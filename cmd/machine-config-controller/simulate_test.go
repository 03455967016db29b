// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/cli"
)

// simulated runs simulate.
func simulated(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, warnings bytes.Buffer
	cmd := command()
	cmd.SetOut(&out)
	cmd.SetErr(&warnings)
	cmd.SetArgs(append([]string{"simulate", "--start", "2026-03-02T20:00:00Z"}, args...))
	err := cmd.Execute()
	if err == nil {
		return out.String(), warnings.String(), 0
	}
	return out.String(), warnings.String() + err.Error(), cli.ExitCode(err)
}

// written writes a file.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// policyText is a policy with such a spec.
func policyText(spec string) string {
	return "apiVersion: noderefit.dev/v1alpha1\nkind: RolloutPolicy\nmetadata: {name: p}\nspec: {pools: [worker], " +
		spec + "}\n"
}

func TestAPolicyThatTheAPIServerWouldRefuseIsNotSimulated(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"less than no time":     {policyText("minReadySeconds: -5"), "spec.minReadySeconds: "},
		"a soak of less":        {policyText("stages: [{name: a, soakSeconds: -9}]"), "spec.stages[0].soakSeconds: "},
		"no window":             {policyText("windows: {}"), "spec.windows: "},
		"an empty list of them": {policyText("windows: {open: []}"), "spec.windows.open: "},
		"two rules in one window": {policyText("windows: {open: [{cron: 0 22 * * *, rrule: FREQ=DAILY, " +
			"start: '2026-01-10T20:00:00', durationMinutes: 60}]}"), "spec.windows.open[0]: "},
		"a word that nobody knows": {policyText("windows: {onClose: Foo, open: [{cron: 0 22 * * *, durationMinutes: 60}]}"),
			"spec.windows.onClose: "},
		"two stages of one name":  {policyText("stages: [{name: a, nodes: 1}, {name: a}]"), "spec.stages[1]: Duplicate"},
		"a pool that comes first": {policyText("dependsOn: [worker]"), "spec: Invalid value: dependsOn names a pool"},
		"a field that is not":     {policyText("minReadySecond: 5"), "minReadySecond"},
		"a key twice":             {policyText("pools: [worker]"), "pools"},
		"no name":                 {strings.Replace(policyText("minReadySeconds: 5"), "{name: p}", "{}", 1), "metadata.name: "},
		"another kind":            {"apiVersion: v1\nkind: Pod\n", "there has to be a RolloutPolicy"},
		"two of them": {policyText("minReadySeconds: 5") + "---\n" + policyText("minReadySeconds: 6"),
			"more than one document"},
		"what only the controller sees": {policyText("windows: {open: [{cron: 99 22 * * *, durationMinutes: 60}]}"),
			"spec.windows.open[0].cron: "},
	} {
		t.Run(name, func(t *testing.T) {
			out, why, code := simulated(t, "--nodes", "3", "--policy", written(t, c.text))
			if code != 1 || !strings.Contains(why, c.want) || out != "" {
				t.Errorf("exit %d, %s; want %s\n%s", code, why, c.want, out)
			}
		})
	}
}

func TestEmptyDocumentsAreNoneAndARolloutComesToItsEnd(t *testing.T) {
	text := "# ours\n---\n" + policyText("approval: {}") + "---\n# nothing\n---\n"
	out, why, code := simulated(t, "--nodes", "9", "--max-unavailable", "6", "--policy", written(t, text))
	if code != 0 || !strings.Contains(out, "finished") {
		t.Fatalf("exit %d, %s\n%s", code, why, out)
	}
	if !strings.Contains(out, "sent: 3 nodes: node-0000") || !strings.Contains(out, "sent: 6 nodes, node-0000") ||
		!strings.Contains(out, " … node-0000") {
		t.Errorf("nodes that go together:\n%s", out)
	}
}

func TestARolloutThatGetsStuckSaysOnWhat(t *testing.T) {
	nodes := func(second string) string {
		return written(t, `{"kind": "NodeList", "apiVersion": "v1", "items": [
{"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
{"metadata": {"name": "b"}, `+second+`}]}`)
	}
	ready := `"status": {"conditions": [{"type": "Ready", "status": "True"}]}`
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a node that is not ready": {
			[]string{"--nodes", nodes(`"status": {"conditions": [{"type": "Ready", "status": "False", "message": "no CNI"}]}`)},
			"node b is not ready: Ready=False: no CNI; at most 1 may be out of service",
		},
		"the limit": {
			[]string{"--nodes", nodes(ready), "--limit", "1m"},
			"the limit of 1m0s is over before anything more happens, at 2026-03-02T20:05:00Z",
		},
		"the limit, in a wait": {
			[]string{"--nodes", nodes(ready), "--limit", "1h", "--policy",
				written(t, policyText("windows: {open: [{cron: 0 23 * * *, durationMinutes: 60}]}"))},
			"no window is open; the next one opens at 2026-03-02T23:00:00+00:00",
		},
		"nobody approves": {
			[]string{"--nodes", nodes(ready), "--approve-after", "-1s", "--policy", written(t, policyText("approval: {}"))},
			"waits for an approval",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, why, code := simulated(t, c.args...)
			if code != 3 || !strings.Contains(why, c.want) || !strings.Contains(out, "stuck") {
				t.Errorf("exit %d, %s; want %s\n%s", code, why, c.want, out)
			}
		})
	}
}

func TestNumbersThatMakeNoSenseAreUsage(t *testing.T) {
	for flag, value := range map[string]string{
		"--fail": "-1", "--stage-time": "-1m", "--limit": "-1h", "--node-time": "0s", "--max-unavailable": "x",
	} {
		if _, why, code := simulated(t, "--nodes", "3", flag, value); code != 2 || !strings.HasPrefix(why, flag+": ") {
			t.Errorf("%s %s: exit %d, %s", flag, value, code, why)
		}
	}
}

func TestTheControlPlaneOfAFileIsNoneOfAWorkersPool(t *testing.T) {
	file := written(t, `{"kind": "List", "apiVersion": "v1", "items": [
{"metadata": {"name": "m", "labels": {"node-role.kubernetes.io/control-plane": ""}},
 "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
{"metadata": {"name": "w"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]}`)
	out, warned, code := simulated(t, "--nodes", file)
	if code != 0 || strings.Contains(out, ": m") || !strings.Contains(out, "sent: w") ||
		!strings.Contains(warned, "warning: 1 of the 2 nodes") {
		t.Errorf("exit %d, %s\n%s", code, warned, out)
	}
	out, warned, code = simulated(t, "--nodes", file, "--pool", "master")
	if code != 0 || !strings.Contains(out, "sent: m") || warned != "" {
		t.Errorf("of the control plane: exit %d, %s\n%s", code, warned, out)
	}
}
