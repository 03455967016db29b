// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"cmp"
	"fmt"
	"time"

	"github.com/noderefit/noderefit/api"
)

const (
	// verdictTimeout is how long after its boot a host waits for a verdict, where it does not say otherwise.
	verdictTimeout = 10 * time.Minute
	// bootAllowance is what the boot into a configuration may take, and the one back: servers that test their memory.
	bootAllowance = 20 * time.Minute
)

// Awaiting reports whether the node is past its drain on the way to its configuration, as it last said: it applies it,
// reboots into it, or proves it. A host does that in a time that is known, and goes back by itself.
func (n *Node) Awaiting() bool {
	return n.Desired != "" && n.Current != n.Desired && n.State == api.Working &&
		(n.Rebooting || n.Drained == n.Desired || n.Awaited.Config == n.Desired)
}

// VerdictDue is when there has to be a word of the node, since the controller has first seen it wait.
func (n *Node) VerdictDue() time.Time {
	return n.Awaited.Since.Add(cmp.Or(n.VerdictTimeout, verdictTimeout) + bootAllowance)
}

// Overdue reports whether the time is over in which the node was to prove its configuration, or to go back.
func (n *Node) Overdue() bool {
	return !n.Awaited.Overdue.IsZero() && n.Awaited.Config == n.Desired && n.Awaiting()
}

// Await is what is to be known at a time of how long the node's verdict has been waited for. A time that is to come was
// noted by a clock that was ahead, and says nothing: the waiting begins anew.
func (n *Node) Await(now time.Time) api.Awaited {
	switch {
	case !n.Awaiting():
		return api.Awaited{}
	case n.Awaited.Config != n.Desired, n.Awaited.Since.After(now), n.Awaited.Overdue.After(now):
		return api.Awaited{Config: n.Desired, Since: now.UTC().Truncate(time.Second)}
	case n.Awaited.Overdue.IsZero() && !now.Before(n.VerdictDue()):
		overdue := n.Awaited
		overdue.Overdue = now.UTC().Truncate(time.Second)
		return overdue
	}
	return n.Awaited
}

// OverdueText says what did not come, and what is known of why.
func (n *Node) OverdueText() string {
	why := cmp.Or(n.Reason, "its agent says no more than that it is at work")
	switch {
	case n.NotReady != "":
		why = "the node is not ready: " + n.NotReady
	case n.Rebooting:
		why = "its agent has not been heard of since before the reboot"
	}
	return fmt.Sprintf("it was to prove %s or to go back within %s, since %s, and has done neither: %s", n.Desired,
		cmp.Or(n.VerdictTimeout, verdictTimeout)+bootAllowance, n.Awaited.Since.UTC().Format(time.RFC3339), why)
}

// overdue is a node that is not heard of any more, though its host was to decide by itself.
func (r *Report) overdue(n *nodeReport) *Answer {
	if !n.Overdue() {
		return nil
	}
	return &Answer{
		Verdict: Degraded, Blocking: &Object{Kind: "Node", Name: n.Name}, Since: n.Awaited.Since,
		Because: n.OverdueText(),
		Do: "on the host or its console: machine-config-daemon status; systemctl status machine-config-daemon-prove " +
			"machine-config-daemon-recover; machine-config-daemon rollback goes back. When " + n.Desired + " is the cause, " +
			"revert the MachineConfigs of pool " + n.pool.Name + ": no other node goes there meanwhile than maxUnavailable lets",
	}
}
