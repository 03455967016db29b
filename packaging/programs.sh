#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds static programs: packaging/programs.sh DIR NAME... puts each program of cmd/NAME into DIR. The same sources and
# the same VERSION make the same bytes.
#
#   VERSION  what the programs say their version is
#   REGISTRY where the images of that version are, for kubectl refit install; without it people have to say
#   GOOS, GOARCH   the platform; by default that of this machine
#   TAGS     build tags: manual gives each program a command that writes its manual pages
set -euo pipefail

# What of somebody's environment would change the bytes. The toolchain is the one that is here: the same bytes take the
# same one. Of its experiments only its own defaults are on: regabi always is. So the programs have the garbage collector
# that the tests run with, and no package is compiled a second time. The linker drops what debuggers read, so the
# compiler does not write that: an eighth of its work.
export GOFLAGS='-trimpath -gcflags=all=-dwarf=false'
export GOEXPERIMENT=regabi GOAMD64=v1 GOARM64=v8.0 GOFIPS140=off GOTOOLCHAIN=local

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${VERSION:-$(packaging/version.sh)}
dir=$1
shift

# The program of the host is copied to every node and starts in every boot, so it is built for size: without inlining,
# but for the project's own code and the runtime. This takes a tenth of its bytes. The program speaks HTTP only to fetch
# contents, one after the other: HTTP/2 is left out. Without the toolchain's experiments it is 45 kB smaller.
small=(-gcflags='all=-dwarf=false -l' -gcflags='github.com/noderefit/...=-dwarf=false'
	-gcflags='runtime/...=-dwarf=false')

# tell says every few seconds how far a compilation is, and passes on what else the go command says.
tell() {
	local line count=0 said=-5
	while IFS= read -r line; do
		if [[ ! $line =~ ^[A-Za-z0-9_./~+-]+$ ]]; then
			echo "$line"
			continue
		fi
		count=$((count + 1))
		if ((SECONDS - said >= 5)); then
			said=$SECONDS
			echo "build: $count packages compiled in $SECONDS s, now $line (once; the next build takes seconds)"
		fi
	done
}

# compile is go build. What it says of its work goes to the standard error.
compile() { # ARGUMENTS-OF-GO-BUILD...
	{
		CGO_ENABLED=0 go build -v -trimpath -buildvcs=false -tags="${TAGS:-}" "$@" 2>&1 >&3 3>&- | tell >&2
	} 3>&1
}

others=()
for name in "$@"; do
	if [[ $name == machine-config-daemon ]]; then
		TAGS="${TAGS:+$TAGS,}nethttpomithttp2" GOEXPERIMENT=none compile "${small[@]}" -ldflags "-s -w -X main.version=$version" -o "$dir/" "./cmd/$name"
	else
		others+=("./cmd/$name")
	fi
done
if ((${#others[@]})); then
	compile -ldflags "-s -w -X main.version=$version${REGISTRY:+ -X main.registry=$REGISTRY}" -o "$dir/" "${others[@]}"
fi
