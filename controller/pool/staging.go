// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// approvedText returns which person approved what the pool's nodes have staged. The text is empty if no person did, or
// an approval is not needed.
func approvedText(p progress.Pool) string {
	s := p.Rules.Staging
	if s == nil || s.Approval == nil {
		return ""
	}
	if h := p.Rules.Hold; h != nil && h.Verdict == progress.NeedsApproval {
		return "" // the approval is for another digest
	}
	a := s.Approval
	text := fmt.Sprintf("%s (%s) was approved by %s at %s", p.Target, cmp.Or(a.Digest, "no OS"), a.By,
		a.Since.UTC().Format(time.RFC3339))
	if a.Why != "" {
		text += ": " + api.ShortReason(a.Why)
	}
	return text
}
