#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Copies the images and the chart of a release to a registry, and prints each reference with its digest, a line each:
# packaging/publish.sh [DIST]. Who may write there, docker's or crane's login says.
#
#   VERSION   the release
#   REGISTRY  where to (ghcr.io/noderefit); the chart goes to REGISTRY/charts
set -euo pipefail

dist=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../dist}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${VERSION:?has to be the version of the release}
registry=${REGISTRY:-ghcr.io/noderefit}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

crane() {
	CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' go tool -modfile=tools/packaging/go.mod crane "$@"
}

push() { # FILE REFERENCE
	rm -rf "$work/layout"
	mkdir "$work/layout"
	tar --extract --file "$dist/$1" --directory "$work/layout"
	crane push "$work/layout" "$2" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
	echo "${2%:*}@$(crane digest "$2")"
}

(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
for name in machine-config-daemon machine-config-controller machine-config-server; do
	push "${name}_${version}_oci.tar" "$registry/$name:$version"
done
push "noderefit-${version#v}_oci.tar" "$registry/charts/noderefit:${version#v}"
