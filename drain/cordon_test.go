// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

var (
	noon  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	entry = api.Cordon{By: api.Daemon, Config: "rendered-worker-b", Reason: "update", Since: noon}
)

func nodeWith(unschedulable bool, annotations map[string]string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "w0", ResourceVersion: "7", Annotations: annotations},
		Spec:       corev1.NodeSpec{Unschedulable: unschedulable},
	}
}

func TestTheLedgerSaysWhoseACordonIs(t *testing.T) {
	ledger := api.Encode(entry)
	for name, c := range map[string]struct {
		unschedulable bool
		ledger        string
		want          Hold
	}{
		"nobody's":            {false, "", Free},
		"ours":                {true, ledger, Ours},
		"somebody else's":     {true, "", Theirs},
		"taken off":           {false, ledger, Lost},
		"unreadable":          {true, "{", Theirs},
		"unreadable and free": {false, "{", Free},
		"empty document":      {true, "null", Theirs},
	} {
		t.Run(name, func(t *testing.T) {
			annotations := map[string]string{}
			if c.ledger != "" {
				annotations[api.CordonKey] = c.ledger
			}
			got := ReadHold(nodeWith(c.unschedulable, annotations))
			if got != c.want {
				t.Errorf("the hold is %s, want %s", got, c.want)
			}
			if got.Cordoned() != c.unschedulable {
				t.Errorf("%s and unschedulable=%v do not agree", got, c.unschedulable)
			}
		})
	}
}

// ownedBy is node with its cordon set by managers.
func ownedBy(node *corev1.Node, managers ...string) *corev1.Node {
	node.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:providerID":{}}}`)}, {Manager: "empty"},
	}
	for _, m := range managers {
		node.ManagedFields = append(node.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: m, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)})
	}
	return node
}

func TestALedgerDoesNotClaimACordonThatSomebodyElseSet(t *testing.T) {
	ledger := map[string]string{
		api.CordonKey: api.Encode(entry), api.DesiredDrain: "drain-rendered-worker-b",
		api.LastAppliedDrain: "uncordon-rendered-worker-b",
	}
	const drops = `{"metadata":{"annotations":{"noderefit.dev/cordon":null},"resourceVersion":"7"}}`
	for name, c := range map[string]struct {
		unschedulable bool
		managers      []string
		want          Hold
	}{
		"nobody knows":                 {true, nil, Ours},
		"we did":                       {true, []string{api.Daemon}, Ours},
		"so did we":                    {true, []string{"argocd", api.Daemon}, Ours},
		"somebody else did":            {true, []string{"kubectl-cordon"}, Theirs},
		"somebody else uncordoned it":  {false, []string{"kubectl-uncordon"}, Lost},
		"nobody knows who uncordoned.": {false, nil, Lost},
	} {
		node := ownedBy(nodeWith(c.unschedulable, ledger), c.managers...)
		if got := ReadHold(node); got != c.want {
			t.Errorf("%s: the hold is %s, want %s", name, got, c.want)
		}
		node.ManagedFields = CordonOwners(node.ManagedFields)
		if got := ReadHold(node); got != c.want || len(node.ManagedFields) != len(c.managers) {
			t.Errorf("%s: the hold is %s by %v", name, got, node.ManagedFields)
		}
		if c.want != Theirs {
			continue
		}
		if got := text(cordon(node, entry, nil), node); got != drops {
			t.Errorf("%s: a cordon is %s", name, got)
		}
		delete(node.Annotations, api.DesiredDrain)
		if got := text(uncordon(node, "rendered-worker-b", nil), node); got != drops {
			t.Errorf("%s: an uncordon is %s", name, got)
		}
	}
}

func TestOnePatchCordonsAndSaysWho(t *testing.T) {
	working := string(api.Working)
	early := entry
	early.Since, early.Config = noon.Add(-time.Hour), "rendered-worker-a"
	retargeted := entry
	retargeted.Since = early.Since
	drainB := map[string]string{api.DesiredDrain: "drain-rendered-worker-b"}
	for name, c := range map[string]struct {
		node  *corev1.Node
		extra Annotations
		want  string
	}{
		"free": {
			node: nodeWith(false, nil), extra: Annotations{api.StateKey: &working, api.Lift: nil},
			want: `{"metadata":{"annotations":{` +
				`"machineconfiguration.openshift.io/desiredDrain":"drain-rendered-worker-b",` +
				`"machineconfiguration.openshift.io/state":"Working",` +
				`"noderefit.dev/cordon":` + quoted(api.Encode(entry)) + `},"resourceVersion":"7"},` +
				`"spec":{"unschedulable":true}}`,
		},
		"somebody else's stays theirs": {
			node: nodeWith(true, nil),
			want: `{"metadata":{"annotations":{` +
				`"machineconfiguration.openshift.io/desiredDrain":"drain-rendered-worker-b"},"resourceVersion":"7"}}`,
		},
		"somebody else's, seen before": {node: nodeWith(true, drainB), want: ""},
		"ours already": {
			node: nodeWith(true, with(drainB, api.CordonKey, api.Encode(entry))), want: "",
		},
		"ours for another configuration keeps its time": {
			node: nodeWith(true, with(drainB, api.CordonKey, api.Encode(early))),
			want: `{"metadata":{"annotations":{"noderefit.dev/cordon":` + quoted(api.Encode(retargeted)) +
				`},"resourceVersion":"7"}}`,
		},
		"taken off by somebody": {
			node: nodeWith(false, with(drainB, api.CordonKey, api.Encode(early))),
			want: `{"metadata":{"annotations":{"noderefit.dev/cordon":` + quoted(api.Encode(entry)) +
				`},"resourceVersion":"7"},"spec":{"unschedulable":true}}`,
		},
		"what is not there needs no removing": {
			node: nodeWith(true, drainB), extra: Annotations{api.Lift: nil}, want: "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, text(cordon(c.node, entry, c.extra), c.node)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOnlyOurCordonIsTakenOff(t *testing.T) {
	done := string(api.Done)
	owed := map[string]string{api.DesiredDrain: "drain-rendered-worker-b"}
	tokens := `"machineconfiguration.openshift.io/desiredDrain":"uncordon-rendered-worker-b",` +
		`"machineconfiguration.openshift.io/lastAppliedDrain":"uncordon-rendered-worker-b"`
	for name, c := range map[string]struct {
		node  *corev1.Node
		extra Annotations
		want  string
	}{
		"ours": {
			node: nodeWith(true, with(owed, api.CordonKey, api.Encode(entry))), extra: Annotations{api.StateKey: &done},
			want: `{"metadata":{"annotations":{` + tokens + `,"machineconfiguration.openshift.io/state":"Done",` +
				`"noderefit.dev/cordon":null},"resourceVersion":"7"},"spec":{"unschedulable":false}}`,
		},
		"somebody else's": {
			node: nodeWith(true, owed), want: `{"metadata":{"annotations":{` + tokens + `},"resourceVersion":"7"}}`,
		},
		"ours, and somebody was faster": {
			node: nodeWith(false, with(owed, api.CordonKey, api.Encode(entry))),
			want: `{"metadata":{"annotations":{` + tokens + `,"noderefit.dev/cordon":null},"resourceVersion":"7"}}`,
		},
		"never drained": {
			node: nodeWith(false, nil), extra: Annotations{api.StateKey: &done},
			want: `{"metadata":{"annotations":{"machineconfiguration.openshift.io/state":"Done"},"resourceVersion":"7"}}`,
		},
		"nothing to say": {node: nodeWith(false, nil), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, text(uncordon(c.node, "rendered-worker-b", c.extra), c.node)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func text(c change, node *corev1.Node) string {
	if c.empty() {
		return ""
	}
	return string(c.patch(node))
}

func quoted(s string) string { return api.Encode(s) }

func with(m map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	maps.Copy(out, m)
	return out
}

func TestLoadBalancersGetBackWhatWeTookFromThem(t *testing.T) {
	exclusion := api.Encode(api.Exclusion{Since: noon})
	ask := Annotations{api.ExcludedKey: &exclusion}
	node := func(label, annotation bool) *corev1.Node {
		n := &corev1.Node{}
		n.Labels, n.Annotations = map[string]string{}, map[string]string{}
		if label {
			n.Labels[api.ExcludeLabel] = ""
		}
		if annotation {
			n.Annotations[api.ExcludedKey] = exclusion
		}
		return n
	}
	valued := node(true, true)
	valued.Labels[api.ExcludeLabel] = "true"
	for name, c := range map[string]struct {
		change      change
		label, says string // "set", "removed", or nothing
	}{
		"ours, and made theirs":    {uncordon(valued, "b", nil), "", "removed"},
		"asked for":                {cordon(node(false, false), api.Cordon{}, ask), "set", "set"},
		"not asked for":            {cordon(node(false, false), api.Cordon{}, nil), "", ""},
		"ours already":             {cordon(node(true, true), api.Cordon{}, ask), "", ""},
		"ours, taken away by hand": {cordon(node(false, true), api.Cordon{}, ask), "", ""},
		"somebody else's":          {cordon(node(true, false), api.Cordon{}, ask), "", ""},
		"given back":               {uncordon(node(true, true), "b", nil), "removed", "removed"},
		"given back by hand":       {uncordon(node(false, true), "b", nil), "", "removed"},
		"theirs to give back":      {uncordon(node(true, false), "b", nil), "", ""},
	} {
		what := func(m map[string]*string, key string) string {
			value, is := m[key]
			switch {
			case !is:
				return ""
			case value == nil:
				return "removed"
			}
			return "set"
		}
		label, says := what(c.change.labels, api.ExcludeLabel), what(c.change.annotations, api.ExcludedKey)
		if label != c.label || says != c.says {
			t.Errorf("%s: the label is %q, the annotation %q; want %q, %q", name, label, says, c.label, c.says)
		}
	}
}
