#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds what a release has into OUT, with SHA256SUMS of all of it: packaging/release.sh [PART...], by default all parts.
# It needs no network but the module proxy, and that only for modules that are not there yet. The same sources and the
# same variables make the same bytes.
#
#   programs   archives of the programs for Linux, and of the plugin for all its platforms, each with its SBOM; and the
#              script that has the plugin comment on merge requests
#   packages   deb and rpm packages of the agent as a service of the host, and of the plugin
#   chart      the Helm chart, and as an OCI artefact
#   manifests  crds.yaml and install.yaml, the objects of the chart's defaults
#   images     the container images, an OCI layout each, as one file
#   krew       the plugin's manifest for krew (takes the archives of the plugin)
#
#   VERSION            a semantic version with a v, such as v0.1.0 or v0.1.0-rc.1; it is the tag of the images too
#   OUT                where to put it all (dist): a folder that is empty or not there yet
#   REGISTRY           where the images are published: the default of the chart, and of kubectl refit install
#                      (ghcr.io/noderefit)
#   DOWNLOADS          where the archives are published, for krew
#   PLATFORMS          of the programs, images and packages ("linux/amd64 linux/arm64")
#   PLUGIN_PLATFORMS   of the plugin ("linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64")
#   PROGRAMS           a folder with programs to take instead of building them, as linux_amd64/machine-config-daemon
#   MANUALS            a folder with manual pages and completions to take instead of making them
#   SOURCE_DATE_EPOCH  the time of all files (that of the commit)
#   REVISION           the commit
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${VERSION:?has to be a semantic version with a v, such as v0.1.0}
if [[ ! $version =~ ^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$ ]]; then
	echo "release: VERSION: \"$version\" is no semantic version with a v, such as v0.1.0 or v0.1.0-rc.1" >&2
	exit 2
fi
number=${version#v}
registry=${REGISTRY:-ghcr.io/noderefit}
home=https://github.com/noderefit/noderefit
downloads=${DOWNLOADS:-$home/releases/download/$version}
read -ra platforms <<<"${PLATFORMS:-linux/amd64 linux/arm64}"
read -ra plugin_platforms <<<"${PLUGIN_PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
revision=${REVISION:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
export SOURCE_DATE_EPOCH VERSION=$version REVISION=$revision REGISTRY=$registry
mkdir -p "${OUT:=dist}"
out=$(cd "$OUT" && pwd)
if [[ $(ls -A "$out") ]]; then
	echo "release: OUT: $out has files, which would be part of the release: remove them, or name another folder" >&2
	exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
agent=(machine-config-daemon machine-config-daemon-run)
plugin=kubectl-refit
mapfile -t all < <(ls cmd)

# tool runs a tool that tools/packaging pins or has. The go command builds it once.
tool() { # NAME ARGUMENTS...
	CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' go tool -modfile=tools/packaging/go.mod "$@"
}
own() { # NAME ARGUMENTS...
	(cd tools/packaging && CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' go run "./$1" "${@:2}")
}

# built says where the programs for a platform are, and builds those that nobody has built.
built() { # OS/ARCH NAMES...
	local dir=${PROGRAMS:-$work/programs}/${1/\//_} os=${1%/*} arch=${1#*/} missing=() name
	shift
	for name; do
		[[ $os == windows ]] && name+=.exe
		[[ -e $dir/$name ]] || missing+=("${name%.exe}")
	done
	if ((${#missing[@]})); then
		echo "release: linking ${missing[*]} for $os/$arch" >&2
		mkdir -p "$dir"
		GOOS=$os GOARCH=$arch packaging/programs.sh "$dir" "${missing[@]}" >&2
	fi
	echo "$dir"
}

# pack makes an archive of what a folder has: sorted, of one owner and one time.
pack() { # FOLDER FILE
	local compress=cat
	[[ $2 != *gz ]] || compress="gzip -n"
	# shellcheck disable=SC2046 # names without spaces
	tar --create --directory "$1" --format=ustar --sort=name "--mtime=@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
		--numeric-owner --mode=u=rwX,go=rX -- $(ls -A "$1") | $compress >"$2"
}

# manuals says where the manual pages and completions are: man/*.1.gz, completions/SHELL/*.
manuals() {
	local dir=${MANUALS:-$work/manuals} name shell
	if [[ ! -d $dir ]]; then
		echo "release: making manual pages and completions" >&2
		local native=$work/manual
		mkdir -p "$native" "$dir"/man "$dir"/completions/{bash,zsh,fish}
		TAGS=manual packaging/programs.sh "$native" "${all[@]}" >&2
		# The command run is described by the program that it is: its page comes last.
		for name in "${all[@]}"; do
			[[ $name == machine-config-daemon-run ]] || HOME=\$HOME "$native/$name" manual "$dir/man"
		done
		HOME=\$HOME "$native/machine-config-daemon-run" manual "$work/run"
		cp "$work/run/machine-config-daemon-run.1" "$dir/man/"
		gzip -9n "$dir"/man/*.1
		for name in "${all[@]}"; do
			[[ $name != machine-config-daemon-run ]] || continue
			for shell in bash zsh fish; do
				"$native/$name" completion "$shell" >"$dir/completions/$shell/$(completion "$shell" "$name")"
			done
		done
	fi
	echo "$dir"
}

# completion prints the name under which a shell looks for a program's completion.
completion() { # SHELL NAME
	case $1 in
	bash) echo "$2" ;;
	zsh) echo "_$2" ;;
	fish) echo "$2.fish" ;;
	esac
}

# sbom writes the SBOM of an archive's programs.
sbom() { # NAME PROGRAMS...
	own sbom -name "$1" -version "$version" "${@:2}" >"$out/$1.spdx.json"
}

programs() {
	local platform dir tree name docs
	cp packaging/ci/plan-comment/plan-comment.sh "$out/"
	docs=$(manuals)
	for platform in "${platforms[@]}"; do
		dir=$(built "$platform" "${all[@]}")
		name=noderefit_${version}_${platform/\//_} tree=$work/tree/$name
		mkdir -p "$tree/$name"
		cp "${all[@]/#/$dir/}" LICENSE packaging/systemd/machine-config-daemon.service packaging/completions/kubectl_complete-refit \
			"$tree/$name/"
		cp -r "$docs"/{man,completions} "$tree/$name/"
		pack "$tree" "$out/$name.tar.gz"
		sbom "$name" "${all[@]/#/$dir/}"
	done
	for platform in "${plugin_platforms[@]}"; do
		dir=$(built "$platform" "$plugin")
		name=${plugin}_${version}_${platform/\//_} tree=$work/tree/$name file=$dir/$plugin
		[[ $platform != windows/* ]] || file+=.exe
		mkdir -p "$tree"
		cp "$file" LICENSE packaging/completions/kubectl_complete-refit "$tree/"
		pack "$tree" "$out/$name.tar.gz"
		sbom "$name" "$file"
	done
}

packages() {
	local platform dir stage docs package format nfpm file name
	docs=$(manuals)
	# It has to stand where the files are, and the go command in a module.
	nfpm=$(tool -n nfpm)
	for platform in "${platforms[@]}"; do
		dir=$(built "$platform" "${agent[@]}" "$plugin")
		stage=$work/packages/${platform/\//_}
		mkdir -p "$stage"/{man,completions}
		cp "${agent[@]/#/$dir/}" "$dir/$plugin" LICENSE packaging/completions/kubectl_complete-refit "$stage/"
		sed 's|/usr/local/bin/|/usr/bin/|' packaging/systemd/machine-config-daemon.service >"$stage/machine-config-daemon.service"
		cp -r "$docs"/{man,completions} "$stage/"
		cp packaging/packages/*.{yaml,sh} "$stage/"
		sed -i -e '/^\. \.\/state\.sh$/{r packaging/packages/state.sh' -e 'd}' "$stage"/{pre,post}remove.sh
		for package in agent plugin; do
			for format in deb rpm; do
				rm -rf "$work/made"
				mkdir "$work/made"
				(cd "$stage" && PACKAGE_VERSION=$number ARCH=${platform#*/} "$nfpm" package --config "$package.yaml" \
					--packager "$format" --target "$work/made/") >"$work/nfpm.log" 2>&1 || { cat "$work/nfpm.log" >&2; exit 1; }
				# In a version of a package "~" comes before a release. GitHub would give a file with it another name.
				for file in "$work"/made/*; do
					name=${file##*/}
					mv "$file" "$out/${name//\~/-}"
				done
			done
		done
	done
}

# stamped makes the chart as it is given away: without links, with the version in it and on each of its objects, and with
# the registry that the images are in.
stamped() {
	local chart=$work/chart/noderefit
	if [[ ! -d $chart ]]; then
		mkdir -p "$work/chart"
		cp -rL packaging/helm/noderefit "$chart"
		sed -i -e "s|^version: .*|version: $number|" -e "s|^appVersion: .*|appVersion: $version|" "$chart/Chart.yaml"
		sed -i "s|^  registry: \"\"\$|  registry: $registry|" "$chart/values.yaml"
		grep -qx "  registry: $registry" "$chart/values.yaml"
		find "$chart/templates" "$chart/files" -name '*.yaml' -exec sed -i -E \
			"/^ *labels:\$/{n;s|^( *)app.kubernetes.io/part-of: noderefit\$|&\n\1app.kubernetes.io/version: $version|}" {} +
		local file labels="    app.kubernetes.io/part-of: noderefit\n    app.kubernetes.io/version: $version"
		for file in "$chart"/crds/*.yaml; do
			grep -qx '  labels:' "$file" || sed -i '0,/^metadata:$/s||&\n  labels:|' "$file"
			sed -i "0,/^  labels:\$/s||&\n$labels|" "$file"
		done
	fi
	echo "$chart"
}

chart() {
	local chart file=$out/noderefit-$number.tgz
	chart=$(stamped)
	tool helm lint --strict "$chart" >"$work/helm.log" 2>&1 || { cat "$work/helm.log" >&2; exit 1; }
	pack "$work/chart" "$file"
	own chart "$file" "$work/chart.oci"
	pack "$work/chart.oci" "$out/noderefit-${number}_oci.tar"
}

manifests() {
	local chart
	chart=$(stamped)
	{
		echo "# The definitions of Noderefit $version. install.yaml has what comes after them."
		tool helm show crds "$chart"
	} >"$out/crds.yaml"
	{
		echo "# Noderefit $version, as the Helm chart makes it of its defaults. The definitions, crds.yaml, come first."
		tool helm template noderefit "$chart" --set createNamespace=true
	} >"$out/install.yaml"
}

images() {
	local arches=() platform name
	for platform in "${platforms[@]}"; do
		arches+=("${platform#*/}")
		built "$platform" machine-config-daemon machine-config-daemon-run machine-config-controller machine-config-server >/dev/null
	done
	OUT=$work/images ARCHES="${arches[*]}" PROGRAMS=${PROGRAMS:-$work/programs} packaging/images/build.sh >&2
	for name in machine-config-daemon machine-config-controller machine-config-server; do
		mv "$work/images/$name.tar" "$out/${name}_${version}_oci.tar"
	done
}

krew() {
	local platform archive bin
	{
		cat <<-END
			apiVersion: krew.googlecontainertools.github.com/v1alpha2
			kind: Plugin
			metadata:
			  name: refit
			spec:
			  version: $version
			  homepage: $home
			  shortDescription: See, explain and steer how nodes get their configuration
			  description: |
			    Shows how far pools of nodes are with their MachineConfigs, says of each node why it is not where it
			    should be, shows what a change would do before it is made, and pauses, resumes and takes back rollouts.
			    The cluster needs Noderefit.
			  platforms:
		END
		for platform in "${plugin_platforms[@]}"; do
			archive=${plugin}_${version}_${platform/\//_}.tar.gz bin=$plugin
			[[ $platform != windows/* ]] || bin+=.exe
			cat <<-END
				  - selector:
				      matchLabels:
				        os: ${platform%/*}
				        arch: ${platform#*/}
				    uri: $downloads/$archive
				    sha256: $(sha256sum <"$out/$archive" | cut -d ' ' -f 1)
				    bin: $bin
			END
		done
	} >"$out/refit.yaml"
}

parts=("$@")
((${#parts[@]})) || parts=(programs packages chart manifests images krew)
for part in "${parts[@]}"; do
	case $part in
	programs | packages | chart | manifests | images | krew) echo "release: $part" >&2 ;;
	*)
		echo "release: \"$part\" is none of programs, packages, chart, manifests, images, krew" >&2
		exit 2
		;;
	esac
	"$part"
done
cd "$out"
for file in *; do
	if [[ ! $file =~ ^[0-9A-Za-z][0-9A-Za-z._-]*$ ]]; then
		echo "release: $file would have another name on the page of the release: use letters, digits, \".\", \"_\" and \"-\"" >&2
		exit 1
	fi
done
sha256sum -- * >"$work/sums"
mv "$work/sums" SHA256SUMS
echo "release: $(wc -l <SHA256SUMS) files of $version in $out" >&2
