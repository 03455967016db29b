// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"os"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// rendersAs gives a pool a condition of the render controller's.
func rendersAs(kind mcfgv1.MachineConfigPoolConditionType, is corev1.ConditionStatus, reason, message string,
) func(*mcfgv1.MachineConfigPool) {
	return func(p *mcfgv1.MachineConfigPool) {
		p.Status.Conditions = append(p.Status.Conditions, mcfgv1.MachineConfigPoolCondition{
			Type: kind, Status: is, Reason: reason, Message: message,
		})
	}
}

func TestWhatFluxAndArgoReadOfAPool(t *testing.T) {
	const degraded, pending = mcfgv1.MachineConfigPoolRenderDegraded, api.PoolRenderPending
	paused := func(p *mcfgv1.MachineConfigPool) { p.Spec.Paused = true }
	for _, test := range []struct {
		name    string
		pool    *mcfgv1.MachineConfigPool
		nodes   []string
		current kstatus.Status
		argo    string
		message string // a part of it
	}{
		{"updated", poolAt("A"), []string{"a B Done"}, kstatus.CurrentStatus, "Healthy", "All nodes are updated with B"},
		{"without nodes", poolAt("B"), nil, kstatus.CurrentStatus, "Healthy", "All nodes are updated with B"},
		{
			"a node is on its way", poolAt("A"), []string{"a B Done", "b A>B Working", "c A Done"},
			kstatus.InProgressStatus, "Progressing", "1 of 3 nodes are updated with B, on the way: b; kubectl refit explain worker",
		},
		{
			// What holds the drain is said of the node; the pool can still get there without anybody's doing.
			"the only node is held by a budget", poolAt("A"), []string{"a A>B Working cordoned=agent"},
			kstatus.InProgressStatus, "Progressing", "0 of 1 nodes are updated with B, on the way: a",
		},
		{
			"updated, and a node is not ready", poolAt("B"), []string{"a B Done notready"},
			kstatus.InProgressStatus, "Progressing", "1 of 1 nodes",
		},
		{"paused, and nothing waits", poolAt("B", paused), []string{"a B Done"}, kstatus.CurrentStatus, "Healthy", "updated with B"},
		{
			"paused, and something waits", poolAt("A", paused), []string{"a A Done"},
			kstatus.InProgressStatus, "Suspended", "0 of 1 nodes are updated with B; the pool is paused",
		},
		{
			"held by a rollback", poolAt("B", rendersAs(degraded, "False", api.RenderPinned, "pinned to B since noon")),
			[]string{"a B Done"}, kstatus.InProgressStatus, "Suspended", "pinned to B since noon",
		},
		{
			"a node fails", poolAt("A"), []string{"a A>B Degraded", "b A Done"},
			kstatus.FailedStatus, "Degraded", `Node a is reporting: "it won't"`,
		},
		{
			"a node failed at what is wanted no more", poolAt("A"), []string{"a A>X Degraded", "b A Done"},
			kstatus.InProgressStatus, "Progressing", "0 of 2 nodes are updated with B",
		},
		{
			"a node failed at what is wanted no more, and was told", poolAt("A"), []string{"a A>B Working"},
			kstatus.InProgressStatus, "Progressing", "on the way: a",
		},
		{
			"it can't be rendered", poolAt("B", rendersAs(degraded, "True", reasonTest, "MachineConfig/50-x: no such field")),
			[]string{"a B Done"}, kstatus.FailedStatus, "Degraded", "MachineConfig/50-x: no such field",
		},
		{
			"quarantined", poolAt("A"), []string{"a A>B RolledBack failed=B", "b A Done"},
			kstatus.FailedStatus, "Degraded", "B failed on node a",
		},
		{
			"misconfigured", poolAt("B", func(p *mcfgv1.MachineConfigPool) {
				p.Spec.MaxUnavailable = new(intstr.FromString("lots"))
			}), []string{"a B Done"}, kstatus.FailedStatus, "Degraded", "spec.maxUnavailable",
		},
		{
			"nothing rendered yet", poolAt("", func(p *mcfgv1.MachineConfigPool) { p.Spec.Configuration.Name = "" }),
			[]string{"b - -"}, kstatus.InProgressStatus, "Progressing", "no configuration yet",
		},
		{
			"nothing to render", poolAt("", func(p *mcfgv1.MachineConfigPool) { p.Spec.Configuration.Name = "" },
				rendersAs(pending, "True", api.NoMachineConfigs, "pool worker selects no MachineConfig")), nil,
			kstatus.InProgressStatus, "Progressing", "selects no MachineConfig",
		},
		{
			"about to be rendered", poolAt("B", rendersAs(pending, "True", api.Rendering, "something has changed")),
			[]string{"a B Done"}, kstatus.InProgressStatus, "Progressing", "something has changed",
		},
		{
			"about to be rendered, after what made none",
			poolAt("B", rendersAs(pending, "True", api.Rendering, "something has changed"),
				rendersAs(degraded, "True", reasonTest, "MachineConfig/50-x: no such field")),
			[]string{"a B Done"}, kstatus.InProgressStatus, "Progressing", "something has changed",
		},
		{
			"waits for a KubeletConfig", poolAt("B", rendersAs(pending, "True", "Unfinished", "KubeletConfig/x since noon")),
			[]string{"a B Done"}, kstatus.InProgressStatus, "Progressing", "KubeletConfig/x since noon",
		},
		{
			"a part was refused", poolAt("B", rendersAs(pending, "True", api.PartRefused, "KubeletConfig/x since noon")),
			[]string{"a B Done"}, kstatus.FailedStatus, "Degraded", "KubeletConfig/x since noon",
		},
		{
			"the render controller has not seen it", poolAt("B", with(api.RenderedGeneration, "6")), []string{"a B Done"},
			kstatus.InProgressStatus, "Progressing", "",
		},
		{
			"the render controller has seen it", poolAt("B", with(api.RenderedGeneration, "7")), []string{"a B Done"},
			kstatus.CurrentStatus, "Healthy", "updated with B",
		},
		{
			"drifted", poolAt("B"), []string{"a B Done drifted"}, kstatus.CurrentStatus, "Healthy", "updated with B",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := test.pool.DeepCopy()
			pool.Kind = "MachineConfigPool"
			pool.Status = status(pool, progress.NewPool(pool, nodes(t, test.nodes...)), t0)
			object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pool)
			if err != nil {
				t.Fatal(err)
			}
			got, err := kstatus.Compute(&unstructured.Unstructured{Object: object})
			if err != nil {
				t.Fatal(err)
			}
			inProgress := got.Status == kstatus.InProgressStatus || got.Status == kstatus.FailedStatus
			if got.Status != test.current || inProgress && !strings.Contains(got.Message, test.message) {
				t.Errorf("kstatus: %s: %s; want %s: %s", got.Status, got.Message, test.current, test.message)
			}
			health, message := argo(t, object)
			if health != test.argo || !strings.Contains(message, test.message) {
				t.Errorf("Argo CD: %s: %s; want %s: %s", health, message, test.argo, test.message)
			}
		})
	}
}

const reasonTest = "RenderFailed"

// A pool as the API server first has it, by the default of its definition.
func TestAPoolThatNobodyHasLookedAtIsNotCurrent(t *testing.T) {
	object := map[string]any{
		"kind": "MachineConfigPool", "metadata": map[string]any{"name": "new", "generation": int64(1)},
		"status": map[string]any{"observedGeneration": int64(-1)},
	}
	got, err := kstatus.Compute(&unstructured.Unstructured{Object: object})
	if err != nil || got.Status != kstatus.InProgressStatus {
		t.Errorf("%+v, %v", got, err)
	}
	if health, _ := argo(t, object); health != "Progressing" {
		t.Error(health)
	}
}

func TestWhatArgoReadsOfMirrors(t *testing.T) {
	mirrors := func(annotations map[string]any) map[string]any {
		return map[string]any{"kind": "ImageDigestMirrorSet", "metadata": map[string]any{"annotations": annotations}}
	}
	if health, _ := argo(t, mirrors(nil)); health != "Healthy" {
		t.Error(health)
	}
	health, message := argo(t, mirrors(map[string]any{api.UnmadeKey: `{"reason":"no such"}`}))
	if health != "Degraded" || !strings.Contains(message, "no such") {
		t.Error(health, message)
	}
}

func TestAGenerationCountsOnceBothControllersHaveSeenIt(t *testing.T) {
	for text, want := range map[string]int64{"": 7, "3": 3, "7": 7, "8": 7, "oops": 5} {
		pool := poolAt("B")
		pool.Status.ObservedGeneration = 5
		if text != "" {
			pool.Annotations = map[string]string{api.RenderedGeneration: text}
		}
		if got := observed(pool); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// argo asks the health check that docs/gitops.md has people give Argo CD, as Argo CD does.
func argo(t *testing.T, object map[string]any) (health, message string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/examples/gitops/argocd/argocd-cm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var settings corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &settings); err != nil {
		t.Fatal(err)
	}
	const of = "resource.customizations.health."
	script := settings.Data[of+"machineconfiguration.openshift.io_MachineConfigPool"]
	for _, kind := range []string{
		"machineconfiguration.openshift.io_KubeletConfig", "machineconfiguration.openshift.io_ContainerRuntimeConfig",
		"machineconfiguration.openshift.io_ControllerConfig", "operator.openshift.io_MachineConfiguration",
	} {
		if settings.Data[of+kind] != script {
			t.Errorf("%s is read in another way", kind)
		}
	}
	if object["kind"] == "ImageDigestMirrorSet" {
		script = settings.Data[of+"config.openshift.io_ImageDigestMirrorSet"]
	}
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", table(state, object))
	if err := state.DoString(script); err != nil {
		t.Fatal(err)
	}
	result, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns %v", state.Get(-1))
	}
	return result.RawGetString("status").String(), result.RawGetString("message").String()
}

func table(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		out := state.NewTable()
		for key, item := range v {
			out.RawSetString(key, table(state, item))
		}
		return out
	case []any:
		out := state.NewTable()
		for _, item := range v {
			out.Append(table(state, item))
		}
		return out
	case string:
		return lua.LString(v)
	case int64:
		return lua.LNumber(v)
	case bool:
		return lua.LBool(v)
	}
	return lua.LNil
}
