// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubectl "k8s.io/kubectl/pkg/drain"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/kube"
)

// clientOf returns a client of an API server that answers as handle does.
func clientOf(t testing.TB, handle http.HandlerFunc) *kube.Client {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(func() {
		server.CloseClientConnections() // a watch ends with its client
		server.Close()
	})
	client, err := kube.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// write writes an object, or the status of an error, as the API server does.
func write(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	if status, is := object.(*apierrors.StatusError); is {
		w.WriteHeader(int(status.ErrStatus.Code))
		object = status.ErrStatus
	}
	if err := json.NewEncoder(w).Encode(object); err != nil {
		panic(err)
	}
}

// somePods returns pods with each combination of what a drain may look at, on node n. The first pod of a combination is
// named by all of its properties.
func somePods() []*corev1.Pod {
	yes := true
	kinds := map[string]metav1.OwnerReference{
		"daemonset":    {APIVersion: "apps/v1", Kind: "DaemonSet", Name: "there", Controller: &yes},
		"orphan":       {APIVersion: "apps/v1", Kind: "DaemonSet", Name: "gone", Controller: &yes},
		"owned":        {APIVersion: "apps/v1", Kind: "DaemonSet", Name: "there"},
		"foreign":      {APIVersion: "apps.example.com/v1", Kind: "DaemonSet", Name: "there", Controller: &yes},
		"replicaset":   {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "there", Controller: &yes},
		"uncontrolled": {},
	}
	var out []*corev1.Pod
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		for _, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed} {
			for n := range 16 {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Status: corev1.PodStatus{Phase: phase}}
				p.Spec.NodeName = "n"
				name := []string{kind, strings.ToLower(string(phase))}
				if owner := kinds[kind]; owner.Name != "" {
					p.OwnerReferences = []metav1.OwnerReference{owner}
				}
				if n&1 != 0 {
					name, p.Annotations = append(name, "static"), map[string]string{corev1.MirrorPodAnnotationKey: "x"}
				}
				if n&2 != 0 {
					name = append(name, "scratch")
					p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
				}
				if n&4 != 0 {
					name, p.Labels = append(name, "skipped"), map[string]string{"drain": "skip"}
				}
				if n&8 != 0 {
					now := metav1.Now()
					name, p.DeletionTimestamp, p.Finalizers = append(name, "ending"), &now, []string{"example.com/x"}
				}
				p.Name = strings.Join(name, "-")
				p.UID = types.UID(p.Name)
				out = append(out, p)
			}
		}
	}
	return out
}

// The command that people know is kubectl drain. So the library of that command says which pods have to go.
func TestThePodsThatGoAreThoseOfKubectlDrain(t *testing.T) {
	t.Parallel()
	pods := somePods()
	client := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/apis/apps/v1/namespaces/shop/daemonsets/there":
			write(w, metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1",
				Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{Name: "there", Namespace: "shop"}})
		case "/apis/apps/v1/namespaces/shop/daemonsets/gone":
			write(w, apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "daemonsets"}, "gone"))
		default:
			panic(r.URL.Path)
		}
	})
	objects := fake.NewClientset(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "there", Namespace: "shop"}})
	for _, p := range pods {
		if err := objects.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	policy := &api.DrainPolicy{SkipPodSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"drain": "skip"}}}}
	theirs, errs := (&kubectl.Helper{
		Ctx: t.Context(), Client: objects, Out: io.Discard, ErrOut: io.Discard, Force: true, IgnoreAllDaemonSets: true,
		DeleteEmptyDirData: true, GracePeriodSeconds: -1,
		AdditionalFilters: []kubectl.PodFilter{func(p corev1.Pod) kubectl.PodDeleteStatus {
			if p.Labels["drain"] == "skip" {
				return kubectl.MakePodDeleteStatusSkip()
			}
			return kubectl.MakePodDeleteStatusOkay()
		}},
	}).GetPodsForDeletion("n")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var want, got []string
	for _, p := range theirs.Pods() {
		want = append(want, p.Name)
	}
	d := &Drainer{Client: client, Node: "n"}
	if err := d.follow(policy); err != nil {
		t.Fatal(err)
	}
	leaving, err := d.leaving(t.Context(), pods)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range leaving {
		got = append(got, p.Name)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) || len(got) == 0 || len(got) == len(pods) {
		for _, p := range pods {
			if ours, their := slices.Contains(got, p.Name), slices.Contains(want, p.Name); ours != their {
				t.Errorf("%s goes: %t, with kubectl: %t", p.Name, ours, their)
			}
		}
		t.Errorf("of %d pods %d go, with kubectl %d", len(pods), len(got), len(want))
	}
}

// Nobody knows whether a pod has to go where its DaemonSet can't be read.
func TestADrainEndsWhereADaemonSetCannotBeRead(t *testing.T) {
	t.Parallel()
	d := &Drainer{Node: "n", Client: clientOf(t, func(w http.ResponseWriter, _ *http.Request) {
		write(w, apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "daemonsets"}, "there", fmt.Errorf("no")))
	})}
	_, err := d.leaving(t.Context(), somePods())
	if err == nil || !strings.Contains(err.Error(), "reading DaemonSet shop/") {
		t.Errorf("the error is %v", err)
	}
}
