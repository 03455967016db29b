#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Says in a comment of a pull or merge request what its documents would do to pools of nodes: kubectl refit plan, of a
# release that is downloaded and compared with its sums. A request has one such comment, which later runs update.
# Beside this file is the action for GitHub that runs it; packaging/ci/gitlab has the component for GitLab.
#
#   PLAN_FORGE        github or gitlab
#   PLAN_VERSION      the release of the plugin, such as v0.1.0
#   PLAN_POOLS        the pools, separated by white space
#   PLAN_FILES        the documents: files and folders, a line each
#   PLAN_KUBECONFIG   a kubeconfig, or the path of one, of an account with ClusterRole noderefit-view
#   PLAN_TOKEN        the forge's token
#   PLAN_PRUNE, PLAN_STRICT   true: --prune, --strict
#   PLAN_SELECTOR, PLAN_DIFF  empty, or what -l and --diff are given
#   PLAN_KEY          tells comments of one request apart, such as those about two clusters
#   PLAN_NUMBER       the number of the pull request (GitHub)
#   PLAN_COMMIT       the commit that the comment is about
#   PLAN_AUTHOR       whose comments are this script's (by default the token's account)
#   PLAN_CHECKSUM     the SHA-256 of the release's SHA256SUMS, where that is to be pinned
#   PLAN_DOWNLOADS    where releases are, a folder for each version
#
# It exits as the plan does. Of several pools, 1 or 2 comes before 3, as a pool of those has no plan. It exits with 4
# when the plans are good and the comment could not be written.
set -euo pipefail
export LC_ALL=C
umask 077

usage() { # NAME TEXT
	echo "plan-comment: $1: $2" >&2
	exit 2
}

for program in curl jq tar awk; do
	command -v "$program" >/dev/null || usage "$program" "is not installed: install it, or take an image that has it"
done
version=${PLAN_VERSION:-} key=${PLAN_KEY:-}
downloads=${PLAN_DOWNLOADS:-https://github.com/noderefit/noderefit/releases/download}
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || usage version "\"$version\" is none such as v0.1.0"
[[ $key =~ ^[0-9A-Za-z._/]*$ ]] || usage key "\"$key\": use letters, digits, \".\", \"_\" and \"/\""
[[ ${PLAN_COMMIT:-} =~ ^[0-9a-f]*$ ]] || usage commit "\"$PLAN_COMMIT\" is no commit"
read -ra pools <<<"$(tr '\n' ' ' <<<"${PLAN_POOLS:-}")"
((${#pools[@]})) || usage pools "is empty: name the pools that the documents are for"
for pool in "${pools[@]}"; do
	[[ $pool =~ ^[0-9a-z]([0-9a-z.-]*[0-9a-z])?$ ]] || usage pools "\"$pool\" is no name of a pool"
done
for name in prune strict; do
	upper=PLAN_$(tr '[:lower:]' '[:upper:]' <<<"$name")
	[[ ${!upper:-false} =~ ^(true|false)$ ]] || usage "$name" "\"${!upper}\" is neither true nor false"
done
[[ ${PLAN_KUBECONFIG:-} ]] || usage kubeconfig \
	"is empty: a request from a fork gets no secrets; any other needs the secret or variable to be set"
token=${PLAN_TOKEN:-} strange='[^[:graph:]]|["\\]'
if [[ ! $token || $token =~ $strange ]]; then usage token "is empty, or has characters that no token has"; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the forges do otherwise than each other.
marker="<!-- noderefit plan${key:+ $key} -->"
case ${PLAN_FORGE:-} in
github)
	number=${PLAN_NUMBER:-}
	[[ $number =~ ^[0-9]+$ ]] || usage number "\"$number\" is none of a pull request: run the workflow on pull_request"
	limit=65536 api=${GITHUB_API_URL:?is set in a workflow}/repos/${GITHUB_REPOSITORY:?is set in a workflow}
	comments=/issues/$number/comments comment=/issues/comments me=${GITHUB_API_URL}/user
	update=PATCH author=.user.login name=.login
	job=${GITHUB_SERVER_URL:-https://github.com}/$GITHUB_REPOSITORY/actions/runs/${GITHUB_RUN_ID:-}
	whole="the summary of [the job]($job)" unnamed="github-actions[bot]"
	printf 'header = "Authorization: Bearer %s"\n' "$token" >"$work/auth"
	;;
gitlab)
	number=${CI_MERGE_REQUEST_IID:-}
	[[ $number =~ ^[0-9]+$ ]] || usage CI_MERGE_REQUEST_IID "is not set: run the job for merge requests"
	limit=1000000 api=${CI_API_V4_URL:?is set in a pipeline}/projects/${CI_PROJECT_ID:?is set in a pipeline}
	comments=/merge_requests/$number/notes comment=$comments me=${CI_API_V4_URL}/user
	update=PUT author=.author.username name=.username
	job=${CI_JOB_URL:-} whole="\`plan.md\` of [the job]($job)" unnamed=
	printf 'header = "PRIVATE-TOKEN: %s"\n' "$token" >"$work/auth"
	;;
*) usage PLAN_FORGE "is neither github nor gitlab" ;;
esac

# fetch downloads a file of the release.
fetch() { # NAME
	local only='=https'
	[[ $downloads != http://* ]] || only='=http,https'
	curl --fail --silent --show-error --location --proto "$only" --proto-redir "$only" --retry 3 --max-time 600 \
		--output "$work/$1" "$downloads/$version/$1" || {
		echo "plan-comment: downloading $1 of $version from $downloads failed: is it a release?" >&2
		exit 1
	}
}

sum() { # FILE
	if command -v sha256sum >/dev/null; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -d ' ' -f 1
}

# install puts the plugin of the release into the working folder.
install() {
	local os arch archive want
	os=$(uname -s | tr '[:upper:]' '[:lower:]')
	arch=$(uname -m)
	case $arch in
	x86_64) arch=amd64 ;;
	aarch64) arch=arm64 ;;
	esac
	archive=kubectl-refit_${version}_${os}_$arch.tar.gz
	fetch SHA256SUMS
	if [[ ${PLAN_CHECKSUM:-} && $(sum "$work/SHA256SUMS") != "$PLAN_CHECKSUM" ]]; then
		echo "plan-comment: checksum: $PLAN_CHECKSUM, and SHA256SUMS of $version has $(sum "$work/SHA256SUMS")" >&2
		exit 1
	fi
	fetch "$archive"
	want=$(awk -v file="$archive" '$2 == file { print $1 }' "$work/SHA256SUMS")
	if [[ ! $want || $(sum "$work/$archive") != "$want" ]]; then
		echo "plan-comment: $archive is not what SHA256SUMS of $version says; nothing of it was run" >&2
		exit 1
	fi
	tar -xzf "$work/$archive" -C "$work" kubectl-refit
}

# quiet prints a text that somebody may have written who is not trusted, where the forge takes lines for commands.
quiet() { # FILE
	local word
	if [[ $PLAN_FORGE == github ]]; then
		word=$(od -An -N 16 -tx1 /dev/urandom | tr -d ' \n')
		echo "::stop-commands::$word"
		cat "$1"
		echo "::$word::"
	else
		cat "$1"
	fi
}

# plan writes the plan of a pool into POOL.md, or why there is none, and returns the exit code of the plan.
plan() { # POOL
	local code=0 path args=(plan "$1" --kubeconfig "$work/kubeconfig" -o markdown)
	while read -r path; do
		[[ ! $path ]] || args+=(-f "$path")
	done <<<"${PLAN_FILES:-}"
	[[ ${PLAN_PRUNE:-} != true ]] || args+=(--prune)
	[[ ${PLAN_STRICT:-} != true ]] || args+=(--strict)
	[[ ! ${PLAN_SELECTOR:-} ]] || args+=("--selector=$PLAN_SELECTOR")
	[[ ! ${PLAN_DIFF:-} ]] || args+=("--diff=$PLAN_DIFF")
	env -u PLAN_TOKEN -u PLAN_COMMENT_TOKEN -u PLAN_KUBECONFIG "$work/kubectl-refit" "${args[@]}" \
		>"$work/$1.md" 2>"$work/$1.err" </dev/null || code=$?
	quiet "$work/$1.err" >&2
	if [[ ! -s $work/$1.md ]]; then
		{
			printf '### Pool <code>%s</code>: no plan\n\n' "$1"
			head -c 4000 "$work/$1.err" | tr -d '\000-\010\013-\037' | sed 's/^/    /'
			echo
		} >"$work/$1.md"
	fi
	return "$code"
}

# fit prints the lines of a file that fit into a number of bytes, and ends the fence and the folds that are open there.
fit() { # FILE BYTES
	awk -v limit="$2" '
		{
			size += length($0) + 1
			if (size + length(fence) + 1 + 12 * folds > limit) { cut = 1; exit }
			print
			if (fence != "") { if ($0 == fence) fence = "" }
			else if (match($0, /^```+/)) fence = substr($0, 1, RLENGTH)
			else if ($0 ~ /^<details>/) folds++
			else if ($0 ~ /^<\/details>/) folds--
		}
		END {
			if (!cut) exit
			if (fence != "") print fence
			for (; folds > 0; folds--) print "\n</details>"
		}' "$1"
}

# compose writes the comment, as much of each plan as there is room for.
compose() {
	local room left=${#pools[@]} pool size share
	printf '%s\n' "$marker"
	room=$((limit - 2000)) # for what is not of the plans
	for pool in "${pools[@]}"; do
		share=$((room / left)) left=$((left - 1)) size=$(wc -c <"$work/$pool.md")
		share=$((share - 300)) # the sentence below
		if ((size <= share)); then
			cat "$work/$pool.md"
		else
			fit "$work/$pool.md" "$share" >"$work/part"
			cat "$work/part"
			size=$(($(wc -c <"$work/part") + 300))
			printf '\n_Cut to fit into a comment. The whole plan of pool <code>%s</code> is %s._\n' "$pool" "in $whole"
		fi
		echo
		room=$((room - size - 1))
	done
	printf -- '---\n_%s[exit code %s](%s); the plugin is %s._\n' \
		"${PLAN_COMMIT:+Commit ${PLAN_COMMIT:0:12}, }" "$1" "$job" "$version"
}

# ask asks the forge, and leaves the answer in the working folder. Only what can be repeated is tried again.
ask() { # METHOD URL [FILE]
	local args=(--silent --show-error --max-time 60 --config "$work/auth" --request "$1" --output "$work/answer"
		--write-out '%{http_code}' --header 'Accept: application/json')
	[[ $1 == POST ]] || args+=(--retry 3)
	[[ ! ${3:-} ]] || args+=(--header 'Content-Type: application/json' --data-binary "@$3")
	status=$(curl "${args[@]}" "$2") || return 1
	[[ $status == 2?? ]]
}

refused() { # WHAT
	echo "plan-comment: $1: the forge says ${status:-nothing}:" \
		"$(jq -r '.message // .error // . | tostring' "$work/answer" 2>/dev/null | head -c 500)" >&2
	case ${status:-} in
	401 | 403 | 404) echo "plan-comment: the token needs pull-requests: write (GitHub), or scope api (GitLab)" >&2 ;;
	esac
	exit "$((plans ? plans : 4))"
}

# mine finds the comments of this script's own, and puts the oldest first: others may write the marker, too.
mine() {
	local page=1 count=100
	: >"$work/ids"
	while ((count == 100)); do
		ask GET "$api$comments?per_page=100&page=$page" || refused "reading the comments"
		count=$(jq 'if type == "array" then length else error("no list") end' "$work/answer") ||
			refused "reading the comments"
		jq -r --arg me "$account" --arg marker "$marker" ".[] | select($author == \$me) |
			select((.body // \"\") | startswith(\$marker)) | .id" "$work/answer" >>"$work/ids" ||
			refused "reading the comments"
		page=$((page + 1))
	done
	ids=$(sort -n "$work/ids")
}

# settle has the oldest comment say what there is to say, and deletes others of this script's own, which a run at the
# same time may have made. It fails where there is none.
settle() { # [ID]: a comment that says so already
	local oldest id
	mine
	[[ $ids ]] || return 1
	oldest=$(head -n 1 <<<"$ids")
	if [[ $oldest != "${1:-}" ]]; then
		ask "$update" "$api$comment/$oldest" "$work/body.json" || refused "updating comment $oldest"
	fi
	for id in $(tail -n +2 <<<"$ids"); do
		ask DELETE "$api$comment/$id" || [[ $status == 404 ]] || refused "deleting comment $id"
	done
}

publish() {
	local by id
	account=${PLAN_AUTHOR:-}
	if [[ ! $account ]]; then
		if ask GET "$me"; then
			account=$(jq -r "$name" "$work/answer")
		elif [[ $unnamed && ${status:-} =~ ^40[134]$ ]]; then
			account=$unnamed # a workflow's own token may not ask
		else
			refused "asking whose the token is"
		fi
	fi
	jq -n --rawfile body "$work/comment.md" '{body: $body}' >"$work/body.json"
	if settle; then return; fi
	ask POST "$api$comments" "$work/body.json" || refused "writing the comment"
	by=$(jq -r "$author" "$work/answer") id=$(jq -r .id "$work/answer")
	if [[ $by != "$account" ]]; then
		# The next run would not know it, and write another one.
		ask DELETE "$api$comment/$id" || refused "deleting comment $id"
		echo "plan-comment: author: comments of this token are by \"$by\", not by \"$account\": set author to that" >&2
		exit "$((plans ? plans : 4))"
	fi
	settle "$id" || refused "finding comment $id"
}

if [[ -f $PLAN_KUBECONFIG ]]; then
	cp "$PLAN_KUBECONFIG" "$work/kubeconfig"
else
	printf '%s\n' "$PLAN_KUBECONFIG" >"$work/kubeconfig"
fi
install
plans=0
for pool in "${pools[@]}"; do
	code=0
	plan "$pool" || code=$?
	if ((code && (plans == 0 || plans == 3))); then plans=$code; fi
	cat "$work/$pool.md" >>"$work/whole.md"
done
if [[ $PLAN_FORGE == github ]]; then
	# A summary has room for 1 MiB.
	fit "$work/whole.md" 1000000 >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
else
	cp "$work/whole.md" plan.md
	chmod a+r plan.md
fi
compose "$plans" >"$work/comment.md"
publish
exit "$plans"
