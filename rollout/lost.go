// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"slices"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// LostAs reports the policies of all pools as lost, for one reason.
func LostAs(why string) func(*progress.Pool) string {
	return func(*progress.Pool) string { return why }
}

// LostAsReported returns the reason that the pool controller has written into a condition of the pool. It is for
// programs that do not ask for definitions themselves.
func LostAsReported(p *progress.Pool) string {
	if r := p.Reported; r != nil && r.Verdict == progress.PolicyUnusable {
		return r.Because
	}
	return ""
}

// Lose makes the book hold the pools whose policies are lost. why returns why the policy of a pool does not exist
// although nobody deleted the policy; it returns "" if a person did. The note on a pool names the policy.
func (b *Book) Lose(why func(*progress.Pool) string) { b.lost = why }

// misses reports whether a note names a policy that the book does not have. note is nil for a pool without a note.
func (b *Book) misses(note *api.PolicyNote) bool {
	return note != nil && !slices.ContainsFunc(b.policies, func(o *policy) bool { return o.name == note.Name })
}

// without are the rules of a pool that no policy selects. A pool whose policy is lost stays as it is: no node begins,
// nodes keep their orders, and failures are forgiven as the policy did.
func (b *Book) without(p *progress.Pool) progress.Rules {
	if b.lost == nil || !b.misses(p.Noted) {
		return progress.Rules{}
	}
	why := b.lost(p)
	if why == "" {
		return progress.Rules{}
	}
	p.Rules = progress.Rules{ // by which kept asks
		Policy: p.Noted.Name, FailureBudget: share(p.Noted.FailureBudget, p.Machines, false, 1),
	}
	r := p.Rules
	r.Orders = kept(p)
	r.Hold = &progress.Hold{
		Verdict: progress.PolicyUnusable, Blocking: policyObject(p.Noted.Name), Because: why,
		Do: fmt.Sprintf("install the definition of RolloutPolicies, and apply the policies again; if pool %s shall have "+
			"no policy any more: kubectl annotate mcp %s %s-", p.Name, p.Name, api.RolloutPolicyKey),
	}
	if p.Target != p.Previous {
		r.Unproved = r.Hold // a gate of the policy may be what the end of the rollout waits for
	}
	return r
}

// note is what a pool keeps of its policy for when the policy is away.
func (p *policy) note() *api.PolicyNote {
	return &api.PolicyNote{Name: p.name, Created: p.created.UTC(), FailureBudget: p.spec.FailureBudget}
}
