#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# containers.sh TREE: makes of the tree that tree.sh has left one whose containerd is the real one. The text of this
# script is part of the cache's key.
set -eu
cd "$1"
units=usr/lib/systemd/system

# This machine has its controllers in hierarchies of the old kind. The host's systemd has none of them, and containerd
# and the kubelet get them in a view of their own. All their other mounts are those of the host.
cat >usr/lib/testos/controllers <<'S'
#!/bin/sh
mountpoint -q /run/lab/cgroup/unified || mount --bind /sys/fs/cgroup /run/lab/cgroup/unified
exec unshare --mount --propagation=unchanged -- sh -euc '
	mount --make-private /sys/fs/cgroup
	mount --rbind /run/lab/cgroup /sys/fs/cgroup
	exec "$@"' sh "$@"
S

# The kubelet wants some settings of the kernel, and reads its log. Both are this machine's, which is not the host's to
# change: so the kubelet reads and writes files in their place.
cat >usr/lib/testos/kubelet <<'S'
#!/bin/sh
exec unshare --mount --propagation=unchanged -- sh -euc '
	ln -sfn null /dev/kmsg
	mount --make-private /proc/sys
	mkdir -p /run/testos/sys
	for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
		kernel/keys/root_maxbytes; do
		mkdir -p "/run/testos/sys/${name%/*}"
		cat "/proc/sys/$name" >"/run/testos/sys/$name"
		mount --bind "/run/testos/sys/$name" "/proc/sys/$name"
	done
	exec /usr/lib/testos/controllers "$@"' sh "$@"
S
chmod 755 usr/lib/testos/controllers usr/lib/testos/kubelet

# containerd's service as Debian has it, but for its name for the log, and modules, which no container loads.
mkdir -p $units/containerd.service.d
cat >$units/containerd.service.d/10-real.conf <<'E'
[Unit]
After=network.target local-fs.target dbus.service

[Service]
ExecStart=
ExecStart=/usr/lib/testos/controllers /usr/bin/containerd
ExecReload=
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=1
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999
E

# The tests' network calls one plugin, which calls the two others.
for plugin in usr/lib/cni/*; do
	case ${plugin##*/} in
	bridge | host-local | loopback) ;;
	*) rm "$plugin" ;;
	esac
done
rm -f usr/bin/ctr-* usr/bin/containerd-shim usr/bin/containerd-shim-runc-v1
rm -rf usr/etc/containerd usr/etc/cni
mkdir -p usr/etc/containerd usr/etc/cni/net.d
