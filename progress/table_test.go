// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
)

// runTable runs a file below testdata, each of which says at its head what the words are.
func runTable(t *testing.T, file string) {
	t.Helper()
	if *update {
		if err := flag.Set("rewrite", "true"); err != nil {
			t.Fatal(err)
		}
	}
	var members Membership
	datadriven.RunTest(t, "testdata/"+file, func(t *testing.T, d *datadriven.TestData) string {
		t.Helper()
		switch d.Cmd {
		case "node":
			return stands(t, d)
		case "away":
			return away(t, d)
		case "pools":
			var problems string
			members, problems = readMembership(t, d)
			return problems
		case "belongs":
			return belongs(t, d, members)
		case "quarantined":
			return quarantined(t, d)
		}
		d.Fatalf(t, "%q is no command", d.Cmd)
		return ""
	})
}

func stands(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	n, target := Node{}, "B"
	for _, a := range d.CmdArgs {
		switch value := strings.Join(a.Vals, ""); a.Key {
		case "target":
			target = strings.TrimPrefix(value, "-")
		case "has":
			n.Current = value
		case "told":
			n.Desired = value
		case "state":
			if n.State = api.State(value); !n.State.Bad() && n.State != api.Done && n.State != api.Working {
				d.Fatalf(t, "%q is no state of a node", value)
			}
		case "cordoned":
			n.Cordoned = true
		case "notready":
			n.NotReady = "off"
		default:
			d.Fatalf(t, "%q is no word of a node", a.Key)
		}
	}
	return fmt.Sprintf("%s, updated: %t, unavailable: %t, uses up maxUnavailable: %t", n.Phase(target), n.Updated(target),
		n.Unavailable(), n.Takes(target))
}

func away(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var nodes int
	d.ScanArgs(t, "of", &nodes)
	var value *intstr.IntOrString
	if text, is := strings.CutPrefix(d.Input, "maxUnavailable: "); is {
		value = new(intstr.Parse(text))
	} else if d.Input != "" {
		d.Fatalf(t, "%q is no maxUnavailable", d.Input)
	}
	most, err := MaxUnavailable(value, nodes)
	if err != nil {
		return fmt.Sprintf("%d\n%v", most, err)
	}
	return strconv.Itoa(most)
}

func readMembership(t *testing.T, d *datadriven.TestData) (members Membership, problems string) {
	t.Helper()
	var pools []mcfgv1.MachineConfigPool
	for line := range strings.Lines(d.Input) {
		name, selector, is := strings.Cut(strings.TrimSpace(line), " ")
		p := pool(name, nil)
		if is {
			p.Spec.NodeSelector = &metav1.LabelSelector{}
			if err := yaml.UnmarshalStrict([]byte(selector), p.Spec.NodeSelector); err != nil {
				d.Fatalf(t, "reading %s: %v", line, err)
			}
		}
		pools = append(pools, p)
	}
	members = NewMembership(pools)
	for i := range pools {
		if problem := members.Problem(pools[i].Name); problem != "" {
			problems += pools[i].Name + ": " + problem + "\n"
		}
	}
	return members, problems
}

func belongs(t *testing.T, d *datadriven.TestData, members Membership) string {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{}, Annotations: map[string]string{}}}
	for _, a := range d.CmdArgs {
		switch value := strings.Join(a.Vals, ""); a.Key {
		case "role":
			n.Labels[api.NodeRole+value] = ""
		case "os":
			n.Labels[corev1.LabelOSStable] = value
		case "told":
			n.Annotations[api.DesiredConfig] = value
		default:
			d.Fatalf(t, "%q is no word of a node", a.Key)
		}
	}
	got, conflict := members.Of(n)
	switch {
	case conflict != nil:
		return conflict.String()
	case got == "":
		return "no pool"
	}
	return got
}

func quarantined(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	p := pool("worker", nil)
	var known []api.Quarantine
	var lifted []api.Lifted
	reported := map[string][]api.Quarantine{}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		if len(words) != 4 {
			d.Fatalf(t, "%q has not four words", line)
		}
		node, config := words[1], words[2]
		minutes, err := strconv.Atoi(words[3])
		if err != nil {
			t.Fatal(err)
		}
		q := api.Quarantine{Config: config, Reason: "r", Since: night.Add(time.Duration(minutes) * time.Minute)}
		switch words[0] {
		case "reported":
			reported[node] = append(reported[node], q)
		case "known":
			q.Node = node
			known = append(known, q)
		case "lifted":
			lifted = append(lifted, api.Lifted{Config: config, Failures: []api.Failure{{Node: node, Since: q.Since}}})
		default:
			d.Fatalf(t, "%q is no word of a failure", words[0])
		}
	}
	p.Annotations = map[string]string{api.PoolQuarantineKey: api.Encode(known), api.LiftedKey: api.Encode(lifted)}
	var nodes []Node
	for name, list := range reported {
		nodes = append(nodes, Node{Name: name, Node: api.Node{Quarantined: list}})
	}
	is := NewPool(&p, nodes)
	out := strings.Join(is.Problems, "\n")
	for _, q := range is.Quarantined {
		out += fmt.Sprintf("%s failed on %s, minute %.0f: %s\n", q.Config, q.Node, q.Since.Sub(night).Minutes(), q.Reason)
	}
	if out == "" {
		return "nothing"
	}
	return out
}
