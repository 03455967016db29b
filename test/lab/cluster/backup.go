// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"

	"github.com/noderefit/noderefit/test/lab"
)

// etcdData is the directory in which etcd keeps its data.
const etcdData = "etcd"

// Backup copies the data of etcd to a directory that does not exist yet. The API server is away meanwhile.
func (c *Cluster) Backup(ctx context.Context, dir string) error {
	c.StopAPI()
	c.etcd.Kill()
	if err := os.CopyFS(dir, os.DirFS(c.path(etcdData))); err != nil {
		return fmt.Errorf("copying the data of etcd: %w", err)
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	return c.StartAPI(ctx)
}

// Restore has etcd begin again with the data of a backup. What was written since is lost. All programs of the cluster
// start anew, as docs/upgrade.md asks where the revision is not bumped. A kube-controller-manager that ran on would
// write whole Nodes of before: their resourceVersions come up again.
func (c *Cluster) Restore(ctx context.Context, dir string) error {
	c.StopAPI()
	c.stopPrograms()
	c.etcd.Kill()
	if err := lab.RemoveTree(c.path(etcdData)); err != nil {
		return err
	}
	if err := os.CopyFS(c.path(etcdData), os.DirFS(dir)); err != nil {
		return fmt.Errorf("restoring etcd: %w", err)
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.StartAPI(ctx); err != nil {
		return err
	}
	return startAll(ctx, c.programs())
}
