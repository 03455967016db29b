// SPDX-License-Identifier: Apache-2.0

package progress

import "fmt"

// PinsText says what a node has of the images of its PinnedImageSets; empty: it has none to have.
func PinsText(n *Node) string {
	switch o, p := n.Pins, n.Pinned; {
	case o == nil || len(o.Sets) == 0:
		return ""
	case !p.About(o):
		return "the agent has not reported on them yet"
	case p.Error != "" && p.Unread:
		return fmt.Sprintf("its images are not known (tries: %d): %s", max(p.Tries, 1), p.Error)
	case p.Error != "" && p.Images == 0:
		return fmt.Sprintf("the last try failed (tries: %d): %s", max(p.Tries, 1), p.Error)
	case p.Error != "":
		return fmt.Sprintf("%d of %d images are missing (tries: %d): %s", p.Missing, p.Images, max(p.Tries, 1), p.Error)
	case p.Missing == 0:
		return fmt.Sprintf("%d images are pinned", p.Images)
	case !o.Pull:
		return fmt.Sprintf("%d of %d images are missing, and the node waits for its turn to pull", p.Missing, p.Images)
	default:
		return fmt.Sprintf("%d of %d images are missing, and are being pulled", p.Missing, p.Images)
	}
}
