// SPDX-License-Identifier: Apache-2.0

package api

// What a machine that was made by Ignition finds of us, on paths that OpenShift has too.
const (
	// EncapsulatedPath is the whole MachineConfig that the machine was made from; its presence asks for firstboot.
	EncapsulatedPath = "/etc/ignition-machine-config-encapsulated.json"
	// HostProgram is the host's own copy of machine-config-daemon.
	HostProgram = "/var/lib/machine-config-daemon/bin/machine-config-daemon"
	// FirstbootUnit completes the machine before anything of a cluster starts.
	FirstbootUnit = "machine-config-daemon-firstboot.service"
	// LeftArguments is an annotation of that MachineConfig alone: the kernel arguments of its Ignition part that the
	// machine's Ignition was too old for, a JSON list. firstboot sets them, as Ignition would have.
	LeftArguments = ownPrefix + "ignition-kernel-arguments"
)

// FirstbootUnitText is that unit. What it is required by waits, however long it takes: it is tried again until it has
// worked, and a kubelet must not start on a machine that is not what it should be. RestartMode is what systemd did
// before it had that (254): without it whoever waits is told of the first failure.
const FirstbootUnitText = `[Unit]
Description=Make the new machine what its pool's configuration says
Documentation=https://github.com/noderefit/noderefit
ConditionPathExists=` + EncapsulatedPath + `
Wants=network-online.target
After=network-online.target machine-config-daemon-pull.service machine-config-daemon-recover.service
Before=kubelet.service crio.service containerd.service docker.service
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/env ` + HostProgram + ` firstboot
Restart=on-failure
RestartMode=direct
RestartSec=10
KillMode=mixed
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
RequiredBy=kubelet.service crio.service containerd.service
`
