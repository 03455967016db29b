// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"slices"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/containerruntimeconfig"
	"github.com/noderefit/noderefit/controller/imagemirror"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// publishedMirror is an example that people pass on.
const publishedMirror = `apiVersion: operator.openshift.io/v1alpha1
kind: ImageContentSourcePolicy
metadata:
  name: tmp
spec:
  repositoryDigestMirrors:
    - mirrors:
        - hub.iefcu.cn/xiaoyun/test
      source: quay.io/xiaoyun/test
`

// objects is a client for the kinds that MachineConfigs are made of.
func (w *world) objects() client.Client {
	w.t.Helper()
	scheme := runtime.NewScheme()
	w.must(errors.Join(mcfgv1.Install(scheme), configv1.Install(scheme), operatorv1alpha1.Install(scheme)))
	c, err := client.New(w.Config, client.Options{Scheme: scheme})
	w.must(err)
	return c
}

// has waits until the pool's rendered configuration has a file with all of these words, in their order.
func (w *world) has(pool, path string, words ...string) {
	w.t.Helper()
	w.until(pool+" has "+path, func() (bool, any) {
		text := w.renderedFile(pool, path)
		rest := text
		for _, word := range words {
			_, after, found := strings.Cut(rest, word)
			if !found {
				return false, text
			}
			rest = after
		}
		return text != "", text
	})
}

// renderedFile is a file of the pool's rendered configuration, "" if that has none.
func (w *world) renderedFile(pool, path string) string {
	w.t.Helper()
	mc := w.config(w.pool(pool).Spec.Configuration.Name)
	if mc == nil {
		return ""
	}
	c, err := machineconfig.Parse(mc)
	w.must(err)
	i := slices.IndexFunc(c.Files, func(f machineconfig.File) bool { return f.Path == path })
	if i < 0 {
		return ""
	}
	return string(c.Files[i].Contents)
}

// unmade waits until an object says why nothing is made of it, with all of these words; until it says nothing if there
// are none.
func (w *world) unmade(c client.Client, o client.Object, words ...string) {
	w.t.Helper()
	w.until(o.GetName()+" says so", func() (bool, any) {
		w.must(c.Get(w.ctx, client.ObjectKeyFromObject(o), o))
		text := o.GetAnnotations()[api.UnmadeKey]
		for _, word := range words {
			if !strings.Contains(text, word) {
				return false, text
			}
		}
		return words != nil || text == "", text
	})
}

const registriesPath = "/etc/containers/registries.conf"

func TestMirrors(t *testing.T) {
	w := begin(t, cluster.Options{Controllers: true})
	c := w.objects()
	w.control(containerruntimeconfig.Add, imagemirror.Add)
	w.addPool("worker")
	w.addPool("infra")
	w.put("50-worker", "worker", file("/etc/a", "1"))
	w.put("50-infra", "infra", file("/etc/a", "1"))
	w.put("60-worker-registries", "worker", file(registriesPath,
		"unqualified-search-registries=%5B%22a.example%22%5D%0A%5B%5Bregistry%5D%5D%0Alocation=%22hub.iefcu.cn%22%0Ainsecure=true%0A"))
	w.moved("worker", "")
	w.moved("infra", "")

	// The sources of a registries.conf are merged: MachineConfigs, and each kind of mirrors.
	policy := &operatorv1alpha1.ImageContentSourcePolicy{}
	w.must(yaml.UnmarshalStrict([]byte(publishedMirror), policy))
	w.must(c.Create(w.ctx, policy))
	w.has("worker", registriesPath, "unqualified-search-registries = ['a.example']", "insecure = true", "hub.iefcu.cn",
		"location = 'quay.io/xiaoyun/test'", "location = 'hub.iefcu.cn/xiaoyun/test'", "digest-only")
	w.has("infra", registriesPath, "location = 'quay.io/xiaoyun/test'", "location = 'hub.iefcu.cn/xiaoyun/test'")
	digest := &configv1.ImageDigestMirrorSet{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
	digest.Spec.ImageDigestMirrors = []configv1.ImageDigestMirrors{{
		Source: "quay.io/xiaoyun/test", Mirrors: []configv1.ImageMirror{"first.example/test"},
		MirrorSourcePolicy: configv1.NeverContactSource,
	}}
	w.must(c.Create(w.ctx, digest))
	w.has("worker", registriesPath, "blocked = true", "first.example/test", "hub.iefcu.cn/xiaoyun/test")

	// What somebody changes of it is put back.
	made := w.config("99-worker-generated-registries")
	was := string(made.Spec.Config.Raw)
	made.Spec.Config.Raw = file("/etc/evil", "1").Config.Raw
	_, err := w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Update(w.ctx, made, metav1.UpdateOptions{})
	w.must(err)
	w.until("it is as it was", func() (bool, any) {
		is := string(w.config("99-worker-generated-registries").Spec.Config.Raw)
		return is == was, is
	})

	// Two that contradict each other both say so, nothing is lost, and everything else goes on.
	tag := &configv1.ImageTagMirrorSet{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
	tag.Spec.ImageTagMirrors = []configv1.ImageTagMirrors{{
		Source: "quay.io/xiaoyun/test", Mirrors: []configv1.ImageMirror{"tags.example/test"},
		MirrorSourcePolicy: configv1.AllowContactingSource,
	}}
	w.must(c.Create(w.ctx, tag))
	w.unmade(c, tag, "spec.imageTagMirrors[0].mirrorSourcePolicy", "ImageDigestMirrorSet/d")
	w.unmade(c, digest, "spec.imageDigestMirrors[0].mirrorSourcePolicy", "ImageTagMirrorSet/t")
	w.unmade(c, policy)
	for _, pool := range []string{"worker", "infra"} {
		w.says(pool, pending, yes, "ImageTagMirrorSet/t since ", "spec.imageTagMirrors[0].mirrorSourcePolicy")
		if text := w.renderedFile(pool, registriesPath); !strings.Contains(text, "first.example") || strings.Contains(text, "tags.example") {
			t.Errorf("%s has %s", pool, text)
		}
	}
	tag.Spec.ImageTagMirrors[0].MirrorSourcePolicy = ""
	w.must(c.Update(w.ctx, tag))
	w.unmade(c, tag)
	w.unmade(c, digest)
	w.says("worker", pending, no)
	w.has("worker", registriesPath, "first.example/test", "tags.example/test", "tag-only")

	// What one pool can't have is told by the object and holds that pool alone.
	w.put("99-worker-own", "worker", file(registriesPath, "x"))
	w.unmade(c, digest, `"pools":["worker"]`, "MachineConfig/99-worker-own brings "+registriesPath+" too")
	w.says("worker", pending, yes, api.PartRefused, "MachineConfig/99-worker-own")
	w.says("infra", pending, no)
	w.remove("99-worker-own")
	w.unmade(c, digest)
	w.annotate("pool", "infra", map[string]any{api.Runtime: "containerd"})
	w.unmade(c, digest, `"pools":["infra"]`, "spec.imageDigestMirrors[0].mirrorSourcePolicy: containerd can block only whole")
	w.unmade(c, tag, `"pools":["infra"]`, "spec.imageTagMirrors[0].source: containerd has mirrors of whole registries only")
	w.unmade(c, policy)
	w.says("infra", pending, yes, "ImageDigestMirrorSet/d")
	w.must(errors.Join(c.Delete(w.ctx, digest), c.Delete(w.ctx, tag)))
	w.says("infra", pending, no)
	w.has("infra", "/etc/containerd/certs.d/quay.io/hosts.toml", `[host."https://hub.iefcu.cn"]`, `capabilities = ["pull"]`)

	// The last one takes everything along.
	w.must(c.Delete(w.ctx, policy))
	w.until("nothing is left", func() (bool, any) {
		return w.config("99-worker-generated-registries") == nil && w.config("99-infra-generated-registries") == nil, "there"
	})
	w.until("the pool has its own again", func() (bool, any) {
		text := w.renderedFile("worker", registriesPath)
		return strings.HasPrefix(text, "unqualified-search-registries=["), text
	})
	w.until("and the other one none", func() (bool, any) {
		text := w.renderedFile("infra", registriesPath)
		return text == "", text
	})
}

func TestContainerRuntimeConfigs(t *testing.T) {
	w := begin(t, cluster.Options{Controllers: true})
	c := w.objects()
	w.control(containerruntimeconfig.Add, imagemirror.Add)
	w.addPool("worker")
	w.put("50-worker", "worker", file("/etc/a", "1"))
	w.moved("worker", "")
	config := func(name, level string, pids int64) *mcfgv1.ContainerRuntimeConfig {
		o := &mcfgv1.ContainerRuntimeConfig{ObjectMeta: metav1.ObjectMeta{Name: name}}
		o.Spec.MachineConfigPoolSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "worker"}}
		o.Spec.ContainerRuntimeConfig = &mcfgv1.ContainerRuntimeConfiguration{LogLevel: level}
		if pids > 0 {
			o.Spec.ContainerRuntimeConfig.PidsLimit = &pids
		}
		return o
	}
	is := func(o *mcfgv1.ContainerRuntimeConfig, is corev1.ConditionStatus, words ...string) {
		t.Helper()
		w.until(o.Name+" is accepted: "+string(is), func() (bool, any) {
			w.must(c.Get(w.ctx, client.ObjectKeyFromObject(o), o))
			if o.Status.ObservedGeneration != o.Generation || len(o.Status.Conditions) == 0 {
				return false, o.Status
			}
			last := o.Status.Conditions[len(o.Status.Conditions)-1]
			return last.Type == "Accepted" && last.Status == is && !slices.ContainsFunc(words, func(word string) bool {
				return !strings.Contains(last.Message, word)
			}), o.Status
		})
	}
	const name, level, pids = "99-worker-generated-containerruntime", "/etc/crio/crio.conf.d/01-ctrcfg-logLevel",
		"/etc/crio/crio.conf.d/01-ctrcfg-pidsLimit"
	first, second := config("first", "info", 100), config("second", "debug", 0)
	w.must(c.Create(w.ctx, first))
	is(first, yes)
	w.must(c.Create(w.ctx, second))
	is(second, yes)
	w.has("worker", level, "debug")
	w.has("worker", pids, "100")
	w.must(c.Get(w.ctx, client.ObjectKeyFromObject(first), first))
	if !slices.Equal(first.Finalizers, []string{name}) || !slices.Equal(second.Finalizers, []string{name + "-1"}) {
		t.Errorf("finalizers: %v, %v", first.Finalizers, second.Finalizers)
	}
	if mc := w.config(name + "-1"); !metav1.IsControlledBy(mc, second) {
		t.Errorf("owners: %v", mc.OwnerReferences)
	}

	// What is wrong is told with its field, stays what it was, and holds nothing up.
	second.Spec.ContainerRuntimeConfig.LogLevel = "loud"
	w.must(c.Update(w.ctx, second))
	is(second, no, `spec.containerRuntimeConfig.logLevel: "loud"`)
	w.says("worker", pending, yes, api.PartRefused, "ContainerRuntimeConfig/second since ",
		"spec.containerRuntimeConfig.logLevel")
	w.put("50-worker", "worker", file("/etc/a", "2"))
	w.has("worker", "/etc/a", "2")
	w.has("worker", level, "debug")
	second.Spec.ContainerRuntimeConfig.LogLevel = "warn"
	w.must(c.Update(w.ctx, second))
	is(second, yes)
	w.has("worker", level, "warn")

	// A name that somebody else has taken is not taken from them.
	w.put(name+"-2", "worker", file("/etc/mine", "1"))
	third := config("third", "", 200)
	w.must(c.Create(w.ctx, third))
	is(third, no, "MachineConfig/"+name+"-2 is there, and was not made of a ContainerRuntimeConfig")
	w.remove(name + "-2")
	is(third, yes)
	w.has("worker", pids, "200")

	// What was made goes with what it was made of.
	for _, o := range []client.Object{second, third} {
		w.must(c.Delete(w.ctx, o))
		w.until(o.GetName()+" goes", func() (bool, any) {
			err := c.Get(w.ctx, client.ObjectKeyFromObject(o), o)
			return apierrors.IsNotFound(err) && w.config(name+"-1") == nil, err
		})
	}
	w.has("worker", level, "info")
	w.has("worker", pids, "100")
}
