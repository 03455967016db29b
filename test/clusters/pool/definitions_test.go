// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/noderefit/noderefit/api"
)

// mustKubectl is what kubectl prints.
func (l *lab) mustKubectl(args ...string) string {
	l.t.Helper()
	out, err := l.Kubectl(context.Background(), args...)
	if err != nil {
		l.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// define has the API server serve the definitions again that are given by their resources.
func (l *lab) define(resources []string) {
	l.t.Helper()
	for _, resource := range resources {
		text, err := api.CRDs.ReadFile("crds/" + resource + ".yaml")
		if err != nil {
			l.t.Fatal(err)
		}
		file := filepath.Join(l.t.TempDir(), resource+".yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			l.t.Fatal(err)
		}
		if out, err := l.Kubectl(context.Background(), "get", "-f", file, "--ignore-not-found", "-o", "name"); err != nil {
			l.t.Fatal(err)
		} else if strings.TrimSpace(out) == "" {
			l.mustKubectl("create", "-f", file)
		}
		l.mustKubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", file)
		l.until(resource+" are served", func() bool { return l.serves(resource) })
	}
}

// undefine deletes definitions, and waits until the API server tells nobody of their kinds any more: a controller that
// starts takes its word for it.
func (l *lab) undefine(resources ...string) {
	l.t.Helper()
	for _, resource := range resources {
		l.mustKubectl("delete", "crd", resource+"."+groupOf(resource).Group)
		l.until(resource+" are not served", func() bool { return !l.serves(resource) })
	}
}

func groupOf(resource string) schema.GroupVersion {
	if resource == "rolloutpolicies" {
		return api.GroupVersion
	}
	return mcfgv1.GroupVersion
}

// serves reports whether the API server says that it has a resource.
func (l *lab) serves(resource string) bool {
	l.t.Helper()
	list := &metav1.APIResourceList{}
	err := l.Client.CoreV1().RESTClient().Get().AbsPath("apis", groupOf(resource).String()).Do(context.Background()).Into(list)
	if err != nil && !apierrors.IsNotFound(err) {
		l.t.Fatal(err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource })
}

// Definitions are deleted by a slip, with all their objects, and come back with the repository that they are in.
func TestDefinitionsThatAreDeletedAndMadeAgainEndAndReleaseNothing(t *testing.T) {
	l := newLab(t)
	const kubelet = `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"KubeletConfig","metadata":{"name":"k"},` +
		`"spec":{"kubeletConfig":{"maxPods":%d},"machineConfigPoolSelector":{"matchLabels":{"k":"yes"}}}}`
	const worker = `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfigPool","metadata":{"name":"worker",` +
		`"labels":{"k":"yes"}},"spec":{"nodeSelector":{"matchLabels":{"node-role.kubernetes.io/worker":""}},` +
		`"machineConfigSelector":{"matchLabels":{"machineconfiguration.openshift.io/role":"worker"}}}}`
	policy := `{"apiVersion":"noderefit.dev/v1alpha1","kind":"RolloutPolicy","metadata":{"name":"never"},"spec":` +
		farWindow() + `}`
	files, text := t.TempDir(), 0
	write := func(name, object string) {
		if err := os.WriteFile(filepath.Join(files, name), []byte(object), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// repository is what people have, and apply again.
	repository := func() {
		write("kubelet.json", fmt.Sprintf(kubelet, 100+text))
		write("pool.json", worker)
		write("config.json", fmt.Sprintf(`{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig",
			"metadata":{"name":"50-worker","labels":{"machineconfiguration.openshift.io/role":"worker"}},
			"spec":{"config":{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/motd",
			"contents":{"source":"data:,%d"}}]}}}}`, text))
		l.mustKubectl("apply", "-f", files)
	}
	all := []string{"machineconfigs", "machineconfigpools", "rolloutpolicies", "kubeletconfigs"}
	t.Cleanup(func() {
		l.define(all)
		// The controller that takes the finalizer away has ended.
		ctx := context.Background()
		_, _ = l.Kubectl(ctx, "patch", "kubeletconfig", "k", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		_, _ = l.Kubectl(ctx, "delete", "kubeletconfig,mc", "--all", "--wait=false")
	})
	for _, name := range []string{"w-0", "w-1"} {
		l.node(name, "worker", "rendered-worker-a")
	}
	repository()
	c := l.alone("--controllers=containerruntimeconfig,disruptionpolicy,imagemirror,kubeletconfig,notifications,pool,render,stream,template")
	asked := func() bool { // the pool is at what the repository asks for
		want := l.says("mcp/worker", "{.spec.configuration.name}")
		files, err := l.Kubectl(l.ctx, "get", "mc", want, "-o", "jsonpath={.spec.config.storage.files}")
		return err == nil && strings.Contains(files, fmt.Sprintf("data:,%d\"", text)) &&
			strings.Contains(files, "/etc/kubernetes/kubelet.conf")
	}
	arrived := func() bool {
		want := l.says("mcp/worker", "{.spec.configuration.name}")
		return asked() && l.stand("w-0").Current == want && l.stand("w-1").Current == want
	}
	l.until("the nodes have it", arrived)
	slips := [][]string{all, {"rolloutpolicies"}, {"kubeletconfigs"}, {"machineconfigpools"}}
	if testing.Short() {
		slips = slips[:1]
	}
	for _, gone := range slips {
		started, name := time.Now(), strings.Join(gone, ",")
		held := slices.Contains(gone, "rolloutpolicies")
		if held { // a change waits for its window, which is far
			write("policy.json", policy)
			l.mustKubectl("apply", "-f", files)
			l.until(name+": the policy is read", func() bool { return strings.HasPrefix(l.ready("never"), "True") })
			text++
			repository()
			l.until(name+": the change is there", asked)
		}
		l.eye.forget()
		rests := func(when string) {
			time.Sleep(3 * time.Second) //nolint:forbidigo // nothing announces that nothing happens
			if told, _, _ := l.eye.seen(); len(told) > 0 {
				t.Errorf("%s: %s nodes are sent: %v", name, when, told)
			}
		}
		l.undefine(gone...)
		for _, resource := range gone {
			l.until(name+": a metric names what is missing", func() bool {
				return c.metric(t, `noderefit_definition_missing{resource="`+resource+`"}`) == "1"
			})
		}
		l.mustPatchNode("w-0", `{"metadata":{"labels":{"look":"`+fmt.Sprint(text)+`"}}}`)
		rests("while the definitions are away")
		l.define(gone)
		repository()
		// A change that comes before the objects are read again waits as long as they may.
		l.until(name+": the objects are read again", func() bool {
			pending := l.condition("worker", mcfgv1.MachineConfigPoolConditionType(api.PoolRenderPending))
			return asked() && strings.HasPrefix(pending, "False") && (!held || l.ready("never") != "")
		})
		rests("once the objects are back")
		if held {
			l.mustKubectl("delete", "rolloutpolicy", "never")
			if err := os.Remove(filepath.Join(files, "policy.json")); err != nil {
				t.Fatal(err)
			}
		} else {
			text++
			repository()
		}
		l.until(name+": all goes on", arrived)
		l.until(name+": the metric says so", func() bool {
			return !slices.ContainsFunc(gone, func(resource string) bool {
				return c.metric(t, `noderefit_definition_missing{resource="`+resource+`"}`) != "0"
			})
		})
		t.Logf("%s: %s", name, time.Since(started).Round(time.Second))
	}
}

// kubectl apply -f DIRECTORY takes files by their names, each some time after the one before.
func TestAPoolThatIsMadeAgainBeforeItsMachineConfigsIsNotRenderedOfAPart(t *testing.T) {
	l := newLab(t)
	definitions := []string{"machineconfigs", "machineconfigpools"}
	files := t.TempDir()
	apply := func(name, object string) {
		t.Helper()
		file := filepath.Join(files, name)
		if err := os.WriteFile(file, []byte(object), 0o600); err != nil {
			t.Fatal(err)
		}
		l.mustKubectl("apply", "-f", file)
	}
	pool := func() {
		t.Helper()
		apply("pool.json", `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfigPool","metadata":`+
			`{"name":"worker"},"spec":{"nodeSelector":{"matchLabels":{"node-role.kubernetes.io/worker":""}},`+
			`"machineConfigSelector":{"matchLabels":{"machineconfiguration.openshift.io/role":"worker"}}}}`)
	}
	config := func(name, text string) {
		t.Helper()
		apply(name+".json", fmt.Sprintf(`{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":`+
			`{"name":%q,"labels":{"machineconfiguration.openshift.io/role":"worker"}},"spec":{"config":{"ignition":`+
			`{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/%[1]s","contents":{"source":"data:,%[2]s"}}]}}}}`, name, text))
	}
	t.Cleanup(func() {
		l.define(definitions)
		_, _ = l.Kubectl(context.Background(), "delete", "mc", "--all", "--wait=false")
	})
	l.node("w-0", "worker", "rendered-worker-a")
	pool()
	config("50-one", "1")
	config("60-two", "2")
	arrived := func(sources int) func() bool {
		return func() bool {
			want := l.getPool("worker").Spec.Configuration
			return len(want.Source) == sources && l.stand("w-0").Current == want.Name && l.stand("w-0").State == api.Done
		}
	}
	var c *controller
	start := func() { c = l.alone("--controllers=pool,render") }
	start()
	l.until("the node has both", arrived(2))
	whole := l.stand("w-0").Current

	for _, restarts := range []bool{false, true} {
		if restarts {
			c.stop(t, syscall.SIGTERM)
		}
		l.eye.forget()
		l.undefine("machineconfigpools", "machineconfigs")
		l.define(definitions)
		if restarts {
			start()
		}
		pool()
		config("50-one", "1")
		l.until("the pool waits", func() bool {
			text := l.condition("worker", mcfgv1.MachineConfigPoolConditionType(api.PoolRenderPending))
			return strings.HasPrefix(text, "True") && strings.Contains(text, "was made again")
		})
		config("60-two", "2")
		l.until("the pool has what it had", func() bool { return l.getPool("worker").Spec.Configuration.Name == whole })
		l.until("and its node", arrived(2))
		l.told(map[string][]string{})
	}
}

// farWindow is the spec of a policy by which nodes of pool worker begin in half a day.
func farWindow() string {
	return fmt.Sprintf(`{"pools":["worker"],"failureBudget":2,"windows":{"open":[{"cron":"0 %d * * *","durationMinutes":60}]}}`,
		time.Now().UTC().Add(12*time.Hour).Hour())
}

// What the policies said is lost with their definition. A leader that begins then has the notes on the pools.
func TestALeaderThatBeginsWhileTheDefinitionOfPoliciesIsAwayReleasesNothing(t *testing.T) {
	l := newLab(t)
	definition := []string{"rolloutpolicies"}
	t.Cleanup(func() { l.define(definition) })
	never := farWindow()
	for _, pool := range []string{"worker", "infra"} {
		for _, name := range []string{pool + "-0", pool + "-1"} {
			l.node(name, pool, "rendered-"+pool+"-a")
		}
		l.pool(pool, "rendered-"+pool+"-a")
	}
	noted := func() string { return l.getPool("worker").Annotations[api.RolloutPolicyKey] }
	l.mustPolicy("never", never)
	first := l.alone()
	l.until("the pool has a note of its policy", func() bool { return strings.Contains(noted(), `"never"`) })
	if other := l.getPool("infra").Annotations[api.RolloutPolicyKey]; other != "" {
		t.Errorf("a pool without a policy has a note: %s", other)
	}
	first.stop(t, syscall.SIGTERM)
	note := noted()

	l.undefine(definition...)
	second := l.alone()
	l.target("worker", configB)
	l.target("infra", "rendered-infra-b")
	l.updated("infra", "rendered-infra-b") // by the leader that does not send the others
	l.heldBy("worker", "PolicyUnusable", "CustomResourceDefinition/rolloutpolicies.noderefit.dev is missing: install it")
	l.explained("pool/worker", "PolicyUnusable", "rolloutpolicies.noderefit.dev is missing")

	// The process ends to be started anew once the definition is there. The objects take a while longer.
	l.define(definition)
	l.until("the process ends", func() bool {
		text, err := os.ReadFile(second.log)
		return err == nil && strings.Contains(string(text), "which ends to be started anew")
	})
	second.stop(t, syscall.SIGKILL)
	third := l.alone()
	l.heldBy("worker", "PolicyUnusable", "was made again: its objects are waited for until")
	l.mustPolicy("never", never)
	l.heldBy("worker", "OutsideWindow", "no window is open")
	l.until("the note is of the policy that is there", func() bool { return noted() != "" && noted() != note })

	// A policy that is replaced by the slip, and never comes back, holds for as long as its objects are waited for.
	third.stop(t, syscall.SIGTERM)
	l.undefine(definition...)
	l.define(definition)
	l.alone()
	l.heldBy("worker", "PolicyUnusable", "was made again: its objects are waited for until")
	l.told(map[string][]string{"infra-0": {"rendered-infra-b"}, "infra-1": {"rendered-infra-b"}})
	l.setClock(l.now().Add(6 * time.Minute))
	l.updated("worker", configB)
	l.until("the note is gone", func() bool { return noted() == "" })
}

// Whoever deletes a policy means it, where the definition is there: nobody was there to see it.
func TestAPolicyThatPeopleDeleteWhileNobodyLeadsHoldsNothing(t *testing.T) {
	l := newLab(t)
	l.node("worker-0", "worker", configA)
	l.pool("worker", configA)
	l.mustPolicy("never", farWindow())
	first := l.alone()
	noted := func() string { return l.getPool("worker").Annotations[api.RolloutPolicyKey] }
	l.until("the pool has a note of its policy", func() bool { return noted() != "" })
	l.target("worker", configB)
	l.heldBy("worker", "OutsideWindow", "no window is open")
	first.stop(t, syscall.SIGTERM)
	l.mustKubectl("delete", "rolloutpolicy", "never")
	l.alone()
	l.updated("worker", configB)
	l.until("the note is gone", func() bool { return noted() == "" })
}
