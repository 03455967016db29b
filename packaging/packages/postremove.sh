#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dpkg says "remove", "purge", "upgrade" and others; rpm says how many versions stay. After a removal the host keeps its
# record and the units that would take a bad configuration back. A purge, which rpm does not have, takes these away. The
# configuration itself stays, and so do the files in /etc/machine-config-daemon/orig, which were there before it.
set -e

case "$1" in
remove | purge | 0) ;;
*) exit 0 ;;
esac
reload() {
	if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
}
# unregister has rpm-ostree let an administrator's upgrade through again.
unregister() {
	driver=noderefit-update-driver.service
	if [ -d /run/systemd/system ]; then systemctl --quiet stop "$driver" 2>/dev/null || true; fi
	if grep -qs "$driver" /run/rpm-ostree/update-driver.gv; then rm -f /run/rpm-ostree/update-driver.gv; fi
}
reload
if [ "$1" != purge ]; then
	unregister
	exit 0
fi

# shellcheck source=packaging/packages/state.sh
. ./state.sh

# other says which other agent the host has, as it has where the node has the agent's pod now. The kubelet has a folder
# for each container of the node, also while the container does not run.
other() {
	for exe in /proc/[0-9]*/exe; do
		case $(readlink "$exe") in
		*/machine-config-daemon-run)
			echo "another agent is at work on this host"
			return
			;;
		esac
	done
	for container in /var/lib/kubelet/pods/*/containers/machine-config-daemon; do
		if [ -d "$container" ]; then
			echo "a pod of the agent is on this host"
			return
		fi
	done
}

what=$(other)
[ "$what" ] || what=$(under_way "$state/bin/machine-config-daemon")
if [ "$what" ]; then
	echo "noderefit-agent: $what: $state and the units stay." >&2
	echo "\"Uninstalling\" in docs/install.md says how to remove them later." >&2
	exit 0
fi
unregister
if [ -d /run/systemd/system ]; then
	systemctl --quiet disable --now machine-config-daemon-recover.service machine-config-daemon-prove.service || true
fi
system=/etc/systemd/system
for name in recover prove reboot; do
	rm -f "$system/machine-config-daemon-$name.service" "$system"/*.target.wants/"machine-config-daemon-$name.service"
done
for dropin in "$system"/*.service.d/~noderefit.conf; do
	rm -f "$dropin"
	rmdir "${dropin%/*}" 2>/dev/null || true
done
reload
rm -rf "$state" /run/machine-config-daemon
if [ -d /etc/machine-config-daemon ]; then
	find /etc/machine-config-daemon -mindepth 1 -maxdepth 1 ! -name orig -exec rm -rf {} +
	rmdir /etc/machine-config-daemon 2>/dev/null || true
fi
