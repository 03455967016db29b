// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	cadvisor "github.com/google/cadvisor/info/v1"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	cri "k8s.io/cri-client/pkg"
	"k8s.io/cri-client/pkg/fake"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubemark"
)

// hollow are the options of a real kubelet whose container runtime, mounts and cgroups are simulated. The kubelet
// registers the node, keeps the node's lease and honours taints. It starts pods at once, and ends them with the grace
// that they ask for.
type hollow struct {
	kubeconfig   string
	node         string
	nodeIP       string
	port         int
	healthzPort  int
	leaseSeconds int
}

func hollowKubelet() int {
	h := &hollow{}
	c := &cobra.Command{
		Use:   "hollow-kubelet",
		Short: "Runs the kubelet on a container runtime that only pretends",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return h.run(cmd.Context()) },
	}
	flags := c.Flags()
	flags.StringVar(&h.kubeconfig, "kubeconfig", "", "the node's credentials")
	flags.StringVar(&h.node, "node", "", "name of the node")
	flags.StringVar(&h.nodeIP, "node-ip", "", "address of the node, which one of its interfaces must have")
	flags.IntVar(&h.port, "port", 10250, "port on which the kubelet serves")
	flags.IntVar(&h.healthzPort, "healthz-port", 10248, "port of /healthz on 127.0.0.1")
	flags.IntVar(&h.leaseSeconds, "lease-seconds", 40, "duration of the node's lease, which is renewed after a quarter of it")
	return cli.Run(c)
}

func (h *hollow) run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", h.kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent = "hollow-kubelet"
	config.QPS, config.Burst = 50, 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	// A heartbeat that hangs must not keep the next one from being sent.
	config.Timeout, config.QPS = time.Duration(h.leaseSeconds)*time.Second, -1
	heartbeat, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	machine, err := newMachine(h.node)
	if err != nil {
		return err
	}

	endpoint, err := fake.GenerateEndpoint()
	if err != nil {
		return fmt.Errorf("choosing the socket of the container runtime: %w", err)
	}
	runtime := fake.NewFakeRemoteRuntime()
	if err := runtime.Start(endpoint); err != nil {
		return fmt.Errorf("starting the container runtime: %w", err)
	}
	defer runtime.Stop()
	service, err := cri.NewRemoteRuntimeService(ctx, endpoint, 15*time.Second, noop.NewTracerProvider(), false)
	if err != nil {
		return fmt.Errorf("connecting to the container runtime: %w", err)
	}

	flags, kubelet := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubeletOptions{
		NodeName: h.node, KubeletPort: h.port, MaxPods: 110,
	})
	flags.NodeIP = h.nodeIP
	kubelet.NodeLeaseDurationSeconds = int32(h.leaseSeconds)
	kubelet.ProviderID = ""
	// A host need not have a resolver, and no pod here needs one.
	kubelet.ResolverConfig = ""

	go kubemark.NewHollowKubelet(flags, kubelet, client, heartbeat, machine, runtime.ImageService, service,
		cm.NewStubContainerManager()).Run(ctx)
	return h.serveHealth()
}

// serveHealth answers /healthz as the kubelet's own command does; the hollow kubelet has no such server.
func (h *hollow) serveHealth() error {
	mux := http.NewServeMux()
	healthz.InstallHandler(mux)
	server := &http.Server{
		Addr: fmt.Sprintf("127.0.0.1:%d", h.healthzPort), Handler: mux, ReadHeaderTimeout: 10 * time.Second,
	}
	return fmt.Errorf("serving /healthz: %w", server.ListenAndServe())
}

// machine is the machine as the kubelet sees it: simulated, except for the IDs of the machine and of its boot.
type machine struct {
	cadvisortest.Fake
	id, boot, kernel, release string
}

func newMachine(node string) (*machine, error) {
	m := &machine{Fake: cadvisortest.Fake{NodeName: node}}
	for path, into := range map[string]*string{
		"/etc/machine-id":                 &m.id,
		"/proc/sys/kernel/random/boot_id": &m.boot,
		"/proc/sys/kernel/osrelease":      &m.kernel,
		"/etc/os-release":                 &m.release,
	} {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("identifying the machine: %w", err)
		}
		*into = strings.TrimSpace(string(text))
	}
	return m, nil
}

// MachineInfo returns the identity of the machine and of this boot.
func (m *machine) MachineInfo() (*cadvisor.MachineInfo, error) {
	info, err := m.Fake.MachineInfo()
	if err == nil {
		info.MachineID, info.SystemUUID, info.BootID = m.id, m.id, m.boot
	}
	return info, err
}

// VersionInfo returns the versions of the running kernel and OS.
func (m *machine) VersionInfo() (*cadvisor.VersionInfo, error) {
	info, err := m.Fake.VersionInfo()
	if err == nil {
		info.KernelVersion = m.kernel
		_, name, _ := strings.Cut(m.release, "PRETTY_NAME=")
		name, _, _ = strings.Cut(name, "\n")
		info.ContainerOsVersion = strings.Trim(name, `"`)
	}
	return info, err
}
