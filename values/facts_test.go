// SPDX-License-Identifier: Apache-2.0

package values

import (
	"maps"
	"testing"
	"testing/fstest"
)

func TestAHostTellsItsFacts(t *testing.T) {
	t.Parallel()
	host := fstest.MapFS{}
	for name, text := range map[string]string{
		"sys/class/net/ens3/address":            "52:54:00:12:34:56\n",
		"sys/class/net/ens3/device/uevent":      "",
		"sys/class/net/bond0/address":           "52:54:00:12:34:56\n",
		"sys/class/net/br0/address":             "52:54:00:aa:00:01\n",
		"sys/class/net/v1/address":              "52:54:00:aa:00:02\n",
		"sys/class/net/v2/address":              "52:54:00:aa:00:02\n",
		"dev/disk/by-id/wwn-0x5000":             "",
		"sys/devices/system/node/node0/cpulist": "0-7,16-23\n",
		"sys/devices/system/node/node1/cpulist": "8-15\n",
		"sys/devices/system/node/possible":      "0-1\n",
	} {
		host[name] = &fstest.MapFile{Data: []byte(text)}
	}
	got, err := Facts(host, []string{"name", "host/interfaces/52:54:00:12:34:56", "host/interfaces/52:54:00:AA:00:01",
		"host/interfaces/52:54:00:aa:00:02", "host/interfaces/52:54:00:ff:ff:ff", "host/disks/wwn-0x5000", "host/disks/none",
		"host/numa/nodes", "host/numa/1/cpus", "host/numa/7/cpus"})
	want := map[string]string{"host/interfaces/52:54:00:12:34:56": "ens3", "host/interfaces/52:54:00:AA:00:01": "br0",
		"host/disks/wwn-0x5000": "/dev/disk/by-id/wwn-0x5000", "host/numa/nodes": "2", "host/numa/1/cpus": "8-15"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, key := range []string{"host/disks/..", "host/disks/a/b", "host/interfaces/eth0", "host/memory"} {
		if _, err := Facts(host, []string{key}); err == nil {
			t.Errorf("%s is a fact", key)
		}
	}
}
