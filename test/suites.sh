#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs tests: "suites.sh sample", all packages and what sample.txt names of the suites with hosts and control planes;
# "suites.sh all", every test that needs no virtual machine. A log, and what each test took, are left in .cache.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=.cache times=.cache/times begun=.cache/begun
gotestsum=$PWD/$cache/gotestsum
timeout=${TEST_TIMEOUT:-30m}

# The last suites on hosts, in their order. They take LONG_FLAGS, as some others do.
counting=(hosts/osupdate hosts/crash hosts/hostile)
long=("${counting[@]}" hosts/node clusters/pool fleets/pods fleets/e2e)
# The short ones among the suites on control planes. They come last: what is left for the lane that is done first is
# short then.
short=(clusters/clusterapi clusters/gitops clusters/operators clusters/page clusters/template fleets/scale)

# tested runs go test. A failed test gets go test's own line.
tested() { # NAME ARGUMENTS-OF-GO-TEST...
	local name=$1
	shift
	"$gotestsum" --format standard-quiet --no-color --hide-summary=skipped --jsonfile "$times/$name.json" \
		-- -timeout "$timeout" "$@" 2>&1 | sed -E 's/^=== FAIL: (\S+) (\S+) (\(.*\))$/--- FAIL: \2 \3 of \1/'
}

# suite runs the tests of one folder below test/ and shows what they say when they have ended.
suite() { # FOLDER ARGUMENTS-OF-GO-TEST...
	local folder=$1 failed=0
	shift
	tested "${folder//\//-}" "$@" "./test/$folder" >"$cache/test-${folder//\//-}.log" </dev/null || failed=1
	cat "$cache/test-${folder//\//-}.log"
	return "$failed"
}

# is reports whether the first word is one of the others.
is() { # WORD WORDS...
	local word=$1 other
	shift
	for other; do [[ $word == "$other" ]] && return; done
	return 1
}

# flags prints the LONG_FLAGS of a suite that takes them.
flags() { # FOLDER
	if is "$1" "${long[@]}"; then echo "${LONG_FLAGS:-}"; fi
}

# lane runs those of the suites that no other lane has begun, each of them although one before it has failed.
lane() { # FOLDERS...
	local folder failed=0
	for folder; do
		if ! mkdir "$begun/${folder//\//-}" 2>/dev/null && [[ -d $begun/${folder//\//-} ]]; then continue; fi
		# shellcheck disable=SC2046 # none, one or more flags
		suite "$folder" $(flags "$folder") || failed=1
	done
	return "$failed"
}

# sampled is lane for what sample.txt names of the suites.
sampled() { # FOLDERS...
	local folder pattern failed=0
	while read -r folder pattern; do
		if is "$folder" "$@"; then suite "$folder" -short -run "$pattern" || failed=1; fi
	done <test/sample.txt
	return "$failed"
}

# packages prints the packages whose tests need neither a host nor a control plane.
packages() {
	go list ./... | grep -v /test/
	echo ./test/house
}

# folders prints the folders below test/ that have tests and match a pattern.
folders() { # PATTERN
	go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./test/... | sed -n 's|.*/test/||p' |
		grep -E "^($1)"
}

# run runs the packages and both lanes. The suites on control planes wait for most of their time. They run beside the
# suites on hosts, which need the processors. Rollouts over hosts come late, beside the suites that count cuts. A lane
# that is done goes on with what the other one has not begun.
run() { # sampled | lane
	local failed=0 folder hosts=() clusters=()
	while read -r folder; do
		is "$folder" "${short[@]}" || clusters+=("$folder")
	done < <(folders clusters/ && folders fleets/)
	clusters+=("${short[@]}")
	while read -r folder; do
		is "$folder" house "${counting[@]}" || hosts+=("$folder")
	done < <(comm -23 <(folders . | sort) <(printf '%s\n' "${clusters[@]}" | sort))
	hosts+=("${counting[@]}")
	if [[ $1 == sampled ]]; then
		# shellcheck disable=SC2046 # a package each
		tested packages -short $(packages) || failed=1
		sampled "${clusters[@]}" &
		sampled "${hosts[@]}" || failed=1
	else
		rm -rf "$begun"
		mkdir "$begun"
		lane "${clusters[@]}" "${hosts[@]}" &
		# shellcheck disable=SC2046 # a package each
		tested packages $(packages) || failed=1
		lane "${hosts[@]}" "${clusters[@]}" || failed=1
	fi
	wait $! || failed=1
	return "$failed"
}

case ${1:-} in
sample) lanes=sampled ;;
all) lanes=lane ;;
*)
	echo "suites.sh: the argument is sample or all" >&2
	exit 3
	;;
esac
mkdir -p "$times"
rm -f "$times"/*.json
status=0
run "$lanes" | tee "$cache/test.log" || status=$?
echo
echo "test: the ten slowest tests"
cat "$times"/*.json | "$gotestsum" tool slowest --num 10 --threshold 1s
echo
echo "test: the ten slowest packages"
awk '/^(ok  |FAIL)\t/ && $3 ~ /s$/ { print $3, $2 }' "$cache/test.log" | sort -rn | head -n 10
awk -v status="$status" '
	/^ok  \t/ { ok++ }
	/^FAIL\t/ { failed++ }
	END { printf "test: %d packages passed, %d failed (exit %d)\n", ok, failed, status }' "$cache/test.log"
exit "$status"
