// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/machineconfig"
)

// Cluster is a Source in a cluster.
type Cluster struct {
	// Pools reads from a cache. Configs reads one MachineConfig at a time by name, since each is as large as all others
	// together.
	Pools, Configs client.Reader
}

// Pool reads a pool from the cache.
func (c *Cluster) Pool(ctx context.Context, name string) (*mcfgv1.MachineConfigPool, error) {
	pool := &mcfgv1.MachineConfigPool{}
	err := c.Pools.Get(ctx, client.ObjectKey{Name: name}, pool)
	switch {
	case apierrors.IsNotFound(err):
		return nil, &unknownPoolError{Pool: name}
	case err != nil:
		return nil, behind{fmt.Errorf("reading MachineConfigPool/%s: %w", name, err)}
	}
	return pool, nil
}

// Version returns the object's UID and resource version, which change with its content. It reads only metadata.
func (c *Cluster) Version(ctx context.Context, _ *mcfgv1.MachineConfigPool, name string) (string, error) {
	meta := &metav1.PartialObjectMetadata{}
	meta.SetGroupVersionKind(mcfgv1.GroupVersion.WithKind("MachineConfig"))
	if err := c.Configs.Get(ctx, client.ObjectKey{Name: name}, meta); err != nil {
		return "", behind{fmt.Errorf("reading MachineConfig/%s: %w", name, err)}
	}
	return countOf(meta), nil
}

func countOf(o metav1.Object) string { return string(o.GetUID()) + "/" + o.GetResourceVersion() }

// Config reads a configuration, and checks that its content has the digest of its name. An agent would refuse another
// content.
func (c *Cluster) Config(
	ctx context.Context, _ *mcfgv1.MachineConfigPool, name string,
) (*mcfgv1.MachineConfig, string, error) {
	mc := &mcfgv1.MachineConfig{}
	if err := c.Configs.Get(ctx, client.ObjectKey{Name: name}, mc); err != nil {
		return nil, "", behind{fmt.Errorf("reading MachineConfig/%s: %w", name, err)}
	}
	cfg, err := machineconfig.Parse(mc)
	if err == nil && (machineconfig.PoolOf(name) == "" || !machineconfig.NamedBy(name, cfg.Digest)) {
		err = errors.New("MachineConfig/" + name +
			": the content does not match the digest in the name; the object was changed or written by hand")
	}
	return mc, countOf(mc), err
}
