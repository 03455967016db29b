// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/noderefit/noderefit/api"
)

func TestThePoliciesThatAreLookedForAreThoseThatAreInstalled(t *testing.T) {
	var installed []string
	for _, name := range []string{"daemon", "controller", "readable"} {
		text, err := os.ReadFile("../../packaging/kustomize/base/objects/policy-" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^kind: ValidatingAdmissionPolicy\nmetadata:\n  name: (.*)$`).
			FindAllStringSubmatch(string(text), -1) {
			installed = append(installed, m[1])
		}
	}
	slices.Sort(installed)
	if diff := cmp.Diff(installed, api.AdmissionPolicies); diff != "" {
		t.Errorf("installed (-), looked for (+):\n%s", diff)
	}
	rights, err := os.ReadFile("../../packaging/kustomize/base/objects/rbac-controller.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range api.AdmissionPolicies {
		if !regexp.MustCompile(`(?m)^      - ` + name + `$`).Match(rights) {
			t.Errorf("the controller may not look for %s", name)
		}
	}
}

func TestPoliciesThatAreNotThereAreCounted(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var objects []client.Object
	for _, name := range api.AdmissionPolicies {
		meta := metav1.ObjectMeta{Name: name}
		objects = append(objects, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta},
			&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta})
	}
	var away error
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			options ...client.GetOption,
		) error {
			if away != nil {
				return away
			}
			return c.Get(ctx, key, o, options...)
		},
	}).Build()
	g := newGuard(c, logr.Discard())
	check := func(what string, want float64) {
		t.Helper()
		g.look(t.Context())
		if got := value(t, g.missing); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	check("all are there", 0)
	for _, o := range []client.Object{objects[0], objects[3]} { // one policy, and another one's binding
		if err := c.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	check("two are not in force", 2)
	away = errors.New("no answer")
	check("nobody answers", 2)
}

func value(t *testing.T, g prometheus.Gauge) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(g); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].Metric[0].GetGauge().GetValue()
}
