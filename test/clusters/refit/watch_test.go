// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

var (
	getOptions    = metav1.GetOptions{}
	updateOptions = metav1.UpdateOptions{}
)

func (l *lab) update(p *mcfgv1.MachineConfigPool) {
	l.t.Helper()
	_, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Update(l.ctx, p, updateOptions)
	l.must(err)
}

// pause lets the program see one thing before the next: it gathers what comes at once.
func (l *lab) pause() {
	select {
	case <-l.ctx.Done():
	case <-time.After(700 * time.Millisecond):
	}
}

// inOrder checks that lines like these come in this order, whatever is between them.
func inOrder(t *testing.T, text string, patterns ...string) {
	t.Helper()
	rest := text
	for _, p := range patterns {
		at := regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d  ` + p + `$`).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("no line %q, or not in this order:\n%s", p, text)
		}
		rest = rest[at[1]:]
	}
}

func TestARolloutIsFollowedToItsEnd(t *testing.T) {
	l := newLab(t)
	before, after := l.two("live2", "/etc/motd", "old", "new")
	l.pool("live2", before, before, nil)
	l.node("w-1", "live2", before, before, api.Done, nil)
	l.node("w-2", "live2", before, before, api.Done, nil)
	// All is well at the beginning, and it waits to see whether it stays so.
	r, done := l.start("watch", "live2", "--settle=30s")
	l.pause()
	l.pause()
	p := l.readPool("live2")
	p.Spec.Configuration.Name = after
	l.update(p)
	l.pause()
	for _, node := range []string{"w-1", "w-2"} {
		l.annotate(node, map[string]string{api.DesiredConfig: after, api.StateKey: string(api.Working)})
		for _, s := range []mcfgv1.StateProgress{
			mcfgv1.MachineConfigNodeUpdatePrepared, mcfgv1.MachineConfigNodeUpdateDrained,
			mcfgv1.MachineConfigNodeUpdateRebooted, mcfgv1.MachineConfigNodeResumed,
		} {
			l.report(node, "live2", after, step(s, metav1.Now()))
			l.pause()
		}
		l.annotate(node, map[string]string{api.CurrentConfig: after, api.StateKey: string(api.Done)})
		l.pause()
	}
	<-done
	t.Log(r.ok(t).stdout)
	if strings.Contains(r.stdout, "Waiting") {
		t.Error("that nodes wait for their turn is no news")
	}
	if !regexp.MustCompile(`^\d{4}-\d\d-\d\d \S+\n\d\d:\d\d:\d\d  live2`).MatchString(r.stdout) {
		t.Error("the first line is not the date of the next one")
	}
	inOrder(t, r.stdout,
		`live2 2/2  -    Target +`+before, `live2 2/2  -    Updated +`+before, `live2 0/2  -    Target +`+after,
		`live2 0/2  w-1  Staging( +\(Updating took .*s\))?`, `live2 0/2  w-1  Draining +\(Staging took .*s\)`,
		`live2 0/2  w-1  Rebooting +\(Draining took .*s\).*`, `live2 0/2  w-1  Proving +\(Rebooting took .*s\)`,
		`live2 1/2  w-1  Updated +\(Proving took .*s, all .*s\)`, `live2 1/2  w-2  Rebooting .*`,
		`live2 2/2  w-2  Updated +\(Proving took .*s, all .*s\)`, `live2 2/2  -    Updated +\(all took .*s\) +`+after)
}

func TestARolloutThatStopsEndsTheWatchWithTheReason(t *testing.T) {
	l := newLab(t)
	before, after := l.two("sick", "/etc/motd", "old", "new")
	l.pool("sick", after, before, nil)
	l.node("s-1", "sick", before, after, api.Working, nil)
	l.node("s-2", "sick", before, before, api.Done, nil)
	r, done := l.start("watch", "sick", "--settle=1s")
	l.pause()
	l.pause()
	q := api.Quarantine{Config: after, Reason: "kubelet.service is not healthy", Since: ago(1).Time}
	l.annotate("s-1", map[string]string{
		api.StateKey: string(api.RolledBack), api.QuarantinedKey: api.Encode([]api.Quarantine{q}),
	})
	<-done
	r.fails(t, 1, "pool sick goes no further (Quarantined)", "failed on node s-1", "kubelet.service is not healthy",
		"kubectl refit quarantine lift sick")
	inOrder(t, r.stdout, `sick 0/2  s-1  RolledBack .*went back to `+before+`.*`,
		`sick 0/2  -    Quarantined .*failed on node s-1.*`)
	if strings.Contains(r.stdout, "s-2  ") {
		t.Errorf("s-2 is where it was:\n%s", r.stdout)
	}
	l.refit("watch", "nobody").fails(t, 1, "there is no MachineConfigPool nobody")
}

func TestAPausedPoolIsNotWaitedForForEver(t *testing.T) {
	l := newLab(t)
	before, after := l.two("still", "/etc/still", "old", "new")
	l.pool("still", after, before, func(p *mcfgv1.MachineConfigPool) { p.Spec.Paused = true })
	l.node("still-1", "still", before, before, api.Done, func(n *corev1.Node) { n.Labels["zone"] = "a" })
	l.refit("watch", "still", "--settle=1s").fails(t, 1, "(Paused)", "kubectl refit resume still")
}

// atTerminal runs the program on a terminal of 80 columns, with this in the environment besides; stdout is all that came
// there.
func (l *lab) atTerminal(rows uint16, env []string, args ...string) (*result, <-chan struct{}) {
	l.t.Helper()
	r, _, done := l.typingAt(rows, env, args...)
	return r, done
}

// typingAt is atTerminal, with the terminal to press keys on.
func (l *lab) typingAt(rows uint16, env []string, args ...string) (*result, *os.File, <-chan struct{}) {
	l.t.Helper()
	path, err := program()
	l.must(err)
	cmd := exec.CommandContext(l.ctx, path, append([]string{"--kubeconfig=" + l.Kubeconfig}, args...)...)
	cmd.Env = append(append(os.Environ(), "TERM=xterm", "LC_ALL=C", "NO_COLOR="), env...) //nolint:misspell // the variable's name
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: rows, Cols: 80})
	l.must(err)
	r, done := &result{}, make(chan struct{})
	go func() {
		defer close(done)
		defer tty.Close()
		var out bytes.Buffer
		_, _ = io.Copy(&out, tty) // ends with an error when the program has gone
		_ = cmd.Wait()            // the exit code says it
		r.code, r.stdout = cmd.ProcessState.ExitCode(), out.String()
	}()
	return r, tty, done
}

var (
	cursorUp = regexp.MustCompile(`\x1b\[(\d+)A`)
	colour   = regexp.MustCompile(`\x1b\[\d+m`)
)

func TestOnATerminalARolloutIsAPictureInItsPlace(t *testing.T) {
	l := newLab(t)
	before, after := l.two("drawn", "/etc/drawn", "old", "new")
	l.pool("drawn", after, before, nil)
	l.node("d-1", "drawn", before, after, api.Working, nil)
	l.node("d-2", "drawn", before, before, api.Done, nil)
	l.report("d-1", "drawn", after, step(mcfgv1.MachineConfigNodeUpdateDrained, metav1.Now()))
	const rows = 5
	r, done := l.atTerminal(rows, nil, "watch", "drawn")
	l.pause()
	l.pause()
	l.report("d-1", "drawn", after, step(mcfgv1.MachineConfigNodeUpdateRebooted, metav1.Now()))
	l.pause()
	for _, node := range []string{"d-1", "d-2"} {
		l.annotate(node, map[string]string{
			api.DesiredConfig: after, api.CurrentConfig: after, api.StateKey: string(api.Done),
		})
		l.pause()
	}
	<-done
	t.Logf("%q", r.stdout)
	if r.code != 0 {
		t.Errorf("exit code %d", r.code)
	}
	text := colour.ReplaceAllString(r.stdout, "")
	rest := text
	for _, want := range []string{
		"drawn [>>>>>>>>>>>>...........] 0/2   0%  1 updating  to ", "  d-1  Draining", "  d-1  Rebooting",
		"drawn [############...........] 1/2  50%", "drawn [########################] 2/2 100%  updated",
	} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("no %q, or not in this order:\n%s", want, text)
		}
		rest = after
	}
	if !strings.Contains(r.stdout, "\x1b[32m####") {
		t.Error("what is done is not green")
	}
	ups := cursorUp.FindAllStringSubmatch(r.stdout, -1)
	if len(ups) < 3 {
		t.Errorf("the picture does not stay in its place: %q", r.stdout)
	}
	for _, up := range ups {
		if n, err := strconv.Atoi(up[1]); err != nil || n >= rows {
			t.Errorf("a picture of %s lines on %d", up[1], rows)
		}
	}

	r, done = l.atTerminal(rows, []string{"NO_COLOR=1"}, "watch", "drawn", "--settle=1s") //nolint:misspell // likewise
	<-done
	if r.code != 0 || colour.MatchString(r.stdout) || !strings.Contains(r.stdout, "2/2 100%  updated") {
		t.Errorf("without colours: exit code %d, %q", r.code, r.stdout)
	}
	r, done = l.atTerminal(rows, []string{"TERM=dumb"}, "watch", "drawn", "--settle=1s")
	<-done
	if r.code != 0 || strings.Contains(r.stdout, "\x1b") || !strings.Contains(r.stdout, "drawn 2/2  -    Updated") {
		t.Errorf("on a dumb terminal: exit code %d, %q", r.code, r.stdout)
	}
}

func TestKeysExplainAndPauseWhileARolloutIsWatched(t *testing.T) {
	l := newLab(t)
	before, after := l.two("typed", "/etc/typed", "old", "new")
	l.pool("typed", after, before, nil)
	l.node("t-1", "typed", before, after, api.Working, nil)
	l.report("t-1", "typed", after, step(mcfgv1.MachineConfigNodeUpdateDrained, metav1.Now()))
	r, tty, done := l.typingAt(12, nil, "watch", "typed")
	press := func(keys string) {
		l.t.Helper()
		l.pause()
		_, err := tty.WriteString(keys)
		l.must(err)
		l.pause()
	}
	l.pause()
	press("je") // the node
	l.pause()
	press("q")
	press("p")
	if l.readPool("typed").Spec.Paused {
		t.Error("the pool is paused without a yes")
	}
	press("n")
	press("py")
	for deadline := time.Now().Add(20 * time.Second); !l.readPool("typed").Spec.Paused; l.pause() {
		if time.Now().After(deadline) {
			t.Error("the pool is not paused")
			break
		}
	}
	press("q")
	<-done
	t.Logf("%q", r.stdout)
	text := colour.ReplaceAllString(r.stdout, "")
	for _, want := range []string{
		"> typed [", ">   t-1  Draining", "explain Node t-1", "Node t-1: ", "pause pool typed? y/n", "nothing was changed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the terminal did not show %q", want)
		}
	}
	const interrupted = 130
	if r.code != interrupted || !strings.Contains(text, "the rollout goes on") {
		t.Errorf("exit code %d", r.code)
	}
}
