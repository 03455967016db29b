// SPDX-License-Identifier: Apache-2.0

package main

// examples are what --help shows of the commands that people type.
var examples = map[string]string{
	"machine-config-daemon": `  machine-config-daemon plan --desired worker.yaml
  machine-config-daemon apply --config worker.yaml
  machine-config-daemon status
  machine-config-daemon rollback`,
	"apply": `  machine-config-daemon apply --config worker.yaml
  machine-config-daemon apply --config worker.yaml --no-reboot
  machine-config-daemon apply --config worker.yaml --root /srv/tree --skip-os
  machine-config-daemon apply --print-steps`,
	"before-drain": `  machine-config-daemon before-drain
  machine-config-daemon before-drain --to rendered-worker-97254a31e32a144f050a02157adac818`,
	"deliver":   `  machine-config-daemon deliver --config controllerconfig.yaml`,
	"firstboot": `  machine-config-daemon firstboot`,
	"hooks": `  machine-config-daemon hooks
  machine-config-daemon hooks -o json`,
	"plan": `  machine-config-daemon plan --desired worker.yaml
  machine-config-daemon plan --desired worker.yaml --policy policy.yaml -o json
  machine-config-daemon plan --desired new.yaml --current old.yaml`,
	"prove": `  machine-config-daemon prove`,
	"reboot": `  machine-config-daemon reboot --why firmware
  machine-config-daemon reboot --soft`,
	"recover": `  machine-config-daemon recover`,
	"repair": `  machine-config-daemon repair
  machine-config-daemon repair --only "file /etc/chrony.conf"`,
	"rollback": `  machine-config-daemon rollback
  machine-config-daemon rollback --no-reboot`,
	"run": `  machine-config-daemon run --kubeconfig /etc/kubernetes/kubelet.conf --node worker-1`,
	"stage": `  machine-config-daemon stage --config worker.yaml
  machine-config-daemon stage --drop`,
	"status": `  machine-config-daemon status
  machine-config-daemon status -o json`,
	"verify": `  machine-config-daemon verify
  machine-config-daemon verify --config worker.yaml -o json`,
	"wants-reboot": `  machine-config-daemon wants-reboot
  machine-config-daemon wants-reboot -o json`,
	"version": `  machine-config-daemon version`,
}
