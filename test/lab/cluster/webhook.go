// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Hang has the API server ask a webhook that does not answer about all writes of resources that fit a condition in CEL.
// Each such write is refused after a second. The returned function removes the webhook, and so does the test's end.
func (c *Cluster) Hang(t testing.TB, group, version, condition string, resources ...string) (end func()) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then it is seen that the client has gone
		<-r.Context().Done()
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	none, fail, url := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail, server.URL
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "hangs-"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hangs.example.com", SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
			TimeoutSeconds: new(int32(1)),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(
				&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: condition}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{
					admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{group}, APIVersions: []string{version}, Resources: resources,
				},
			}},
		}},
	}
	webhooks := c.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	made, err := webhooks.Create(t.Context(), config, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	end = func() { _ = webhooks.Delete(context.Background(), made.Name, metav1.DeleteOptions{}) }
	t.Cleanup(end)
	return end
}
