// SPDX-License-Identifier: Apache-2.0

// Command up builds the control plane that the tests run, and runs one until it is interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/noderefit/noderefit/test/lab/cluster"
)

const worker = "node-role.kubernetes.io/worker"

func main() {
	build := flag.Bool("build", false, "only build the control plane, if it is not there yet")
	nodes := flag.Int("nodes", 3, "number of nodes for kwok to play")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *build, *nodes)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "up:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, build bool, nodes int) error {
	kubebox, err := cluster.Kubebox(ctx, os.Stderr)
	if err != nil || build {
		return err
	}
	// The period is that of most clusters: no node here reboots, and the cluster may have many nodes.
	c, err := cluster.Start(ctx, cluster.Options{
		Controllers: true, Scheduler: true, Kwok: true, GracePeriod: 40 * time.Second,
	})
	if err != nil {
		return err
	}
	if err := c.AddNodes(ctx, cluster.KwokNodes("node", nodes, map[string]string{worker: ""})...); err != nil {
		return errors.Join(err, c.Stop())
	}
	fmt.Fprintf(os.Stdout, "export KUBECONFIG=%s\nalias kubectl='%s kubectl'\n", c.Kubeconfig, kubebox)
	<-ctx.Done()
	return c.Stop()
}
