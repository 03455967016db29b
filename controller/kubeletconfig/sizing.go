// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

// A host of kubeadm's has no unit that computes what to reserve, so the MachineConfig brings one. A unit before the
// kubelet writes a drop-in of the kubelet's to /run. A link to that drop-in belongs to the MachineConfig. So nothing is
// left when the KubeletConfig is deleted. A file tells the unit whether to do so, as in OpenShift. A file of a later
// MachineConfig wins, while no MachineConfig can take away a unit of an earlier one.
const (
	calculatorPath = "/etc/kubernetes/kubelet-auto-node-size.sh"
	reservedPath   = "/run/kubelet-auto-node-size/system-reserved.conf"
	reservedLink   = dropinDir + "/80-system-reserved.conf"
)

const calculatorUnit = `[Unit]
Description=Work out what to reserve for the system
Before=kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
RuntimeDirectory=kubelet-auto-node-size
RuntimeDirectoryPreserve=yes
EnvironmentFile=` + sizingPath + `
ExecStart=/bin/sh ` + calculatorPath + ` ` + reservedPath + `

[Install]
RequiredBy=kubelet.service
`

// calculator reserves what OpenShift does. Of memory it reserves 1 GiB of the first 8 GiB, 6 % of the next 120 and 2 %
// of the rest. Of processors it reserves 60m, and 12m for each after the first, at least 500m. It reserves 1 GiB of
// ephemeral storage.
const calculator = `# Writes to the file that it is given what to reserve for the system on this machine.
set -eu
memory=$(awk '/^MemTotal:/ {
  gib = int($2 / 1048576); high = gib > 128 ? gib - 128 : 0; middle = gib > 8 ? gib - 8 - high : 0
  printf "%d", 1 + 0.06 * middle + 0.02 * high + 0.5
}' "${MEMINFO:-/proc/meminfo}")
cpu=$(awk -v n="${PROCESSORS:-$(getconf _NPROCESSORS_ONLN)}" 'BEGIN { m = 60 + 12 * (n - 1); print m < 500 ? 500 : m }')
reserved=""
if [ "$NODE_SIZING_ENABLED" = true ]; then
  reserved=", \"systemReserved\": {\"memory\": \"${memory}Gi\", \"cpu\": \"${cpu}m\", \"ephemeral-storage\": \"1Gi\"}"
fi
cat >"$1.new" <<END
{"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"$reserved}
END
mv "$1.new" "$1"
`
