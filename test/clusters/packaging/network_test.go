// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// toTheNetwork is an argument that has a program serve to others than its own pod.
var toTheNetwork = regexp.MustCompile(`^--[a-z-]+(?:address|url)=(?:0\.0\.0\.0)?:([0-9]+)$`)

// Other pods reach what is served to them, and no other port. Pods on the network of the host are out of reach of
// NetworkPolicies, so nothing is said of them.
func TestNetworkPoliciesLetInWhatIsServedAndNothingElse(t *testing.T) {
	inputs(t)
	for what, args := range map[string]string{
		"nothing":    "",
		"monitoring": "monitoring.enabled=true",
		"the server": "server.enabled=true",
		"a page":     "page.enabled=true",
		"everything": "monitoring.enabled=true,server.enabled=true,page.enabled=true,page.bindAddress=:9443,page.certificateSecret=x",
	} {
		t.Run(what, func(t *testing.T) {
			var policies []networkingv1.NetworkPolicy
			templates := map[string]appsv1.DeploymentSpec{} // a DaemonSet's fields of this name are the same
			for _, object := range objects(t, helm(t, "template", "noderefit", chart, "--set", registry+","+args)) {
				switch object["kind"] {
				case "NetworkPolicy":
					var p networkingv1.NetworkPolicy
					decoded(t, object, &p)
					policies = append(policies, p)
				case "Deployment", "DaemonSet":
					var w appsv1.Deployment
					decoded(t, object, &w)
					templates[w.Name] = w.Spec
				}
			}
			if len(templates) < 2 {
				t.Fatalf("workloads: %v", slices.Collect(maps.Keys(templates)))
			}
			for name, spec := range templates {
				served, closed := servedBy(spec), false
				if spec.Template.Spec.HostNetwork {
					continue
				}
				var open []string
				for _, p := range policies {
					if !selects(t, p, spec.Template.Labels) {
						continue
					}
					closed = closed || slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress})
					for _, rule := range p.Spec.Ingress {
						for _, port := range rule.Ports {
							open = append(open, port.Port.String())
						}
						if len(rule.Ports) == 0 || len(rule.From) > 0 {
							t.Errorf("%s: a rule of %s is about more or less than ports", name, p.Name)
						}
					}
				}
				slices.Sort(open)
				if !closed || !slices.Equal(slices.Compact(open), served) {
					t.Errorf("%s: closed %v, open %v, served %v", name, closed, open, served)
				}
			}
		})
	}
}

func decoded(t *testing.T, object map[string]any, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, into); err != nil {
		t.Fatal(err)
	}
}

func selects(t *testing.T, p networkingv1.NetworkPolicy, pod map[string]string) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(labels.Set(pod))
}

// servedBy returns the ports of a workload that others are to reach: of the host, and by its arguments.
func servedBy(spec appsv1.DeploymentSpec) []string {
	var out []string
	for _, c := range spec.Template.Spec.Containers {
		for _, p := range c.Ports {
			if p.HostPort != 0 {
				out = append(out, fmt.Sprint(p.ContainerPort))
			}
		}
		for _, arg := range c.Args {
			if m := toTheNetwork.FindStringSubmatch(strings.ReplaceAll(arg, `"`, "")); m != nil {
				out = append(out, m[1])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
