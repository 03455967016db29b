#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Signs what a release has, without a key: cosign asks the identity provider of the workflow who signs, and writes it
# into the public log. packaging/sign.sh DIST REFERENCE... signs SHA256SUMS, which has the sums of all files, and each
# reference with its digest, and attests how they were built. DIST gets SHA256SUMS.sigstore.json and provenance.json.
#
#   VERSION, REVISION  the release, and the commit that it is built from
#   COSIGN             the program
#   GITHUB_…           what GitHub says of the run of a workflow
set -euo pipefail

dist=$1
shift
cosign=${COSIGN:-cosign}
home=${GITHUB_SERVER_URL:?is set in a workflow}/${GITHUB_REPOSITORY:?is set in a workflow}
(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
cat >"$dist/provenance.json" <<END
{
  "buildDefinition": {
    "buildType": "https://github.com/noderefit/noderefit/blob/main/docs/releasing.md",
    "externalParameters": {"version": "${VERSION:?has to be the version of the release}", "source": "git+$home"},
    "resolvedDependencies": [
      {"uri": "git+$home@refs/tags/$VERSION", "digest": {"gitCommit": "${REVISION:?has to be the commit}"}}
    ]
  },
  "runDetails": {
    "builder": {"id": "$home/${GITHUB_WORKFLOW_REF#*/*/}"},
    "metadata": {"invocationId": "$home/actions/runs/${GITHUB_RUN_ID:?is set in a workflow}/attempts/${GITHUB_RUN_ATTEMPT:-1}"}
  }
}
END
"$cosign" sign-blob --yes --bundle "$dist/SHA256SUMS.sigstore.json" "$dist/SHA256SUMS"
"$cosign" attest-blob --yes --type slsaprovenance1 --predicate "$dist/provenance.json" \
	--bundle "$dist/provenance.sigstore.json" "$dist/SHA256SUMS"
for reference; do
	"$cosign" sign --yes "$reference"
	"$cosign" attest --yes --type slsaprovenance1 --predicate "$dist/provenance.json" "$reference"
	[[ $reference == */machine-config-* ]] || continue
	for sbom in "$dist/noderefit_${VERSION}"_linux_*.spdx.json; do
		"$cosign" attest --yes --type spdxjson --predicate "$sbom" "$reference"
	done
done
