// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	nodefast "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	nodelease "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podfast "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

// kwok simulates the nodes that have no machine, and their kubelets.
func kwok() int {
	// The control plane's packages have added their own --version to the process's set of flags. cobra would merge that
	// flag with kwok's.
	pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ExitOnError)
	// The level of the log and the configuration are needed before the command exists that could parse the flags.
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, _ := log.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := config.InitFlags(ctx, flags)
	if err == nil {
		command := cmd.NewCommand(ctx)
		command.PersistentFlags().AddFlagSet(flags)
		err = command.ExecuteContext(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// kwokConfig prints a configuration for kwok with all stages of nodes and pods. So kwok needs neither definitions in
// the cluster nor a download.
func kwokConfig() int {
	flags := flag.NewFlagSet("kwok-config", flag.ExitOnError)
	lease := flags.Int("lease-seconds", 40, "duration of the nodes' leases; a quarter of it is how often they are renewed")
	parallel := flags.Int("parallelism", 16, "how many nodes, pods and leases are worked on at a time")
	selector := flags.String("selector", "", "label selector of the nodes that kwok plays; all of them if empty")
	// A set of flags that exits on errors returns no error.
	_ = flags.Parse(os.Args[1:])
	manage := "manageAllNodes: true"
	if *selector != "" {
		manage = fmt.Sprintf("manageAllNodes: false\n  manageNodesWithLabelSelector: %q", *selector)
	}
	options := fmt.Sprintf(`apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  %[1]s
  nodeLeaseDurationSeconds: %[2]d
  nodeLeaseParallelism: %[3]d
  nodePlayStageParallelism: %[3]d
  podPlayStageParallelism: %[3]d
  enablePodsOnNodeSyncStreamWatch: true
`, manage, *lease, *parallel)
	fmt.Println(strings.Join([]string{options,
		nodefast.DefaultNodeInit, nodelease.DefaultNodeHeartbeatWithLease,
		podfast.DefaultPodReady, podfast.DefaultPodComplete, podfast.DefaultPodDelete,
	}, "\n---\n"))
	return 0
}
