// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/bootstrap"
	"github.com/noderefit/noderefit/controller/imagemirror"
	"github.com/noderefit/noderefit/registries"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// applied waits until a policy says that the policy is applied, or is not, with this reason and these words.
func (w *world) applied(c client.Client, o client.Object, is bool, reason, words string) {
	w.t.Helper()
	w.until(o.GetName()+" says what became of it", func() (bool, any) {
		w.must(c.Get(w.ctx, client.ObjectKeyFromObject(o), o))
		var all []metav1.Condition
		switch p := o.(type) {
		case *configv1.ClusterImagePolicy:
			all = p.Status.Conditions
		case *configv1.ImagePolicy:
			all = p.Status.Conditions
		}
		said := meta.FindStatusCondition(all, configv1.ImagePolicyApplied)
		return said != nil && said.ObservedGeneration == o.GetGeneration() && said.Reason == reason &&
			is == (said.Status == metav1.ConditionTrue) && is == meta.IsStatusConditionFalse(all, configv1.ImagePolicyPending) &&
			strings.Contains(said.Message, words), all
	})
}

// offline renders a pool of the documents that the cluster has, with these objects, and compares the name.
func (w *world) offline(c client.Client, pool string, objects ...client.Object) {
	w.t.Helper()
	var text strings.Builder
	add := func(o client.Object, apiVersion, kind string) {
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		w.must(err)
		metadata := map[string]any{"name": o.GetName(), "labels": raw["metadata"].(map[string]any)["labels"]}
		if o.GetNamespace() != "" {
			metadata["namespace"] = o.GetNamespace()
		}
		delete(raw["spec"].(map[string]any), "configuration") // of a pool, by the cluster
		fields := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata, "spec": raw["spec"]}
		if status := raw["status"]; status != nil {
			fields["status"] = status
		}
		document, err := yaml.Marshal(fields)
		w.must(err)
		text.WriteString("---\n" + string(document))
	}
	for _, o := range objects {
		w.must(c.Get(w.ctx, client.ObjectKeyFromObject(o), o))
		gvk, err := c.GroupVersionKindFor(o)
		w.must(err)
		add(o, gvk.GroupVersion().String(), gvk.Kind)
	}
	add(w.config("50-"+pool), "machineconfiguration.openshift.io/v1", "MachineConfig")
	dir := w.t.TempDir()
	writeText(w.t, dir+"/documents.yaml", text.String())
	docs, warnings, err := bootstrap.Options{}.Read(dir)
	w.must(err)
	rendered, more, err := bootstrap.Options{}.Make(docs, pool).Render(pool)
	w.must(err)
	if len(warnings)+len(more) > 0 {
		w.t.Errorf("warnings: %v %v", warnings, more)
	}
	w.until("the cluster gives "+pool+" the name "+rendered.Name, func() (bool, any) {
		is := w.pool(pool).Spec.Configuration.Name
		return is == rendered.Name, is
	})
}

func TestRegistriesAndPolicies(t *testing.T) {
	w := begin(t, cluster.Options{Controllers: true})
	c := w.objects()
	w.control(imagemirror.Add)
	w.addPool("worker")
	w.addPool("infra")
	w.put("50-worker", "worker", file("/etc/a", "1"))
	w.put("50-infra", "infra", file("/etc/a", "1"))
	w.moved("worker", "")
	w.moved("infra", "")

	// The definitions refuse what OpenShift's refuse.
	image := &configv1.Image{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	image.Spec.RegistrySources.AllowedRegistries = []string{"quay.io"}
	image.Spec.RegistrySources.BlockedRegistries = []string{"bad.example"}
	if err := c.Create(w.ctx, image); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "Only one of blockedRegistries") {
		t.Fatalf("both lists: %v", err)
	}
	key, err := base64.StdEncoding.DecodeString(cluster.PublicKey)
	w.must(err)
	signed := configv1.ImageSigstoreVerificationPolicy{RootOfTrust: configv1.PolicyRootOfTrust{
		PolicyType: configv1.PublicKeyRootOfTrust, PublicKey: &configv1.ImagePolicyPublicKeyRootOfTrust{KeyData: key},
	}}
	policy := &configv1.ClusterImagePolicy{ObjectMeta: metav1.ObjectMeta{Name: "signed"}}
	policy.Spec = configv1.ClusterImagePolicySpec{Scopes: []configv1.ImageScope{"busybox"}, Policy: signed}
	if err := c.Create(w.ctx, policy); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "fully qualified domain name") {
		t.Fatalf("a short name: %v", err)
	}

	// Lists of registries reach every pool.
	image.Spec.RegistrySources.AllowedRegistries = nil
	image.Spec.RegistrySources.InsecureRegistries = []string{"lab.example:5000"}
	image.Spec.RegistrySources.ContainerRuntimeSearchRegistries = []string{"quay.io"}
	w.must(c.Create(w.ctx, image))
	for _, pool := range []string{"worker", "infra"} {
		w.has(pool, registriesPath, "blocked = true", "bad.example", "insecure = true", "lab.example:5000")
		w.has(pool, registries.SearchPath, "unqualified-search-registries = ['quay.io']")
		w.has(pool, registries.PolicyPath, "insecureAcceptAnything", "bad.example", "reject")
	}

	// Policies, those of namespaces too. A conflict of a namespace's policy does not hold a pool up.
	policy.Spec.Scopes = []configv1.ImageScope{"registry.example/os"}
	w.must(c.Create(w.ctx, policy))
	w.applied(c, policy, true, "Rendered", "")
	w.has("worker", registries.PolicyPath, "registry.example/os", cluster.PublicKey, "sigstoreSigned")
	w.has("worker", registries.AttachmentsPath, "registry.example/os", "use-sigstore-attachments: true")
	own := &configv1.ImagePolicy{ObjectMeta: metav1.ObjectMeta{Name: "own", Namespace: "default"}}
	own.Spec = configv1.ImagePolicySpec{Scopes: []configv1.ImageScope{"quay.io/ours", "bad.example/x"}, Policy: signed}
	w.must(c.Create(w.ctx, own))
	w.applied(c, own, false, "ConflictScopes", "spec.scopes[1]: bad.example/x has no effect")
	w.has("worker", "/etc/crio/policies/default.json", "bad.example", "reject", "quay.io/ours", cluster.PublicKey)
	w.says("worker", pending, no)
	own.Spec.Scopes = own.Spec.Scopes[:1]
	w.must(c.Update(w.ctx, own))
	w.applied(c, own, true, "Rendered", "")

	w.offline(c, "worker", image, policy, own)

	// A policy for images of a blocked registry: both objects say so, and the accepted policies stay.
	policy.Spec.Scopes = append(policy.Spec.Scopes, "bad.example/os")
	w.must(c.Update(w.ctx, policy))
	w.applied(c, policy, false, "Invalid", "spec.scopes[1]: bad.example/os is within blockedRegistries")
	w.unmade(c, policy, "spec.scopes[1]")
	w.unmade(c, image, "spec.registrySources", "ClusterImagePolicy/signed")
	w.says("worker", pending, yes, api.PartRefused, "ClusterImagePolicy/signed since ", "spec.scopes[1]")
	if text := w.renderedFile("worker", registries.PolicyPath); !strings.Contains(text, "registry.example/os") ||
		strings.Contains(text, "bad.example/os") {
		t.Errorf("worker has %s", text)
	}
	policy.Spec.Scopes = policy.Spec.Scopes[:1]
	w.must(c.Update(w.ctx, policy))
	w.applied(c, policy, true, "Rendered", "")
	w.unmade(c, image)
	w.says("worker", pending, no)

	// A MachineConfig that permits more holds up its pool alone, and so does a runtime that can't verify or block.
	w.put("60-infra-policy", "infra", file(registries.PolicyPath, url.PathEscape(
		`{"default":[{"type":"reject"}],"transports":{"docker":{"bad.example/x":[{"type":"insecureAcceptAnything"}]}}}`)))
	w.unmade(c, image, `"pools":["infra"]`, "permits images of bad.example/x, which is within bad.example")
	w.applied(c, policy, false, "RefusedForPools", "MachineConfigPool/infra")
	w.says("infra", pending, yes, "Image/cluster")
	w.says("worker", pending, no)
	w.remove("60-infra-policy")
	w.applied(c, policy, true, "Rendered", "")
	w.annotate("pool", "infra", map[string]any{api.Runtime: "containerd"})
	w.applied(c, policy, false, "RefusedForPools", "MachineConfigPool/infra: spec.policy: containerd verifies no signatures")
	w.unmade(c, image, "spec.registrySources.blockedRegistries[0]", "containerd can block a registry only where a mirror")
	w.annotate("pool", "infra", map[string]any{api.Runtime: nil})
	w.applied(c, policy, true, "Rendered", "")

	// All objects gone, all files gone.
	w.must(errors.Join(c.Delete(w.ctx, policy), c.Delete(w.ctx, own), c.Delete(w.ctx, image)))
	for _, pool := range []string{"worker", "infra"} {
		w.until("nothing is left of "+pool, func() (bool, any) {
			return w.config("99-"+pool+"-generated-registries") == nil && w.renderedFile(pool, registries.PolicyPath) == "", pool
		})
	}
}
