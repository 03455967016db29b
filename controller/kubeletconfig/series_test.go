// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"slices"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
)

const one = "99-worker-generated-kubelet"

// three is a pool with the first of three KubeletConfigs, or with more.
func three(t *testing.T, count int) *cluster {
	t.Helper()
	c := begin(t, "worker")
	c.whole("worker")
	for i, spec := range []string{`kubeletConfig: {maxPods: 60}`, `kubeletConfig: {podPidsLimit: 4096}`,
		`kubeletConfig: {registryBurst: 7}`}[:count] {
		c.add([]string{"a", "b", "c"}[i], "worker", spec)
	}
	for name := range c.settle().Objects {
		c.says(c.turn(), name, source.ReasonRendered)
	}
	return c
}

func (c *cluster) place(k *mcfgv1.KubeletConfig, suffix string) {
	k.Annotations = map[string]string{api.NameSuffix: suffix}
}

// stands is whose MachineConfigs are, in the order of these.
func (c *cluster) stands(want ...string) {
	c.t.Helper()
	var got []string
	for _, suffix := range []string{"", "-1", "-2", "-3", "-4", "-5", "-6", "-7", "-8", "-9"} {
		if mc := c.configs[one+suffix]; mc != nil && metav1.GetControllerOf(mc) != nil {
			got = append(got, metav1.GetControllerOf(mc).Name+suffix)
		}
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("there stand %q, want %q", got, want)
	}
}

func TestAWrongKubeletConfigStaysInThoseAboveIt(t *testing.T) {
	for what, wrong := range map[string]struct {
		reason, word string
		make         func(*cluster, *mcfgv1.KubeletConfig)
	}{
		"a place that is none": {source.ReasonOrder, `"x"`, func(c *cluster, k *mcfgv1.KubeletConfig) { c.place(k, "x") }},
		"a selector that is none": {source.ReasonSelector, "Like", func(_ *cluster, k *mcfgv1.KubeletConfig) {
			k.Spec.MachineConfigPoolSelector = &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}},
			}
		}},
		"a name that is taken": {source.ReasonForeign, one + "-5", func(c *cluster, k *mcfgv1.KubeletConfig) {
			c.bring(one+"-5", "master", nil)
			c.place(k, "5")
		}},
		"a place that is taken": {source.ReasonOrder, "KubeletConfig/z has it", func(c *cluster, k *mcfgv1.KubeletConfig) {
			c.place(c.add("z", "worker", `kubeletConfig: {maxPods: 60}`), "8")
			c.settle()
			c.place(k, "8")
		}},
	} {
		for count := 2; count <= 3; count++ {
			for i, name := range []string{"a", "b", "c"}[:count] {
				t.Run(what+", "+name+" of "+[]string{"two", "three"}[count-2], func(t *testing.T) {
					c := three(t, count)
					was := c.configs[one+[]string{"", "-1", "-2"}[i]]
					wrong.make(c, c.kubelets[i])
					// Its own edits wait with it; those of others do not, wherever they stand.
					c.set(c.kubelets[i], `kubeletConfig: {eventBurst: 5}`)
					other := (i + 1) % count
					c.set(c.kubelets[other], `kubeletConfig: {nodeStatusMaxImages: 9}`)
					d := c.turn()
					if len(d.Remove) > 0 {
						t.Errorf("%v are removed", names(d.Remove))
					}
					c.says(d, name, wrong.reason, wrong.word)
					c.says(c.settle(), []string{"a", "b", "c"}[other], source.ReasonRendered)
					want := document{
						"maxPods": int64(60), "podPidsLimit": int64(4096), "registryBurst": int64(7), "serializeImagePulls": true,
						"protectKernelDefaults": true, "fromTomorrow": int64(1), "nodeStatusMaxImages": int64(9),
						"evictionHard": document{"memory.available": "100Mi", "nodefs.available": "10%"},
					}
					key := []string{"maxPods", "podPidsLimit", "registryBurst"}
					if delete(want, key[other]); other == 0 {
						want["maxPods"] = int64(250)
					}
					if count == 2 {
						delete(want, "registryBurst")
					}
					if c.configs[one+"-8"] != nil {
						want["maxPods"] = int64(60) // of z
					}
					c.is(c.kubelet("worker", wholePath), want)
					is := c.configs[was.Name]
					if metav1.GetControllerOf(is).Name != name || is.Annotations[api.AcceptedKey] != was.Annotations[api.AcceptedKey] {
						t.Errorf("it stands for %v", is.Annotations)
					}
				})
			}
		}
	}
}

func TestWhatDoesNotFitAnyMoreLeavesThoseAboveItAlone(t *testing.T) {
	c := begin(t, "worker")
	c.whole("worker")
	c.add("below", "worker", `kubeletConfig: {eventBurst: 5}`)
	c.add("a", "worker", `kubeletConfig: {imageGCLowThresholdPercent: 70}`)
	c.add("b", "worker", `kubeletConfig: {podPidsLimit: 4096}`)
	c.settle()
	before := map[string]*mcfgv1.MachineConfig{one + "-1": c.configs[one+"-1"], one + "-2": c.configs[one+"-2"]}
	c.bring("01-worker-kubelet", "worker", map[string]string{
		wholePath: `{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1","imageGCHighThresholdPercent":65,` +
			`"imageGCLowThresholdPercent":40}`,
	})
	c.set(c.kubelets[2], `kubeletConfig: {podPidsLimit: 1024}`)
	c.add("c", "worker", `kubeletConfig: {registryBurst: 7}`)
	d := c.settle()
	c.says(d, "below", source.ReasonRendered)
	c.says(d, "a", source.ReasonInvalid, "imageGCLowThresholdPercent: 70")
	c.says(d, "b", source.ReasonBase, "KubeletConfig/a comes before it", "imageGCLowThresholdPercent: 70")
	c.says(d, "c", source.ReasonBase, "KubeletConfig/a comes before it")
	c.stands("below", "a-1", "b-2")
	for name, was := range before {
		if c.configs[name] != was {
			t.Errorf("%s was changed", name)
		}
	}
	c.set(c.kubelets[1], `kubeletConfig: {imageGCLowThresholdPercent: 50}`)
	c.says(c.settle(), "c", source.ReasonRendered)
	c.stands("below", "a-1", "b-2", "c-3")

	// What an older controller made does not say of what.
	mc := c.configs[one].DeepCopy()
	delete(mc.Annotations, api.AcceptedKey)
	c.configs[one] = mc
	c.set(c.kubelets[0], `kubeletConfig: {eventBurst: -5}`)
	d = c.settle()
	c.says(d, "below", source.ReasonInvalid, "eventBurst")
	c.says(d, "a", source.ReasonBase, "KubeletConfig/below comes before it", "does not say what it was made of")
	c.stands("below", "a-1", "b-2", "c-3")
}

func TestPlacesAreChangedInPlace(t *testing.T) {
	c := begin(t, "worker")
	a, b := c.add("a", "worker", `kubeletConfig: {maxPods: 60}`), c.add("b", "worker", `kubeletConfig: {maxPods: 70}`)
	c.settle()
	c.is(c.kubelet("worker", dropinPath), document{"maxPods": int64(70)})
	quiet := func(what string, wanted ...string) *source.Decision {
		t.Helper()
		d := c.turn()
		if len(d.Remove) > 0 || !slices.Equal(names(d.Write), wanted) {
			t.Errorf("%s: %v are written and %v removed", what, names(d.Write), names(d.Remove))
		}
		c.settle()
		return d
	}

	c.place(a, "1")
	c.says(quiet("one of two"), "a", source.ReasonOrder, `"1" is taken in MachineConfigPool/worker`, "KubeletConfig/b has it")
	c.stands("a", "b-1")
	c.place(b, "")
	d := quiet("both", one, one+"-1")
	c.says(d, "a", source.ReasonRendered)
	c.says(d, "b", source.ReasonRendered)
	c.stands("b", "a-1")
	c.is(c.kubelet("worker", dropinPath), document{"maxPods": int64(60)})
	if !slices.Equal(a.Finalizers, []string{one + "-1"}) || !slices.Equal(b.Finalizers, []string{one}) {
		t.Errorf("finalizers are %q and %q", a.Finalizers, b.Finalizers)
	}

	// Nobody comes to where another one stays.
	c.place(b, "x")
	c.place(a, "")
	d = quiet("where one stays")
	c.says(d, "a", source.ReasonOrder, "KubeletConfig/b has it")
	c.stands("b", "a-1")
	c.place(b, "")
	c.place(a, "1")
	quiet("back")

	// One that takes the place of one that is being deleted.
	b.DeletionTimestamp = &metav1.Time{Time: time.Unix(9, 0)}
	c.place(a, "")
	d = c.turn()
	c.says(d, "a", source.ReasonRendered)
	if !slices.Equal(names(d.Write), []string{one}) || !slices.Equal(names(d.Remove), []string{one + "-1"}) {
		t.Errorf("%v are written and %v removed", names(d.Write), names(d.Remove))
	}
	c.settle()
	c.stands("a")
	c.is(c.kubelet("worker", dropinPath), document{"maxPods": int64(60)})
	if len(b.Finalizers) > 0 {
		t.Errorf("finalizers are left: %q", b.Finalizers)
	}
}

func TestKubeletConfigsThatAreMadeAnewHaveWhatTheyHad(t *testing.T) {
	c := three(t, 3)
	for i, k := range c.kubelets {
		k.UID, k.Annotations, k.Finalizers = apitypes.UID("new-"+k.Name), nil, nil
		k.CreationTimestamp = metav1.Unix(int64(100-i), 0)
	}
	c.set(c.kubelets[1], `kubeletConfig: {podPidsLimit: lots}`)
	d := c.turn()
	if len(d.Remove) > 0 || len(d.Write) != 3 {
		t.Errorf("%v are written and %v removed", names(d.Write), names(d.Remove))
	}
	c.says(d, "b", source.ReasonInvalid, "podPidsLimit")
	c.settle()
	c.stands("a", "b-1", "c-2")
	if owner := metav1.GetControllerOf(c.configs[one]); owner.UID != "new-a" {
		t.Errorf("it is owned by %v", owner)
	}
	if got := c.kubelet("worker", wholePath); got["maxPods"] != int64(60) || got["podPidsLimit"] != int64(4096) {
		t.Errorf("%v", got)
	}
}

func TestOneThatComesToAPoolTakesNobodysPlace(t *testing.T) {
	c := begin(t, "worker", "infra")
	a, b := c.add("a", "worker", `kubeletConfig: {maxPods: 60}`), c.add("b", "infra", `kubeletConfig: {maxPods: 70}`)
	c.settle()
	c.pools[1].Labels["worker"] = ""
	c.set(a, `kubeletConfig: {maxPods: 61, podPidsLimit: 4096}`)
	c.set(b, `kubeletConfig: {maxPods: 71}`)
	d := c.settle()
	c.says(d, "a", source.ReasonOrder, "MachineConfigPool/infra", "KubeletConfig/b")
	c.says(d, "b", source.ReasonRendered)
	c.is(c.kubelet("worker", dropinPath), document{"maxPods": int64(61), "podPidsLimit": int64(4096)})
	c.is(c.kubelet("infra", dropinPath), document{"maxPods": int64(71), "podPidsLimit": int64(4096)})
	c.there("99-infra-generated-kubelet", one)
	c.place(b, "1")
	c.says(c.settle(), "a", source.ReasonRendered)
	c.there("99-infra-generated-kubelet", "99-infra-generated-kubelet-1", one)
}

func TestWhoHasTheLastPlaceIsNamed(t *testing.T) {
	c := three(t, 2)
	for c.kubelets[1].Annotations[api.NameSuffix] != "9" { // made anew by turns
		c.kubelets[0].DeletionTimestamp = &metav1.Time{Time: time.Unix(9, 0)}
		c.settle()
		c.kubelets = c.kubelets[1:]
		c.add(string(rune('c'+c.created)), "worker", `kubeletConfig: {maxPods: 80}`)
		c.settle()
	}
	last := c.kubelets[1]
	c.add("late", "worker", `kubeletConfig: {maxPods: 30}`)
	c.says(c.settle(), "late", source.ReasonOrder, "no place is left behind KubeletConfig/"+last.Name, "lower place")
	c.place(last, "1")
	c.says(c.turn(), last.Name, source.ReasonRendered)
	c.says(c.settle(), "late", source.ReasonRendered)
	if got := c.kubelet("worker", wholePath)["maxPods"]; got != int64(30) {
		t.Errorf("the later one does not win: %v", got)
	}
}

func TestWhatLostItsOwnersIsStillOurs(t *testing.T) {
	c := three(t, 2)
	strip := func(name string, owners ...metav1.OwnerReference) *mcfgv1.MachineConfig {
		mc := c.configs[name].DeepCopy()
		mc.OwnerReferences = owners
		c.configs[name] = mc
		return mc
	}
	strip(one)
	d := c.turn()
	c.says(d, "a", source.ReasonRendered)
	c.stands("a", "b-1")

	// A copy of it is somebody else's, and so is what somebody else controls.
	copied := strip(one).DeepCopy()
	copied.Name = "99-infra-generated-kubelet"
	c.configs[copied.Name] = copied
	c.settle()
	c.there(copied.Name, one, one+"-1")
	theirs := strip(one, metav1.OwnerReference{Kind: "Other", Name: "a", UID: "uid-a", Controller: new(true)})
	c.says(c.settle(), "a", source.ReasonForeign, one)
	delete(c.configs, theirs.Name)
	c.settle()

	// It goes with its object, even if nobody could say any more where that belonged.
	strip(one)
	c.place(c.kubelets[0], "x")
	c.kubelets[0].Spec.MachineConfigPoolSelector.MatchExpressions = []metav1.LabelSelectorRequirement{
		{Key: "a", Operator: "Like"},
	}
	c.kubelets[0].DeletionTimestamp = &metav1.Time{Time: time.Unix(9, 0)}
	c.settle()
	c.there(copied.Name, one+"-1")
	if left := c.kubelets[0].Finalizers; len(left) > 0 {
		t.Errorf("finalizers are left: %q", left)
	}
}

func TestEveryFileThatALaterMachineConfigReplacesIsTold(t *testing.T) {
	for what, test := range map[string]struct {
		whole      bool
		spec, path string
	}{
		"the whole, where drop-ins are written": {false, `kubeletConfig: {maxPods: 60}`, wholePath},
		"where to look for drop-ins":            {false, `kubeletConfig: {maxPods: 60}`, argsPath},
		"a drop-in":                             {false, `kubeletConfig: {maxPods: 60}`, dropinPath},
		"whether to size":                       {false, `autoSizingReserved: true`, sizingPath},
		"the log level":                         {true, `logLevel: 4`, logPath},
	} {
		t.Run(what, func(t *testing.T) {
			c := begin(t, "worker")
			if test.whole {
				c.whole("worker")
			}
			c.add("a", "worker", test.spec)
			c.says(c.settle(), "a", source.ReasonRendered)
			c.bring("99-worker-kubelet", "worker", map[string]string{test.path: base})
			c.says(c.settle(), "a", source.ReasonOverridden, "MachineConfig/99-worker-kubelet", test.path)
		})
	}
}
