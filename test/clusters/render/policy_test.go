// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	operatorv1 "github.com/openshift/api/operator/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/disruptionpolicy"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

func disruptionPolicies(mgr ctrl.Manager, _ string) error { return disruptionpolicy.Add(mgr) }

const machineConfigurations = "/apis/operator.openshift.io/v1/machineconfigurations"

// configure gives the cluster's MachineConfiguration a spec, as people do, and says what the API server thinks of it.
func (w *world) configure(spec string) error {
	w.t.Helper()
	document := `{"apiVersion":"operator.openshift.io/v1","kind":"MachineConfiguration","metadata":{"name":"cluster"},"spec":` +
		spec + `}`
	return w.Client.CoreV1().RESTClient().Patch(types.ApplyPatchType).AbsPath(machineConfigurations, "cluster").
		Param("fieldManager", "people").Body([]byte(document)).Do(w.ctx).Error()
}

// configuration is the cluster's MachineConfiguration.
func (w *world) configuration() *operatorv1.MachineConfiguration {
	w.t.Helper()
	data, err := w.Client.CoreV1().RESTClient().Get().AbsPath(machineConfigurations, "cluster").DoRaw(w.ctx)
	w.must(err)
	out := &operatorv1.MachineConfiguration{}
	w.must(json.Unmarshal(data, out))
	return out
}

// inForce is what the status says of a path, once it is about the spec as it is and its condition has this reason.
func (w *world) inForce(reason, path string, words ...string) []operatorv1.NodeDisruptionPolicyStatusAction {
	w.t.Helper()
	var out []operatorv1.NodeDisruptionPolicyStatusAction
	w.until(path+" is shown, and "+reason, func() (bool, any) {
		o := w.configuration()
		c := meta.FindStatusCondition(o.Status.Conditions, api.NodeDisruptionPolicyDegraded)
		if o.Status.ObservedGeneration != o.Generation || c == nil || c.Reason != reason {
			return false, o.Status
		}
		for _, word := range words {
			if !strings.Contains(c.Message, word) {
				return false, c
			}
		}
		files := o.Status.NodeDisruptionPolicyStatus.ClusterPolicies.Files
		i := slices.IndexFunc(files, func(f operatorv1.NodeDisruptionPolicyStatusFile) bool { return f.Path == path })
		if i < 0 {
			return false, files
		}
		out = files[i].Actions
		return true, nil
	})
	return out
}

const everyAction = `{"managementState":"Managed","nodeDisruptionPolicy":{
	"files":[{"path":"/etc/crio/policies","actions":[{"type":"Drain"},{"type":"DaemonReload"},
		{"type":"Reload","reload":{"serviceName":"a.service"}},{"type":"Restart","restart":{"serviceName":"b.service"}}]},
		{"path":"/etc/mine","actions":[{"type":"Reboot"}]}, {"path":"/etc/nothing","actions":[]}],
	"units":[{"name":"own.service","actions":[{"type":"None"}]}], "sshkey":{"actions":[{"type":"Drain"}]}}}`

func TestTheMachineConfigurationShowsWhatIsInForce(t *testing.T) {
	w := begin(t, cluster.Options{})
	w.control(disruptionPolicies)

	// Defaults, ours among them, of an object that says nothing about them.
	w.must(w.configure(`{"managementState":"Managed"}`))
	if got := w.inForce(api.PolicyInForce, "/etc/containers/registries.conf"); len(got) != 1 || got[0].Type != operatorv1.SpecialStatusAction {
		t.Errorf("registries.conf: %v", got)
	}
	if got := w.inForce(api.PolicyInForce, "/etc/containerd/certs.d"); len(got) != 1 || got[0].Type != operatorv1.SpecialStatusAction {
		t.Errorf("certs.d: %v", got)
	}

	// What is asked for is in the place of a default, or comes after them. Somebody else's part of the status stays.
	w.must(w.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(machineConfigurations, "cluster", "status").
		Body([]byte(`{"status":{"conditions":[{"type":"BootImageUpdateDegraded","status":"False","reason":"X","message":"",` +
			`"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)).Do(w.ctx).Error())
	w.must(w.configure(everyAction))
	if got := w.inForce(api.PolicyInForce, "/etc/crio/policies"); len(got) != 4 || got[2].Reload.ServiceName != "a.service" {
		t.Errorf("policies: %v", got)
	}
	w.inForce(api.PolicyInForce, "/etc/nothing")
	o := w.configuration()
	p := o.Status.NodeDisruptionPolicyStatus.ClusterPolicies
	if p.Files[5].Path != "/etc/crio/policies" || p.Files[len(p.Files)-1].Path != "/etc/nothing" ||
		p.Units[1].Name != "own.service" || p.SSHKey.Actions[0].Type != operatorv1.DrainStatusAction {
		t.Errorf("it shows %+v", p)
	}
	if meta.FindStatusCondition(o.Status.Conditions, operatorv1.MachineConfigurationBootImageUpdateDegraded) == nil {
		t.Errorf("somebody else's condition is lost: %v", o.Status.Conditions)
	}

	// Nothing is written where nothing is new, whatever else happens to the object.
	w.must(w.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(machineConfigurations, "cluster").
		Body([]byte(`{"metadata":{"annotations":{"example.com/x":"y"}}}`)).Do(w.ctx).Error())
	version := w.configuration().ResourceVersion
	w.always("nothing is written", time.Second, func() (bool, any) {
		now := w.configuration()
		return now.ResourceVersion == version, now
	})
	// What somebody else writes there is put right.
	w.must(w.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(machineConfigurations, "cluster", "status").
		Body([]byte(`{"status":{"nodeDisruptionPolicyStatus":{"clusterPolicies":{"files":[]}}}}`)).Do(w.ctx).Error())
	w.inForce(api.PolicyInForce, "/etc/mine")

	// An entry that covers nothing is named.
	w.must(w.configure(`{"managementState":"Managed","nodeDisruptionPolicy":{"files":[{"path":"etc/x","actions":[{"type":"None"}]}]}}`))
	w.inForce(api.PolicyWithoutEffect, "/etc/crio/policies", `spec.nodeDisruptionPolicy.files[0].path: Invalid value: "etc/x"`)
	w.must(w.configure(everyAction))
	w.inForce(api.PolicyInForce, "/etc/mine")

	// What upstream's schema refuses the API server refuses here, and what is in force stays.
	for what, actions := range map[string]string{
		"Special is not for people": `[{"type":"Special"}]`,
		"Reboot is alone":           `[{"type":"Reboot"},{"type":"Drain"}]`,
		"None is alone":             `[{"type":"None"},{"type":"Drain"}]`,
		"Restart has a service":     `[{"type":"Restart"}]`,
		"Reload has no restart":     `[{"type":"Reload","restart":{"serviceName":"a.service"}}]`,
		"a service has a type":      `[{"type":"Restart","restart":{"serviceName":"a"}}]`,
	} {
		err := w.configure(`{"nodeDisruptionPolicy":{"files":[{"path":"/etc/x","actions":` + actions + `}]}}`)
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", what, err)
		}
	}

	// One that gets past the schema, as that of a newer OpenShift, is told by its field, and is not half in force.
	w.laxSchema()
	w.until("the schema takes it", func() (bool, any) {
		err := w.configure(`{"managementState":"Managed","nodeDisruptionPolicy":{"files":[{"path":"/etc/x","actions":[{"type":"Halt"}]}]}}`)
		return err == nil, err
	})
	w.inForce(api.PolicyInvalid, "/etc/mine", "no node updates", "spec.nodeDisruptionPolicy.files[0].actions[0].type")
	w.must(w.configure(`{"managementState":"Managed"}`))
	w.inForce(api.PolicyInForce, "/etc/crio/policies")
	for _, f := range w.configuration().Status.NodeDisruptionPolicyStatus.ClusterPolicies.Files {
		if f.Path == "/etc/mine" {
			t.Error("what was taken out of the spec is still shown")
		}
	}
}

// laxSchema has the API server take every policy.
func (w *world) laxSchema() {
	w.t.Helper()
	client, err := apiextensions.NewForConfig(w.Config)
	w.must(err)
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	crd, err := crds.Get(w.ctx, "machineconfigurations.operator.openshift.io", metav1.GetOptions{})
	w.must(err)
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	if _, ok := spec.Properties["nodeDisruptionPolicy"]; !ok {
		w.must(errors.New("the schema knows no policies"))
	}
	spec.Properties["nodeDisruptionPolicy"] = apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	_, err = crds.Update(w.ctx, crd, metav1.UpdateOptions{})
	w.must(err)
}
