// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apitypes "k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
)

// cluster is a world that remembers what was decided, as the API server would.
type cluster struct {
	t        *testing.T
	pools    []*mcfgv1.MachineConfigPool
	kubelets []*mcfgv1.KubeletConfig
	configs  map[string]*mcfgv1.MachineConfig
	created  int
}

func begin(t *testing.T, pools ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, configs: map[string]*mcfgv1.MachineConfig{}}
	for _, name := range pools {
		roles := []string{name}
		if name != api.PoolWorker && !controlPlane(name) {
			roles = append(roles, api.PoolWorker)
		}
		p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{name: ""}}}
		p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: api.Role, Operator: metav1.LabelSelectorOpIn, Values: roles},
		}}
		c.pools = append(c.pools, p)
	}
	return c
}

// add makes a KubeletConfig for pools that have a label; spec is YAML.
func (c *cluster) add(name, label, spec string) *mcfgv1.KubeletConfig {
	c.t.Helper()
	c.created++
	k := &mcfgv1.KubeletConfig{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: apitypes.UID("uid-" + name), Generation: 1, CreationTimestamp: metav1.Unix(int64(c.created), 0),
	}}
	c.set(k, spec)
	k.Spec.MachineConfigPoolSelector = &metav1.LabelSelector{MatchLabels: map[string]string{label: ""}}
	c.kubelets = append(c.kubelets, k)
	return k
}

// set changes all of a spec but the selector.
func (c *cluster) set(k *mcfgv1.KubeletConfig, spec string) {
	c.t.Helper()
	selector := k.Spec.MachineConfigPoolSelector
	k.Spec = mcfgv1.KubeletConfigSpec{}
	if err := yaml.UnmarshalStrict([]byte(spec), &k.Spec); err != nil {
		c.t.Fatal(err)
	}
	k.Spec.MachineConfigPoolSelector = selector
}

// bring adds a MachineConfig with files.
func (c *cluster) bring(name, role string, files map[string]string) *mcfgv1.MachineConfig {
	c.t.Helper()
	var list []source.File
	for path, text := range files {
		list = append(list, source.File{Path: path, Contents: []byte(text)})
	}
	raw, err := source.Ignition(list, nil, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	mc := source.Config(role, name, raw)
	c.configs[name] = mc
	return mc
}

const base = `{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1","maxPods":250,` +
	`"serializeImagePulls":true,"protectKernelDefaults":true,` +
	`"evictionHard":{"memory.available":"100Mi","nodefs.available":"10%"},"fromTomorrow":1}`

func (c *cluster) whole(role string) *mcfgv1.MachineConfig {
	c.t.Helper()
	return c.bring("01-"+role+"-kubelet", role, map[string]string{wholePath: base})
}

// turn decides and does it, and says whether there was anything to do.
func (c *cluster) turn() *source.Decision {
	c.t.Helper()
	w := &source.World{Pools: c.pools}
	for _, name := range slices.Sorted(maps.Keys(c.configs)) {
		w.Configs = append(w.Configs, c.configs[name])
	}
	d := Series.Decide(w, c.kubelets, "v1")
	for _, mc := range d.Write {
		c.configs[mc.Name] = mc
	}
	for _, mc := range d.Remove {
		delete(c.configs, mc.Name)
	}
	for _, v := range d.Objects {
		if _, said := v.Object.GetAnnotations()[api.NameSuffix]; !said && v.Number >= 0 {
			v.Object.SetAnnotations(map[string]string{api.NameSuffix: source.SuffixOf(v.Number)})
		}
		v.Object.SetFinalizers(slices.Sorted(maps.Keys(v.Configs)))
	}
	return d
}

// settle turns once, and once more to see that nothing is left to do.
func (c *cluster) settle() *source.Decision {
	c.t.Helper()
	d := c.turn()
	if again := c.turn(); len(again.Write)+len(again.Remove) > 0 {
		c.t.Fatalf("it is not over: %v %v", names(again.Write), names(again.Remove))
	}
	return d
}

func names(mcs []*mcfgv1.MachineConfig) (out []string) {
	for _, mc := range mcs {
		out = append(out, mc.Name)
	}
	return out
}

// files are those of what a pool is rendered to.
func (c *cluster) files(pool string) map[string]string {
	c.t.Helper()
	i := slices.IndexFunc(c.pools, func(p *mcfgv1.MachineConfigPool) bool { return p.Name == pool })
	docs := &machineconfig.Documents{Pools: []*machineconfig.PoolDocument{{Object: c.pools[i]}}}
	for _, mc := range c.configs {
		docs.Configs = append(docs.Configs, &machineconfig.Document{Object: mc})
	}
	selected, err := machineconfig.Select(pool, docs)
	if err != nil {
		c.t.Fatal(err)
	}
	merged, _, err := machineconfig.Merge(pool, selected, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range merged.Files {
		out[f.Path] = string(f.Contents)
	}
	for _, u := range merged.Units {
		out[u.Name] = u.Contents
	}
	for _, l := range merged.Links {
		out[l.Path] = "-> " + l.Target
	}
	return out
}

// kubelet is the kubelet's configuration in what a pool is rendered to, without what every one has.
func (c *cluster) kubelet(pool, path string) document {
	c.t.Helper()
	doc, err := parse([]byte(c.files(pool)[path]))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := ofKind(doc, false); err != nil {
		c.t.Error(err)
	}
	delete(doc, "kind")
	delete(doc, "apiVersion")
	return doc
}

func (c *cluster) is(got, want document) {
	c.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("(-want +got)\n%s", diff)
	}
}

// says holds the object to one problem, or none without words.
func (c *cluster) says(d *source.Decision, name, reason string, words ...string) {
	c.t.Helper()
	conditions := d.Objects[name].Conditions()
	last := conditions[len(conditions)-1]
	if good := len(words) == 0; last.Reason != reason || good != (last.Status == "True") {
		c.t.Errorf("%s: %+v, want %s %q", name, last, reason, words)
	}
	for _, word := range words {
		if !strings.Contains(last.Message, word) {
			c.t.Errorf("%s: %q does not say %q", name, last.Message, word)
		}
	}
}

func (c *cluster) there(want ...string) {
	c.t.Helper()
	var got []string
	for name := range c.configs {
		if source.IsNamed(name, Series.What) {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		c.t.Errorf("there is %q, want %q", got, want)
	}
}

func TestFalseAndZeroOverrideWhatThePoolHas(t *testing.T) {
	c := begin(t, "worker")
	c.whole("worker")
	c.add("small", "worker", `kubeletConfig: {protectKernelDefaults: false, serializeImagePulls: false,
		registryPullQPS: 0, evictionHard: {memory.available: "0"}, systemReservedCgroup: "", allowedUnsafeSysctls: []}`)
	c.says(c.settle(), "small", source.ReasonRendered)
	c.is(c.kubelet("worker", wholePath), document{
		"maxPods": int64(250), "protectKernelDefaults": false, "serializeImagePulls": false, "registryPullQPS": int64(0),
		"systemReservedCgroup": "", "allowedUnsafeSysctls": []any{},
		"evictionHard": document{"memory.available": "0", "nodefs.available": "10%"},
		"fromTomorrow": int64(1), // what MachineConfigs bring for a later kubelet survives
	})
	mc := c.configs["99-worker-generated-kubelet"]
	owner := metav1.GetControllerOf(mc)
	if owner == nil || owner.UID != "uid-small" || mc.Annotations[api.GeneratedBy] != "v1" {
		t.Errorf("%+v", mc.ObjectMeta)
	}
}

func TestSeveralKubeletConfigsOfAPoolMergeAndTheLaterOneWins(t *testing.T) {
	c := begin(t, "worker")
	c.whole("worker")
	c.add("b-first", "worker", `kubeletConfig: {maxPods: 100, podPidsLimit: 4096, evictionHard: {memory.available: 1Gi}}`)
	c.add("a-second", "worker", `{kubeletConfig: {maxPods: 50, evictionHard: {pid.available: 5%}}, logLevel: 4}`)
	c.add("c-third", "worker", `kubeletConfig: {registryBurst: 7}`)
	c.settle()
	c.there("99-worker-generated-kubelet", "99-worker-generated-kubelet-1", "99-worker-generated-kubelet-2")
	want := document{
		"maxPods": int64(50), "podPidsLimit": int64(4096), "registryBurst": int64(7), "serializeImagePulls": true,
		"protectKernelDefaults": true, "fromTomorrow": int64(1), "logging": document{"verbosity": int64(4)},
		"evictionHard": document{"memory.available": "1Gi", "nodefs.available": "10%", "pid.available": "5%"},
	}
	c.is(c.kubelet("worker", wholePath), want)
	if got := c.files("worker")[logPath]; got != "[Service]\nEnvironment=\"KUBELET_LOG_LEVEL=4\"\n" {
		t.Errorf("the log level is %q", got)
	}

	// What comes and goes changes nobody's place, and what the first one says reaches the last one's file.
	c.kubelets[1].DeletionTimestamp = &metav1.Time{Time: time.Unix(9, 0)}
	c.set(c.kubelets[0], `kubeletConfig: {podPidsLimit: 1024}`)
	c.settle()
	c.there("99-worker-generated-kubelet", "99-worker-generated-kubelet-2")
	if got := c.kubelets[1].Finalizers; len(got) > 0 {
		t.Errorf("finalizers are left: %q", got)
	}
	c.kubelets = slices.Delete(c.kubelets, 1, 2)
	c.add("d-fourth", "worker", `kubeletConfig: {registryBurst: 8}`)
	c.settle()
	c.there("99-worker-generated-kubelet", "99-worker-generated-kubelet-2", "99-worker-generated-kubelet-3")
	delete(want, "logging")
	want["podPidsLimit"], want["maxPods"], want["registryBurst"] = int64(1024), int64(250), int64(8)
	want["evictionHard"] = document{"memory.available": "100Mi", "nodefs.available": "10%"}
	c.is(c.kubelet("worker", wholePath), want)
}

func TestTheAnnotationSaysWhereAKubeletConfigStands(t *testing.T) {
	c := begin(t, "worker", "infra")
	place := func(name, suffix string) *mcfgv1.KubeletConfig {
		k := c.add(name, "worker", `kubeletConfig: {maxPods: 10}`)
		k.Annotations = map[string]string{api.NameSuffix: suffix}
		return k
	}
	place("last", "9")
	first := place("first", "")
	first.Spec.KubeletConfig.Raw = []byte(`{"maxPods":20}`)
	twice, wrong := place("twice", "9"), place("wrong", "10")
	c.add("late", "worker", `kubeletConfig: {maxPods: 30}`)
	c.add("elsewhere", "infra", `kubeletConfig: {maxPods: 40}`)
	d := c.settle()
	c.there("99-infra-generated-kubelet", "99-worker-generated-kubelet", "99-worker-generated-kubelet-9")
	c.is(c.kubelet("worker", dropinPath), document{"maxPods": int64(10)})
	c.says(d, "last", source.ReasonRendered)
	c.says(d, "first", source.ReasonRendered)
	c.says(d, "elsewhere", source.ReasonRendered)
	c.says(d, "twice", source.ReasonOrder, api.NameSuffix, "KubeletConfig/last")
	c.says(d, "wrong", source.ReasonOrder, api.NameSuffix, `"10"`)
	c.says(d, "late", source.ReasonOrder, "no place is left")

	twice.Annotations[api.NameSuffix], wrong.Annotations[api.NameSuffix] = "2", "3"
	c.settle()
	c.there("99-infra-generated-kubelet", "99-worker-generated-kubelet", "99-worker-generated-kubelet-2",
		"99-worker-generated-kubelet-3", "99-worker-generated-kubelet-9")
}

func TestAWrongKubeletConfigKeepsWhatItWasAndHoldsNothingUp(t *testing.T) {
	c := begin(t, "worker")
	c.whole("worker")
	c.add("first", "worker", `kubeletConfig: {maxPods: 100}`)
	second := c.add("second", "worker", `{kubeletConfig: {podPidsLimit: 4096}, logLevel: 5}`)
	c.settle()
	c.set(second, `kubeletConfig: {podPidsLimit: lots, maxPodz: 5}`)
	c.set(c.kubelets[0], `kubeletConfig: {maxPods: 90}`)
	d := c.settle()
	c.says(d, "first", source.ReasonRendered)
	c.says(d, "second", source.ReasonInvalid, "spec.kubeletConfig: podPidsLimit: must be of type int64 and is a string",
		`spec.kubeletConfig: unknown field "maxPodz"`)
	got := c.kubelet("worker", wholePath)
	if got["maxPods"] != int64(90) || got["podPidsLimit"] != int64(4096) || at(got, "logging.verbosity") != int64(5) {
		t.Errorf("%v", got)
	}

	// One that was never right has nothing.
	c.add("third", "worker", `kubeletConfig: {maxPods: -1}`)
	c.says(c.settle(), "third", source.ReasonInvalid, "maxPods: -1 is less than 0")
	c.there("99-worker-generated-kubelet", "99-worker-generated-kubelet-1")
}

func TestPoolsAndSelectorsCanChange(t *testing.T) {
	c := begin(t, "worker", "infra", "master")
	k := c.add("both", "worker", `kubeletConfig: {maxPods: 100}`)
	c.pools[2].Labels["worker"] = ""
	c.says(c.settle(), "both", source.ReasonRendered)
	c.there("99-master-generated-kubelet", "99-worker-generated-kubelet")
	if want := []string{"99-master-generated-kubelet", "99-worker-generated-kubelet"}; !slices.Equal(k.Finalizers, want) {
		t.Errorf("finalizers are %q", k.Finalizers)
	}

	// A custom pool has what all workers have.
	c.is(c.kubelet("infra", dropinPath), document{"maxPods": int64(100)})
	c.add("infra", "infra", `kubeletConfig: {podPidsLimit: 4096}`)
	c.settle()
	c.is(c.kubelet("infra", dropinPath), document{"maxPods": int64(100), "podPidsLimit": int64(4096)})
	c.set(k, `kubeletConfig: {maxPods: 80}`)
	c.settle() // in one turn
	c.is(c.kubelet("infra", dropinPath), document{"maxPods": int64(80), "podPidsLimit": int64(4096)})

	k.Spec.MachineConfigPoolSelector.MatchLabels = map[string]string{"master": ""}
	c.settle()
	c.there("99-infra-generated-kubelet", "99-master-generated-kubelet")
	delete(c.pools[2].Labels, "master")
	c.says(c.settle(), "both", source.ReasonSelector, "no MachineConfigPool has the labels", "master")
	c.there("99-infra-generated-kubelet")
	k.Spec.MachineConfigPoolSelector = &metav1.LabelSelector{}
	c.says(c.settle(), "both", source.ReasonSelector, "spec.machineConfigPoolSelector")
	c.pools = c.pools[:1]
	c.settle()
	c.there()
}

func TestASelectorThatCantBeReadTakesNothingAway(t *testing.T) {
	c := begin(t, "worker")
	k := c.add("small", "worker", `kubeletConfig: {maxPods: 100}`)
	c.settle()
	k.Spec.MachineConfigPoolSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}
	c.says(c.settle(), "small", source.ReasonSelector, "Like")
	c.there("99-worker-generated-kubelet")
}

func TestAForeignMachineConfigOfTheNameStays(t *testing.T) {
	c := begin(t, "worker")
	foreign := c.bring("99-worker-generated-kubelet", "worker", map[string]string{"/etc/a": "b"})
	k := c.add("small", "worker", `kubeletConfig: {maxPods: 100}`)
	d := c.settle()
	c.says(d, "small", source.ReasonForeign, "MachineConfig/99-worker-generated-kubelet", "rename or delete it")
	if c.configs[foreign.Name] != foreign || len(k.Finalizers) > 0 {
		t.Errorf("it was taken over: %q", k.Finalizers)
	}
	delete(c.configs, foreign.Name)
	c.says(c.settle(), "small", source.ReasonRendered)
}

func TestWhatSomebodyChangedIsPutBack(t *testing.T) {
	c := begin(t, "worker")
	c.add("small", "worker", `kubeletConfig: {maxPods: 100}`)
	c.settle()
	mc := c.configs["99-worker-generated-kubelet"].DeepCopy()
	mc.Spec.KernelArguments, mc.Labels["theirs"] = []string{"quiet"}, "stays"
	c.configs[mc.Name] = mc
	c.settle()
	if mc = c.configs[mc.Name]; len(mc.Spec.KernelArguments) > 0 || mc.Labels["theirs"] == "" {
		t.Errorf("%+v", mc)
	}
}

func TestWhyAKubeletConfigHasNoEffectIsSaid(t *testing.T) {
	c := begin(t, "worker", "infra")
	c.whole("worker")
	c.bring("99-z", "worker", map[string]string{wholePath: base})
	c.add("small", "worker", `kubeletConfig: {maxPods: 100}`)
	c.says(c.settle(), "small", source.ReasonOverridden, "MachineConfig/99-z", wholePath)
	c.add("infra", "infra", `kubeletConfig: {maxPods: 100}`)
	c.pools[1].Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	c.says(c.settle(), "infra", source.ReasonUnselected, "MachineConfigPool/infra", api.Role+"=infra")
}

func TestABaseThatCantBeReadIsNamedAndChangesNothing(t *testing.T) {
	for what, test := range map[string]struct{ text, want string }{
		"the kubelet's credentials": {`{"kind":"Config","apiVersion":"v1"}`, "kind has to be KubeletConfiguration"},
		"nonsense":                  {"}", "is no KubeletConfiguration"},
	} {
		t.Run(what, func(t *testing.T) {
			c := begin(t, "worker")
			c.add("small", "worker", `kubeletConfig: {maxPods: 100}`)
			c.settle()
			before := c.configs["99-worker-generated-kubelet"]
			c.bring("50-kubeadm", "worker", map[string]string{wholePath: test.text})
			c.says(c.settle(), "small", source.ReasonBase, "MachineConfig/50-kubeadm", wholePath, test.want)
			if c.configs[before.Name] != before {
				t.Error("it was changed")
			}
		})
	}
	c := begin(t, "worker")
	c.bring("50-bad", "worker", nil).Spec.Config = runtime.RawExtension{Raw: []byte(`{"ignition":{"version":"9.0.0"}}`)}
	c.add("small", "worker", `kubeletConfig: {maxPods: 100}`)
	c.says(c.settle(), "small", source.ReasonBase, "MachineConfig/50-bad")
}

func TestAHostOfKubeadmsKeepsItsOwnConfigurationAndItsCredentials(t *testing.T) {
	c := begin(t, "worker")
	c.bring("50-motd", "worker", map[string]string{"/etc/motd": "hello"})
	c.add("small", "worker", `{kubeletConfig: {maxPods: 100}, logLevel: 0}`)
	c.settle()
	files := c.files("worker")
	if _, there := files[wholePath]; there {
		t.Errorf("%s is overwritten", wholePath)
	}
	c.is(c.kubelet("worker", dropinPath), document{"maxPods": int64(100), "logging": document{"verbosity": int64(0)}})
	if files[argsPath] != argsText || files[logPath] != "" {
		t.Errorf("%v", files)
	}
}

func TestSizingIsTheHostsWhereItCanBe(t *testing.T) {
	t.Run("a unit that MachineConfigs bring is told", func(t *testing.T) {
		c := begin(t, "worker")
		raw, err := source.Ignition([]source.File{{Path: wholePath, Contents: []byte(base)}}, nil,
			[]types.Unit{{Name: sizingUnit, Contents: new("[Service]")}})
		if err != nil {
			t.Fatal(err)
		}
		c.whole("worker").Spec.Config.Raw = raw
		k := c.add("auto", "worker", `autoSizingReserved: true`)
		c.says(c.settle(), "auto", source.ReasonRendered)
		if got, want := c.files("worker")[sizingPath], "NODE_SIZING_ENABLED=true\nSYSTEM_RESERVED_MEMORY=1Gi\n"+
			"SYSTEM_RESERVED_CPU=500m\nSYSTEM_RESERVED_ES=1Gi\n"; got != want {
			t.Errorf("%q", got)
		}
		c.set(k, `kubeletConfig: {systemReserved: {memory: 3Gi, pid: "1000"}}`)
		c.settle()
		if got, want := c.files("worker")[sizingPath], "NODE_SIZING_ENABLED=false\nSYSTEM_RESERVED_MEMORY=3Gi\n"+
			"SYSTEM_RESERVED_CPU=500m\nSYSTEM_RESERVED_ES=1Gi\n"; got != want {
			t.Errorf("%q", got)
		}
		if got := c.kubelet("worker", wholePath)["systemReserved"]; cmp.Diff(got, any(document{"pid": "1000"})) != "" {
			t.Errorf("the flags of the unit would hide %v", got)
		}
	})
	t.Run("without one it is refused where the kubelet takes no drop-ins", func(t *testing.T) {
		c := begin(t, "worker")
		c.whole("worker")
		c.add("auto", "worker", `autoSizingReserved: true`)
		c.says(c.settle(), "auto", source.ReasonInvalid, "spec.autoSizingReserved", sizingUnit)
	})
	t.Run("a host of kubeadm's gets one, and a later KubeletConfig can switch it off", func(t *testing.T) {
		c := begin(t, "worker", "infra")
		c.add("auto", "worker", `autoSizingReserved: true`)
		c.settle()
		files := c.files("infra")
		if files[sizingUnit] != calculatorUnit || files[calculatorPath] != calculator ||
			files[reservedLink] != "-> "+reservedPath || files[sizingPath] != "NODE_SIZING_ENABLED=true\n" {
			t.Errorf("%v", files)
		}
		c.add("infra", "infra", `autoSizingReserved: false`)
		c.settle()
		if got := c.files("infra")[sizingPath]; got != "NODE_SIZING_ENABLED=false\n" {
			t.Errorf("%q", got)
		}
		if got := c.files("worker")[sizingPath]; got != "NODE_SIZING_ENABLED=true\n" {
			t.Errorf("%q", got)
		}
	})
}

func TestReservedCPUsWinOverAReservedCgroupThatNobodyAskedFor(t *testing.T) {
	c := begin(t, "worker")
	c.bring("01-worker-kubelet", "worker", map[string]string{wholePath: strings.Replace(base, `"maxPods":250`,
		`"systemReservedCgroup":"/system.slice","enforceNodeAllocatable":["pods","system-reserved-compressible"]`, 1)})
	k := c.add("cpus", "worker", `kubeletConfig: {reservedSystemCPUs: 0-1}`)
	c.says(c.settle(), "cpus", source.ReasonRendered)
	got := c.kubelet("worker", wholePath)
	if got["systemReservedCgroup"] != nil || cmp.Diff(got["enforceNodeAllocatable"], any([]any{"pods"})) != "" {
		t.Errorf("%v", got)
	}
	c.set(k, `kubeletConfig: {reservedSystemCPUs: 0-1, systemReservedCgroup: /system.slice}`)
	c.says(c.settle(), "cpus", source.ReasonInvalid, "reservedSystemCPUs")
}
