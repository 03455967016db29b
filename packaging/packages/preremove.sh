#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dpkg says "remove", or "upgrade" and others; rpm says how many versions stay. A removal in the middle of an update is
# refused: nobody would be left to finish the update, or to take it back when a person asks for that.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac
unit=machine-config-daemon.service
program=/usr/bin/machine-config-daemon

# under_way says what update is under way, nothing where there is none.
under_way() {
	if [ -d /run/systemd/system ]; then
		for verb in stage apply; do
			if systemctl --quiet is-active "machine-config-daemon-$verb.service"; then
				echo "machine-config-daemon-$verb.service is at work"
				return
			fi
		done
	fi
	"$program" status -o json | sed -n 's/^ *"pending": "\(.*[^"]\)",*$/configuration \1 is pending/p'
}

# It is stopped before anything is looked at: a running agent could begin an update in between.
running=
if [ -d /run/systemd/system ]; then
	if systemctl --quiet is-active "$unit"; then running=yes; fi
	systemctl stop "$unit"
fi
what=$(under_way)
if [ "$what" ]; then
	[ -z "$running" ] || systemctl start "$unit"
	echo "noderefit-agent is not removed in the middle of an update of this host: $what." >&2
	echo "Wait until machine-config-daemon status has no pending configuration, or take it back:" >&2
	echo "machine-config-daemon rollback" >&2
	exit 1
fi
if command -v systemctl >/dev/null; then systemctl --quiet disable "$unit"; fi
