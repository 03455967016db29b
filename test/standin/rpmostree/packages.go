// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
)

// KernelPackages are those of the base that a kernel type takes the place of.
var KernelPackages = []string{"kernel", "kernel-core", "kernel-modules", "kernel-modules-core", "kernel-modules-extra"}

// BasePackages are what the tree of a ref has: those of KernelPackages, chrony and toolbox; lab.RefV2 has another
// version of the kernel, and late too, which the repository has for the others.
func BasePackages(ref string) []catalogue.Package {
	version := "6.12.0"
	if ref == lab.RefV2 {
		version = "6.12.1"
	}
	all := append(kernel("kernel", version, "6.12.0-lab"),
		simple("chrony", "4.5"), simple("toolbox", "1.0"))
	if ref == lab.RefV2 {
		all = append(all, simple("late", "1.0"))
	}
	return all
}

// Packages are what can be installed: two other kernels, what the extensions of upstream consist of, late (see
// BasePackages), and broken, which requires what there is not.
func Packages() []catalogue.Package {
	all := append(kernel("kernel-rt", "6.12.0", "6.12.0-lab+rt"), kernel("kernel-64k", "6.12.0", "6.12.0-lab+64k")...)
	for _, name := range []string{
		"usbguard", "sysstat", "krb5-workstation", "libkadm5", "kernel-devel", "kernel-headers", "libreswan",
		"NetworkManager-libreswan", "kata-containers", "pacemaker", "pcs", "fence-agents-all", "late",
		"kernel-rt-kvm", "openvswitch3.5-ipsec",
	} {
		all = append(all, simple(name, "1.0"))
	}
	broken := simple("broken", "1.0")
	broken.Requires = []string{"nothing-of-the-kind"}
	return append(all, broken)
}

// simple is a package with one program and one default in /etc.
func simple(name, version string) catalogue.Package {
	return catalogue.Package{Name: name, Version: version, Release: "1", Arch: "x86_64", Files: map[string]string{
		"/usr/bin/" + name:          name + " " + version + "\n",
		"/etc/" + name + ".default": name + "\n",
	}}
}

// kernel is a kernel in its packages.
func kernel(name, version, release string) []catalogue.Package {
	parts := []struct {
		suffix   string
		requires []string
	}{
		{"", []string{"-core", "-modules", "-modules-core"}},
		{"-core", []string{"-modules-core"}},
		{"-modules", []string{"-core"}},
		{"-modules-core", nil},
		{"-modules-extra", []string{"-modules"}},
	}
	var all []catalogue.Package
	for _, part := range parts {
		p := catalogue.Package{Name: name + part.suffix, Version: version, Release: "1", Arch: "x86_64"}
		for _, other := range part.requires {
			p.Requires = append(p.Requires, name+other)
		}
		if part.suffix == "-core" {
			p.Files = map[string]string{"/usr/lib/modules/" + release + "/vmlinuz": "kernel of " + p.NEVRA() + "\n"}
		}
		all = append(all, p)
	}
	return all
}
