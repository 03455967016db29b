// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
)

// bootAllowance is the time allowed for the boot into a configuration and the boot back. Some servers test their memory
// at each boot.
const bootAllowance = 20 * time.Minute

// awaiting reports whether the node, as it last reported, is past its drain on the way to its configuration. The node
// then applies the configuration, reboots into it, or proves it. A host needs a known time for that, and rolls back by
// itself. A node that reboots by an order is awaited from its reboot on, or since its kubelet is silent.
func (n *Node) awaiting() bool {
	if n.RebootBegun() && n.Current == n.Desired {
		return n.Rebooting || n.NotReady != ""
	}
	return n.Desired != "" && n.Current != n.Desired && n.State == api.Working &&
		(n.Rebooting || n.Drained == n.Desired || n.Awaited.Config == n.Desired && n.Awaited.Said == "")
}

// unheard reports whether the node has reported nothing since it was sent elsewhere while its verdict was awaited.
// Earlier releases noted a digest that another release cannot make again. Such a node counts as silent until it reports
// the end of its work. Await then notes the present form.
func (n *Node) unheard() bool {
	noted := n.Awaited.Said
	if noted != "" && !strings.HasPrefix(noted, saidForm) {
		return n.State == api.Working
	}
	return noted != "" && noted == n.Said
}

// awaited reports whether the verdict that is noted is still awaited.
func (n *Node) awaited() bool {
	if n.Awaited.Said != "" {
		return n.unheard()
	}
	return n.Awaited.Config == n.awaitedFor() && n.awaiting()
}

// orderedReboot begins what is awaited of a node that reboots by an order.
const orderedReboot = "the ordered reboot "

// awaitedFor names what the node is to prove.
func (n *Node) awaitedFor() string {
	if o := n.RebootOrdered(); o != nil && n.Current == n.Desired {
		return orderedReboot + o.ID
	}
	return n.Desired
}

// saidForm begins the digest of annotations.
const saidForm = "annotations:"

// said returns a digest of what a Node's agent wrote. The digest is of the raw annotations, so that it does not depend
// on the fields that this release reads.
func said(annotations map[string]string) string {
	own := map[string]string{}
	for key, value := range annotations {
		if api.OfAgent(key) {
			own[key] = value
		}
	}
	sum := sha256.Sum256([]byte(api.Encode(own)))
	return saidForm + hex.EncodeToString(sum[:8])
}

// verdictTime returns the time that a verdict may take, including the boots.
func (n *Node) verdictTime() time.Duration {
	return cmp.Or(n.VerdictTimeout, api.DefaultVerdictTimeout) + bootAllowance
}

// VerdictDue returns when the node has to have reported its verdict, counted from when the controller first saw it
// wait. The result is zero if no verdict is awaited, or if the verdict is overdue already.
func (n *Node) VerdictDue() time.Time {
	if !n.awaited() || n.Overdue() {
		return time.Time{}
	}
	return n.Awaited.Since.Add(n.verdictTime())
}

// Overdue reports whether the node's time to prove its configuration, or to go back, is over. Sending the node
// elsewhere meanwhile does not change that until the node answers.
func (n *Node) Overdue() bool { return !n.Awaited.Overdue.IsZero() && n.awaited() }

// Await returns the note, as of now, of how long the node's verdict has been awaited. A noted time in the future came
// from a clock that was ahead and is not used: the waiting begins anew.
func (n *Node) Await(now time.Time) api.Awaited {
	ahead := n.Awaited.Since.After(now) || n.Awaited.Overdue.After(now)
	switch {
	case n.awaited() && !ahead:
		noted := n.Awaited
		if noted.Said != "" {
			noted.Said = n.Said
		}
		if due := n.VerdictDue(); !due.IsZero() && !now.Before(due) {
			noted.Overdue = now.UTC().Truncate(time.Second)
		}
		return noted
	case n.awaiting(), n.unheard():
		noted := api.Awaited{Config: n.awaitedFor(), Since: now.UTC().Truncate(time.Second)}
		if n.unheard() {
			noted.Config, noted.Said = n.Awaited.Config, n.Said
		}
		return noted
	}
	return api.Awaited{}
}

// AwaitedStill returns the note of the waiting as of now, for a node that is being sent elsewhere.
func (n *Node) AwaitedStill(now time.Time) api.Awaited {
	noted := n.Await(now)
	if noted != (api.Awaited{}) {
		noted.Said = n.Said
	}
	return noted
}

// OverdueText names the missing report, and the known reasons.
func (n *Node) OverdueText() string {
	var why []string
	switch {
	case n.NotReady != "":
		why = append(why, "the node is not ready: "+n.NotReady)
	case n.Rebooting:
		why = append(why, "the agent has not reported since before the reboot")
	}
	switch {
	case n.Reason == "" && len(why) == 0:
		why = append(why, "the agent reports no step and no reason")
	case n.Reason != "" && len(why) == 0:
		why = append(why, n.Reason)
	case n.Reason != "":
		why = append(why, "the agent's last report: "+n.Reason)
	}
	if strings.HasPrefix(n.Awaited.Config, orderedReboot) {
		return fmt.Sprintf("the node has not come back from its reboot within %s, since %s: %s", n.verdictTime(),
			n.Awaited.Since.UTC().Format(time.RFC3339), strings.Join(why, "; "))
	}
	if n.Desired != n.Awaited.Config {
		why = append(why, "the node was sent to "+n.Desired+", and has not answered since")
	}
	return fmt.Sprintf("the node has neither proved %s nor gone back within %s, since %s: %s", n.Awaited.Config,
		n.verdictTime(), n.Awaited.Since.UTC().Format(time.RFC3339), strings.Join(why, "; "))
}

// overdue answers for a node that no longer reports, although its host was to decide by itself.
func (r *Report) overdue(n *nodeReport) *Answer {
	if !n.Overdue() {
		return nil
	}
	if strings.HasPrefix(n.Awaited.Config, orderedReboot) {
		return r.rebootFailed(n)
	}
	return &Answer{
		Verdict: Degraded, Blocking: &Object{Kind: "Node", Name: n.Name}, Since: n.Awaited.Since,
		Because: n.OverdueText(),
		Do: "on the host or its console: machine-config-daemon status; systemctl status machine-config-daemon-prove " +
			"machine-config-daemon-recover; machine-config-daemon rollback goes back. When " +
			n.Awaited.Config + " is the cause, " +
			"revert the MachineConfigs of pool " + n.pool.Name +
			": meanwhile no more nodes get the configuration than maxUnavailable allows",
	}
}
