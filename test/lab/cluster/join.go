// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/test/lab"
)

// The paths on a host that make the host a node. All of them survive updates of the OS, as on a node that was
// installed.
const (
	guestKubebox    = "/var/lib/cluster-lab/kubebox"
	guestKubeconfig = "/var/lib/cluster-lab/kubelet.kubeconfig"
	guestDropIn     = "/etc/systemd/system/kubelet.service.d/50-cluster-lab.conf"
)

// dropIn makes the kubelet the program of the host's kubelet.service. As before, the service does not start while its
// configuration contains "fail". The node's address is on no other interface of any machine.
const dropIn = `[Service]
ExecStartPre=/bin/sh -c '! grep -qs ^fail /etc/kubernetes/kubelet.conf'
ExecStartPre=/usr/sbin/ip address replace %[1]s/32 dev lo
ExecStart=
ExecStart=%[2]s hollow-kubelet --kubeconfig=%[3]s --node=%[4]s --node-ip=%[1]s --lease-seconds=%[5]d
`

// Join makes a running host a node, and waits until the node is ready. The kubelet runs as the host's kubelet.service
// and answers /healthz at the usual port of the host. It has a node's own credentials, with the limits of any node. The
// host must have a network of its own, in which Join connects the API server.
func (c *Cluster) Join(ctx context.Context, host *lab.Host, name string, labels map[string]string) error {
	for _, step := range []func() error{
		func() error { return host.Connect(c.port(portAPI)) },
		func() error { return c.furnish(host, name) },
		func() error {
			_, err := host.Output(ctx, "systemctl", "daemon-reload")
			return err
		},
		func() error {
			_, err := host.Output(ctx, "systemctl", "restart", "kubelet.service")
			return err
		},
		func() error { return c.WaitReady(ctx, name) },
		func() error { return c.label(ctx, name, labels) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("joining %s: %w", name, err)
		}
	}
	return nil
}

// furnish puts on the host what a node needs.
func (c *Cluster) furnish(host *lab.Host, name string) error {
	config, err := c.certificateConfig("system:node:"+name, "system:nodes")
	if err != nil {
		return err
	}
	kubebox, err := box()
	if err != nil {
		return err
	}
	c.hosts++
	if c.hosts > 254 {
		return errors.New("no address is left")
	}
	unit := fmt.Sprintf(dropIn, fmt.Sprintf("192.0.2.%d", c.hosts), guestKubebox, guestKubeconfig, name,
		c.options.LeaseSeconds)
	return errors.Join(
		link(kubebox, host.HostPath(guestKubebox)),
		put(host.HostPath(guestKubeconfig), kubeconfig(config), 0o600),
		put(host.HostPath(guestDropIn), []byte(unit), 0o644),
	)
}

func put(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, mode)
}

// link makes a hard link, or a copy where both paths are on different file systems. Neither file is written to
// afterwards.
func link(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if os.Link(from, to) == nil {
		return nil
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	defer target.Close()
	_, err = io.Copy(target, source)
	return err
}

// label gives a node its labels, as the administrator, because a kubelet may not give itself a role.
func (c *Cluster) label(ctx context.Context, name string, labels map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
