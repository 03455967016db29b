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

// toTheNetwork matches an argument by which a program serves other pods, and not its own pod alone.
var toTheNetwork = regexp.MustCompile(`^--[a-z-]+(?:address|url)=(?:0\.0\.0\.0)?:([0-9]+)$`)

// Other pods reach the ports that a workload serves to them, and no other port. NetworkPolicies do not apply to pods on
// the network of the host, so the test leaves these out.
func TestNetworkPoliciesLetInWhatIsServedAndNothingElse(t *testing.T) {
	inputs(t)
	for values, args := range map[string]string{
		"nothing":    "",
		"monitoring": "monitoring.enabled=true",
		"the server": "server.enabled=true",
		"a page":     "page.enabled=true",
		"everything": "monitoring.enabled=true,server.enabled=true,page.enabled=true,page.bindAddress=:9443,page.certificateSecret=x",
	} {
		t.Run(values, func(t *testing.T) {
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
			checked := 0
			for name, spec := range templates {
				if spec.Template.Spec.HostNetwork {
					continue
				}
				checked++
				served, closed := servedBy(spec), false
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
							t.Errorf("%s: a rule of %s has no ports, or lets in only some pods", name, p.Name)
						}
					}
				}
				slices.Sort(open)
				if !closed || !slices.Equal(slices.Compact(open), served) {
					t.Errorf("%s: closed %v, open %v, served %v", name, closed, open, served)
				}
			}
			if checked == 0 {
				t.Error("every workload is on the network of the host")
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

// servedBy returns the ports of a workload that others are to reach: those of the host, and those in its arguments.
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
