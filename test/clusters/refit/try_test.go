// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

func (l *lab) readNode(name string) progress.Node {
	l.t.Helper()
	n, err := l.Client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	l.must(err)
	return progress.ReadNode(n)
}

// tunes is a MachineConfig of a pool in a file.
func (l *lab) tunes(pool, name, contents string) string {
	l.t.Helper()
	path := filepath.Join(l.t.TempDir(), name+".yaml")
	l.must(os.WriteFile(path, []byte(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: `+name+`
  labels: {machineconfiguration.openshift.io/role: `+pool+`}
spec:
  config:
    ignition: {version: 3.5.0}
    storage:
      files:
        - path: /etc/sysctl.d/90-tuned.conf
          mode: 0644
          contents: {source: "data:,`+contents+`"}
`), 0o600))
	return path
}

func TestANodeIsAskedToTryWhatAFileMakesOfItsPool(t *testing.T) {
	l := newLab(t)
	source := l.config("tries", "50-tries", "/etc/tries", "1")
	l.source(source)
	now := l.render("tries", source)
	l.pool("tries", now, now, nil)
	for _, name := range []string{"tries-1", "tries-2"} {
		l.node(name, "tries", now, now, api.Done, nil)
	}
	file := l.tunes("tries", "60-tuned", "vm.swappiness%3D10")
	said := l.refit("try", "-f", file, "--node", "tries-1", "--why", "is the latency better?").ok(t).stdout
	l.golden("try.txt", said)
	order := l.readNode("tries-1").Trial
	if order == nil || order.By == "" || order.From != now || order.Seconds != 1800 || order.Since.IsZero() {
		t.Fatalf("the order: %+v", order)
	}
	made, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(l.ctx, order.Config, metav1.GetOptions{})
	l.must(err)
	if owner := metav1.GetControllerOf(made); owner == nil || owner.Name != "tries" || made.Annotations[api.GeneratedBy] == "" {
		t.Errorf("%s is not as the render controller makes it: %+v", order.Config, made.ObjectMeta)
	}
	if desired := l.refit("plan", "tries", "-f", file, "-o", "json").stdout; !strings.Contains(desired, order.Config) {
		t.Errorf("plan does not name %s", order.Config)
	}
	l.refit("try", "-f", file, "--node", "tries-1").fails(t, 1, "tries "+order.Config+" already", "--end comes first")
	l.golden("try-end.txt", l.refit("try", "--node", "tries-1", "--end").ok(t).stdout)
	if got := l.readNode("tries-1").Trial; got != nil {
		t.Errorf("still there: %+v", got)
	}
	if got := l.refit("try", "--node", "tries-1", "--end").ok(t).stdout; !strings.Contains(got, "has no order") {
		t.Error(got)
	}
}

func TestOrdersToTryThatCanNotBeGivenAreRefused(t *testing.T) {
	l := newLab(t)
	source := l.config("untried", "50-untried", "/etc/untried", "1")
	l.source(source)
	now := l.render("untried", source)
	l.pool("untried", now, now, nil)
	l.node("untried-1", "untried", now, now, api.Done, nil)
	l.node("untried-2", "stray", now, now, api.Done, nil)
	l.node("untried-3", "untried", now, now, api.Done, func(n *corev1.Node) {
		n.Annotations[api.HoldKey] = api.Encode(api.NodeHold{By: "ann", Why: "mine"})
	})
	l.node("untried-4", "untried", "", now, api.Working, nil)
	file, other := l.tunes("untried", "60-untried", "a"), l.tunes("elsewhere", "60-untried", "a")
	broken := filepath.Join(t.TempDir(), "disk.yaml")
	l.must(os.WriteFile(broken, []byte(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 60-disk, labels: {machineconfiguration.openshift.io/role: untried}}
spec:
  config:
    ignition: {version: 3.5.0}
    storage: {disks: [{device: /dev/vdb, wipeTable: true}]}
`), 0o600))
	l.refit("try", "-f", file).fails(t, 2, "--node")
	l.refit("try", "--node", "untried-1").fails(t, 2, "-f", "--end")
	l.refit("try", "-f", file, "--node", "untried-1", "--end").fails(t, 2, "-f", "--end")
	l.refit("try", "-f", file, "--node", "untried-1", "--for", "-1m").fails(t, 2, "--for")
	l.refit("try", "-f", file, "--node", "untried-1", "--bypass").fails(t, 2, "--why")
	l.refit("try", "-f", file, "--node", "untried-9").fails(t, 1, "untried-9")
	l.refit("try", "-f", file, "--node", "untried-2").fails(t, 1, "belongs to no MachineConfigPool")
	l.refit("try", "-f", file, "--node", "untried-3").fails(t, 1, "held by ann", "release untried-3")
	l.refit("try", "-f", file, "--node", "untried-4").fails(t, 1, "untried-4 has not proved")
	l.refit("try", "-f", other, "--node", "untried-1").fails(t, 1, "60-untried", "does not select it", "role=untried")
	l.refit("try", "-f", broken, "--node", "untried-1").fails(t, 3, "disks")
	l.refit("try", "-f", file, "--node", "untried-1", "--as=nobody").fails(t, 1, "not allowed")
	// The node would get more than the file: the pool has not caught up with its MachineConfigs.
	l.source(l.config("untried", "55-untried", "/etc/untried-2", "1"))
	l.refit("try", "-f", file, "--node", "untried-1").fails(t, 1, "would get more than the files")
	if order := l.readNode("untried-1").Trial; order != nil {
		t.Errorf("%+v", order)
	}
}

func TestWhatANodeKeepsIsHandedToThePool(t *testing.T) {
	l := newLab(t)
	source := l.config("keeps", "50-keeps", "/etc/keeps", "1")
	l.source(source)
	now := l.render("keeps", source)
	l.pool("keeps", now, now, nil)
	l.node("keeps-1", "keeps", now, now, api.Done, nil)
	file := l.tunes("keeps", "60-keeps", "a")
	r, done := l.start("try", "-f", file, "--node", "keeps-1", "--keep")
	order := l.ordered("keeps-1")
	configs := l.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	if _, err := configs.Get(l.ctx, "60-keeps", metav1.GetOptions{}); err == nil {
		t.Error("the pool has the document before the node has proved it")
	}
	begun := time.Now().UTC().Truncate(time.Second)
	l.annotate("keeps-1", map[string]string{api.TriedKey: api.Encode(api.Tried{
		Config: order.Config, From: now, Ordered: order.Since, Begun: begun, Proved: begun,
	})})
	<-done
	l.golden("try-keep.txt", r.ok(t).stdout)
	made, err := configs.Get(l.ctx, "60-keeps", metav1.GetOptions{})
	l.must(err)
	if got := l.merge("keeps", source, made).Name; got != order.Config {
		t.Errorf("the pool gets %s, and the node tried %s", got, order.Config)
	}
}

func TestNothingIsHandedOverWhereTheTrialFails(t *testing.T) {
	l := newLab(t)
	source := l.config("fails", "50-fails", "/etc/fails", "1")
	l.source(source)
	now := l.render("fails", source)
	l.pool("fails", now, now, nil)
	l.node("fails-1", "fails", now, now, api.Done, nil)
	r, done := l.start("try", "-f", l.tunes("fails", "60-fails", "a"), "--node", "fails-1", "--keep")
	order := l.ordered("fails-1")
	begun := time.Now().UTC().Truncate(time.Second)
	l.annotate("fails-1", map[string]string{api.TriedKey: api.Encode(api.Tried{
		Config: order.Config, From: now, Ordered: order.Since, Begun: begun, Ended: begun, Because: "it failed: kubelet is down",
	})})
	<-done
	r.fails(t, 1, "nothing was handed to pool fails", "kubelet is down")
}

// A MachineConfig that somebody has written meanwhile is theirs, also before the pool has it.
func TestNothingIsHandedOverWhereTheMachineConfigsAreOthers(t *testing.T) {
	l := newLab(t)
	source := l.config("moves", "50-moves", "/etc/moves", "1")
	l.source(source)
	now := l.render("moves", source)
	l.pool("moves", now, now, nil)
	l.node("moves-1", "moves", now, now, api.Done, nil)
	r, done := l.start("try", "-f", l.tunes("moves", "60-moves", "a"), "--node", "moves-1", "--keep")
	order := l.ordered("moves-1")
	l.source(l.config("moves", "60-moves", "/etc/sysctl.d/90-tuned.conf", "theirs"))
	configs := l.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	theirs, err := configs.Get(l.ctx, "60-moves", metav1.GetOptions{})
	l.must(err)
	begun := time.Now().UTC().Truncate(time.Second)
	l.annotate("moves-1", map[string]string{api.TriedKey: api.Encode(api.Tried{
		Config: order.Config, From: now, Ordered: order.Since, Begun: begun, Proved: begun,
	})})
	<-done
	r.fails(t, 1, "nothing was handed to pool moves", "the MachineConfigs of the pool have changed", "try again")
	if is, err := configs.Get(l.ctx, "60-moves", metav1.GetOptions{}); err != nil || is.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("60-moves was written over: %+v, %v", is, err)
	}
}

// ordered waits for the order to try a configuration.
func (l *lab) ordered(node string) *api.Trial {
	l.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if order := l.readNode(node).Trial; order != nil {
			return order
		}
		if time.Now().After(deadline) {
			l.t.Fatal("no order was given")
		}
	}
}
