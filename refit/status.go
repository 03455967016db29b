// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
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
		Pools []poolRow `json:"pools"`
		Nodes []nodeRow `json:"nodes"`
	}
)

// Status returns the state of all pools and nodes, or of the named pool and its nodes.
func (c *Cluster) Status(ctx context.Context, only []string) (StatusDocument, error) {
	r, err := c.report(ctx)
	if err != nil {
		return StatusDocument{}, err
	}
	return makeStatus(r, only)
}

// makeStatus lists all pools and nodes, or the named pool and its nodes.
func makeStatus(r *progress.Report, only []string) (StatusDocument, error) {
	doc := StatusDocument{Pools: []poolRow{}, Nodes: []nodeRow{}}
	pools, err := chosen(r, only)
	if err != nil {
		return doc, err
	}
	for _, p := range pools {
		a, _ := r.ExplainPool(p.Name)
		doc.Pools = append(doc.Pools, poolRow{
			Name: p.Name, Configuration: p.Target, Verdict: a.Verdict, Since: a.Since, Machines: p.Machines,
			Updated: p.Updated, Ready: p.Ready, Unavailable: p.Unavailable, Degraded: p.Degraded, Paused: p.Paused,
			Because: a.Because, WaitsFor: blocking(a),
		})
		for _, n := range p.Nodes {
			doc.Nodes = append(doc.Nodes, makeNode(r, n.Name))
		}
	}
	if len(only) == 0 {
		for _, name := range r.Stray() {
			doc.Nodes = append(doc.Nodes, makeNode(r, name))
		}
	}
	return doc, nil
}

func makeNode(r *progress.Report, name string) nodeRow {
	n, pool, _ := r.Node(name)
	a, _ := r.ExplainNode(name)
	phase, since := r.At(name)
	if since.IsZero() {
		since = a.Since
	}
	return nodeRow{
		Name: name, Pool: pool, Current: n.Current, Desired: n.Desired, Phase: phase, Since: since,
		Verdict: a.Verdict, Because: a.Because, WaitsFor: blocking(a), Drift: n.Drift,
	}
}

func blocking(a progress.Answer) string {
	if a.Blocking == nil {
		return ""
	}
	return a.Blocking.String()
}

// WriteText writes the status for people.
func (d StatusDocument) WriteText(w io.Writer, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(d.Pools) == 0 {
		fmt.Fprintln(w, "There are no MachineConfigPools.")
		return d.writeNodes(w, tw, now)
	}
	fmt.Fprintln(tw, "POOL\tCONFIGURATION\tSTATUS\tSINCE\tUPDATED\tREADY\tUNAVAILABLE\tDEGRADED\tWAITS FOR")
	for _, p := range d.Pools {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d/%d\t%d\t%d\t%d\t%s\n",
			p.Name, dash(p.Configuration), p.Verdict, age(now, p.Since), p.Updated, p.Machines, p.Ready,
			p.Unavailable, p.Degraded, dash(p.WaitsFor))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return d.writeNodes(w, tw, now)
}

// writeNodes lists the nodes.
func (d StatusDocument) writeNodes(w io.Writer, tw *tabwriter.Writer, now time.Time) error {
	if len(d.Nodes) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	fmt.Fprintln(tw, "NODE\tPOOL\tCONFIGURATION\tPHASE\tSINCE\tWAITS FOR")
	for _, n := range d.Nodes {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, dash(n.Pool), way(n), n.Phase, age(now, n.Since),
			dash(n.WaitsFor))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return d.writeDrift(w, now)
}

// writeDrift lists the drift of hosts, and what to do about it.
func (d StatusDocument) writeDrift(w io.Writer, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	some := false
	for _, n := range d.Nodes {
		if n.Drift == nil {
			continue
		}
		if !some {
			fmt.Fprintln(tw, "\nDRIFTED NODE\tWHAT\tSINCE\tWRITTEN BACK")
			some = true
		}
		for _, i := range n.Drift.Items {
			back := "-"
			if i.Repairs > 0 {
				back = fmt.Sprintf("%dx, again %s", i.Repairs, i.Again.UTC().Format(time.RFC3339))
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", n.Name, i, age(now, i.Since), back)
		}
		if n.Drift.More > 0 {
			fmt.Fprintf(tw, "%s\tand %d more\t-\t-\n", n.Name, n.Drift.More)
		}
	}
	if !some {
		return nil
	}
	fmt.Fprintln(tw, "Undo it on the host, or put it into a MachineConfig: see kubectl refit explain node/NAME.")
	return tw.Flush()
}

// way returns the configuration of a node, and its next one.
func way(n nodeRow) string {
	if n.Desired == "" || n.Desired == n.Current {
		return dash(short(n.Current))
	}
	return dash(short(n.Current)) + " -> " + short(n.Desired)
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
