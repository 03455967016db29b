// SPDX-License-Identifier: Apache-2.0

// Kubebox is a Kubernetes control plane in one file: each of its programs, and a kubelet that simulates pods. It is
// called as "kubebox PROGRAM ARGUMENTS", or by a link with the program's name.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the ways to log in that a kubeconfig may name
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the clients
	_ "k8s.io/component-base/metrics/prometheus/version"  // and of the version
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs are the programs in this file. Each finds its own name and arguments in os.Args, and returns its exit
// status.
var programs = map[string]func() int{
	"etcd":                    etcd,
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllers.NewControllerManagerCommand),
	"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 runKubectl,
	"kwok":                    kwok,
	"kwok-config":             kwokConfig,
	"kubelet":                 command(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"hollow-kubelet":          hollowKubelet,
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, ok := programs[name]; !ok && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	run, ok := programs[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: kubebox PROGRAM [ARGUMENT...], a PROGRAM being one of",
			slices.Sorted(maps.Keys(programs)))
		os.Exit(2)
	}
	os.Exit(run())
}

// command is a program that is a cobra command. The command is made only when it is run, because making a command
// changes the process's flags and feature gates.
func command(make func() *cobra.Command) func() int {
	return func() int { return cli.Run(make()) }
}

func etcd() int {
	etcdmain.Main(os.Args)
	return 0
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
	return 0
}
