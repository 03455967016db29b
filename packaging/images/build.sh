#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds container images from the static binaries alone, with no base image, no daemon and no network but the module
# proxy. Of each image it leaves OUT/NAME, an OCI layout, and OUT/NAME.tar, the same as one file. The same sources and
# the same VERSION make the same digests.
#
#   VERSION   what the binaries say their version is, and the tag
#   REVISION  the commit that they are built from
#   OUT       where to put the images (bin/images)
#   ARCHES    which architectures ("amd64 arm64")
#   IMAGES    which images (all)
#   PROGRAMS  a folder with programs to take instead of building them, as linux_amd64/machine-config-daemon
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=${VERSION:-$(packaging/version.sh)}
revision=${REVISION:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
out=${OUT:-bin/images}
read -ra arches <<<"${ARCHES:-amd64 arm64}"
read -ra images <<<"${IMAGES:-machine-config-daemon machine-config-controller machine-config-server}"

work=$(mktemp -d)
registry=
cleanup() {
	[[ -z $registry ]] || kill "$registry"
	rm -rf "$work"
}
trap cleanup EXIT

CGO_ENABLED=0 go -C tools/packaging build -trimpath -buildvcs=false -o "$work/crane" \
	github.com/google/go-containerregistry/cmd/crane

# An image's configuration can be edited in a registry only, so there is one until this ends, on this machine alone.
mkdir "$work/registry"
"$work/crane" registry serve --address 127.0.0.1:0 --disk "$work/registry" >"$work/registry.log" 2>&1 &
registry=$!
at=
for _ in {1..200}; do
	at=$(grep -oE '127\.0\.0\.1:[0-9]+|port [0-9]+' "$work/registry.log" | grep -oE '[0-9]+$' | head -n 1 || true)
	[[ -z $at ]] || break
	sleep 0.05
done
[[ $at ]] || { cat "$work/registry.log" >&2; exit 1; }
at=127.0.0.1:$at

# quietly says what crane says only where it fails.
quietly() {
	"$work/crane" "$@" >"$work/crane.log" 2>&1 || { cat "$work/crane.log" >&2; return 1; }
}

# root NAME ARCH makes the file system of an image.
root() {
	local name=$1 arch=$2 dir=$work/$1-$2
	mkdir "$dir"
	local programs=("$name")
	if [[ $name == machine-config-daemon ]]; then
		programs+=("$name-run") # what the command run of the other becomes; it is not placed on the host
		# The host is at /rootfs. Its commands are the container's too, so that chroot and a shell can be typed.
		mkdir "$dir/rootfs"
		ln -s rootfs/usr "$dir/usr"
		for link in bin sbin lib lib64; do ln -s "rootfs/usr/$link" "$dir/$link"; done
	fi
	if [[ ${PROGRAMS:-} ]]; then
		cp "${programs[@]/#/$PROGRAMS/linux_$arch/}" "$dir/"
	else
		VERSION=$version GOOS=linux GOARCH=$arch packaging/programs.sh "$dir" "${programs[@]}"
	fi
	chmod -R u=rwX,go=rX "$dir"
	tar --create --file "$dir.tar" --directory "$dir" --format=ustar --sort=name --mtime=@0 \
		--owner=0 --group=0 --numeric-owner .
}

# describe NAME prints what crane mutate is told of an image, an argument a line.
describe() {
	local user=65532:65532 path=/ about="Says which node goes to which configuration" more=()
	if [[ $1 == machine-config-daemon ]]; then
		# As root, systemctl asks systemd itself, which it does not trust from another PID namespace. Over the bus it does.
		more=(--env SYSTEMCTL_FORCE_BUS=1)
		user=0:0 path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
		about="Moves the node that it runs on from one configuration to the next"
	fi
	if [[ $1 == machine-config-server ]]; then about="Gives new machines the configuration of their pool"; fi
	printf '%s\n' --user "$user" --entrypoint "/$1" --env "PATH=$path" "${more[@]}" --workdir / \
		--label "org.opencontainers.image.title=$1" \
		--label "org.opencontainers.image.description=$about" \
		--label "org.opencontainers.image.version=$version" \
		--label "org.opencontainers.image.revision=$revision" \
		--label org.opencontainers.image.licenses=Apache-2.0
}

mkdir -p "$out"
for name in "${images[@]}"; do
	manifests=()
	mapfile -t description < <(describe "$name")
	for arch in "${arches[@]}"; do
		root "$name" "$arch"
		quietly append --oci-empty-base --new_layer "$work/$name-$arch.tar" --new_tag "$at/$name:$arch"
		quietly mutate "$at/$name:$arch" --set-platform "linux/$arch" "${description[@]}" --tag "$at/$name:$arch"
		manifests+=(--manifest "$at/$name:$arch")
	done
	quietly index append "${manifests[@]}" --tag "$at/$name:index"
	rm -rf "${out:?}/$name"
	quietly pull --format=oci "$at/$name:index" "$out/$name"
	tar --create --file "$out/$name.tar" --directory "$out/$name" --format=ustar --sort=name --mtime=@0 \
		--owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX .
	echo "$out/$name: $("$work/crane" digest "$at/$name:index")"
done
