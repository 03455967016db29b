// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"regexp"
	"strings"
	"testing"
	"time"

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
	before := l.render("live2", l.config("live2", "50-live2", "/etc/motd", "old"))
	after := l.render("live2", l.config("live2", "50-live2", "/etc/motd", "new"))
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
	inOrder(t, r.stdout,
		`live2 2/2  -    Target +`+before, `live2 2/2  -    Updated +`+before, `live2 0/2  -    Target +`+after,
		`live2 0/2  w-1  Staging`, `live2 0/2  w-1  Draining +\(Staging took .*s\)`,
		`live2 0/2  w-1  Rebooting +\(Draining took .*s\).*`, `live2 0/2  w-1  Proving +\(Rebooting took .*s\)`,
		`live2 1/2  w-1  Updated +\(Proving took .*s, all .*s\)`, `live2 1/2  w-2  Rebooting .*`,
		`live2 2/2  w-2  Updated +\(Proving took .*s, all .*s\)`, `live2 2/2  -    Updated +\(all took .*s\) +`+after)
}

func TestARolloutThatStopsEndsTheWatchWithTheReason(t *testing.T) {
	l := newLab(t)
	before := l.render("sick", l.config("sick", "50-sick", "/etc/motd", "old"))
	after := l.render("sick", l.config("sick", "50-sick", "/etc/motd", "new"))
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
	before := l.render("still", l.config("still", "50-still", "/etc/still", "old"))
	after := l.render("still", l.config("still", "50-still", "/etc/still", "new"))
	l.pool("still", after, before, func(p *mcfgv1.MachineConfigPool) { p.Spec.Paused = true })
	l.node("still-1", "still", before, before, api.Done, func(n *corev1.Node) { n.Labels["zone"] = "a" })
	l.refit("watch", "still", "--settle=1s").fails(t, 1, "(Paused)", "kubectl refit resume still")
}
