// SPDX-License-Identifier: Apache-2.0

package drain_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/kube"
)

// cordoned returns a node that the agent has cordoned for an update.
func cordoned(name string) *corev1.Node {
	return &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}, ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: map[string]string{api.CordonKey: api.Encode(api.Cordon{By: api.Daemon, Config: "rendered-worker-b"})}}}
}

// A node is drained for an update. Pods go as their budgets allow, however long that takes. The report has the pods that
// the drain waits for.
func ExampleDrainer_Run() {
	cluster := httptest.NewServer(drain.PodServer(func() []corev1.Pod { return nil }))
	client, err := kube.New(&rest.Config{Host: cluster.URL})
	if err != nil {
		panic(err)
	}
	d := drain.Drainer{Client: client, Node: "n"}
	err = d.Run(context.Background(), drain.Request{Config: "rendered-worker-b"}, func(report api.Drain) {
		for _, pod := range report.Waiting {
			fmt.Println(drain.Sentence(pod))
		}
	})
	fmt.Println("drained:", err == nil)
	// Output:
	// drained: true
}

// Who has cordoned a node decides who may uncordon it.
func ExampleReadHold() {
	for _, node := range []*corev1.Node{
		{},
		{Spec: corev1.NodeSpec{Unschedulable: true}},
		cordoned("node-1"),
	} {
		fmt.Println(drain.ReadHold(node))
	}
	// Output:
	// Free
	// Theirs
	// Ours
}
