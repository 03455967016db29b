#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dpkg says "configure" and, in an upgrade, the version before; rpm says how many versions are installed now. The agent
# does not start by itself: it needs credentials first. In an upgrade it starts anew where it runs. What is under way on
# the host runs in units of its own and goes on.
set -e

case "$1" in
configure | 1 | 2) ;;
*) exit 0 ;;
esac
[ -d /run/systemd/system ] || exit 0
# The package is installed, whatever becomes of the service: it can be mended and started, and the next upgrade, too.
systemctl daemon-reload || true
if ! systemctl try-restart machine-config-daemon.service; then
	echo "noderefit-agent: machine-config-daemon.service was not started anew. Mend the cause, and start it:" >&2
	echo "systemctl status machine-config-daemon; systemctl start machine-config-daemon" >&2
fi
