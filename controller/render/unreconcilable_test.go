// SPDX-License-Identifier: Apache-2.0

package render

import (
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
)

func TestTheCulpritIsNamedWithTheField(t *testing.T) {
	plain, hard := document(t, "50-chrony", chrony), document(t, "60-disks", disks)
	again := document(t, "70-disks", wiped)
	type docs = []*mcfgv1.MachineConfig
	tests := map[string]struct {
		from, to docs
		want     []string
	}{
		"added":   {docs{plain}, docs{plain, hard}, []string{"MachineConfig/60-disks: storage.disks: "}},
		"changed": {docs{plain, hard}, docs{plain, again}, []string{"MachineConfig/70-disks: storage.disks: "}},
		"removed": {docs{plain, hard}, docs{plain}, []string{"MachineConfig/60-disks, now gone: storage.disks: "}},
		"two fields of two documents": {
			docs{plain},
			docs{plain, hard, document(t, "70-fips", "", fips)},
			[]string{"MachineConfig/60-disks: storage.disks: ", "MachineConfig/70-fips: fips: "},
		},
		"both of two that ask for the same": {
			docs{plain},
			docs{plain, document(t, "60-fips", "", fips), document(t, "70-fips", "", fips)},
			[]string{"MachineConfig/60-fips, MachineConfig/70-fips: fips: "},
		},
		"a path of the OS image": {
			docs{plain}, docs{plain, document(t, "60-image", inImage)},
			[]string{"MachineConfig/60-image: storage.files: file /usr/lib/a.conf: /usr is part of the OS image"},
		},
		"the agent's own path": {
			docs{plain}, docs{plain, document(t, "60-own", ofAgent)},
			[]string{"MachineConfig/60-own: storage.files: file /var/lib/machine-config-daemon/boot.json: /var/lib/machine-config-daemon belongs to"},
		},
		"what hosts without an OS image have": {
			docs{plain, document(t, "60-image", inImage)}, docs{document(t, "60-image", inImage)}, nil,
		},
		"nothing": {docs{plain}, docs{plain, document(t, "60-other", "")}, nil},
	}
	for what, test := range tests {
		t.Run(what, func(t *testing.T) {
			from, to := render(t, test.from...), render(t, test.to...)
			to.placeOn(plan.ImageThere)
			unreached, err := unreachable([]*machineconfig.Config{from.config}, to.config, nil, plan.ImageThere)
			if err != nil {
				t.Fatal(err)
			}
			if len(test.want) == 0 {
				if len(unreached) > 0 {
					t.Errorf("got %v", unreached)
				}
				return
			}
			pool := workers(from.config.Name)
			pool.Spec.Configuration.Source = from.references()
			got := blame(pool, from.config, to, nil, unreached)
			for _, want := range append(test.want, "can't be reached from "+from.config.Name) {
				if !strings.Contains(got.message, want) {
					t.Errorf("got %s, want %s", got.message, want)
				}
			}
			if strings.Contains(got.message, "50-chrony") {
				t.Errorf("blames what asks for nothing: %s", got.message)
			}
		})
	}
}

const (
	inImage = `"storage":{"files":[{"path":"/usr/lib/a.conf","contents":{"source":"data:,a"}}]}`
	ofAgent = `"storage":{"files":[{"path":"/var/lib/machine-config-daemon/boot.json","contents":{"source":"data:,a"}}]}`
)

// Nothing is compared for the first configuration of a pool, and a path that no host can have is refused all the same.
func TestTheFirstConfigurationHasNoPathThatNoHostCanHave(t *testing.T) {
	for _, contents := range []string{inImage, ofAgent} {
		to := render(t, document(t, "50-a", contents))
		to.placeOn(plan.ImageThere)
		why, err := (&reconciler{}).unreconcilable(t.Context(), workers(""), to)
		if err != nil || why == nil || why.reason != reasonUnreconcilable ||
			!strings.HasPrefix(why.message, "no node can have it: MachineConfig/50-a: storage.files: file /") {
			t.Errorf("%s: %+v, %v", contents, why, err)
		}
	}
	if why, err := (&reconciler{}).unreconcilable(t.Context(), workers(""), render(t, document(t, "50-a", chrony))); err != nil || why != nil {
		t.Errorf("%+v, %v", why, err)
	}
}

// A path below /usr is refused where a node of the pool is known to boot an image, and a warning where nothing is known.
func TestAPathOfTheOSImageIsRefusedForNodesThatHaveOne(t *testing.T) {
	pool := func(name string, labels map[string]string) mcfgv1.MachineConfigPool {
		return mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: mcfgv1.MachineConfigPoolSpec{NodeSelector: &metav1.LabelSelector{MatchLabels: labels}}}
	}
	pools := []mcfgv1.MachineConfigPool{pool("worker", map[string]string{"w": ""}), pool("infra", map[string]string{"i": ""})}
	node := func(name, os string, labels ...string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
		for _, l := range labels {
			n.Labels[l] = ""
		}
		if os != "" {
			n.Annotations[api.OSKey] = os
		}
		return n
	}
	tests := map[string]struct {
		nodes           []corev1.Node
		refused, warned bool
	}{
		"no nodes":            {nil, false, true},
		"an image":            {[]corev1.Node{node("a", "none", "w"), node("b", "ostree", "w")}, true, false},
		"no image":            {[]corev1.Node{node("a", "none", "w")}, false, false},
		"nothing is known":    {[]corev1.Node{node("a", "none", "w"), node("b", "", "w")}, false, true},
		"another pool's node": {[]corev1.Node{node("a", "none", "w"), node("b", "bootc", "w", "i")}, false, false},
	}
	for what, test := range tests {
		to := render(t, document(t, "50-a", chrony), document(t, "60-a", inImage))
		to.placeOn(imageOf("worker", pools, test.nodes))
		why, err := (&reconciler{}).unreconcilable(t.Context(), workers(""), to)
		if err != nil || why != nil != test.refused {
			t.Errorf("%s: %+v, %v", what, why, err)
		}
		c, _ := doubted(input{pool: workers(""), rendering: to})
		const says = "MachineConfig/60-a: storage.files: file /usr/lib/a.conf: /usr is part of the OS image"
		if strings.Contains(c.Message, says) != test.warned || strings.Count(c.Message, "/usr/lib/a.conf") > 1 {
			t.Errorf("%s: %s", what, c.Message)
		}
	}
}

func TestOneWayThereIsEnough(t *testing.T) {
	a, b := render(t, document(t, "50-a", chrony)), render(t, document(t, "50-a", disks))
	got, err := unreachable([]*machineconfig.Config{b.config, a.config}, a.config, nil, plan.ImageThere)
	if err != nil || len(got) > 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestAPolicyCanAllowWhatIsOtherwiseOutOfReach(t *testing.T) {
	policy, err := plan.ParsePolicy([]byte(`{"apiVersion":"operator.openshift.io/v1","kind":"MachineConfiguration",
		"metadata":{"name":"cluster"},"spec":{"irreconcilableValidationOverrides":{"storage":["Disks"]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	a, b := render(t, document(t, "50-a", chrony)), render(t, document(t, "50-a", disks))
	got, err := unreachable([]*machineconfig.Config{a.config}, b.config, policy, plan.ImageThere)
	if err != nil || len(got) > 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestGoingBackToWhatThePoolStillHasIsNeverOutOfReach(t *testing.T) {
	pool := workers("rendered-worker-b")
	pool.Status.Configuration.Name = "rendered-worker-a"
	tests := map[string][]string{
		"rendered-worker-a": nil,
		"rendered-worker-c": {"rendered-worker-b", "rendered-worker-a"},
	}
	for next, want := range tests {
		if got := present(pool, next); !slices.Equal(got, want) {
			t.Errorf("to %s from %v, want %v", next, got, want)
		}
	}
}
