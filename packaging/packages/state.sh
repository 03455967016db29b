# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# Part of preremove.sh and postremove.sh, into which packaging/release.sh puts it.

state=/var/lib/machine-config-daemon

# under_way says why the agent cannot go: an update of the host is under way, or nobody can tell. It says nothing where
# no update is. It takes the program that is asked.
under_way() {
	if [ -d /run/systemd/system ]; then
		for verb in stage apply; do
			if systemctl --quiet is-active "machine-config-daemon-$verb.service"; then
				echo "machine-config-daemon-$verb.service is at work"
				return
			fi
		done
	fi
	# Without a record the host never had an update, or a person has put the record aside.
	if [ ! -e "$state/boot.json" ] && [ ! -L "$state/boot.json" ]; then return; fi
	if [ ! -x "$1" ]; then
		echo "whether an update is under way is not known: $1 is not there"
	elif ! said=$("$1" status -o json 2>&1); then
		echo "whether an update is under way is not known: machine-config-daemon status fails: $said"
	elif echo "$said" | grep -q '^ *"unreadable": true'; then
		echo "whether an update is under way is not known: the boot record can't be used"
	elif echo "$said" | grep -q '^ *"pending": "..*"'; then
		echo "$said" | sed -n 's/^ *"pending": "\(.*[^"]\)",*$/configuration \1 is pending/p'
	elif ! echo "$said" | grep -q '^ *"pending": ""'; then
		echo "whether an update is under way is not known: machine-config-daemon status does not say"
	fi
}

# way_out says what to do then.
way_out() {
	case $1 in
	*"not known"*)
		echo "See machine-config-daemon status. When the booted system is the right one, put the record aside:"
		echo "cd $state && mkdir aside && mv boot.json transactions aside/"
		;;
	*)
		echo "Wait until machine-config-daemon status has no pending configuration, or take it back:"
		echo "machine-config-daemon rollback"
		;;
	esac
}
