// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/cluster"
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

// atRest makes a pool with one MachineConfig, and the pool's node NAME-1. Both have the configuration that it returns.
func (l *lab) atRest(pool string) (source *mcfgv1.MachineConfig, now string) {
	l.t.Helper()
	source = l.config(pool, "50-"+pool, "/etc/"+pool, "1")
	l.source(source)
	now = l.render(pool, source)
	l.pool(pool, now, now, nil)
	l.node(pool+"-1", pool, now, now, api.Done, nil)
	return source, now
}

// ordered waits for the order to try a configuration.
func (l *lab) ordered(node string) (order *api.Trial) {
	l.t.Helper()
	cluster.Until(l.ctx, l.t, node+" is ordered to try a configuration", func() (bool, any) {
		n := l.readNode(node)
		order = n.Trial
		return order != nil, n
	})
	return order
}

// tried has a node say what became of an order that has just begun.
func (l *lab) tried(node, from string, order *api.Trial, change func(*api.Tried)) {
	l.t.Helper()
	said := api.Tried{Config: order.Config, From: from, Ordered: order.Since, Begun: time.Now().UTC().Truncate(time.Second)}
	change(&said)
	l.annotate(node, map[string]string{api.TriedKey: api.Encode(said)})
}

func proved(said *api.Tried) { said.Proved = said.Begun }

func TestANodeIsAskedToTryWhatAFileMakesOfItsPool(t *testing.T) {
	l := newLab(t)
	_, now := l.atRest("tries")
	l.node("tries-2", "tries", now, now, api.Done, nil)
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
	_, now := l.atRest("untried")
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
	source, now := l.atRest("keeps")
	file := l.tunes("keeps", "60-keeps", "a")
	r, done := l.start("try", "-f", file, "--node", "keeps-1", "--keep")
	order := l.ordered("keeps-1")
	configs := l.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	if _, err := configs.Get(l.ctx, "60-keeps", metav1.GetOptions{}); err == nil {
		t.Error("the pool has the document before the node has proved it")
	}
	l.tried("keeps-1", now, order, proved)
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
	_, now := l.atRest("fails")
	r, done := l.start("try", "-f", l.tunes("fails", "60-fails", "a"), "--node", "fails-1", "--keep")
	order := l.ordered("fails-1")
	l.tried("fails-1", now, order, func(said *api.Tried) {
		said.Ended, said.Because = said.Begun, "it failed: kubelet is down"
	})
	<-done
	r.fails(t, 1, "nothing was handed to pool fails", "kubelet is down")
}

// A MachineConfig that was written meanwhile stays as it is, also before the pool has it.
func TestNothingIsHandedOverWhereTheMachineConfigsAreOthers(t *testing.T) {
	l := newLab(t)
	_, now := l.atRest("moves")
	r, done := l.start("try", "-f", l.tunes("moves", "60-moves", "a"), "--node", "moves-1", "--keep")
	order := l.ordered("moves-1")
	l.source(l.config("moves", "60-moves", "/etc/sysctl.d/90-tuned.conf", "theirs"))
	configs := l.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	theirs, err := configs.Get(l.ctx, "60-moves", metav1.GetOptions{})
	l.must(err)
	l.tried("moves-1", now, order, proved)
	<-done
	r.fails(t, 1, "nothing was handed to pool moves", "the MachineConfigs of the pool have changed", "try again")
	if is, err := configs.Get(l.ctx, "60-moves", metav1.GetOptions{}); err != nil || is.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("60-moves was written over: %+v, %v", is, err)
	}
}
