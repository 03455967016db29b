// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/transaction"
)

// nodeWordFile holds what the head was last told of the node by the API server. No boot inherits it.
const nodeWordFile = transaction.RunDir + "/node-ready"

// wordLasts is how long what the head said counts. It repeats itself every few seconds while it hears from the API
// server; a kubelet is called NotReady 40 seconds after its last sign of life.
const wordLasts = time.Minute

// nodeWord is what the API server says of the node.
type nodeWord struct {
	Ready bool      `json:"ready"`
	Why   string    `json:"why"`
	When  time.Time `json:"when"`
	// Uptime is when it was said, and Heard when the kubelet had last spoken, as time since the kernel's boot: a clock
	// that is set changes nothing.
	Uptime time.Duration `json:"uptimeNanoseconds"`
	Heard  time.Duration `json:"heardNanoseconds,omitempty"`
}

// since leaves out what was said of a boot before this one, which began then: /run outlives a soft reboot. The API
// server does not know of one, so after a soft reboot the kubelet's clock says what it has reported of; after another
// the head has asked for the kernel's boot already.
func (w *nodeWord) since(booted time.Duration, soft bool) *nodeWord {
	if w == nil || w.Uptime < booted {
		return nil
	}
	// The kubelet's time has whole seconds.
	if soft && w.Ready && w.Heard != 0 && w.Heard+time.Second < booted {
		return &nodeWord{Why: notHeard, When: w.When, Uptime: w.Uptime}
	}
	return w
}

// notHeard is why a node that was ready is not called so yet.
const notHeard = "its kubelet has not reported since the boot"

// nodeHeldFile holds what the head last said of the hold on the node.
const nodeHeldFile = transaction.RunDir + "/node-held"

// heldWord says whether the node is as it was left by the drain: cordoned all the time, so that nothing came to it.
type heldWord struct {
	Held   bool          `json:"held"`
	Why    string        `json:"why,omitempty"` // it is not
	When   time.Time     `json:"when"`
	Uptime time.Duration `json:"uptimeNanoseconds"` // as in nodeWord
}

// errNotHeld is why an update that was drained for is not committed.
var errNotHeld = errors.New("the node is to be drained again")

// judgeHold refuses to disrupt a node that the head has just said may have pods again. A head that says nothing is no
// reason: it was drained before the update began, and a head or an API server that is away must not hold that up.
func judgeHold(word *heldWord, now time.Duration) error {
	if word == nil || word.Held || now-word.Uptime > wordLasts {
		return nil
	}
	return &Refused{Err: fmt.Errorf("%w: %s", errNotHeld, word.Why)}
}

// NodeHeld tells an apply on the host whether the node is still as the drain has left it. That it is not counts for a
// short time only (wordLasts), so whoever says it repeats it.
func (h *HostHands) NodeHeld(_ context.Context, held bool, why string) error {
	data, err := json.Marshal(heldWord{Held: held, Why: why, When: time.Now().UTC(), Uptime: uptime()})
	if err != nil {
		return err
	}
	if err := h.root.WriteRecord(nodeHeldFile, data, 0o600); err != nil {
		return fmt.Errorf("telling the host about the hold on its node: %w", err)
	}
	return nil
}

// nodeHeld fails where a cluster asks for the update and its head has said that the node is not held any more.
func (h *Host) nodeHeld(cluster bool) error {
	if !cluster {
		return nil
	}
	var word *heldWord
	data, err := h.root.ReadFile(nodeHeldFile)
	if err == nil {
		word = &heldWord{}
		err = json.Unmarshal(data, word)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// As if nothing had been said.
		h.say("hold", "reading what the head said of the hold on the node: "+err.Error())
		word = nil
	}
	return judgeHold(word, uptime())
}

// errNoWord is why a verdict waits: the head is not there yet, or does not reach the API server.
var errNoWord = errors.New("the cluster has not said yet whether the node is ready")

// judgeNode is the part of the verdict that belongs to the cluster. What the API server says counts. Where it says
// nothing, as when it is away itself, a host that is healthy must not go back for that alone: once patience is over the
// host's own network decides, which may be no worse than it was before the update.
func judgeNode(word *nodeWord, now, patience time.Duration, before, after transaction.Network) error {
	if word != nil && now-word.Uptime <= wordLasts {
		if word.Ready {
			return nil
		}
		return fmt.Errorf("the node is not ready: %s", word.Why)
	}
	worse := ""
	switch {
	case before.Route && !after.Route:
		worse = "the host has lost its default route"
	case before.Answers && after.Silent:
		worse = "the router of the default route does not answer any more"
	}
	switch {
	case worse != "":
		return fmt.Errorf("%w, and %s", errNoWord, worse)
	case now < patience:
		return errNoWord
	}
	return nil
}

// NodeWord is what an API server's Node says about its readiness. What was said of the boot before is no answer: until
// the kubelet has spoken in this one the node is not ready. The kubelet names its boot. Where one of the two names is
// not known, the kubelet's time is compared with that of the boot, which was as long before now as the machine is up.
func NodeWord(n *corev1.Node, boot string, now time.Time, up time.Duration) (ready bool, why string) {
	c := conditionReady(n)
	if c == nil {
		return false, "it has no condition Ready"
	}
	if c.Status != corev1.ConditionTrue {
		return false, strings.TrimSpace(fmt.Sprintf("Ready is %s: %s: %s", c.Status, c.Reason, c.Message))
	}
	before := n.Status.NodeInfo.BootID != boot
	if boot == "" || n.Status.NodeInfo.BootID == "" {
		before = c.LastHeartbeatTime.Time.Before(now.Add(-up).Truncate(time.Second)) // whole seconds, as the kubelet has
	}
	if before {
		return false, notHeard
	}
	return true, ""
}

// NodeHeard is when the node's kubelet had last spoken to the API server; the zero time where that does not say.
func NodeHeard(n *corev1.Node) time.Time {
	if c := conditionReady(n); c != nil {
		return c.LastHeartbeatTime.Time
	}
	return time.Time{}
}

// conditionReady is what the API server says of the node's kubelet, nil for nothing.
func conditionReady(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c
		}
	}
	return nil
}

// nodeWord reads what the head was told; nil where it was told nothing, or nothing that can be read.
func (h *Host) nodeWord() *nodeWord {
	data, err := h.root.ReadFile(nodeWordFile)
	if err != nil {
		return nil
	}
	w := &nodeWord{}
	if err := json.Unmarshal(data, w); err != nil {
		return nil
	}
	return w
}

// network is what the kernel shows of the host's network. What can't be read is not there.
func (h *Host) network() transaction.Network {
	text := func(name string) string {
		data, err := h.root.ReadFile(name)
		if err != nil {
			return ""
		}
		return string(data)
	}
	return networkOf(text("/proc/net/route"), text("/proc/net/ipv6_route"), text("/proc/net/arp"))
}

// Flags of routes and neighbours in /proc/net.
const (
	routeUp     = 0x1
	routeReject = 0x200
	arpComplete = 0x2
)

// networkOf reads /proc/net/route, ipv6_route and arp.
func networkOf(route, route6, arp string) transaction.Network {
	var n transaction.Network
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
