// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

func pool(name string, roles ...string) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: api.Role, Operator: metav1.LabelSelectorOpIn, Values: roles},
	}}
	return p
}

func config(t *testing.T, name, role, contents string) *mcfgv1.MachineConfig {
	t.Helper()
	raw, err := Ignition([]File{{"/etc/x.conf", []byte(contents)}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return Config(role, name, raw)
}

func TestWhatLiesBeneathIsOfLowerPrecedenceAndNotOfTheSameMaking(t *testing.T) {
	made := func(mc *mcfgv1.MachineConfig) *mcfgv1.MachineConfig {
		mc.Annotations = map[string]string{api.GeneratedBy: "v1"}
		return mc
	}
	for _, test := range []struct {
		what              string
		pool              *mcfgv1.MachineConfigPool
		configs           []*mcfgv1.MachineConfig
		beneath, replaces string
	}{
		{"nothing", pool("worker", "worker"), nil, "", ""},
		{"the higher of two that are lower", pool("worker", "worker"), []*mcfgv1.MachineConfig{
			config(t, "60-b", "worker", "b"), config(t, "50-a", "worker", "a"), config(t, "50-m", "master", "m"),
		}, "b", ""},
		{"one that sorts behind", pool("worker", "worker"), []*mcfgv1.MachineConfig{
			config(t, "50-a", "worker", "a"), config(t, "99-worker-x", "worker", "x"),
		}, "a", "99-worker-x"},
		{"that of a custom pool is above what is made for workers, whatever its name",
			pool("infra", "worker", "infra"), []*mcfgv1.MachineConfig{
				config(t, "99-zz", "worker", "w"), config(t, "50-i", "infra", "i"),
			}, "i", ""},
		{"what was made for the workers does not count for a custom pool",
			pool("infra", "worker", "infra"), []*mcfgv1.MachineConfig{
				config(t, "50-a", "worker", "a"), made(config(t, "99-worker-generated-x", "worker", "made")),
				made(config(t, "99-infra-generated-x-1", "infra", "made")),
			}, "a", ""},
		{"what somebody else calls so does", pool("worker", "worker"), []*mcfgv1.MachineConfig{
			config(t, "99-a-generated-x", "worker", "a"),
		}, "a", ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			name := Name(test.pool.Name, "x", "")
			around, err := AroundOf(test.pool, test.configs, name, func(mc *mcfgv1.MachineConfig) bool {
				return mc.Annotations[api.GeneratedBy] != "" && IsNamed(mc.Name, "x")
			})
			if err != nil {
				t.Fatal(err)
			}
			c, err := around.Beneath(test.pool.Name)
			if err != nil {
				t.Fatal(err)
			}
			var replaces string
			if err := around.Replaced("/etc/y.conf", "/etc/x.conf"); err != nil {
				replaces = err.Error()
			}
			if beneath := string(Contents(c, "/etc/x.conf")); beneath != test.beneath ||
				(replaces == "") != (test.replaces == "") || !strings.Contains(replaces, test.replaces) {
				t.Errorf("got %q beneath, replaced by %q; want %q, %q", beneath, replaces, test.beneath, test.replaces)
			}
			if by := around.Bringing("/etc/x.conf"); (by == "") != (test.beneath == "") {
				t.Errorf("it is brought by %q", by)
			}
		})
	}
}

func TestAMachineConfigOfFilesIsReadAsWhatItWasMadeOf(t *testing.T) {
	contents := "a \"b\"\n%#?é\x00\n"
	raw, err := Ignition([]File{{"/etc/y", nil}, {"/etc/x", []byte(contents)}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	mc := Config("worker", Name("worker", "x", "3"), raw)
	c, err := machineconfig.Parse(mc)
	if err != nil {
		t.Fatal(err)
	}
	if mc.Name != "99-worker-generated-x-3" || len(c.Files) != 2 || string(c.Files[0].Contents) != contents {
		t.Errorf("got %s with %v", mc.Name, c.Files)
	}
}

func TestTheSameSpecIsNotWrittenAnew(t *testing.T) {
	one, other := config(t, "50-a", "worker", "a"), config(t, "50-a", "worker", "a")
	other.Spec.Config.Raw = []byte(strings.Replace(string(one.Spec.Config.Raw), "{", "{ ", 1))
	other.Spec.KernelArguments = []string{}
	if !SameSpec(&one.Spec, &other.Spec) {
		t.Error("a spelling counts as a change")
	}
	other.Spec.KernelArguments = []string{"quiet"}
	if SameSpec(&one.Spec, &other.Spec) {
		t.Error("a kernel argument counts as nothing")
	}
	if SameSpec(&one.Spec, &config(t, "50-a", "worker", "b").Spec) {
		t.Error("contents count as nothing")
	}
}

func TestOntoKeepsWhatIsOthersAndHasOneOwnerThatControls(t *testing.T) {
	owner := func(kind, uid string, controls bool) metav1.OwnerReference {
		return metav1.OwnerReference{Kind: kind, Name: "a", UID: types.UID(uid), Controller: &controls}
	}
	is, made := config(t, "99-x", "worker", "a"), config(t, "99-x", "worker", "a")
	is.Labels["theirs"], is.Annotations, is.ResourceVersion = "l", map[string]string{"theirs": "a", api.GeneratedBy: "v1"}, "7"
	is.OwnerReferences = []metav1.OwnerReference{owner("Other", "1", false), owner("KubeletConfig", "old", true)}
	made.Annotations = map[string]string{api.GeneratedBy: "v2"}
	made.OwnerReferences = []metav1.OwnerReference{owner("KubeletConfig", "new", true)}
	to := Onto(is, made)
	if to.Labels["theirs"] != "l" || to.Annotations["theirs"] != "a" || to.Annotations[api.GeneratedBy] != "v2" ||
		to.ResourceVersion != "7" || len(to.OwnerReferences) != 2 || metav1.GetControllerOf(to).UID != "new" || Same(is, to) {
		t.Errorf("got %+v", to.ObjectMeta)
	}
	if again := Onto(to, made); !Same(to, again) {
		t.Errorf("it is not over: %+v", again.ObjectMeta)
	}
	if Same(nil, Onto(nil, made)) {
		t.Error("what is not there needs no writing")
	}
}

func TestWhatTheAPIServerQuotesIsNotTold(t *testing.T) {
	kind := schema.GroupKind{Group: mcfgv1.GroupName, Kind: "MachineConfig"}
	invalid := apierrors.NewInvalid(kind, "99-x", field.ErrorList{field.Invalid(field.NewPath("spec", "config"), "SECRET", "no")})
	if got := Untold(fmt.Errorf("changing MachineConfig/99-x: %w", invalid)); got !=
		"MachineConfig/99-x is refused: invalid fields spec.config" {
		t.Error(got)
	}
	if got := Untold(errors.New("a\nb")); got != "a; b" {
		t.Error(got)
	}
}

func TestWhatIsBehindForLongIsAnErrorWithABackOff(t *testing.T) {
	var found error = apierrors.NewNotFound(schema.GroupResource{Resource: "kubeletconfigs"}, "a")
	r := &reconciler{Controller: Controller{Look: func(context.Context, func(client.Object) bool) error {
		return fmt.Errorf("setting the status: %w", found)
	}}}
	for range 2 {
		for turn := range behindAtMost {
			if again, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil || again.RequeueAfter != debounce {
				t.Fatalf("turn %d: %v, %v", turn, again, err)
			}
		}
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err == nil || !errors.Is(err, found) {
			t.Fatalf("it goes on for good: %v", err)
		}
		was := found
		found = errors.New("another one")
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, found) {
			t.Fatal(err)
		}
		found = was
	}
}

func TestOneThatIsAboutToGoSaysSoWhereOthersHoldIt(t *testing.T) {
	c := SeriesController[*mcfgv1.KubeletConfig, mcfgv1.KubeletConfigSpec]{}
	c.What = "kubelet"
	for _, test := range []struct {
		going      bool
		finalizers []string
		ends       bool
	}{
		{false, nil, false},
		{false, []string{"99-a-generated-kubelet"}, false},
		{true, nil, true},
		{true, []string{"99-a-generated-kubelet", "theirs"}, true},
		{true, []string{"theirs"}, false},
	} {
		o := &mcfgv1.KubeletConfig{ObjectMeta: metav1.ObjectMeta{Finalizers: test.finalizers}}
		if test.going {
			o.DeletionTimestamp = new(metav1.Now())
		}
		if c.ends(o) != test.ends {
			t.Errorf("%+v", test)
		}
	}
}

// The condition that upstream's readers look at is the last; kstatus knows Stalled.
func TestConditionsSayItToEveryReader(t *testing.T) {
	v := &Verdict{}
	good := v.Conditions()
	v.say(ReasonInvalid, "spec.logLevel: 11 is not between 0 and 10")
	v.say(ReasonOverridden, "b")
	bad := v.Conditions()
	v = &Verdict{}
	v.wait(ReasonSelector, "no pool")
	waits := v.Conditions()
	for _, failed := range []*[]metav1.Condition{&bad, &waits} {
		if first := (*failed)[0]; first.Type != "Failure" || first.Status != "True" || first.Message != (*failed)[1].Message {
			t.Errorf("%+v", first)
		}
		*failed = (*failed)[1:]
	}
	for i, kind := range []string{"Success", "Reconciling", "Stalled", "Accepted"} {
		abnormal := kind == api.Stalled || kind == api.Reconciling
		if waits[i].Type != kind || (waits[i].Status == "True") != (kind == api.Reconciling) {
			t.Errorf("%+v", waits[i])
		}
		if good[i].Type != kind || (good[i].Status == "True") == abnormal ||
			bad[i].Type != kind || (bad[i].Status == "True") != (kind == api.Stalled) ||
			bad[i].Reason != ReasonInvalid || bad[i].Message != "spec.logLevel: 11 is not between 0 and 10; b" {
			t.Errorf("%+v, %+v", good[i], bad[i])
		}
	}
}
