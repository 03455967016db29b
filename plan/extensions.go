// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// packagesOf lists the packages of each extension of the RHEL family's extension images.
var packagesOf = map[string][]string{
	"ipsec":                {"NetworkManager-libreswan", "libreswan", "openvswitch3.5-ipsec"},
	"kerberos":             {"krb5-workstation", "libkadm5"},
	"kernel-devel":         {"kernel-devel", "kernel-headers"},
	"sandboxed-containers": {"kata-containers"},
	"sysstat":              {"sysstat"},
	"two-node-ha":          {"pacemaker", "pcs", "fence-agents-all"},
	"usbguard":             {"usbguard"},
}

// Packages returns the packages that make up an extension; one that is not in the table is a package of its own name.
func Packages(extension string) []string {
	if p, ok := packagesOf[extension]; ok {
		return slices.Clone(p)
	}
	return []string{extension}
}
