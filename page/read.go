// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// patience is how long a page waits for an object that it can do without. A cache that is never filled, because its
// reads are forbidden, returns no error.
const patience = 5 * time.Second

// Source has the readers of a cluster. Both readers are caches whose objects must not be changed: the controllers'
// cache, and one for objects that the controllers do not use.
type Source struct {
	Controllers, Own client.Reader
	// Self is the node on which the process runs. It is empty for a process outside the cluster's nodes.
	Self string
	// Now is the clock for reading policies.
	Now func() time.Time
}

// CacheOptions returns what the page's own cache keeps: the daemons' reports on nodes, and whether the daemons run.
func CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&mcfgv1.MachineConfigNode{}: {Transform: cache.TransformStripManagedFields()},
		&corev1.Pod{}: {
			Namespaces: map[string]cache.Config{api.Namespace: {}},
			Label:      labels.SelectorFromSet(labels.Set{"k8s-app": api.Daemon}),
			Transform:  strip,
		},
	}
}

// strip removes all fields of a pod except those that show whether it works.
func strip(o any) (any, error) {
	if p, ok := o.(*corev1.Pod); ok {
		p.ManagedFields, p.Annotations = nil, nil
		p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName}
		p.Status = corev1.PodStatus{
			Phase: p.Status.Phase, Conditions: p.Status.Conditions, ContainerStatuses: p.Status.ContainerStatuses,
		}
	}
	return o, nil
}

// Read reads all objects for an explanation. Without pools and nodes it fails. Other unreadable objects are a warning.
func (s Source) Read(ctx context.Context) (View, error) {
	var v View
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() error {
		var list mcfgv1.MachineConfigPoolList
		err := all(inner, s.Controllers, "MachineConfigPools", &list)
		v.Pools = list.Items
		slices.SortFunc(v.Pools, func(a, b mcfgv1.MachineConfigPool) int { return strings.Compare(a.Name, b.Name) })
		return err
	})
	g.Go(func() error {
		var list corev1.NodeList
		err := all(inner, s.Controllers, "Nodes", &list)
		v.Nodes = list.Items
		return err
	})
	var exists map[string]bool
	var unknown [4]error
	for i, read := range []func(context.Context) error{
		func(ctx context.Context) (err error) { v.States, err = s.states(ctx); return err },
		func(ctx context.Context) (err error) { v.Daemons, err = s.daemons(ctx); return err },
		func(ctx context.Context) (err error) { exists, err = s.configs(ctx); return err },
		func(ctx context.Context) (err error) { v.Follow, err = s.rules(ctx); return err },
	} {
		g.Go(func() error {
			short, cancel := context.WithTimeout(inner, patience)
			defer cancel()
			unknown[i] = read(short)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return View{}, err
	}
	for i, what := range []string{
		"Steps and drains of nodes", "Pods of the daemon", "Existing configurations",
		"RolloutPolicies",
	} {
		if unknown[i] != nil {
			v.Warnings = append(v.Warnings, what+" are not known: "+unknown[i].Error())
		}
	}
	if exists != nil {
		v.Missing = progress.MissingConfigs(v.Pools, v.Nodes, exists)
	}
	return v, nil
}

// all lists the objects of a cache without a copy.
func all(ctx context.Context, from client.Reader, what string, list client.ObjectList) error {
	err := from.List(ctx, list, client.UnsafeDisableDeepCopy)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("listing %s: timed out after %s; check that the controller's account may list and watch %[1]s",
			what, patience)
	}
	if err != nil {
		return fmt.Errorf("listing %s: %w", what, err)
	}
	return nil
}

func (s Source) states(ctx context.Context) (map[string]*mcfgv1.MachineConfigNode, error) {
	var list mcfgv1.MachineConfigNodeList
	if err := all(ctx, s.Own, "MachineConfigNodes", &list); err != nil {
		return nil, err
	}
	states := make(map[string]*mcfgv1.MachineConfigNode, len(list.Items))
	for i := range list.Items {
		states[list.Items[i].Name] = &list.Items[i]
	}
	return states, nil
}

func (s Source) daemons(ctx context.Context) (map[string]progress.Daemon, error) {
	var list corev1.PodList
	if err := all(ctx, s.Own, "the daemon's Pods", &list); err != nil {
		return nil, err
	}
	return progress.ReadDaemons(list.Items), nil
}

func (s Source) configs(ctx context.Context) (map[string]bool, error) {
	var list mcfgv1.MachineConfigList
	if err := all(ctx, s.Controllers, "MachineConfigs", &list); err != nil {
		return nil, err
	}
	names := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		names[list.Items[i].Name] = true
	}
	return names, nil
}

// rules reads what the cluster's policies allow now.
func (s Source) rules(ctx context.Context) (func([]*progress.Pool), error) {
	var list api.RolloutPolicyList
	if err := all(ctx, s.Controllers, rollout.Kind, &list); err != nil {
		if meta.IsNoMatchError(err) {
			return nil, nil
		}
		return nil, err
	}
	book, now := rollout.NewBook(list.Items, rollout.Reported(list.Items)), s.Now()
	return func(pools []*progress.Pool) { book.FollowReported(pools, now, s.Self) }, nil
}
