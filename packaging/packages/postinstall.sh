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
systemctl daemon-reload
systemctl try-restart machine-config-daemon.service
