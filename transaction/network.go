// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"fmt"
	"strings"
)

// Flags of routes and neighbours in /proc/net.
const (
	routeUp     = 0x1
	routeReject = 0x200
	arpComplete = 0x2
)

// networkOf reads /proc/net/route, ipv6_route and arp.
func networkOf(route, route6, arp string) Network {
	var n Network
	routers := map[string]bool{}
	for line := range strings.Lines(route) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask
		f := strings.Fields(line)
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" || !flags(f[3], routeUp) || flags(f[3], routeReject) {
			continue
		}
		n.Route = true
		var a, b, c, d int
		if _, err := fmt.Sscanf(f[2], "%2x%2x%2x%2x", &d, &c, &b, &a); err == nil {
			routers[fmt.Sprintf("%d.%d.%d.%d", a, b, c, d)] = true
		}
	}
	for line := range strings.Lines(route6) {
		// destination, its prefix, source, its prefix, next hop, metric, references, use, flags, device
		f := strings.Fields(line)
		if len(f) < 10 || strings.Trim(f[0], "0") != "" || f[1] != "00" || f[9] == "lo" ||
			!flags(f[8], routeUp) || flags(f[8], routeReject) {
			continue
		}
		n.Route = true
	}
	for line := range strings.Lines(arp) {
		// address, type, flags, hardware address, mask, device
		f := strings.Fields(line)
		if len(f) < 6 || !routers[f[0]] {
			continue
		}
		if flags(strings.TrimPrefix(f[2], "0x"), arpComplete) {
			n.Answers = true
		} else {
			n.Silent = true
		}
	}
	n.Silent = n.Silent && !n.Answers
	return n
}

func flags(text string, want uint64) bool {
	var have uint64
	_, err := fmt.Sscanf(text, "%x", &have)
	return err == nil && have&want == want
}
