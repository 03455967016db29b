// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// sharedFor is how long a list is good for all requests. Cluster API asks about each machine by itself.
const sharedFor = 5 * time.Second

// shared is a list that requests share.
type shared[T any] struct {
	mu    sync.Mutex
	since time.Time
	items []T
}

// get returns the list, which is made anew where it is too old. Requests that come meanwhile wait for the one list.
func (s *shared[T]) get(now func() time.Time, list func() ([]T, error)) ([]T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	began := now()
	if !s.since.IsZero() && began.Sub(s.since) < sharedFor {
		return s.items, nil
	}
	items, err := list()
	if err == nil {
		s.items, s.since = items, began
	}
	return items, err
}

// Cluster is Nodes on an API server.
type Cluster struct {
	client client.Client
	pools  shared[mcfgv1.MachineConfigPool]
	nodes  shared[corev1.Node]
}

// NewCluster returns the cluster that a client is for.
func NewCluster(c client.Client) *Cluster { return &Cluster{client: c} }

// Pools implements Nodes.
func (c *Cluster) Pools(ctx context.Context) ([]mcfgv1.MachineConfigPool, error) {
	return c.pools.get(time.Now, func() ([]mcfgv1.MachineConfigPool, error) {
		var list mcfgv1.MachineConfigPoolList
		if err := c.client.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("listing MachineConfigPools: %w", err)
		}
		return list.Items, nil
	})
}

// Nodes implements Nodes. The API server answers from its cache.
func (c *Cluster) Nodes(ctx context.Context) ([]corev1.Node, error) {
	return c.nodes.get(time.Now, func() ([]corev1.Node, error) {
		var list corev1.NodeList
		cached := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}
		if err := c.client.List(ctx, &list, cached); err != nil {
			return nil, fmt.Errorf("listing Nodes: %w", err)
		}
		return list.Items, nil
	})
}

// Config implements Nodes.
func (c *Cluster) Config(ctx context.Context, name string) (*mcfgv1.MachineConfig, error) {
	mc := &mcfgv1.MachineConfig{}
	err := c.client.Get(ctx, client.ObjectKey{Name: name}, mc)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading MachineConfig/%s: %w", name, err)
	}
	return mc, nil
}

// Write implements Nodes. A MachineConfig that changed since it was read is left alone.
func (c *Cluster) Write(ctx context.Context, mc *mcfgv1.MachineConfig) error {
	if mc.ResourceVersion == "" {
		return c.client.Create(ctx, mc)
	}
	return c.client.Update(ctx, mc)
}
