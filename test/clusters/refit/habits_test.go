// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
)

// zones is a pool whose two nodes are in two zones and wait for their turn behind a pause.
func (l *lab) zones(name string) (before, after string) {
	l.t.Helper()
	before = l.render(name, l.config(name, "50-"+name, "/etc/"+name, "old"))
	after = l.render(name, l.config(name, "50-"+name, "/etc/"+name, "new"))
	l.pool(name, after, before, nil)
	for _, zone := range []string{"a", "b"} {
		l.node(name+"-"+zone, name, before, before, api.Done, func(n *corev1.Node) { n.Labels[name] = zone })
	}
	return before, after
}

func TestTheFlagsOfKubectlAreThere(t *testing.T) {
	l := newLab(t)
	_, after := l.zones("habit")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-o", "name"}, "machineconfigpool.machineconfiguration.openshift.io/habit\nnode/habit-a\nnode/habit-b\n"},
		{[]string{"-o", "jsonpath={.nodes[*].name}"}, "habit-a habit-b"},
		{[]string{"-o", "name", "-l", "habit=b", "-A"}, "machineconfigpool.machineconfiguration.openshift.io/habit\nnode/habit-b\n"},
		{[]string{"-o", "jsonpath={.pools[0].configuration}", "--as=admin", "--as-group=system:masters"}, after},
	} {
		if got := l.refit(append([]string{"status", "habit"}, c.args...)...).ok(t).stdout; got != c.want {
			t.Errorf("%v: %q, want %q", c.args, got, c.want)
		}
	}
	if got := l.refit("explain", "habit-a", "-o", "yaml").ok(t).stdout; !strings.Contains(got, "\nverdict: WaitsForTurn\n") &&
		!strings.Contains(got, "\nverdict: NotOffered\n") && !strings.Contains(got, "\nverdict: Updating\n") {
		t.Error(got)
	}
	l.refit("status", "habit", "-l", "habit=c").fails(t, 1, "no node has the labels habit=c")
	l.refit("status", "-l", "in in").fails(t, 2, "-l")

	// Labels choose the nodes of a hold as well.
	if got := l.refit("hold", "-l", "habit", "--why", "all of them").ok(t).stdout; strings.Count(got, " is held: ") != 2 {
		t.Error(got)
	}
	l.refit("hold", "habit-a", "-l", "habit", "--why", "x").fails(t, 2, "flag -l")
	l.refit("hold", "--why", "x").fails(t, 2, "NODE is needed")
	l.refit("release", "habit-a", "habit-b").ok(t)
}

func TestTheContextAndTheUserAreThoseThatAreAskedFor(t *testing.T) {
	l := newLab(t)
	l.zones("context")
	data, err := os.ReadFile(l.Kubeconfig)
	l.must(err)
	path := filepath.Join(t.TempDir(), "config")
	l.must(os.WriteFile(path, data, 0o600))
	exe, err := program()
	l.must(err)
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(l.ctx, exe, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+path)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("status", "context", "--context=nowhere"); err == nil || !strings.Contains(out, `"nowhere" does not exist`) {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("status", "context", "--as=jane"); err == nil || !strings.Contains(out, `User "jane" cannot list`) {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run("status", "context", "-o", "json"); err != nil || !json.Valid([]byte(out)) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestAWatchThatIsCutShortSaysWhatItWaitsFor(t *testing.T) {
	l := newLab(t)
	l.zones("short")
	r := l.refit("watch", "short", "--timeout=1s").fails(t, 1, "timed out after 1s", "pool short has updated 0/2 nodes")
	if !strings.Contains(r.stdout, "Target") {
		t.Error(r.stdout)
	}
	l.refit("status", "short", "-w", "--timeout=1s").fails(t, 1, "timed out after 1s")
	l.refit("status", "short", "--timeout=1s").fails(t, 2, "flag --timeout: is for --watch")
	l.refit("watch", "short", "--timeout=-1s").fails(t, 2, "--timeout")

	for signal, code := range map[os.Signal]int{os.Interrupt: 130, syscall.SIGTERM: 143} {
		r, process, done := l.startProcess("watch", "short")
		l.pause()
		l.pause()
		l.must(process.Signal(signal))
		<-done
		if r.code != code || strings.Contains(r.stderr, "error:") || !strings.Contains(r.stderr, "pool short has updated 0/2 nodes") {
			t.Errorf("%s: exit code %d\n%s%s", signal, r.code, r.stdout, r.stderr)
		}
	}
}

// kubectl asks kubectl_complete-refit, which asks kubectl refit __complete, which asks the cluster.
func TestAShellCompletesWhatTheClusterHas(t *testing.T) {
	l := newLab(t)
	before, after := l.zones("tabbed")
	l.pool("tabbed-a", after, before, nil) // as a node is called
	for args, want := range map[string]string{
		"status tab":                  "tabbed\ntabbed-a\n:4\n",
		"hold tab":                    "tabbed-a\ntabbed-b\n:4\n",
		"hold tabbed-a tab":           "tabbed-b\n:4\n",
		"explain tab":                 "tabbed\ntabbed-b\n:4\n",
		"explain node/tab":            "node/tabbed-a\n:4\n",
		"rollback tabbed --to rend":   before + "\n" + after + "\n:4\n",
		"quarantine lift tabbed rend": ":4\n",
		"status --context ":           "",
		"--as=nobody status tab":      ":4\n",
		"status tabbed ":              ":4\n",
	} {
		argv := append([]string{"__complete", "--kubeconfig=" + l.Kubeconfig}, strings.Split(args, " ")...)
		exe, err := program()
		l.must(err)
		out, err := exec.CommandContext(l.ctx, exe, argv...).Output()
		got := string(out)
		if want == "" {
			if err != nil || strings.HasPrefix(got, ":") {
				t.Errorf("%q: no context: %v %q", args, err, got)
			}
			continue
		}
		lines := strings.SplitAfter(strings.TrimSuffix(got, "\n"), "\n")
		slices.Sort(lines[:len(lines)-1])
		wanted := strings.SplitAfter(strings.TrimSuffix(want, "\n"), "\n")
		slices.Sort(wanted[:len(wanted)-1])
		if err != nil || strings.Join(lines, "") != strings.Join(wanted, "") {
			t.Errorf("%q: %v %q, want %q", args, err, got, want)
		}
	}

	// The file that packages ship, with a kubectl on the PATH that hands over to the plugin.
	dir := t.TempDir()
	exe, err := program()
	l.must(err)
	kubectl := "#!/bin/sh\nshift\nexec " + exe + " \"$@\"\n"
	l.must(os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o755))
	cmd := exec.CommandContext(l.ctx, "../../../packaging/completions/kubectl_complete-refit", "status", "tabbed-")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+l.Kubeconfig)
	if out, err := cmd.Output(); err != nil || string(out) != "tabbed-a\n:4\n" {
		t.Errorf("%v %q", err, out)
	}
}
