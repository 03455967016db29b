// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/progress"
)

// Explanation is the result of explain, and its JSON.
type Explanation struct {
	api.Header
	progress.Answer
}

// Explain returns the reason why a node or a pool is not (yet) in its desired state.
func (c *Cluster) Explain(ctx context.Context, name string) (Explanation, error) {
	v, err := c.view(ctx)
	if err != nil {
		return Explanation{}, err
	}
	a, err := c.explain(ctx, v, name)
	a.Since, a.Until = a.Since.UTC(), a.Until.UTC()
	return Explanation{api.NewHeader("Explanation"), a}, err
}

// explain answers. Where the node is draining, it also asks what the drain waits for at this moment.
func (c *Cluster) explain(ctx context.Context, v progress.View, name string) (progress.Answer, error) {
	r := progress.NewReport(v)
	s, err := subject(r, name)
	if err != nil {
		return progress.Answer{}, err
	}
	a, node := answer(r, s)
	state := v.States[node]
	if a.Verdict != progress.Draining || state == nil {
		return a, nil
	}
	reported, err := api.Decode[api.Drain](state.Annotations, api.DrainKey)
	if err != nil {
		return a, nil //nolint:nilerr // the answer stands without it
	}
	said, _, _ := r.Node(node)
	fresh, err := c.drainNow(ctx, node, said.Orders.Drain, reported)
	if err != nil {
		c.warn("what the drain of node %s waits for is as its daemon reported it last: %s", node, Describe(err))
		return a, nil
	}
	v.Drains = map[string]*api.Drain{node: fresh}
	a, _ = answer(progress.NewReport(v), s)
	return a, nil
}

// answer returns the answer, and the node that the answer is about.
func answer(r *progress.Report, s progress.Object) (progress.Answer, string) {
	if s.Kind == kindNode {
		a, _ := r.ExplainNode(s.Name)
		return a, s.Name
	}
	a, _ := r.ExplainPool(s.Name)
	return a, r.Worst(s.Name)
}

const (
	kindNode = "Node"
	kindPool = "MachineConfigPool"
)

// subject returns the node or pool with a name. The name may have its kind: node/NAME, pool/NAME.
func subject(r *progress.Report, name string) (progress.Object, error) {
	kind, rest, said := strings.Cut(name, "/")
	if said {
		name = rest
	}
	wantsNode := !said || kind == "node" || kind == "nodes" || kind == "no"
	wantsPool := !said || kind == "pool" || kind == "machineconfigpool" || kind == "mcp"
	if !wantsNode && !wantsPool {
		return progress.Object{}, cli.Usagef("%q is neither node/NAME nor pool/NAME", kind+"/"+name)
	}
	_, _, node := r.Node(name)
	_, pool := r.Pool(name)
	node, pool = node && wantsNode, pool && wantsPool
	switch {
	case node && pool:
		return progress.Object{}, cli.Usagef("%s is a node and a pool: say node/%s or pool/%s", name, name, name)
	case node:
		return progress.Object{Kind: kindNode, Name: name}, nil
	case pool:
		return progress.Object{Kind: kindPool, Name: name}, nil
	case !wantsNode:
		return progress.Object{}, noPool(name, r.Pools())
	case !wantsPool:
		return progress.Object{}, fmt.Errorf("there is no Node %s%s", name, cli.DidYouMean(name, r.Nodes()))
	}
	return progress.Object{},
		fmt.Errorf("there is no Node and no MachineConfigPool %s; pools are: %s%s", name, list(r.Pools()),
			cli.DidYouMean(name, slices.Concat(r.Pools(), r.Nodes())))
}

// WriteAnswer writes an answer for people, with times in UTC. message.Local shows these as the reader's clock does.
func WriteAnswer(w io.Writer, a progress.Answer, now time.Time) error {
	since := ""
	if !a.Since.IsZero() {
		since = fmt.Sprintf(" since %s (%s)", a.Since.UTC().Format(time.RFC3339), age(now, a.Since))
	}
	lines := []string{fmt.Sprintf("%s: %s%s", a.Subject, a.Verdict, since), "  because:  " + a.Because}
	for i, line := range a.Output {
		head := "            "
		if i == 0 {
			head = "  output:   "
		}
		lines = append(lines, head+line)
	}
	if a.Blocking != nil {
		lines = append(lines, "  blocking: "+a.Blocking.String())
	}
	if !a.Until.IsZero() {
		lines = append(lines, "  until:    "+a.Until.UTC().Format(time.RFC3339)+ahead(now, a.Until))
	}
	if a.Do != "" {
		lines = append(lines, "  do:       "+a.Do)
	}
	if a.Images != "" {
		lines = append(lines, "  images:   "+a.Images)
	}
	for _, warning := range a.Warnings {
		lines = append(lines, "  warning:  "+warning)
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// ahead returns in brackets how far off a time is. It returns "" for a time that is over.
func ahead(now, at time.Time) string {
	if !at.After(now) {
		return ""
	}
	return " (in " + duration.HumanDuration(at.Sub(now)) + ")"
}
