#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the commit of this tree once more, in another folder and with a build cache of its own, and fails where a file of DIST is not the same:
# packaging/reproducible.sh [DIST]. It takes the variables of packaging/release.sh.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
dist=$(cd "${1:-dist}" && pwd)
if [[ $(git status --porcelain --untracked-files=no) ]]; then
	echo "reproducible: the tree has changes that are not committed" >&2
	exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --no-hardlinks . "$work/copy"
# Nothing that the first build left is taken, and nothing that was built before it.
GOCACHE=$work/cache OUT=$work/dist "$work/copy/packaging/release.sh"
diff "$dist/SHA256SUMS" "$work/dist/SHA256SUMS" >&2 || {
	echo "reproducible: the files above are not the same in two builds of $(git rev-parse HEAD)" >&2
	exit 1
}
(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
echo "reproducible: $(wc -l <"$dist/SHA256SUMS") files are the same in two builds"
