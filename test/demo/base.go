// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// How big the base is: what a cluster renders for a worker by itself is about this much.
const (
	baseFiles = 100
	baseUnits = 25
)

type object = map[string]any

// baseFile is a file of the base.
type baseFile struct {
	path, text string
	mode       int
}

// writeBase writes, as MachineConfigs for the role worker, what a cluster gives each worker before anybody adds
// anything, in the shape and with the names that such configurations have. It is the same at each call.
func writeBase(dir string) error {
	files, units := nodeFiles(), nodeUnits()
	half := len(files) / 2
	documents := []object{
		machineConfig("00-worker", object{
			"storage": object{"files": ignitionFiles(files[:half])},
			"systemd": object{"units": units[:len(units)-8]},
		}),
		machineConfig("01-worker-kubelet", object{
			"storage": object{"files": ignitionFiles(files[half:])},
			"systemd": object{"units": units[len(units)-8:]},
		}),
		machineConfig("99-worker-ssh", object{
			"passwd": object{"users": []object{{"name": "core", "sshAuthorizedKeys": []string{
				"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDemoDemoDemoDemoDemoDemoDemoDemoDemoDemoDe admin@example.net"}}}},
		}),
	}
	for _, d := range documents {
		data, err := yaml.Marshal(d)
		if err != nil {
			return fmt.Errorf("encoding the base: %w", err)
		}
		name := d["metadata"].(object)["name"].(string)
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), data, 0o644); err != nil {
			return fmt.Errorf("writing the base: %w", err)
		}
	}
	return nil
}

func machineConfig(name string, config object) object {
	config["ignition"] = object{"version": "3.2.0"}
	return object{
		"apiVersion": "machineconfiguration.openshift.io/v1",
		"kind":       "MachineConfig",
		"metadata":   object{"name": name, "labels": object{"machineconfiguration.openshift.io/role": "worker"}},
		"spec":       object{"config": config},
	}
}

func ignitionFiles(files []baseFile) []object {
	var out []object
	for _, f := range files {
		out = append(out, object{"path": f.path, "mode": f.mode, "overwrite": true, "contents": object{
			"source": "data:text/plain;charset=utf-8;base64," + base64.StdEncoding.EncodeToString([]byte(f.text))}})
	}
	return out
}

// nodeFiles is what nodes have by name, filled up with certificates and signature sources of mirrors.
func nodeFiles() []baseFile {
	var out fileList
	out.kubernetes()
	out.network()
	out.system()
	out.scripts()
	out.mirrors()
	return out
}

// fileList is a list of files in the making.
type fileList []baseFile

func (l *fileList) add(mode int, path string, text ...string) {
	*l = append(*l, baseFile{path: path, mode: mode, text: strings.Join(text, "\n") + "\n"})
}

func (l *fileList) conf(path string, text ...string) { l.add(0o644, path, text...) }

func (l *fileList) script(path string, text ...string) {
	l.add(0o755, path, append([]string{"#!/bin/bash", "set -eu"}, text...)...)
}

// kubernetes adds what the kubelet and the container runtime read.
func (l *fileList) kubernetes() {
	l.conf("/etc/kubernetes/kubelet.conf", "{", ` "kind": "KubeletConfiguration",`,
		` "apiVersion": "kubelet.config.k8s.io/v1beta1",`,
		` "cgroupDriver": "systemd",`, ` "maxPods": 250,`, ` "rotateCertificates": true,`, ` "serverTLSBootstrap": true`, "}")
	l.conf("/etc/kubernetes/cloud.conf", "[Global]")
	l.conf("/etc/kubernetes/kubelet-ca.crt", certificate("kubelet"))
	l.conf("/etc/kubernetes/ca.crt", certificate("root"))
	l.conf("/etc/kubernetes/kubelet-plugins/volume/exec/.dummy", "")
	l.conf("/etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem", certificate("cloud"))
	l.conf("/etc/node-sizing-enabled.env", "NODE_SIZING_ENABLED=true",
		"SYSTEM_RESERVED_MEMORY=1Gi", "SYSTEM_RESERVED_CPU=500m")
	l.add(0o600, "/var/lib/kubelet/config.json", `{"auths":{}}`)
	for name, text := range orderedPairs(
		"00-default", "[crio.runtime]\nselinux = true\nconmon_cgroup = \"pod\"",
		"01-ctrcfg-pidsLimit", "[crio.runtime]\npids_limit = 4096",
		"01-ctrcfg-logLevel", "[crio.runtime]\nlog_level = \"info\"",
		"20-default-capabilities", "[crio.runtime]\ndefault_capabilities = [\"CHOWN\", \"SETUID\"]",
		"30-metrics", "[crio.metrics]\nenable_metrics = true\nmetrics_port = 9537",
	) {
		l.conf("/etc/crio/crio.conf.d/"+name, text)
	}
	l.conf("/etc/containers/registries.conf", `unqualified-search-registries = ["registry.example.net"]`,
		"short-name-mode = \"\"")
	l.conf("/etc/containers/policy.json", `{"default":[{"type":"insecureAcceptAnything"}]}`)
	l.conf("/etc/containers/storage.conf", "[storage]", `driver = "overlay"`, `graphroot = "/var/lib/containers/storage"`)
	l.conf("/etc/containers/registries.d/default.yaml", "default-docker: {}")
}

// network adds what the kernel and NetworkManager read of the network.
func (l *fileList) network() {
	for name, text := range orderedPairs(
		"arp.conf", "net.ipv4.conf.all.arp_announce = 2",
		"gc-thresh.conf", "net.ipv4.neigh.default.gc_thresh1 = 8192",
		"inotify.conf", "fs.inotify.max_user_watches = 65536\nfs.inotify.max_user_instances = 8192",
		"enable-userfaultfd.conf", "vm.unprivileged_userfaultfd = 1",
		"99-kubelet.conf", "vm.overcommit_memory = 1\nkernel.panic = 10",
		"90-bridge.conf", "net.bridge.bridge-nf-call-iptables = 1",
		"90-forward.conf", "net.ipv4.ip_forward = 1",
	) {
		l.conf("/etc/sysctl.d/"+name, text)
	}
	for name, text := range orderedPairs(
		"01-ipv6.conf", "[connection]\nipv6.dhcp-duid=ll\nipv6.dhcp-iaid=mac",
		"20-keyfiles.conf", "[main]\nplugins=keyfile,ifcfg-rh",
		"99-keyfiles.conf", "[keyfile]\npath=/etc/NetworkManager/system-connections-merged",
		"sdn.conf", "[keyfile]\nunmanaged-devices=interface-name:br-int",
	) {
		l.conf("/etc/NetworkManager/conf.d/"+name, text)
	}
	for name, text := range orderedPairs(
		"30-resolv-prepender", "systemctl start --no-block on-prem-resolv-prepender.service",
		"40-mdns-hostname", "test -n \"${DHCP4_HOST_NAME:-}\" && hostnamectl set-hostname --transient \"$DHCP4_HOST_NAME\"",
		"99-esp-offload", "ethtool -K \"$1\" tx-esp-segmentation off",
		"pre-up.d/10-ofport-request.sh", "ovs-vsctl --if-exists get Interface \"$1\" ofport",
	) {
		l.script("/etc/NetworkManager/dispatcher.d/"+name, text)
	}
}

// system adds what the rest of the host reads.
func (l *fileList) system() {
	l.conf("/etc/audit/rules.d/mco-audit-quiet-containers.rules", "-a exclude,always -F msgtype=NETFILTER_CFG")
	l.conf("/etc/modules-load.d/iptables.conf", "ip_tables")
	l.conf("/etc/modules-load.d/br_netfilter.conf", "br_netfilter")
	l.conf("/etc/modprobe.d/sctp-blacklist.conf", "blacklist sctp")
	l.conf("/etc/udev/rules.d/99-azure-disk.rules",
		`SUBSYSTEM=="block", ATTRS{model}=="Virtual_Disk", SYMLINK+="disk/example"`)
	l.conf("/etc/udev/rules.d/70-ovs-offload.rules",
		`SUBSYSTEM=="net", ACTION=="add", ATTR{phys_switch_id}!="", NAME="$attr{phys_port_name}"`)
	l.conf("/etc/logrotate.d/kube-apiserver-audit", "/var/log/kube-apiserver/*.log { rotate 5 size 100M }")
	l.conf("/etc/tmpfiles.d/cleanup-cni.conf", "r /etc/kubernetes/cni/net.d/80-example.conf")
	l.conf("/etc/tmpfiles.d/nm.conf", "D /run/nm-system-connections 0755 root root - -")
	l.conf("/etc/systemd/system.conf.d/10-default-env-godebug.conf",
		"[Manager]", "DefaultEnvironment=GODEBUG=x509ignoreCN=0")
	l.conf("/etc/systemd/system.conf.d/kubelet-cgroups.conf",
		"[Manager]", "DefaultCPUAccounting=yes", "DefaultMemoryAccounting=yes")
	l.conf("/etc/pki/ca-trust/source/anchors/user-ca-bundle.crt", certificate("user"))
	l.conf("/etc/ssh/sshd_config.d/40-hardening.conf", "PermitRootLogin no", "PasswordAuthentication no")
	l.conf("/etc/security/limits.d/90-containers.conf", "* soft nofile 1048576")
	l.conf("/etc/profile.d/kubeconfig.sh", "export KUBECONFIG=/etc/kubernetes/kubeconfig")
	l.conf("/etc/motd.d/50-managed", "This node is managed. Changes by hand are drift.")
	l.conf("/etc/resolv-prepender.env", "DNS_IP=192.0.2.53")
}

// scripts adds what units of the host run.
func (l *fileList) scripts() {
	for name, text := range orderedPairs(
		"configure-ip-forwarding.sh", "sysctl -w net.ipv4.ip_forward=1",
		"configure-ovs.sh", "nmcli connection show br-ex || nmcli connection add type ovs-bridge conn.interface br-ex",
		"mco-hostname", "hostnamectl --static",
		"nm-clean-initrd-state.sh", "rm -rf /run/NetworkManager/system-connections",
		"recover-kubeconfig.sh", "cp /etc/kubernetes/kubeconfig /var/lib/kubelet/kubeconfig",
		"wait-for-primary-ip.sh", "until ip -o route get 192.0.2.1; do sleep 1; done",
		"kubensenter", "exec nsenter --mount=/run/kubens/mnt \"$@\"",
		"resolv-prepender.sh", "grep -q \"$DNS_IP\" /etc/resolv.conf",
		"node-sizing.sh", "awk '/MemTotal/ { print int($2 / 16) }' /proc/meminfo",
	) {
		l.script("/usr/local/bin/"+name, text)
	}
	l.script("/usr/local/sbin/dynamic-system-reserved-calc.sh",
		". /etc/node-sizing-enabled.env", "echo \"$SYSTEM_RESERVED_MEMORY\"")
	l.script("/usr/local/sbin/set-valid-hostname.sh", "hostnamectl --static | grep -qv localhost")
}

// mirrors fills the list up.
func (l *fileList) mirrors() {
	for i := 0; len(*l) < baseFiles; i++ {
		host := fmt.Sprintf("mirror%02d.example.net", i/3)
		switch i % 3 {
		case 0:
			l.conf("/etc/containers/certs.d/"+host+"/ca.crt", certificate(host))
		case 1:
			l.conf("/etc/containers/registries.d/"+host+".yaml",
				"docker:", "  "+host+":", "    sigstore: https://"+host+"/sigstore")
		case 2:
			l.conf("/etc/containers/registries.conf.d/"+host+".conf",
				"[[registry]]", `location = "`+host+`"`, `mirror-by-digest-only = true`)
		}
	}
}

// certificate is text in the place of one; nothing here reads it.
func certificate(name string) string {
	body := base64.StdEncoding.EncodeToString([]byte("no certificate, only its place: " + name))
	return "-----BEGIN CERTIFICATE-----\n" + body + "\n-----END CERTIFICATE-----"
}

// orderedPairs yields its arguments two by two.
func orderedPairs(words ...string) func(yield func(name, text string) bool) {
	return func(yield func(name, text string) bool) {
		for i := 0; i+1 < len(words); i += 2 {
			if !yield(words[i], words[i+1]) {
				return
			}
		}
	}
}

// nodeUnits are units of all sorts: with contents, enabled or not; drop-ins for units of the OS; masked and disabled.
func nodeUnits() []object {
	var out []object
	for name, what := range orderedPairs(
		"kubelet-auto-node-size.service", "Compute what is reserved for the system",
		"node-valid-hostname.service", "Wait for a host name that is not localhost",
		"nodeip-configuration.service", "Write the node's address for the kubelet and CRI-O",
		"ovs-configuration.service", "Configure the node's bridges",
		"wait-for-primary-ip.service", "Wait until the primary address is up",
		"rpc-statd-hostname.service", "Give rpc.statd the node's name",
		"kubens.service", "Keep mounts of pods in a name space of their own",
		"node-image-pull-hint.service", "Note which images were here before",
		"gcp-routes-cleanup.service", "Remove routes of load balancers that went",
		"nfs-convert-hint.service", "Convert NFS settings of older releases",
		"crio-wipe-hint.service", "Wipe images after an upgrade of CRI-O",
		"resolv-prepender-hint.service", "Put the cluster's name server first",
		"cpu-partition-hint.service", "Report how CPUs are partitioned",
	) {
		out = append(out, object{"name": name, "enabled": true, "contents": "[Unit]\nDescription=" + what +
			"\nBefore=kubelet.service crio.service\n\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n" +
			"\n[Install]\nWantedBy=multi-user.target\n"})
	}
	for name, what := range orderedPairs(
		"machine-config-daemon-pull.service", "Pull the agent's image on the first boot",
		"on-prem-resolv-prepender.service", "Rewrite resolv.conf when an interface comes up",
		"dummy-network.service", "A network that is configured at once",
		"disable-mglru.service", "Turn the multi-generational LRU off",
		"enable-userfaultfd.service", "Allow userfaultfd to pods",
	) {
		out = append(out, object{"name": name, "enabled": false, "contents": "[Unit]\nDescription=" + what +
			"\n\n[Service]\nType=oneshot\nExecStart=/bin/true\n\n[Install]\nWantedBy=multi-user.target\n"})
	}
	dropin := func(unit, name, text string) object {
		return object{"name": unit, "dropins": []object{{"name": name, "contents": text}}}
	}
	return append(out,
		dropin("crio.service", "10-mco-default-madv.conf",
			"[Service]\nEnvironment=\"GODEBUG=x509ignoreCN=0,madvdontneed=1\"\n"),
		dropin("kubelet.service", "20-logging.conf", "[Service]\nEnvironment=\"KUBELET_LOG_LEVEL=2\"\n"),
		dropin("containerd.service", "10-mco-default-env.conf", "[Service]\nEnvironment=CONTAINERD_LOG=info\n"),
		dropin("NetworkManager.service", "10-example-wait.conf", "[Unit]\nAfter=network-pre.target\n"),
		object{"name": "zincati.service", "mask": true},
		object{"name": "bootc-fetch-apply-updates.timer", "mask": true},
		object{"name": "rpm-ostreed-automatic.timer", "mask": true},
	)
}
