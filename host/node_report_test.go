// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/transaction"
)

func TestNodeIsJudgedByItsClusterOrElseByItsNetwork(t *testing.T) {
	const now, patience = 5 * time.Minute, 5 * time.Minute
	said := func(ready bool, ago time.Duration) *nodeWord {
		return &nodeWord{Ready: ready, Why: "no network plugin", Uptime: now - ago}
	}
	route := transaction.Network{Route: true}
	answers := transaction.Network{Route: true, Answers: true}
	silent := transaction.Network{Route: true, Silent: true}
	var none transaction.Network
	for _, c := range []struct {
		what          string
		word          *nodeWord
		early         time.Duration // before the end of patience
		before, after transaction.Network
		want          string // part of the refusal; "" for a pass
	}{
		{"ready", said(true, 0), time.Minute, route, route, ""},
		{"ready, whatever the routes say", said(true, 10*time.Second), 0, route, none, ""},
		{"not ready", said(false, 0), 0, route, route, "no network plugin"},
		{"ready, a while ago", said(true, 2*wordLasts), time.Minute, route, route, "has not said"},
		{"ready a while ago, and the API server is away", said(true, 2*wordLasts), 0, route, route, ""},
		{"not ready a while ago, and the API server is away", said(false, 2*wordLasts), 0, route, route, ""},
		{"nothing yet", nil, time.Second, route, route, "has not said"},
		{"nothing until the end", nil, 0, route, route, ""},
		{"nothing, on a host that never had a route", nil, 0, none, none, ""},
		{"nothing, and the route is lost", nil, 0, route, none, "default route"},
		{"nothing yet, and the route is lost", nil, time.Second, route, none, "default route"},
		{"nothing, and a route that was not there before", nil, 0, none, route, ""},
		{"nothing, and the router is silent", nil, 0, answers, silent, "router"},
		{"nothing, and nobody has asked the router", nil, 0, answers, route, ""},
		{"nothing, and the router was silent before", nil, 0, silent, silent, ""},
	} {
		err := judgeNode(c.word, now-c.early, patience, c.before, c.after)
		if c.word != nil {
			w := *c.word
			w.Uptime -= c.early
			err = judgeNode(&w, now-c.early, patience, c.before, c.after)
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// /run outlives a soft reboot, and so does a report from before it.
func TestWordOfTheBootBeforeIsNone(t *testing.T) {
	const booted = time.Hour
	for _, c := range []struct {
		what string
		word *nodeWord
		want string // the refusal; "yes", or "none" for no report at all
		full string // the same for a boot of the kernel, where the answer differs
	}{
		{"nothing", nil, "none", ""},
		{"said before", &nodeWord{Ready: true, Uptime: booted - 1}, "none", ""},
		{"said since, of a kubelet from before", &nodeWord{Ready: true, Uptime: booted + time.Minute, Heard: booted - 2*time.Second}, NotHeard, "yes"},
		{"not ready, of a kubelet from before", &nodeWord{Why: "no", Uptime: booted + time.Minute, Heard: booted - 2*time.Second}, "no", ""},
		{"said since, of a kubelet in the second of the boot", &nodeWord{Ready: true, Uptime: booted + time.Minute, Heard: booted - time.Second/2}, "yes", ""},
		{"said since, and nobody knows of when", &nodeWord{Ready: true, Uptime: booted}, "yes", ""},
		{"said since, and the clock was set forward", &nodeWord{Ready: true, Uptime: booted + time.Minute, Heard: -8760 * time.Hour},
			NotHeard, "yes"},
	} {
		for soft, want := range map[bool]string{true: c.want, false: cmp.Or(c.full, c.want)} {
			got := "none"
			if w := c.word.since(booted, soft); w != nil && w.Ready {
				got = "yes"
			} else if w != nil {
				got = w.Why
			}
			if got != want {
				t.Errorf("%s, soft %t: %q, want %q", c.what, soft, got, want)
			}
		}
	}
}

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
		want               transaction.Network
	}{
		{"nothing", "", "", "", transaction.Network{}},
		{"no default", head + "eth0\t0002000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n", none6, arp,
			transaction.Network{}},
		{"a default", v4, none6, arp, transaction.Network{Route: true}},
		{"that is unreachable", head + "*\t00000000\t00000000\t0200\t0\t0\t0\t00000000\t0\t0\t0\n", "", "",
			transaction.Network{}},
		{"IPv6 alone", head, none6 + v6, arp, transaction.Network{Route: true}},
		{"a router that answers", v4, "", arp + "10.0.2.1 0x1 0x2 52:55:0a:00:02:02 * eth0\n",
			transaction.Network{Route: true, Answers: true}},
		{"a router that does not", v4, "", arp + "10.0.2.1 0x1 0x0 00:00:00:00:00:00 * eth0\n",
			transaction.Network{Route: true, Silent: true}},
		{"another neighbour", v4, "", arp + "10.0.2.7 0x1 0x0 00:00:00:00:00:00 * eth0\n",
			transaction.Network{Route: true}},
	} {
		if got := networkOf(c.route, c.route6, c.arp); got != c.want {
			t.Errorf("%s: %+v", c.what, got)
		}
	}
}
