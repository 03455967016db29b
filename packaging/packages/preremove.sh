#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dpkg says "remove", or "upgrade" and others; rpm says how many versions stay. A removal in the middle of an update is
# refused: nobody would be left to finish the update, or to take it back when a person asks for that. So is one where
# nobody can tell whether an update is under way.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
unit=machine-config-daemon.service

# shellcheck source=packaging/packages/state.sh
. ./state.sh

# It is stopped before anything is looked at: a running agent could begin an update in between.
running=
if [ -d /run/systemd/system ]; then
	if systemctl --quiet is-active "$unit"; then running=yes; fi
	systemctl stop "$unit"
fi
what=$(under_way /usr/bin/machine-config-daemon)
if [ "$what" ]; then
	[ -z "$running" ] || systemctl start "$unit" || true
	case $what in
	*"not known"*) echo "noderefit-agent is not removed: $what." >&2 ;;
	*) echo "noderefit-agent is not removed in the middle of an update of this host: $what." >&2 ;;
	esac
	way_out "$what" >&2
	exit 1
fi
if command -v systemctl >/dev/null; then systemctl --quiet disable "$unit"; fi
