#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test/deps.sh [PACKAGE...] installs the Debian packages that the labs need and this machine lacks, or those of the
# arguments alone. The script names them first.
#
# The machine is somebody's: no service is enabled or started, and packages that are there stay as they are. Debian's
# archive has one version of each package only. Where a needed package cannot be installed beside an older package that
# is there, such as systemd, the script names the packages that it upgrades.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

wanted=("$@")
missing() { # prints the packages that this machine lacks, a line each
	local command package
	if ((${#wanted[@]})); then
		for package in "${wanted[@]}"; do
			[[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
		done
		return
	fi
	while read -r command package; do
		command -v "$command" >/dev/null || echo "$package"
	done <<-'END'
		systemd-nspawn systemd-container
		mmdebstrap mmdebstrap
		ostree ostree
		strace strace
		mkfs.ext4 e2fsprogs
		selabel_lookup selinux-utils
		podman podman
		docker-registry docker-registry
		rpm rpm
		createrepo_c createrepo-c
		bwrap bubblewrap
		setfiles policycoreutils
		curl curl
		skopeo skopeo
		jq jq
		/usr/lib/dracut/modules.d/30ignition/ignition ignition
	END
	if [[ ${BROWSER_TESTS:-} ]] && ! command -v chromium-headless-shell >/dev/null; then
		echo chromium-headless-shell
	fi
}

mapfile -t packages < <(missing)
if ((!${#packages[@]})); then exit 0; fi
if ((EUID)) || ! command -v apt-get >/dev/null; then
	echo "deps: the labs lack: ${packages[*]} (Debian's names); installing them takes root and apt-get" >&2
	[[ ${LAB:-} != require ]]
	exit
fi

dir=$(mktemp -d)
policy=/usr/sbin/policy-rc.d
made=
trap 'rm -rf "$dir"; if [[ $made ]]; then rm -f "$policy"; fi' EXIT

export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -q -y -o Acquire::Retries=3 --no-install-recommends "$@"; }

echo "deps: the labs need these Debian packages, which this machine lacks: ${packages[*]}"
apt update >"$dir/update" || { cat "$dir/update" && exit 1; }

# What is installed, pinned as it is.
mkdir "$dir/pins"
cp -a /etc/apt/preferences.d/. "$dir/pins" 2>/dev/null || true
printf 'Package: *\nPin: release a=now\nPin-Priority: 1001\n' >"$dir/pins/00-installed"
chmod -R a+rX "$dir"
pinned=(-o Dir::Etc::PreferencesParts="$dir/pins")
if ! apt "${pinned[@]}" --simulate install "${packages[@]}" >"$dir/plan" 2>&1; then
	pinned=()
	apt --simulate install "${packages[@]}" >"$dir/plan" || { cat "$dir/plan" && exit 1; }
	echo "deps: they cannot be installed beside older versions of packages that are there. These are upgraded:"
	sed -nE 's/^Inst ([^ ]+) \[([^]]+)\] \(([^ ]+).*/deps:   \1 from \2 to \3/p' "$dir/plan"
fi
echo "deps: installing:$(sed -nE 's/^Inst ([^ ]+) \(.*/ \1/p' "$dir/plan" | tr -d '\n')"

# Debian starts and enables the services of a package that it installs.
if [[ ! -e $policy ]]; then
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
	made=yes
fi
enabled() { find /etc/systemd -type l -path '*.wants/*' | sort; }
enabled >"$dir/before"
apt "${pinned[@]}" install "${packages[@]}"
enabled | comm -13 "$dir/before" - | while read -r link; do
	echo "deps: not enabled: $(basename "$link")"
	rm "$link"
done

mapfile -t packages < <(missing)
if ((${#packages[@]})); then
	echo "deps: installed, and their programs are not there: ${packages[*]}" >&2
	exit 1
fi
