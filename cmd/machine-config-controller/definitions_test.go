// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestDefinitionsThatWentAreCountedAndOneThatComesLateEndsTheProcess(t *testing.T) {
	var served []string
	broken := false
	api := definitionsOf(t, &served, &broken)
	d := &definitionWatch{
		api: api, log: logr.Discard(), served: map[string]bool{},
		absent: map[string]bool{"rolloutpolicies": true, "nodehooks": true}, ruled: map[string]bool{},
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "missing", Help: "of the test"}, []string{"resource"}),
	}
	needed := []string{"machineconfigs", "machineconfigpools", "machineconfignodes"}
	for _, step := range []struct {
		name    string
		served  []string
		broken  bool
		missing []string
		ends    string
	}{
		{"what is needed", needed, false, nil, ""},
		{"one may come later", append([]string{"kubeletconfigs"}, needed...), false, nil, ""},
		{"and go", needed, false, []string{"kubeletconfigs"}, ""},
		{"a group that is gone", nil, false, append([]string{"kubeletconfigs"}, needed...), ""},
		{"the API server is away", nil, true, append([]string{"kubeletconfigs"}, needed...), ""},
		{"a watch begins by itself", append([]string{"nodehooks"}, needed...), false, []string{"kubeletconfigs"}, ""},
		{"nothing looks for it again", append([]string{"rolloutpolicies"}, needed...), false, nil, "rolloutpolicies"},
	} {
		served, broken = step.served, step.broken
		err := d.look(t.Context())
		if (err != nil) != (step.ends != "") || err != nil && !strings.Contains(err.Error(), step.ends) {
			t.Errorf("%s: it ends with %v", step.name, err)
		}
		for _, one := range ourDefinitions {
			gauge := value(t, d.missing.WithLabelValues(one.resource))
			if want := slices.Contains(step.missing, one.resource); step.ends == "" && (gauge == 1) != want {
				t.Errorf("%s: missing %s: %v, want %v", step.name, one.resource, gauge, want)
			}
		}
	}
}

// definitionsOf is an API server that serves definitions.
func definitionsOf(t *testing.T, served *[]string, broken *bool) rest.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
		for _, one := range ourDefinitions {
			if r.URL.Path == "/apis/"+one.gv.String() && slices.Contains(*served, one.resource) {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: one.resource})
			}
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case *broken:
			w.WriteHeader(http.StatusInternalServerError)
		case len(list.APIResources) == 0:
			w.WriteHeader(http.StatusNotFound)
		default:
			_ = json.NewEncoder(w).Encode(list)
		}
	}))
	t.Cleanup(server.Close)
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return kube.CoreV1().RESTClient()
}

// A process fills its caches once it leads. What it saw at its start and what is gone by then it would wait for.
func TestAStandbyEndsWhenADefinitionGoesBeforeItLeads(t *testing.T) {
	needed := []string{"machineconfigs", "machineconfigpools", "machineconfignodes"}
	all := append([]string{"rolloutpolicies"}, needed...)
	for name, c := range map[string]struct {
		steps []string // what happens between the looks: lead, gone, back
		ends  bool
	}{
		"the definition stays":                   {[]string{"", "lead", ""}, false},
		"it goes while another leads":            {[]string{"", "gone"}, true},
		"it goes as this process begins to lead": {[]string{"", "lead gone"}, true},
		"it goes while this process leads":       {[]string{"", "lead", "gone"}, false},
	} {
		served, broken, elected := all, false, make(chan struct{})
		d := &definitionWatch{
			api: definitionsOf(t, &served, &broken), log: logr.Discard(), served: map[string]bool{"rolloutpolicies": true},
			absent: map[string]bool{"controllerconfigs": true}, elected: elected, ruled: map[string]bool{},
			missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "missing", Help: "of the test"}, []string{"resource"}),
		}
		var err error
		for _, step := range c.steps {
			if strings.Contains(step, "lead") {
				close(elected)
			}
			if strings.Contains(step, "gone") {
				served = needed
			}
			err = d.look(t.Context())
		}
		if (err != nil) != c.ends || err != nil && !strings.Contains(err.Error(), "watching rolloutpolicies") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
