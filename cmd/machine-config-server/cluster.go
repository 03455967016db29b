// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/intake"
	"github.com/noderefit/noderefit/server"
)

// connect makes a cluster the source. The cluster's pools are watched, and have been read when connect returns.
func (o *options) connect(ctx context.Context, group *errgroup.Group, so *server.Options) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("reading the kubeconfig: there is none; name one with --kubeconfig, or a folder with --dir")
	}
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	config.UserAgent = api.Server + "/" + version
	// An unreadable pool is served by its record of what its nodes have proved. An unreadable MachineConfig is not served.
	config.Wrap(intake.New(mcfgv1.GroupVersion.WithKind("MachineConfigPool")).Transport)
	scheme := runtime.NewScheme()
	if err := mcfgv1.Install(scheme); err != nil {
		return err
	}
	pools, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	configs, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	group.Go(func() error { return pools.Start(ctx) })
	if _, err := pools.GetInformer(ctx, &mcfgv1.MachineConfigPool{}); err != nil {
		return fmt.Errorf("watching MachineConfigPools: %w", err)
	}
	if !pools.WaitForCacheSync(ctx) {
		return fmt.Errorf("watching MachineConfigPools: %w", context.Cause(ctx))
	}
	so.Source = &server.Cluster{Pools: pools, Configs: configs}
	if len(o.groups) > 0 {
		so.Gate.Reviewer = kube.AuthenticationV1().TokenReviews()
	}
	return nil
}
