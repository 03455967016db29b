// SPDX-License-Identifier: Apache-2.0

package disruptionpolicy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	operatorv1 "github.com/openshift/api/operator/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

var (
	then  = metav1.NewTime(time.Unix(1000, 0))
	later = metav1.NewTime(time.Unix(2000, 0))
)

func document(spec string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"operator.openshift.io/v1","kind":"MachineConfiguration",
		"metadata":{"name":"cluster"},"spec":%s}`, spec)
}

// shown are the actions of a path in a status, "" where it has none.
func shown(s operatorv1.MachineConfigurationStatus, path string) string {
	for _, f := range s.NodeDisruptionPolicyStatus.ClusterPolicies.Files {
		if f.Path == path {
			return fmt.Sprint(f.Actions)
		}
	}
	return ""
}

const (
	mine    = `{"nodeDisruptionPolicy":{"files":[{"path":"/etc/mine","actions":[{"type":"Drain"}]}]}}`
	twice   = `{"nodeDisruptionPolicy":{"files":[{"path":"/etc/mine","actions":[{"type":"Drain"}]},{"path":"x","actions":[]}]}}`
	refused = `{"nodeDisruptionPolicy":{"files":[{"path":"/etc/mine","actions":[{"type":"Halt"}]}]}}`
)

func TestTheStatusSaysWhatIsInForceAndWhatIsNot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, spec string
		status     metav1.ConditionStatus
		reason     string
		says       string
		mine       bool
	}{
		{"nothing is asked for", `{}`, metav1.ConditionFalse, api.PolicyInForce, "in force", false},
		{"a policy", mine, metav1.ConditionFalse, api.PolicyInForce, "in force", true},
		{"an entry that covers nothing", twice, metav1.ConditionTrue, api.PolicyWithoutEffect,
			"spec.nodeDisruptionPolicy.files[1].path", true},
		{"what nodes refuse", refused, metav1.ConditionTrue, api.PolicyInvalid,
			"spec.nodeDisruptionPolicy.files[0].actions[0].type", false},
		{"no spec", `null`, metav1.ConditionTrue, api.PolicyInvalid, "spec: Required value", false},
		{"more errors than a condition takes", `{"nodeDisruptionPolicy":{"files":[` +
			strings.TrimSuffix(strings.Repeat(`{"path":"relative/to/nothing/at/all","actions":[{"type":"Halt"}]},`, 2000), ",") + `]}}`,
			metav1.ConditionTrue, api.PolicyInvalid, "spec.nodeDisruptionPolicy.files", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := decide(document(c.spec), 7, operatorv1.MachineConfigurationStatus{}, then)
			d := degraded(s.Conditions)
			if d.Status != c.status || d.Reason != c.reason || !strings.Contains(d.Message, c.says) || d.ObservedGeneration != 7 {
				t.Errorf("it says %+v", d)
			}
			stalled := meta.IsStatusConditionTrue(s.Conditions, api.Stalled)
			if stalled != (c.reason == api.PolicyInvalid) || len(s.Conditions) != 2 {
				t.Errorf("kstatus is told %+v", s.Conditions)
			}
			if len(d.Message) > 32768 {
				t.Errorf("its message has %d bytes, which the API refuses", len(d.Message))
			}
			if s.ObservedGeneration != 7 {
				t.Errorf("observed generation %d", s.ObservedGeneration)
			}
			if (shown(s, "/etc/mine") != "") != c.mine {
				t.Errorf("/etc/mine is shown with %q", shown(s, "/etc/mine"))
			}
			if valid := c.reason != api.PolicyInvalid; (shown(s, "/etc/crio/policies") != "") != valid {
				t.Errorf("the defaults are shown: %t", !valid)
			}
		})
	}
}

func TestRulesAreShownAsTheAPIWantsThem(t *testing.T) {
	t.Parallel()
	s := decide(document(`{"nodeDisruptionPolicy":{
		"files":[{"path":"/etc/a","actions":[{"type":"Drain"},{"type":"Reload","reload":{"serviceName":"a.service"}}]},
			{"path":"/etc/none","actions":[]}],
		"units":[{"name":"u.service","actions":[{"type":"Restart","restart":{"serviceName":"u.service"}}]}],
		"sshkey":{"actions":[{"type":"Reboot"}]}}}`), 1, operatorv1.MachineConfigurationStatus{}, then)
	text, err := json.Marshal(s.NodeDisruptionPolicyStatus.ClusterPolicies)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"path":"/etc/containers/registries.conf","actions":[{"type":"Special"}]}`,
		`{"path":"/etc/a","actions":[{"type":"Drain"},{"type":"Reload","reload":{"serviceName":"a.service"}}]}`,
		`{"path":"/etc/none","actions":[]}`, // null is refused
		`{"name":"u.service","actions":[{"type":"Restart","restart":{"serviceName":"u.service"}}]}`,
		`"sshkey":{"actions":[{"type":"Reboot"}]}`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

func TestWhatIsSaidStaysUntilThereIsNews(t *testing.T) {
	t.Parallel()
	other := metav1.Condition{Type: operatorv1.MachineConfigurationBootImageUpdateDegraded, Status: metav1.ConditionTrue}
	was := operatorv1.MachineConfigurationStatus{Conditions: []metav1.Condition{other}}
	was.ManagedBootImagesStatus.MachineManagers = []operatorv1.MachineManager{{Resource: "machinesets"}}
	first := decide(document(mine), 1, was, then)
	if first.Conditions[0] != other || len(first.ManagedBootImagesStatus.MachineManagers) != 1 {
		t.Errorf("what somebody else says is lost: %+v", first)
	}
	if len(was.Conditions) != 1 {
		t.Error("what was read was changed")
	}
	if again := decide(document(mine), 1, first, later); !equality.Semantic.DeepEqual(again, first) {
		t.Errorf("it says %+v after %+v", again, first)
	}
	// What can't be honoured changes nothing of what is in force.
	bad := decide(document(refused), 2, first, later)
	if d := degraded(bad.Conditions); d.Status != metav1.ConditionTrue || d.LastTransitionTime != later {
		t.Errorf("it says %+v", d)
	}
	if shown(bad, "/etc/mine") != shown(first, "/etc/mine") || bad.ObservedGeneration != 2 {
		t.Errorf("it shows %q of generation %d", shown(bad, "/etc/mine"), bad.ObservedGeneration)
	}
	// What is taken out of the spec is shown no more.
	if gone := decide(document(`{}`), 3, bad, later); shown(gone, "/etc/mine") != "" {
		t.Errorf("it shows %q", shown(gone, "/etc/mine"))
	}
}
