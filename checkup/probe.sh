# SPDX-License-Identifier: Apache-2.0
#
# Reports what manages the OS of a host, and reads only. The host's file system is at $1; the report goes to the file $2,
# or to stdout. Each line of the report is key=value. A unit is "enabled", "masked", or "installed".
root=$1
if [ "${2:-}" ]; then exec >"$2"; fi
there() { [ -e "$root$1" ] || [ -L "$root$1" ]; }
yes() { if there "$2"; then echo "$1=yes"; fi; }

yes ostree /run/ostree-booted
yes rpm-ostree /usr/bin/rpm-ostree
yes bootc /usr/bin/bootc
yes systemd /run/systemd/system
yes podman /usr/bin/podman
yes kured-sentinel /run/reboot-required

for unit in zincati.service bootc-fetch-apply-updates.timer rpm-ostreed-automatic.timer \
	unattended-upgrades.service apt-daily-upgrade.timer dnf-automatic.timer dnf-automatic-install.timer dnf5-automatic.timer; do
	state=
	for dir in /usr/lib/systemd/system /lib/systemd/system /etc/systemd/system; do
		if there "$dir/$unit"; then state=installed; fi
	done
	for dir in /etc/systemd/system /run/systemd/system /usr/lib/systemd/system; do
		for wants in "$root$dir"/*.wants/"$unit"; do
			if [ -e "$wants" ] || [ -L "$wants" ]; then state=enabled; fi
		done
	done
	for dir in /etc/systemd/system /run/systemd/system; do
		link=$(readlink "$root$dir/$unit" 2>/dev/null) || continue
		if [ "$link" = /dev/null ]; then state=masked; fi
	done
	if [ "$state" ]; then echo "unit/$unit=$state"; fi
done

group=
while read -r line; do
	case $line in
	"["*) group=$line ;;
	AutomaticUpdatePolicy*=*)
		value=${line#*=}
		if [ "$group" = "[Daemon]" ]; then echo "policy=${value# }"; fi
		;;
	esac
done 2>/dev/null <"$root/etc/rpm-ostreed.conf" || true
echo end=yes
