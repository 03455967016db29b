// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// A server that is busy is not asked again for an eviction: the drain decides when to ask.
func TestEachRequestGoesToThePathOfItsKind(t *testing.T) {
	t.Parallel()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		if r.Method == http.MethodPost {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	c, err := New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a"}}); err == nil {
		t.Error("a refused eviction is no error")
	}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}}
	for _, ask := range []func() error{
		func() error { _, err := c.Events().Update(event); return err },
		func() error { _, err := c.Events().Patch(event, []byte("{}")); return err },
		func() error { _, err := c.Nodes().Get(t.Context(), "n", metav1.GetOptions{}); return err },
		func() error { _, err := c.Pods("").List(t.Context(), metav1.ListOptions{}); return err },
		func() error { _, err := c.Claims("shop").Get(t.Context(), "data", metav1.GetOptions{}); return err },
		func() error { _, err := c.Budgets("shop").List(t.Context(), metav1.ListOptions{}); return err },
		func() error { _, err := c.Attachments().Get(t.Context(), "v", metav1.GetOptions{}); return err },
		func() error { _, err := c.MachineConfigs().Get(t.Context(), "m", metav1.GetOptions{}); return err },
		func() error { _, err := c.MachineConfigNodes().Get(t.Context(), "n", metav1.GetOptions{}); return err },
		func() error { _, err := c.ControllerConfigs().List(t.Context(), metav1.ListOptions{}); return err },
		func() error { _, err := c.Raw(t.Context(), "/apis/operator.openshift.io/v1/x"); return err },
	} {
		if err := ask(); err == nil {
			t.Error("a missing object is no error")
		}
	}
	const configs = "GET /apis/machineconfiguration.openshift.io/v1/"
	want := []string{
		"POST /api/v1/namespaces/shop/pods/a/eviction",
		"PUT /api/v1/namespaces/default/events/e",
		"PATCH /api/v1/namespaces/default/events/e", "GET /api/v1/nodes/n", "GET /api/v1/pods",
		"GET /api/v1/namespaces/shop/persistentvolumeclaims/data",
		"GET /apis/policy/v1/namespaces/shop/poddisruptionbudgets", "GET /apis/storage.k8s.io/v1/volumeattachments/v",
		configs + "machineconfigs/m", configs + "machineconfignodes/n", configs + "controllerconfigs",
		"GET /apis/operator.openshift.io/v1/x",
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked:\n%q\nwant:\n%q", asked, want)
	}
}
