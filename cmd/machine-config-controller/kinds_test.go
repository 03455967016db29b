// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/noderefit/noderefit/api"
)

// passing is what a cluster has: each kind of ours when it is first asked about, and then never again.
type passing struct {
	meta.RESTMapper

	asked map[string]int
}

func (p *passing) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	p.asked[kind.Kind]++
	if kind.Group == api.GroupVersion.Group && p.asked[kind.Kind] > 1 {
		return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
	}
	return p.RESTMapper.RESTMapping(kind, versions...)
}

// A definition may go, or come, between two questions. A controller that believed the second, beside a process that
// waits for what the first lacked, would never look again.
func TestAllControllersGoByOneAnswerAboutWhatTheClusterHas(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, mcfgv1.Install, api.Install} {
		if err := install(scheme); err != nil {
			t.Fatal(err)
		}
	}
	known := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		known.Add(kind, meta.RESTScopeRoot)
	}
	mapper := &passing{known, map[string]int{}}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "https://127.0.0.1:1"}, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	o := runOptions{}
	if o.definitions, err = newDefinitionWatch(mgr); err != nil {
		t.Fatal(err)
	}
	for name, add := range controllers {
		if err := add(mgr, o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, one := range ourDefinitions {
		if n := mapper.asked[one.kind]; one.late && n != 1 {
			t.Errorf("%s: the cluster is asked %d times", one.kind, n)
		}
	}
}
