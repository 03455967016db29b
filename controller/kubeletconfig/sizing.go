// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

// On a host of kubeadm's there is nobody who works out what to reserve, so we bring that: a unit before the kubelet
// writes a drop-in of the kubelet's to /run, and a link that goes with the MachineConfig leads there. So nothing of it
// is left where the KubeletConfig goes. It is told by a file whether to, as OpenShift's is: of files a later
// MachineConfig's wins, but nothing in one takes a unit of an earlier one away.
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

// calculator reserves as OpenShift does: of memory 1 GiB for the first 8 GiB, 6 % of the next 120 and 2 % of the rest,
// of processors 60m and 12m for each after the first, at least 500m, and 1 GiB of ephemeral storage.
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
