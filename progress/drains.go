// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
)

// drainHeld answers for a node whose drain has reached its limit. The node serves until the drain is tried again.
func (r *Report) drainHeld(n *nodeReport) *Answer {
	hold := n.DrainHeld
	if n.resting() || hold == nil || hold.Config != n.Desired {
		return nil
	}
	return &Answer{
		Verdict: DrainHeld, Blocking: &Object{Kind: "Node", Name: n.Name}, Since: hold.Since, Until: hold.Until,
		Because: fmt.Sprintf("the drain for %s was given up, and the node serves: %s", n.Desired, hold.Why),
		Do: fmt.Sprintf("correct what the reason names; the next drain is at %s, when spec.drain of the RolloutPolicy "+
			"changes, or now: kubectl annotate node %s %s-", hold.Until.UTC().Format(time.RFC3339), n.Name, api.DrainHeldKey),
	}
}

// drainStep answers for a drain that waits for something other than pods.
func (n *nodeReport) drainStep() *Answer {
	d := n.drain
	switch {
	case n.resting() || d == nil:
		return nil
	case d.Phase == api.DrainExcludes:
		return &Answer{
			Verdict: Updating, Since: d.PhaseSince, Until: d.Limit,
			Because: fmt.Sprintf("the drain for %s begins at %s: until then, load balancers have time to see that the "+
				"node goes out of service", n.Desired, d.Limit.UTC().Format(time.RFC3339)),
		}
	case d.Phase != api.DrainDetaches || len(d.Volumes) == 0:
		return nil
	}
	const shown = 3
	var names []string
	for _, v := range d.Volumes[:min(shown, len(d.Volumes))] {
		names = append(names, v.String())
	}
	if more := len(d.Volumes) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	a := &Answer{
		Verdict: Draining, Since: d.PhaseSince, Blocking: &Object{Kind: "VolumeAttachment", Name: d.Volumes[0].Attachment},
		Because: fmt.Sprintf("the drain for %s waits: all pods are gone, and %s still attached to the node: %s", n.Desired,
			are(len(d.Volumes)), strings.Join(names, ", ")),
		Do: "see the message of the volume's driver: kubectl describe volumeattachment " + d.Volumes[0].Attachment,
	}
	a.Because += limitText(d)
	return a
}

func are(volumes int) string {
	if volumes == 1 {
		return "1 volume is"
	}
	return fmt.Sprintf("%d volumes are", volumes)
}

// limitText returns when a phase of a drain has to be over, and what happens then. The result is empty if the phase has
// no limit.
func limitText(d *api.Drain) string {
	if d.Limit.IsZero() {
		return ""
	}
	then := map[api.DrainTimeout]string{
		api.DrainHolds:  "the node is then uncordoned and held",
		api.DrainForces: "pods that refuse eviction are then deleted",
	}[d.OnTimeout]
	switch {
	case then == "":
		then = "the drain then continues"
	case d.OnTimeout == api.DrainForces && d.Phase == api.DrainDetaches:
		then = "the update then continues without these volumes"
	}
	return fmt.Sprintf("; its limit is %s: %s", d.Limit.UTC().Format(time.RFC3339), then)
}
