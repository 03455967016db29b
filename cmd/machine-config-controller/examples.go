// SPDX-License-Identifier: Apache-2.0

package main

// examples are what --help shows of the commands that people type.
var examples = map[string]string{
	"machine-config-controller": `  machine-config-controller render --pool worker machines/ > worker.yaml
  machine-config-controller simulate --policy careful.yaml --nodes 200`,
	"cluster-api": "  machine-config-controller cluster-api --cluster prod --namespace fleet " +
		"--client-ca ca.crt --client-name capi",
	"render": `  machine-config-controller render --pool worker machines/ > worker.yaml
  machine-config-controller render --pool infra --base rendered-worker.yaml --strict infra.yaml motd.bu`,
	"run": `  machine-config-controller run
  machine-config-controller run --kubeconfig admin.conf --controllers render,pool --leader-elect=false`,
	"simulate": `  machine-config-controller simulate --policy careful.yaml --nodes 200
  machine-config-controller simulate --policy careful.yaml --nodes nodes.json -o json`,
	"templates": `  machine-config-controller templates controllerconfig.yaml`,
	"version":   `  machine-config-controller version`,
}
