// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// Approved is the result of approve, and its JSON.
type Approved struct {
	api.Header

	Pool string `json:"pool"`
	api.Approval

	// Nodes have staged the OS. Unable are the nodes that could not stage it and stay as they are.
	Nodes  []string `json:"nodes"`
	Unable []string `json:"unable,omitempty"`
	// Others have staged another OS, and wait.
	Others []string `json:"others,omitempty"`
	// Already marks an approval that was there before, and stays as it is.
	Already bool `json:"already,omitempty"`
}

// Approve lets a pool's nodes go to the OS that they have staged. With a nil digest every staged OS is approved. why is
// for the record.
func (c *Cluster) Approve(ctx context.Context, pool string, digest *string, why string) (Approved, error) {
	who, err := c.whoami(ctx)
	if err != nil {
		return Approved{}, err
	}
	var a Approved
	_, err = c.changePool(ctx, pool, func(p *mcfgv1.MachineConfigPool) (*change, string, error) {
		state, err := c.staged(ctx, p.Name)
		if err != nil {
			return nil, "", err
		}
		if err := unpinned(p); err != nil {
			return nil, "", err
		}
		a, err = approve(state, digest)
		if err != nil {
			return nil, "", err
		}
		if was := state.Approval; was != nil && was.Config == a.Config && was.Digest == a.Digest {
			a.Approval, a.Already = *was, true
			return nil, "", nil
		}
		a.By, a.Why, a.Since = who, message.OneLine(why), rollout.Now().UTC().Truncate(time.Second)
		return &change{annotations: map[string]any{api.ApprovedKey: api.Encode(a.Approval)}}, "", nil
	})
	return a, err
}

// staged returns a pool with the rules of its policy.
func (c *Cluster) staged(ctx context.Context, pool string) (progress.Pool, error) {
	pools, err := c.pools(ctx)
	if err != nil {
		return progress.Pool{}, err
	}
	v := progress.View{Pools: pools}
	if v.Nodes, err = c.nodes(ctx); err != nil {
		return progress.Pool{}, err
	}
	if v.Follow, err = c.rules(ctx); err != nil {
		return progress.Pool{}, err
	}
	p, _ := progress.NewReport(v).Pool(pool)
	return p, nil
}

// unpinned returns an error while a pool is about to go back to another configuration than its nodes have staged.
func unpinned(p *mcfgv1.MachineConfigPool) error {
	pin, err := pinned(p)
	if err != nil {
		return err
	}
	if pin != nil && pin.Config != p.Spec.Configuration.Name {
		return fmt.Errorf("too early: the rollback of pool %s to %s has not reached its nodes yet; try again in a moment",
			p.Name, pin.Config)
	}
	return nil
}

// approve returns the approval, and an error where it is not possible. With a nil want every staged OS is approved.
func approve(p progress.Pool, want *string) (Approved, error) {
	s := p.Rules.Staging
	switch {
	case s == nil || !s.Required:
		return Approved{}, fmt.Errorf("pool %s asks for no approval: no RolloutPolicy with spec.approval is in force "+
			"for it, or its configuration failed", p.Name)
	case p.Updated == p.Machines:
		return Approved{}, fmt.Errorf("nothing waits for an approval: all nodes of pool %s have %s", p.Name, p.Target)
	case len(s.Staged) < s.Of || s.Of == 0 && len(s.Unable) > 0:
		return Approved{}, fmt.Errorf("too early: %s is staged on %d of %d nodes; see kubectl refit explain pool/%s",
			p.Target, len(s.Staged), s.Of, p.Name)
	}
	digest, same := s.Digest()
	nodes, others := append([]string{}, s.Staged...), []string(nil)
	switch {
	case !same && want != nil && s.Digests[*want] != nil:
		digest, nodes = *want, s.Digests[*want]
		others = slices.DeleteFunc(slices.Clone(s.Staged), func(n string) bool { return slices.Contains(nodes, n) })
	case !same:
		return Approved{}, fmt.Errorf("the nodes have not staged the same: %s; name the image by its digest in osImageURL, "+
			"or approve one of them with --digest: nodes with another wait", s.Differs())
	case s.Of == 0 && want != nil:
		digest = *want // no node could stage the OS: the nodes check the digest when they do
	case want != nil && *want != digest:
		return Approved{}, fmt.Errorf("the nodes have staged %s, and not %s", cmp.Or(digest, "no OS"), cmp.Or(*want, "no OS"))
	}
	a := Approved{
		Header: api.NewHeader("Approval"), Pool: p.Name, Nodes: nodes,
		Approval: api.Approval{Config: p.Target, Digest: digest},
		Others:   others,
	}
	for _, u := range s.Unable {
		a.Unable = append(a.Unable, u.Node)
	}
	return a, nil
}

// WriteText writes the approval for people.
func (a Approved) WriteText(w io.Writer) error {
	text := fmt.Sprintf("pool %s: approved %s\n", a.Pool, a.Config)
	if a.Already {
		text = fmt.Sprintf("pool %s: %s was approved already, by %s at %s; that record stays\n", a.Pool, a.Config, a.By,
			a.Since.UTC().Format(time.RFC3339))
		if a.Why != "" {
			text += fmt.Sprintf("  why     %s\n", a.Why)
		}
	}
	text += fmt.Sprintf("  OS      %s\n  staged  on %s\n", cmp.Or(a.Digest, "none"), strings.Join(a.Nodes, ", "))
	if len(a.Unable) > 0 {
		text += fmt.Sprintf("  not     on %s, which could not and stay as they are\n", strings.Join(a.Unable, ", "))
	}
	if len(a.Others) > 0 {
		text += fmt.Sprintf("  not     on %s, which have staged something else and wait\n", strings.Join(a.Others, ", "))
	}
	_, err := fmt.Fprint(w, text)
	return err
}
