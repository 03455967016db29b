#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Copies OpenShift's CRDs for the kinds that we speak from the module that go.mod pins: of each kind the variant of a
# cluster without feature previews. To those whose status says which generation it is about, one thing is added: an object
# that nobody has looked at yet says so, and does not pass for one that is as it should be.
# Those of our own kinds are made of their Go types, and their copying methods too.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
module=$(go list -m -f '{{.Dir}}' github.com/openshift/api)
copy() { install -m 0644 "$module/$1/zz_generated.crd-manifests/$2" "crds/$3.yaml"; }

mcfg=machineconfiguration/v1
copy $mcfg 0000_80_machine-config_01_machineconfigs.crd.yaml machineconfigs
copy $mcfg 0000_80_machine-config_01_machineconfigpools-SelfManagedHA.crd.yaml machineconfigpools
copy $mcfg 0000_80_machine-config_01_machineconfignodes-SelfManagedHA-Default.crd.yaml machineconfignodes
copy $mcfg 0000_80_machine-config_01_osimagestreams-SelfManagedHA.crd.yaml osimagestreams
copy $mcfg 0000_80_machine-config_01_kubeletconfigs-Default.crd.yaml kubeletconfigs
copy $mcfg 0000_80_machine-config_01_containerruntimeconfigs.crd.yaml containerruntimeconfigs
copy $mcfg 0000_80_machine-config_01_controllerconfigs-Default.crd.yaml controllerconfigs
copy $mcfg 0000_80_machine-config_01_pinnedimagesets.crd.yaml pinnedimagesets
copy operator/v1 0000_80_machine-config_01_machineconfigurations.crd.yaml machineconfigurations
copy config/v1 0000_10_config-operator_01_imagedigestmirrorsets.crd.yaml imagedigestmirrorsets
copy config/v1 0000_10_config-operator_01_imagetagmirrorsets.crd.yaml imagetagmirrorsets
copy operator/v1alpha1 0000_10_config-operator_01_imagecontentsourcepolicies.crd.yaml imagecontentsourcepolicies
copy config/v1 0000_10_config-operator_01_images.crd.yaml images
copy config/v1 0000_10_config-operator_01_clusterimagepolicies.crd.yaml clusterimagepolicies
copy config/v1 0000_10_config-operator_01_imagepolicies.crd.yaml imagepolicies

for kind in machineconfigpools kubeletconfigs containerruntimeconfigs controllerconfigs machineconfigurations; do
	sed -i 's/^          status:$/&\n            default:\n              observedGeneration: -1/' "crds/$kind.yaml"
	grep -q '^              observedGeneration: -1$' "crds/$kind.yaml"
done
# Kubernetes knows no format "ip" and no "hostname", ignores them, and warns of each.
sed -i '/^ *format: \(ip\|hostname\)$/d' crds/controllerconfigs.yaml crds/images.yaml

mkdir -p ../.cache
go -C ../tools/api build -o ../../.cache/controller-gen sigs.k8s.io/controller-tools/cmd/controller-gen
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
printf '// SPDX-License-Identifier: Apache-2.0\n' >"$made/licence"
../.cache/controller-gen "object:headerFile=$made/licence" crd paths=. "output:crd:dir=$made"
for kind in nodehooks nodevalues osstreams rolloutpolicies; do
	install -m 0644 "$made/noderefit.dev_$kind.yaml" "crds/$kind.yaml"
done
