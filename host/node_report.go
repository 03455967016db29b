// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/noderefit/noderefit/files"
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
		return &nodeWord{Why: NotHeard, When: w.When, Uptime: w.Uptime}
	}
	return w
}

// NotHeard is why a node that was ready is not called so yet.
const NotHeard = "its kubelet has not reported since the boot"

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

// ReportNodeHeld writes for an apply on the host whether the node is still as the drain has left it. A report that the
// node is not held counts for a short time only (wordLasts): the agent repeats the report.
func ReportNodeHeld(root *files.Root, held bool, why string) error {
	data, err := json.Marshal(heldWord{Held: held, Why: why, When: time.Now().UTC(), Uptime: Uptime()})
	if err != nil {
		return err
	}
	if err := root.WriteRecord(nodeHeldFile, data, 0o600); err != nil {
		return fmt.Errorf("telling the host about the hold on its node: %w", err)
	}
	return nil
}

// ReportNodeReady writes for the verdict on the host what the API server says of the node now, and when the node's
// kubelet has last spoken to the API server; the zero time: not known. A report counts for a short time only
// (wordLasts): the agent repeats the report while an update is on the way.
func ReportNodeReady(root *files.Root, ready bool, why string, heard time.Time) error {
	word := nodeWord{Ready: ready, Why: why, When: time.Now().UTC(), Uptime: Uptime()}
	if !heard.IsZero() {
		word.Heard = word.Uptime - time.Since(heard)
	}
	data, err := json.Marshal(word)
	if err != nil {
		return err
	}
	if err := root.WriteRecord(nodeWordFile, data, 0o600); err != nil {
		return fmt.Errorf("telling the host about its node: %w", err)
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
	return judgeHold(word, Uptime())
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
