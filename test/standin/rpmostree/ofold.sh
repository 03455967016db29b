#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# ostree as it was in 2023.5, for whoever calls it: without set-default (of 2023.6), and without a lock of the staged
# deployment that is more than a file (of 2023.8). All else is the host's own ostree, the shutdown's part too.
real=/usr/lib/ostree-of-old/ostree

if [ "$1" = --version ]; then
	exec "$real" --version | sed "s/Version: .*/Version: '2023.5'/"
fi
for word in "$@"; do
	case $word in
	--lock-finalization | --json)
		echo "error: Unknown option $word" >&2
		exit 1
		;;
	esac
done
if [ "$1" = admin ]; then
	case $2 in
	set-default | lock-finalization | prepare-soft-reboot)
		echo "error: Unknown \"admin\" subcommand '$2'" >&2
		exit 1
		;;
	esac
fi
# A test may pull the plug right before and right after the shutdown's part.
hang() {
	if [ "$(cat /var/lib/noderefit-fault 2>/dev/null)" = "shutdown hang $1" ]; then
		echo "$1" >/var/lib/noderefit-fault.hit
		sleep infinity
	fi
}
if [ "$1 $2" = "admin finalize-staged" ]; then
	hang before
	"$real" "$@" || exit
	hang after
	exit
fi
exec "$real" "$@"
