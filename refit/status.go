// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// A poolRow or a nodeRow is one row of status, and its JSON.
type (
	poolRow struct {
		Name          string           `json:"name"`
		Configuration string           `json:"configuration"`
		Verdict       progress.Verdict `json:"verdict"`
		Since         time.Time        `json:"since,omitzero"`
		Machines      int              `json:"machines"`
		Updated       int              `json:"updated"`
		Ready         int              `json:"ready"`
		Unavailable   int              `json:"unavailable"`
		Degraded      int              `json:"degraded"`
		Paused        bool             `json:"paused"`
		Because       string           `json:"because"`
		WaitsFor      string           `json:"waitsFor,omitempty"`
		// TimeLeft is the estimated time until the rollout ends. It is nil where none is under way, or nothing is known.
		TimeLeft *timeLeft `json:"timeLeft,omitempty"`
	}
	nodeRow struct {
		Name     string           `json:"name"`
		Pool     string           `json:"pool"`
		Current  string           `json:"current"`
		Desired  string           `json:"desired"`
		Phase    string           `json:"phase"`
		Since    time.Time        `json:"since,omitzero"`
		Verdict  progress.Verdict `json:"verdict"`
		Because  string           `json:"because"`
		WaitsFor string           `json:"waitsFor,omitempty"`
		Drift    *api.Drift       `json:"drift,omitempty"`
	}
	// StatusDocument is the result of status about pools and nodes.
	StatusDocument struct {
		api.Header

		Pools []poolRow `json:"pools"`
		Nodes []nodeRow `json:"nodes"`
	}
)

// StatusQuestion chooses what status shows.
type StatusQuestion struct {
	// Pools are the pools to show. Empty means all, and the nodes that belong to none.
	Pools []string
	// Labels are labels of the nodes to show. Nil means all.
	Labels labels.Selector
	// NotUpdated leaves out the nodes that have the configuration of their pool.
	NotUpdated bool
}

// Status returns the state of pools and nodes.
func (c *Cluster) Status(ctx context.Context, q StatusQuestion) (StatusDocument, error) {
	v, err := c.view(ctx)
	if err != nil {
		return StatusDocument{}, err
	}
	return makeStatus(v, c.known(), q, rollout.Now())
}

// makeStatus makes the status of a view.
func makeStatus(v progress.View, policies []api.RolloutPolicy, q StatusQuestion, now time.Time,
) (StatusDocument, error) {
	doc := StatusDocument{Header: api.NewHeader("Status"), Pools: []poolRow{}, Nodes: []nodeRow{}}
	r := progress.NewReport(v)
	pools, err := chosen(r, q.Pools)
	if err != nil {
		return doc, err
	}
	for _, p := range pools {
		if q.Labels != nil && !slices.ContainsFunc(p.Nodes, q.selects) {
			continue
		}
		a, _ := r.ExplainPool(p.Name)
		doc.Pools = append(doc.Pools, poolRow{
			Name: p.Name, Configuration: p.Target, Verdict: a.Verdict, Since: a.Since.UTC(), Machines: p.Machines,
			Updated: p.Updated, Ready: p.Ready, Unavailable: p.Unavailable, Degraded: p.Degraded, Paused: p.Paused,
			Because: a.Because, WaitsFor: blocking(a), TimeLeft: left(r, v, policies, p.Name, now),
		})
		for _, n := range p.Nodes {
			if q.selects(n) {
				doc.Nodes = q.add(doc.Nodes, makeNode(r, n.Name))
			}
		}
	}
	if len(q.Pools) == 0 {
		for _, name := range r.Stray() {
			if n, _, _ := r.Node(name); q.selects(n) {
				doc.Nodes = q.add(doc.Nodes, makeNode(r, name))
			}
		}
	}
	if q.Labels != nil && len(doc.Pools) == 0 && len(doc.Nodes) == 0 && !q.NotUpdated {
		return doc, fmt.Errorf("no node has the labels %s", q.Labels)
	}
	return doc, nil
}

func (q StatusQuestion) selects(n progress.Node) bool {
	return q.Labels == nil || q.Labels.Matches(labels.Set(n.Labels))
}

func (q StatusQuestion) add(rows []nodeRow, n nodeRow) []nodeRow {
	if q.NotUpdated && n.rests() {
		return rows
	}
	return append(rows, n)
}

// rests reports whether a node has the configuration of its pool and nothing is to be said of the node.
func (n nodeRow) rests() bool {
	return n.Phase == string(progress.PhaseUpdated) && n.Verdict == progress.UpToDate && n.Drift == nil
}

func makeNode(r *progress.Report, name string) nodeRow {
	n, pool, _ := r.Node(name)
	a, _ := r.ExplainNode(name)
	phase, since := r.At(name)
	if since.IsZero() {
		since = a.Since
	}
	return nodeRow{
		Name: name, Pool: pool, Current: n.Current, Desired: n.Desired, Phase: phase, Since: since.UTC(),
		Verdict: a.Verdict, Because: a.Because, WaitsFor: blocking(a), Drift: n.Drift,
	}
}

func blocking(a progress.Answer) string {
	if a.Blocking == nil {
		return ""
	}
	return a.Blocking.String()
}

// way returns the configuration of a node, and its next one. name shortens a name.
func way(n nodeRow, name func(string) string) string {
	if n.Desired == "" || n.Desired == n.Current {
		return dash(name(n.Current))
	}
	return dash(name(n.Current)) + " -> " + name(n.Desired)
}

// shortDigits is how many digits of a digest distinguish the configurations of one cluster at a glance.
const shortDigits = 8

// short returns the beginning of a rendered configuration's digest, because the pool is named beside it.
func short(config string) string {
	digest := config[strings.LastIndex(config, "-")+1:]
	return digest[:min(len(digest), shortDigits)]
}

func dash(s string) string { return cmp.Or(s, "-") }

func age(now, since time.Time) string {
	if since.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(since))
}
