// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/noderefit/noderefit/api"
)

// confinement is what the kernel holds a pod's process to: what its container and the pod around it say, by field.
type confinement map[string]any

// The agent alone goes without the runtime's profile of AppArmor. Where the kernel has rules for D-Bus, as Ubuntu's has,
// that profile refuses the host's D-Bus. On a node without AppArmor the field means nothing.
var confinements = map[string]confinement{
	"DaemonSet/" + api.Namespace + "/" + api.Daemon: {
		"runAsUser": float64(0), "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
		"capabilities":    map[string]any{"drop": []any{"ALL"}, "add": []any{"SYS_CHROOT"}},
		"seLinuxOptions":  map[string]any{"type": "spc_t"},
		"seccompProfile":  map[string]any{"type": "RuntimeDefault"},
		"appArmorProfile": map[string]any{"type": "Unconfined"},
		"hostNetwork":     true,
	},
	"Deployment/" + api.Namespace + "/" + api.Controller: {
		"runAsUser": float64(65532), "runAsGroup": float64(65532), "runAsNonRoot": true,
		"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
		"capabilities":   map[string]any{"drop": []any{"ALL"}},
		"seccompProfile": map[string]any{"type": "RuntimeDefault"},
	},
	"DaemonSet/" + api.Namespace + "/" + api.Server: {
		"runAsUser": float64(65532), "runAsGroup": float64(65532), "runAsNonRoot": true, "fsGroup": float64(65532),
		"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
		"capabilities":   map[string]any{"drop": []any{"ALL"}},
		"seccompProfile": map[string]any{"type": "RuntimeDefault"},
	},
}

// TestPodsAreConfinedAsTheyAreMeantTo has the chart alone: kustomize makes the same objects.
func TestPodsAreConfinedAsTheyAreMeantTo(t *testing.T) {
	inputs(t)
	pods := 0
	for key, object := range objects(t, helm(t, "template", "noderefit", chart, "--set",
		"server.enabled=true,image.registry=registry.example.com/noderefit")) {
		template, found, err := unstructured.NestedMap(object, "spec", "template")
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			continue
		}
		pods++
		if diff := cmp.Diff(confinements[key], confined(t, template)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
		annotations, _, err := unstructured.NestedMap(template, "metadata", "annotations")
		if err != nil {
			t.Fatal(err)
		}
		for name := range annotations {
			if strings.HasPrefix(name, "container.apparmor.security.beta.kubernetes.io/") {
				t.Errorf("%s has the annotation %s besides the field", key, name)
			}
		}
	}
	if pods != len(confinements) {
		t.Errorf("%d kinds of pods are installed, and %d are known", pods, len(confinements))
	}
}

// confined returns the confinement that the template of a pod with one container asks for.
func confined(t *testing.T, template map[string]any) confinement {
	t.Helper()
	pod, _, err := unstructured.NestedMap(template, "spec")
	if err != nil {
		t.Fatal(err)
	}
	containers, _ := pod["containers"].([]any)
	if len(containers) != 1 || pod["initContainers"] != nil {
		t.Fatalf("the pod has other containers than one: %v, %v", containers, pod["initContainers"])
	}
	out := confinement{}
	for _, name := range []string{"hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace"} {
		if value := pod[name]; value != nil {
			out[name] = value
		}
	}
	// What a container says counts, where both say something.
	for _, from := range []any{pod, containers[0]} {
		context, _ := from.(map[string]any)["securityContext"].(map[string]any)
		maps.Copy(out, context)
	}
	return out
}
