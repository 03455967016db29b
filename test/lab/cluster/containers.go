// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/noderefit/noderefit/test/lab"
)

// More paths on a host whose pods are containers.
const (
	guestAuthority  = "/var/lib/cluster-lab/ca.crt"
	guestConfig     = "/var/lib/cluster-lab/kubelet.yaml"
	guestContainerd = "/etc/containerd/config.toml"
	guestNetwork    = "/etc/cni/net.d/10-lab.conflist"
)

// serviceAddress is the address of the API server for pods. The certificate of the API server has this address.
const serviceAddress = "10.0.0.1"

const kubeletPort = 10250

// uninitialized is the taint of a node whose addresses come from a cloud provider.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// kubeletDropIn makes the real kubelet the program of the host's kubelet.service. As before, the service does not start
// while its configuration contains "fail".
const kubeletDropIn = `[Unit]
After=containerd.service
Wants=containerd.service

[Service]
ExecStartPre=/bin/sh -c '! grep -qs ^fail /etc/kubernetes/kubelet.conf'
ExecStartPre=/usr/sbin/ip address replace %[1]s/32 dev lo
ExecStart=
ExecStart=/usr/lib/testos/kubelet %[2]s kubelet --config=%[3]s --kubeconfig=%[4]s --hostname-override=%[5]s \
    --node-ip=%[1]s --cloud-provider=external --cert-dir=/var/lib/kubelet/pki
Restart=always
RestartSec=1
`

// kubeletConfig is the configuration of the kubelet. Its thresholds for a full disk are those of a host and not of a
// machine that has dozens of hosts.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[1]s}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
resolvConf: ""
evictionHard: {memory.available: 10Mi}
imageGCHighThresholdPercent: 100
nodeLeaseDurationSeconds: %[2]d
nodeStatusUpdateFrequency: 1s
maxPods: 30
`

// containerdConfig is the configuration of containerd. Images come from a registry on this machine. Not every machine
// lets a test give a process a lower score than its own.
const containerdConfig = `version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
`

// network is a bridge for pods. Each host has its own, and pods reach only pods of their host, and the API server.
const network = `{"cniVersion": "1.0.0", "name": "lab", "plugins": [{"type": "bridge", "bridge": "cni0",
  "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "198.51.100.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// JoinContainers makes a running host a node whose pods are containers, and waits until the node is ready. The host is
// one of lab.NeedContainers. The kubelet is the real one. registry is the address on this machine of a registry, from
// which pods get their images under the same address, and pause is the image of pods' sandboxes.
func (c *Cluster) JoinContainers(
	ctx context.Context, host *lab.Host, name string, labels map[string]string, registry, pause string,
) error {
	c.hosts++
	if c.hosts > 254 {
		return errors.New("no address is left")
	}
	address := fmt.Sprintf("192.0.2.%d", c.hosts)
	// The control plane can't reach the host's addresses, so the kubelet is at a loopback address besides.
	first := c.ports.first
	external := fmt.Sprintf("127.%d.%d.%d", first>>8, first&255, c.hosts)
	run := func(argv ...string) func() error {
		return func() error {
			_, err := host.Output(ctx, argv...)
			return err
		}
	}
	at := func(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }
	for _, step := range []func() error{
		run("ip", "address", "replace", serviceAddress+"/32", "dev", "lo"),
		func() error { return host.Connect(c.port(portAPI)) },
		func() error { return host.ConnectAt(at(serviceAddress, 443), at("127.0.0.1", c.port(portAPI))) },
		func() error { return host.ConnectAt(registry, registry) },
		func() error { return host.Expose(at(external, kubeletPort), at(address, kubeletPort)) },
		func() error { return c.furnishContainers(host, name, address, pause) },
		run("systemctl", "daemon-reload"),
		run("systemctl", "restart", "containerd.service", "kubelet.service"),
		func() error { return c.initialise(ctx, name, external) },
		func() error { return c.WaitReady(ctx, name) },
		func() error { return c.label(ctx, name, labels) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("joining %s: %w", name, err)
		}
	}
	return nil
}

// furnishContainers puts on the host what a node needs whose pods are containers.
func (c *Cluster) furnishContainers(host *lab.Host, name, address, pause string) error {
	config, err := c.certificateConfig("system:node:"+name, "system:nodes")
	if err != nil {
		return err
	}
	kubebox, err := box()
	if err != nil {
		return err
	}
	unit := fmt.Sprintf(kubeletDropIn, address, guestKubebox, guestConfig, guestKubeconfig, name)
	return errors.Join(
		link(kubebox, host.HostPath(guestKubebox)),
		put(host.HostPath(guestKubeconfig), kubeconfig(config), 0o600),
		put(host.HostPath(guestAuthority), c.authority.pem, 0o644),
		put(host.HostPath(guestConfig), fmt.Appendf(nil, kubeletConfig, guestAuthority, c.options.LeaseSeconds), 0o644),
		put(host.HostPath(guestDropIn), []byte(unit), 0o644),
		put(host.HostPath(guestContainerd), fmt.Appendf(nil, containerdConfig, pause), 0o644),
		put(host.HostPath(guestNetwork), []byte(network), 0o644),
	)
}

// initialise does what a cloud provider does: it gives a node an address that the control plane reaches.
func (c *Cluster) initialise(ctx context.Context, name, external string) error {
	if err := c.WaitNode(ctx, name, "registered", func(*corev1.Node) bool { return true }); err != nil {
		return err
	}
	nodes := c.Client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: external})
		_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == uninitialized })
		_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}
