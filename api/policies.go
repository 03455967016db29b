// SPDX-License-Identifier: Apache-2.0

package api

// AdmissionPolicies limit the rights of our accounts where RBAC can't, and refuse objects that none of our programs can
// read. Each has a binding of its name, which denies.
var AdmissionPolicies = []string{
	"machine-config-controller-machineconfig",
	"machine-config-controller-node",
	"machine-config-controller-source",
	"machine-config-daemon-event",
	"machine-config-daemon-eviction",
	"machine-config-daemon-eviction-token",
	"machine-config-daemon-machineconfig",
	"machine-config-daemon-machineconfignode",
	"machine-config-daemon-node",
	"machine-config-daemon-pod",
	"readable-conditions",
	"readable-controllerconfigs",
	"readable-machineconfignodes",
	"readable-machineconfigpools",
	"readable-rolloutpolicies",
}
