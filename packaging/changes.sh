#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints what CHANGELOG.md says of a version: packaging/changes.sh v0.1.0. A version that it does not have is an error.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
awk -v version="$1" '
	/^## / { on = $2 == version; found = found || on; next }
	on { print }
	END {
		if (!found) {
			print "changes: CHANGELOG.md has no \"## " version "\"" > "/dev/stderr"
			exit 1
		}
	}' CHANGELOG.md
