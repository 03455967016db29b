// SPDX-License-Identifier: Apache-2.0

package containerruntimeconfig

import (
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
)

func config(name string, made int64, pool string, set func(*mcfgv1.ContainerRuntimeConfiguration),
) *mcfgv1.ContainerRuntimeConfig {
	o := &mcfgv1.ContainerRuntimeConfig{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(time.Unix(made, 0)),
	}}
	o.Spec.MachineConfigPoolSelector = &metav1.LabelSelector{MatchLabels: map[string]string{pool: ""}}
	o.Spec.ContainerRuntimeConfig = &mcfgv1.ContainerRuntimeConfiguration{}
	set(o.Spec.ContainerRuntimeConfig)
	return o
}

func pool(name string) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{name: "", "all": ""}}}
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: name}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.NodeRole + name: ""}}
	return p
}

func node(name, pool, runtime string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.NodeRole + pool: ""}}}
	n.Status.NodeInfo.ContainerRuntimeVersion = runtime
	return n
}

// outcome is what was decided, as a test looks at it.
type outcome struct {
	*source.Decision
	t *testing.T
}

func decide(t *testing.T, w *source.World, objects ...*mcfgv1.ContainerRuntimeConfig) outcome {
	t.Helper()
	return outcome{Series.Decide(w, objects, "v1"), t}
}

// said are the files of what was made, by MachineConfig and path.
func (o outcome) said() map[string]string {
	o.t.Helper()
	out := map[string]string{}
	for _, mc := range o.Write {
		c, err := machineconfig.Parse(mc)
		if err != nil {
			o.t.Fatal(err)
		}
		for _, f := range c.Files {
			out[mc.Name+" "+f.Path] = string(f.Contents)
		}
	}
	return out
}

// says is what is wrong with an object, "" for nothing.
func (o outcome) says(name string) string {
	c := o.Objects[name].Conditions()
	if last := c[len(c)-1]; last.Status != metav1.ConditionTrue {
		return last.Reason + ": " + last.Message
	}
	return ""
}

func quantity(s string) *resource.Quantity { return new(resource.MustParse(s)) }

func TestEachSettingHasItsFile(t *testing.T) {
	o := config("a", 1, "worker", func(c *mcfgv1.ContainerRuntimeConfiguration) {
		c.PidsLimit, c.LogLevel, c.DefaultRuntime = new(int64(2048)), "debug", "runc"
		c.LogSizeMax, c.OverlaySize = quantity("-1"), quantity("8G")
		c.AdditionalLayerStores = []mcfgv1.AdditionalLayerStore{{Path: "/var/l"}}
		c.AdditionalImageStores = []mcfgv1.AdditionalImageStore{{Path: "/var/i"}}
		c.AdditionalArtifactStores = []mcfgv1.AdditionalArtifactStore{{Path: "/var/a"}}
	})
	out := decide(t, &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker")}}, o)
	if why := out.says("a"); why != "" {
		t.Fatal(why)
	}
	got := out.said()
	const name = "99-worker-generated-containerruntime "
	for path, words := range map[string][]string{
		"/etc/crio/crio.conf.d/01-ctrcfg-pidsLimit":                {"[crio.runtime]\npids_limit = 2048"},
		"/etc/crio/crio.conf.d/01-ctrcfg-logLevel":                 {"[crio.runtime]\nlog_level = 'debug'"},
		"/etc/crio/crio.conf.d/01-ctrcfg-logSizeMax":               {"[crio.runtime]\nlog_size_max = -1"},
		"/etc/crio/crio.conf.d/01-ctrcfg-defaultRuntime":           {"[crio.runtime]\ndefault_runtime = 'runc'"},
		"/etc/crio/crio.conf.d/01-ctrcfg-additionalArtifactStores": {"_stores = ['/var/a']"},
		"/etc/containers/storage.conf": {"driver = 'overlay'", "graphroot = '/var/lib/containers/storage'", "size = '8G'",
			"additionallayerstores = ['/var/l:ref']", "additionalimagestores = ['/var/i']"},
	} {
		for _, word := range words {
			if !strings.Contains(got[name+path], word) {
				t.Errorf("%s lacks %q: %s", path, word, got[name+path])
			}
		}
	}
	if len(got) != 6 {
		t.Errorf("got %v", got)
	}
}

func TestNoughtTakesAwayWhatALowerOneLimits(t *testing.T) {
	limits := config("a", 1, "worker", func(c *mcfgv1.ContainerRuntimeConfiguration) {
		c.LogSizeMax, c.OverlaySize = quantity("50Mi"), quantity("8G")
	})
	none := config("b", 2, "worker", func(c *mcfgv1.ContainerRuntimeConfiguration) {
		c.LogSizeMax, c.OverlaySize = quantity("0"), quantity("0")
	})
	got := decide(t, &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker")}}, limits, none).said()
	const last = "99-worker-generated-containerruntime-1 "
	if file := got[last+crioDropin+"logSizeMax"]; !strings.Contains(file, "log_size_max = -1") {
		t.Errorf("logs: %q of %v", file, got)
	}
	if file := got[last+storagePath]; !strings.Contains(file, "driver = 'overlay'") || strings.Contains(file, "size") {
		t.Errorf("storage: %q of %v", file, got)
	}
}

func TestWhatMakesNoSenseIsNamedByItsField(t *testing.T) {
	for field, set := range map[string]func(*mcfgv1.ContainerRuntimeConfiguration){
		"pidsLimit":   func(c *mcfgv1.ContainerRuntimeConfiguration) { c.PidsLimit = new(int64(19)) },
		"logLevel":    func(c *mcfgv1.ContainerRuntimeConfiguration) { c.LogLevel = "loud" },
		"logSizeMax":  func(c *mcfgv1.ContainerRuntimeConfiguration) { c.LogSizeMax = quantity("8191") },
		"overlaySize": func(c *mcfgv1.ContainerRuntimeConfiguration) { c.OverlaySize = quantity("-1G") },
		"defaultRuntime": func(c *mcfgv1.ContainerRuntimeConfiguration) {
			c.DefaultRuntime = "kata"
		},
		"additionalImageStores[1].path": func(c *mcfgv1.ContainerRuntimeConfiguration) {
			c.AdditionalImageStores = []mcfgv1.AdditionalImageStore{{Path: "/a"}, {Path: "/a"}}
		},
	} {
		err := check(config("a", 1, "worker", set).Spec.ContainerRuntimeConfig)
		if err == nil || !strings.Contains(err.Error(), "spec.containerRuntimeConfig."+field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	for what, set := range map[string]func(*mcfgv1.ContainerRuntimeConfiguration){
		"nothing":          func(*mcfgv1.ContainerRuntimeConfiguration) {},
		"no limit of pids": func(c *mcfgv1.ContainerRuntimeConfiguration) { c.PidsLimit = new(int64(0)) },
		"the least of both": func(c *mcfgv1.ContainerRuntimeConfiguration) {
			c.PidsLimit, c.LogSizeMax = new(int64(20)), quantity("8192")
		},
		"no limit of logs": func(c *mcfgv1.ContainerRuntimeConfiguration) { c.LogSizeMax = quantity("-1") },
	} {
		if err := check(config("a", 1, "worker", set).Spec.ContainerRuntimeConfig); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestSeveralForOnePoolAreMerged(t *testing.T) {
	level := func(name string, made int64, level string) *mcfgv1.ContainerRuntimeConfig {
		return config(name, made, "worker", func(c *mcfgv1.ContainerRuntimeConfiguration) { c.LogLevel = level })
	}
	older, newer := level("z", 1, "info"), level("a", 2, "debug")
	older.Spec.ContainerRuntimeConfig.OverlaySize = quantity("8G")
	newer.Spec.ContainerRuntimeConfig.AdditionalImageStores = []mcfgv1.AdditionalImageStore{{Path: "/var/i"}}
	everywhere := config("m", 3, "all", func(c *mcfgv1.ContainerRuntimeConfiguration) { c.PidsLimit = new(int64(100)) })
	bad := level("bad", 4, "loud")
	w := &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("infra"), pool("worker")}}
	out := decide(t, w, everywhere, newer, bad, older)
	if why := out.says("bad"); !strings.Contains(why, source.ReasonInvalid+": spec.containerRuntimeConfig.logLevel") {
		t.Errorf("the bad one says %q", why)
	}
	for _, name := range []string{"z", "a", "m"} {
		if why := out.says(name); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
	const name = "99-worker-generated-containerruntime"
	const storage, level1 = " /etc/containers/storage.conf", " /etc/crio/crio.conf.d/01-ctrcfg-logLevel"
	const pids = " /etc/crio/crio.conf.d/01-ctrcfg-pidsLimit"
	said := out.said()
	for what, words := range map[string][]string{
		name + storage: {"8G"}, name + level1: {"info"},
		name + "-1" + storage: {"8G", "/var/i"}, name + "-1" + level1: {"debug"},
		name + "-2" + storage: {"8G", "/var/i"}, name + "-2" + level1: {"debug"}, name + "-2" + pids: {"100"},
		// A suffix is the object's, in whichever pool.
		"99-infra-generated-containerruntime-2" + pids: {"100"},
	} {
		for _, word := range words {
			if !strings.Contains(said[what], word) {
				t.Errorf("%s lacks %s: %s", what, word, said[what])
			}
		}
	}
	if len(said) != 8 {
		t.Errorf("got %v", said)
	}
}

func TestWhatWasAcceptedStaysWhileTheObjectIsWrong(t *testing.T) {
	first := config("first", 1, "worker", func(c *mcfgv1.ContainerRuntimeConfiguration) { c.LogLevel = "info" })
	second := config("second", 2, "worker", func(c *mcfgv1.ContainerRuntimeConfiguration) { c.PidsLimit = new(int64(100)) })
	w := &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker")}}
	w.Configs = decide(t, w, first, second).Write
	first.Spec.ContainerRuntimeConfig.LogLevel = "loud"
	second.Spec.ContainerRuntimeConfig.PidsLimit = new(int64(200))
	out := decide(t, w, first, second)
	const last = "99-worker-generated-containerruntime-1 /etc/crio/crio.conf.d/01-ctrcfg-"
	if got := out.said(); out.says("first") == "" || out.says("second") != "" || len(out.Remove) > 0 ||
		!strings.Contains(got[last+"logLevel"], "info") || !strings.Contains(got[last+"pidsLimit"], "200") {
		t.Errorf("%s; %v, removes %v", out.says("first"), got, out.Remove)
	}
}

func TestWhatLiesBeneathIsKept(t *testing.T) {
	mc := func(name, contents string) *mcfgv1.MachineConfig {
		raw, err := source.Ignition([]source.File{{Path: storagePath, Contents: []byte(contents)}}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return source.Config("worker", name, raw)
	}
	o := config("a", 1, "worker", func(c *mcfgv1.ContainerRuntimeConfiguration) { c.OverlaySize = quantity("8G") })
	try := func(configs ...*mcfgv1.MachineConfig) outcome {
		return decide(t, &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker")}, Configs: configs}, o)
	}
	kept := try(mc("50-storage", "[storage]\ndriver = 'btrfs'\n[storage.options]\nx = 'y'\n"))
	text := kept.said()["99-worker-generated-containerruntime /etc/containers/storage.conf"]
	if !strings.Contains(text, "btrfs") || !strings.Contains(text, "x = 'y'") || strings.Contains(text, "graphroot") ||
		!strings.Contains(text, "8G") {
		t.Errorf("got %s", text)
	}
	for what, test := range map[string]struct {
		config *mcfgv1.MachineConfig
		want   string
	}{
		"no TOML":     {mc("50-storage", "a = 1\nSECRET ="), "/etc/containers/storage.conf, which does not parse: line 2"},
		"no table":    {mc("50-storage", "storage = 'SECRET'"), "where storage is no table"},
		"behind ours": {mc("99-worker-storage", ""), "Overridden: MachineConfig/99-worker-storage brings " + storagePath},
	} {
		if why := try(test.config).says("a"); !strings.Contains(why, test.want) || strings.Contains(why, "SECRET") {
			t.Errorf("%s: %v", what, why)
		}
	}
}

func TestContainerdGetsWhatItHas(t *testing.T) {
	level := config("a", 1, "worker", func(c *mcfgv1.ContainerRuntimeConfiguration) { c.LogLevel = "debug" })
	all := config("b", 2, "worker", func(c *mcfgv1.ContainerRuntimeConfiguration) {
		c.PidsLimit, c.LogSizeMax, c.OverlaySize, c.DefaultRuntime = new(int64(50)), quantity("1M"), quantity("8G"), "crun"
		c.AdditionalImageStores = []mcfgv1.AdditionalImageStore{{Path: "/a"}}
	})
	const name = "99-worker-generated-containerruntime "
	annotated := pool("worker")
	annotated.Annotations = map[string]string{api.Runtime: "containerd"}
	for what, w := range map[string]*source.World{
		"by its nodes": {Pools: []*mcfgv1.MachineConfigPool{pool("worker")},
			Nodes: []*corev1.Node{node("n", "worker", "containerd://2.1.0")}},
		"by its word": {Pools: []*mcfgv1.MachineConfigPool{annotated},
			Nodes: []*corev1.Node{node("n", "worker", "cri-o://1.33.0")}},
	} {
		out := decide(t, w, level, all)
		files := out.said()
		if got := files[name+"/etc/containerd/conf.d/01-ctrcfg-logLevel.toml"]; len(files) != 1 ||
			!strings.Contains(got, "version = 2") || !strings.Contains(got, "[debug]\nlevel = 'debug'") {
			t.Errorf("%s: %v", what, files)
		}
		for _, field := range []string{"pidsLimit", "logSizeMax", "overlaySize", "defaultRuntime", "additionalImageStores"} {
			if why := out.says("b"); !strings.Contains(why, "spec.containerRuntimeConfig."+field+": containerd") {
				t.Errorf("%s: %s: %v", what, field, why)
			}
		}
	}
	out := decide(t, &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker")}, Nodes: []*corev1.Node{
		node("n", "worker", "containerd://2.1.0"), node("m", "worker", "cri-o://1.33.0"), node("o", "other", "x"),
	}}, level, all)
	if files, why := out.said(), out.says("b"); files["99-worker-generated-containerruntime-1 "+crioDropin+"pidsLimit"] == "" ||
		files[name+containerdPath] == "" || why != "" {
		t.Errorf("with both: %v, %s", files, why)
	}
	out = decide(t, &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker")}, Nodes: []*corev1.Node{
		node("n", "worker", "containerd://2.1.0"), node("joining", "worker", ""),
	}}, level)
	if files := out.said(); len(files) != 1 || files[name+containerdPath] == "" {
		t.Errorf("with a node that has said nothing yet: %v", files)
	}
	nonsense := pool("worker")
	nonsense.Annotations = map[string]string{api.Runtime: "docker"}
	out = decide(t, &source.World{Pools: []*mcfgv1.MachineConfigPool{nonsense}}, level)
	if why := out.says("a"); !strings.Contains(why, "MachineConfigPool/worker: the annotation "+api.Runtime) {
		t.Errorf("with neither: %v", why)
	}
}
