#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the version of the sources, a semantic one: the tag of the commit; between two tags one that comes before the
# next release; without a tag or a history one that comes before every release.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
said=$(git describe --tags --long --match 'v[0-9]*' 2>/dev/null || true)
dirty=
[[ -z $(git status --porcelain --untracked-files=no 2>/dev/null || true) ]] || dirty=.dirty
if [[ $said =~ ^(v[0-9]+\.[0-9]+)\.([0-9]+)(-[0-9A-Za-z.-]+)?-([0-9]+)-(g[0-9a-f]+)$ ]]; then
	read -r minor patch pre commits commit <<<"${BASH_REMATCH[*]:1:2} ${BASH_REMATCH[3]:--} ${BASH_REMATCH[*]:4}"
	[[ $pre != - ]] || pre=
	if ((commits == 0)) && [[ -z $dirty ]]; then
		echo "$minor.$patch$pre"
	elif [[ $pre ]]; then
		echo "$minor.$patch$pre.dev.$commits.$commit$dirty"
	else
		echo "$minor.$((patch + 1))-dev.$commits.$commit$dirty"
	fi
else
	commit=$(git rev-parse --short HEAD 2>/dev/null || true)
	echo "v0.0.0-dev${commit:+.g$commit}$dirty"
fi
