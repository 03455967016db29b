#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Copies the images and the chart of a release to a registry, and prints each reference with its digest, a line each:
# packaging/publish.sh [DIST]. Who may write there, docker's or crane's login says.
#
#   VERSION   the release
#   REGISTRY  where to, such as ghcr.io/noderefit; the chart goes to REGISTRY/charts
#
# A tag that the registry has with other content is never moved: nothing is pushed then.
set -euo pipefail

dist=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../dist}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${VERSION:?has to be the version of the release}
registry=${REGISTRY:?has to be where the images go, such as ghcr.io/noderefit}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

crane() {
	CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' go tool -modfile=tools/packaging/go.mod crane "$@"
}

# unpack unpacks a layout, and checks that the registry has nothing else under the reference.
unpack() { # FILE REFERENCE
	local layout=$work/$1 digest there
	mkdir "$layout"
	tar --extract --file "$dist/$1" --directory "$layout"
	digest=$(grep -o 'sha256:[0-9a-f]\{64\}' "$layout/index.json" | sort -u)
	if [[ $digest != sha256:* || $digest == *$'\n'* ]]; then
		echo "publish: $1 has to have one manifest, and index.json has: $digest" >&2
		exit 1
	fi
	if there=$(crane digest "$2" 2>"$work/log"); then
		[[ $there != "$digest" ]] || return 0
		echo "publish: $2 is there already, as $there, and would become $digest: release another version" >&2
		exit 1
	fi
	# What is not there is the only failure that lets a push go on.
	grep -qE '404|MANIFEST_UNKNOWN|NAME_UNKNOWN' "$work/log" || { cat "$work/log" >&2; exit 1; }
}

push() { # FILE REFERENCE
	crane push "$work/$1" "$2" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
	echo "${2%:*}@$(crane digest "$2")"
}

(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
for act in unpack push; do
	for name in machine-config-daemon machine-config-controller machine-config-server; do
		"$act" "${name}_${version}_oci.tar" "$registry/$name:$version"
	done
	"$act" "noderefit-${version#v}_oci.tar" "$registry/charts/noderefit:${version#v}"
done
