// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

// nodeWordFile holds the API server's last report on the node, as the head wrote it. No boot inherits the file.
const nodeWordFile = RunDir + "/node-ready"

// wordLasts is how long the head's report counts. The head repeats its report every few seconds while it reaches the
// API server; a node becomes NotReady 40 seconds after its kubelet's last sign of life.
const wordLasts = time.Minute

// NodeWord is the API server's report on the node.
type NodeWord struct {
	Ready bool      `json:"ready"`
	Why   string    `json:"why"`
	When  time.Time `json:"when"`
	// Uptime is when the report was written, and Heard when the kubelet had last spoken, as time since the kernel's boot:
	// setting a clock changes neither.
	Uptime time.Duration `json:"uptimeNanoseconds"`
	Heard  time.Duration `json:"heardNanoseconds,omitempty"`
}

// Since returns nil for a report from before this boot, which began at booted: /run outlives a soft reboot. The API
// server does not notice a soft reboot, so after one the kubelet's last sign of life must be newer than the boot. After
// a full reboot the head has already compared the kernel's boot.
func (w *NodeWord) Since(booted time.Duration, soft bool) *NodeWord {
	if w == nil || w.Uptime < booted {
		return nil
	}
	// The kubelet's time has whole seconds.
	if soft && w.Ready && w.Heard != 0 && w.Heard+time.Second < booted {
		return &NodeWord{Why: NotHeard, When: w.When, Uptime: w.Uptime}
	}
	return w
}

// NotHeard is the reason why a node that was ready is not reported as ready yet.
const NotHeard = "the kubelet has not reported since the boot"

// nodeHeldFile holds the head's last report on the hold of the node.
const nodeHeldFile = RunDir + "/node-held"

// heldWord reports whether the node is as the drain left it: cordoned all the time, so that no pod came to the node.
type heldWord struct {
	Held   bool          `json:"held"`
	Why    string        `json:"why,omitempty"` // why the node is not held
	When   time.Time     `json:"when"`
	Uptime time.Duration `json:"uptimeNanoseconds"` // as in nodeWord
}

// ErrNotHeld is the reason why an update is not committed after its drain.
var ErrNotHeld = errors.New("the node is to be drained again")

// judgeHold refuses to disrupt a node about which the head has just reported that it may have pods again. A missing
// report is no reason to refuse: the node was drained before the update began. A head or an API server that is away
// must not block the update.
func judgeHold(word *heldWord, now time.Duration) error {
	if word == nil || word.Held || now-word.Uptime > wordLasts {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrNotHeld, word.Why)
}

// ReportNodeHeld writes for an apply on the host whether the node is still as the drain left it. A report that the node
// is not held counts for a short time only (wordLasts): the agent repeats the report.
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

// ReportNodeReady writes the API server's current report on the node for the verdict on the host. heard is when the
// node's kubelet has last spoken to the API server; the zero time: not known. A report counts for a short time only
// (wordLasts): the agent repeats the report while an update is under way.
func ReportNodeReady(root *files.Root, ready bool, why string, heard time.Time) error {
	word := NodeWord{Ready: ready, Why: why, When: time.Now().UTC(), Uptime: Uptime()}
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

// NodeHeld returns an ErrNotHeld where the head has reported that the node is not held any more.
func NodeHeld(root *files.Root, say func(phase, what string)) error {
	var word *heldWord
	data, err := root.ReadFile(nodeHeldFile)
	if err == nil {
		word = &heldWord{}
		err = json.Unmarshal(data, word)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// An unreadable report counts as no report.
		say("hold", "reading the head's report about the hold on the node: "+err.Error())
		word = nil
	}
	return judgeHold(word, Uptime())
}

// errNoWord is the reason why a verdict waits: the head does not run yet, or does not reach the API server.
var errNoWord = errors.New("the head has not reported yet whether the node is ready")

// JudgeNode gives the cluster's part of the verdict. The API server's report counts. Without a report, as when the API
// server itself is away, a healthy host must not roll back for that reason alone. Then, once patience is over, the
// host's own network decides: it may be no worse than before the update.
func JudgeNode(word *NodeWord, now, patience time.Duration, before, after Network) error {
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

// ReadNodeWord reads the head's report on the node, nil where there is no readable report.
func ReadNodeWord(root *files.Root) *NodeWord {
	data, err := root.ReadFile(nodeWordFile)
	if err != nil {
		return nil
	}
	w := &NodeWord{}
	if err := json.Unmarshal(data, w); err != nil {
		return nil
	}
	return w
}

// WasReady reports whether the node counts as ready before an update: a node without a report does.
func (w *NodeWord) WasReady(now time.Duration) bool {
	return w == nil || w.Ready || now-w.Uptime > wordLasts
}

// ReadNetwork returns what the kernel shows of the host's network. A file that can't be read counts as empty.
func ReadNetwork(root *files.Root) Network {
	text := func(name string) string {
		data, err := root.ReadFile(name)
		if err != nil {
			return ""
		}
		return string(data)
	}
	return networkOf(text("/proc/net/route"), text("/proc/net/ipv6_route"), text("/proc/net/arp"))
}

// Uptime returns the time since the boot, with the time of a suspend. A clock that is set does not change it.
func Uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // the kernel has had this clock since 2.6.39
	}
	return time.Duration(ts.Nano())
}
