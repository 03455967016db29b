// SPDX-License-Identifier: Apache-2.0

package values

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Facts returns those of the keys that a host itself tells, by its file system:
//
//	host/interfaces/MAC    the name of the network interface with that MAC address
//	host/disks/ID          the path of the disk /dev/disk/by-id/ID
//	host/numa/nodes        how many NUMA nodes there are
//	host/numa/N/cpus       the list of CPUs of NUMA node N, as the kernel writes it
//
// A key that the host has no answer for is left out. A key of another form is an error.
func Facts(host fs.FS, keys []string) (map[string]string, error) {
	out := map[string]string{}
	for _, key := range keys {
		rest, is := strings.CutPrefix(key, hostSource)
		if !is {
			continue
		}
		kind, name, _ := strings.Cut(rest, "/")
		var value string
		var known bool
		switch {
		case kind == "interfaces" && types["mac"](name):
			value, known = interfaceOf(host, name)
		case kind == "disks" && name != "" && fs.ValidPath(name) && !strings.Contains(name, "/"):
			value = "/dev/disk/by-id/" + name
			_, err := fs.Stat(host, value[1:])
			known = err == nil
		case rest == "numa/nodes":
			value, known = numaNodes(host)
		case numaCPUs().MatchString(rest):
			text, err := fs.ReadFile(host, "sys/devices/system/node/node"+numaCPUs().FindStringSubmatch(rest)[1]+"/cpulist")
			value, known = strings.TrimSpace(string(text)), err == nil
		default:
			return nil, fmt.Errorf("value %s: facts of a host are %sinterfaces/MAC, %sdisks/ID, %snuma/nodes, %snuma/N/cpus",
				key, hostSource, hostSource, hostSource, hostSource)
		}
		if known {
			out[key] = value
		}
	}
	return out, nil
}

var (
	numaCPUs = pattern(`^numa/([0-9]{1,4})/cpus$`)
	numaNode = pattern(`^node[0-9]+$`)
)

// interfaceOf returns the name of an interface by its MAC address. Bonds and VLANs have the address of a device, so a
// device goes before them. Two interfaces that can't be told apart have no answer.
func interfaceOf(host fs.FS, mac string) (string, bool) {
	const dir = "sys/class/net"
	all, err := fs.ReadDir(host, dir)
	if err != nil {
		return "", false
	}
	var devices, others []string
	for _, entry := range all {
		address, err := fs.ReadFile(host, path.Join(dir, entry.Name(), "address"))
		if err != nil || !strings.EqualFold(strings.TrimSpace(string(address)), mac) {
			continue
		}
		if _, err := fs.Stat(host, path.Join(dir, entry.Name(), "device")); err == nil {
			devices = append(devices, entry.Name())
		} else {
			others = append(others, entry.Name())
		}
	}
	switch {
	case len(devices) == 1:
		return devices[0], true
	case len(devices) == 0 && len(others) == 1:
		return others[0], true
	}
	return "", false
}

func numaNodes(host fs.FS) (string, bool) {
	all, err := fs.ReadDir(host, "sys/devices/system/node")
	n := 0
	for _, entry := range all {
		if numaNode().MatchString(entry.Name()) {
			n++
		}
	}
	return strconv.Itoa(n), err == nil && n > 0
}
