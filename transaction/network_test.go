// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"testing"
)

func TestNetworkIsReadFromTheKernel(t *testing.T) {
	const head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	const v4 = head + "eth0\t00000000\t0102000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n" +
		"eth0\t0002000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
	const arp = "IP address       HW type     Flags       HW address            Mask     Device\n"
	const zeros = "00000000000000000000000000000000"
	const v6 = zeros + " 00 " + zeros + " 00 fe800000000000000000000000000001 " +
		"00000400 00000001 00000000 00000003     eth0\n"
	const none6 = zeros + " 00 " + zeros + " 00 " + zeros + " " +
		"ffffffff 00000001 00000000 00200200       lo\n"
	for _, c := range []struct {
		what               string
		route, route6, arp string
		want               Network
	}{
		{"nothing", "", "", "", Network{}},
		{"no default", head + "eth0\t0002000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n", none6, arp,
			Network{}},
		{"a default", v4, none6, arp, Network{Route: true}},
		{"that is unreachable", head + "*\t00000000\t00000000\t0200\t0\t0\t0\t00000000\t0\t0\t0\n", "", "",
			Network{}},
		{"IPv6 alone", head, none6 + v6, arp, Network{Route: true}},
		{"a router that answers", v4, "", arp + "10.0.2.1 0x1 0x2 52:55:0a:00:02:02 * eth0\n",
			Network{Route: true, Answers: true}},
		{"a router that does not", v4, "", arp + "10.0.2.1 0x1 0x0 00:00:00:00:00:00 * eth0\n",
			Network{Route: true, Silent: true}},
		{"another neighbour", v4, "", arp + "10.0.2.7 0x1 0x0 00:00:00:00:00:00 * eth0\n",
			Network{Route: true}},
	} {
		if got := networkOf(c.route, c.route6, c.arp); got != c.want {
			t.Errorf("%s: %+v", c.what, got)
		}
	}
}
