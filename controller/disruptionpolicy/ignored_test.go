// SPDX-License-Identifier: Apache-2.0

package disruptionpolicy

import (
	"strings"
	"testing"

	operatorv1 "github.com/openshift/api/operator/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

func TestManagedBootImagesAreNamedAsWithoutEffect(t *testing.T) {
	const head = `{"apiVersion":"operator.openshift.io/v1","kind":"MachineConfiguration","metadata":{"name":"cluster"},"spec":{`
	const images = `"managedBootImages":{"machineManagers":[{"resource":"machinesets","apiGroup":"machine.openshift.io",` +
		`"selection":{"mode":"All"}}]}`
	var is operatorv1.MachineConfigurationStatus
	for _, c := range []struct {
		spec string
		want metav1.ConditionStatus
	}{{"", ""}, {images, metav1.ConditionTrue}, {"", metav1.ConditionFalse}} {
		is = decide([]byte(head+c.spec+"}}"), 1, is, metav1.Now())
		said := meta.FindStatusCondition(is.Conditions, api.Ignored)
		switch {
		case said == nil && c.want != "", said != nil && said.Status != c.want:
			t.Errorf("spec {%s}: it says %+v", c.spec, said)
		case c.want == metav1.ConditionTrue && !strings.Contains(said.Message, "spec.managedBootImages"):
			t.Errorf("it says %q", said.Message)
		}
	}
}
