// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/controller/pool"
	"github.com/noderefit/noderefit/progress"
)

const (
	// mostSimulated is the largest number of nodes that --nodes accepts.
	mostSimulated = 20_000
	simulatedFrom = "rendered-worker-00000000000000000000000000000000"
	simulatedTo   = "rendered-worker-11111111111111111111111111111111"
)

type simulateOptions struct {
	policy, nodes, pool, maxUnavailable, start, output string
	labels                                             []string
	update, limit, staging, approve                    time.Duration
	fails                                              int
}

func simulate() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate --policy FILE --nodes N|FILE",
		Short: "Simulate a rollout under a RolloutPolicy, with a timeline, without a cluster",
		Long: `Prints how a rollout would go through the nodes of a pool by a RolloutPolicy: when each stage begins, when
which node is sent and arrives, what holds the rest and until when. The decisions are those that the controller makes.
Nodes are made up, a number of them, or read from a file: kubectl get nodes -o json. How long one node takes is a guess,
and gates are taken as passed.`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return cli.Usagef("unexpected argument %q", args[0])
			case o.nodes == "":
				return cli.Usagef("--nodes is required")
			case o.output != "text" && o.output != "json":
				return cli.Usagef("-o: %q is neither text nor json", o.output)
			case o.update <= 0:
				return cli.Usagef("--node-time: has to be more than nothing")
			case o.limit <= 0:
				return cli.Usagef("--limit: has to be more than nothing")
			case o.staging < 0:
				return cli.Usagef("--stage-time: %s is less than nothing", o.staging)
			case o.fails < 0:
				return cli.Usagef("--fail: %d is no number of nodes", o.fails)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := o.fleet(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			log := pool.Simulate(*fleet)
			write := writeTimeline
			if o.output == "json" {
				write = writeLog
			}
			if err := write(cmd.OutOrStdout(), log, fleet.Start); err != nil {
				return err
			}
			if last := log[len(log)-1]; last.What == pool.Stuck {
				return cli.Unreachablef("the rollout gets stuck: %s", last.Because)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.policy, "policy", "", "file with the RolloutPolicy; without it maxUnavailable alone counts")
	flags.StringVar(&o.nodes, "nodes", "", "number of nodes, or a file with a list of Nodes as JSON or YAML")
	flags.StringVar(&o.pool, "pool", api.PoolWorker, "name of the pool")
	flags.StringVar(&o.maxUnavailable, "max-unavailable", "1", "the pool's maxUnavailable")
	flags.StringArrayVar(&o.labels, "label", nil,
		"KEY=VALUE:N gives the first N of the made-up nodes that label; may be repeated")
	flags.StringVar(&o.start, "start", "", "when the rollout begins, RFC 3339 (default now)")
	flags.DurationVar(&o.update, "node-time", 5*time.Minute, "how long one node takes, until it serves again")
	flags.DurationVar(&o.staging, "stage-time", 2*time.Minute,
		"how long one node takes to stage ahead, where the policy has it")
	flags.DurationVar(&o.approve, "approve-after", time.Hour,
		"time until a pool that waits for an approval gets it; below 0: never")
	flags.DurationVar(&o.limit, "limit", 90*24*time.Hour, "how long the rollout is followed")
	flags.IntVar(&o.fails, "fail", 0, "on how many nodes the configuration fails, the first by name")
	flags.StringVarP(&o.output, "output", "o", "text", "output format: text or json")
	return cmd
}

// fleet returns the fleet to simulate. It warns about nodes that are left out.
func (o *simulateOptions) fleet(warnings io.Writer) (*pool.Fleet, error) {
	f := &pool.Fleet{
		Pool:  &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: o.pool}},
		Start: time.Now().Truncate(time.Second), Update: o.update, Staging: o.staging, Approve: o.approve,
		Limit: o.limit, Fails: map[string]bool{},
	}
	limit := intstr.Parse(o.maxUnavailable)
	if _, err := progress.MaxUnavailable(&limit, 1); err != nil {
		return nil, cli.Usagef("--max-unavailable: %q is neither a number of nodes nor a percentage",
			o.maxUnavailable)
	}
	f.Pool.Spec.MaxUnavailable = &limit
	f.Pool.Spec.Configuration.Name = simulatedTo
	f.Pool.Status.Configuration.Name = simulatedFrom
	var err error
	if o.start != "" {
		if f.Start, err = time.Parse(time.RFC3339, o.start); err != nil {
			return nil, cli.Usagef("--start: %q is no time as in 2026-01-10T22:00:00Z", o.start)
		}
	}
	if f.Policies, err = o.readPolicy(); err != nil {
		return nil, err
	}
	if f.Nodes, err = o.readNodes(warnings); err != nil {
		return nil, err
	}
	for i := range min(o.fails, len(f.Nodes)) {
		f.Fails[f.Nodes[i].Name] = true
	}
	return f, nil
}

// readPolicy reads the policy and makes it select the pool, whether it would or not.
func (o *simulateOptions) readPolicy() ([]api.RolloutPolicy, error) {
	if o.policy == "" {
		return nil, nil
	}
	p, err := policyFile(o.policy)
	if err != nil {
		return nil, err
	}
	p.Spec.Pools, p.Spec.PoolSelector, p.Spec.DependsOn = []string{o.pool}, nil, nil
	return []api.RolloutPolicy{*p}, nil
}

func (o *simulateOptions) readNodes(warnings io.Writer) ([]progress.Node, error) {
	if n, err := strconv.Atoi(o.nodes); err == nil {
		return o.makeNodes(n)
	}
	file, err := os.Open(o.nodes)
	if err != nil {
		return nil, fmt.Errorf("--nodes: neither a number nor a file that can be read: %w", err)
	}
	defer file.Close()
	var list corev1.NodeList
	if err := yaml.NewYAMLOrJSONDecoder(file, 4096).Decode(&list); err != nil {
		return nil, fmt.Errorf("reading Nodes from %s: %w", o.nodes, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("%s: has no list of Nodes", o.nodes)
	}
	out, left := []progress.Node{}, 0
	for i := range list.Items {
		if !o.belongs(&list.Items[i]) {
			left++
			continue
		}
		n := progress.ReadNode(&list.Items[i])
		// The node's state in its own cluster does not matter: all nodes begin with one configuration, and get another one.
		n.Node = api.Node{Current: simulatedFrom, Desired: simulatedFrom, State: api.Done}
		out = append(out, n)
	}
	if left > 0 {
		fmt.Fprintf(warnings, "warning: %d of the %d nodes in %s are the control plane's or Windows', which pool %s has "+
			"none of: they are left out\n", left, len(list.Items), o.nodes, o.pool)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: has no node that pool %s could have", o.nodes, o.pool)
	}
	return out, nil
}

// belongs reports whether the pool could have the node. The control plane's pools come before all others, and Windows
// nodes are not configured.
func (o *simulateOptions) belongs(n *corev1.Node) bool {
	if progress.Windows(n) {
		return false
	}
	for _, role := range []string{api.PoolMaster, api.PoolControlPlane, api.PoolArbiter} {
		if _, has := n.Labels[api.NodeRole+role]; has && !progress.ControlPlane(o.pool) {
			return false
		}
	}
	return true
}

// makeNodes returns nodes in three zones.
func (o *simulateOptions) makeNodes(count int) ([]progress.Node, error) {
	if count < 1 || count > mostSimulated {
		return nil, cli.Usagef("--nodes: %d is not from 1 to %d", count, mostSimulated)
	}
	out := make([]progress.Node, count)
	for i := range out {
		out[i] = progress.Node{
			Name: fmt.Sprintf("node-%05d", i+1), Zone: fmt.Sprintf("zone-%d", i%3+1), Labels: map[string]string{},
			Node: api.Node{Current: simulatedFrom, Desired: simulatedFrom, State: api.Done},
		}
		out[i].Labels[api.Zone] = out[i].Zone
	}
	for _, text := range o.labels {
		pair, number, counted := strings.Cut(text, ":")
		key, value, is := strings.Cut(pair, "=")
		n, err := strconv.Atoi(number)
		if !counted || !is || key == "" || err != nil || n < 1 {
			return nil, cli.Usagef("--label: %q is not KEY=VALUE:N", text)
		}
		for i := range min(n, count) {
			out[i].Labels[key] = value
		}
	}
	return out, nil
}

func writeLog(w io.Writer, log []pool.Entry, _ time.Time) error {
	return cli.WriteJSON(w, pool.NewTimeline(log))
}

// mostNamed is how many nodes a line of the timeline names.
const mostNamed = 5

// together returns the names of the nodes of entries.
func together(log []pool.Entry) string {
	if len(log) == 1 {
		return log[0].Node
	}
	if len(log) > mostNamed {
		return fmt.Sprintf("%d nodes, %s … %s", len(log), log[0].Node, log[len(log)-1].Node)
	}
	var names []string
	for _, e := range log {
		names = append(names, e.Node)
	}
	return fmt.Sprintf("%d nodes: %s", len(log), strings.Join(names, ", "))
}

// writeTimeline writes the events, and how long the rollout took. Nodes that are sent or arrive together are one line.
func writeTimeline(w io.Writer, log []pool.Entry, start time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "AFTER\tAT\tSTAGE\tWHAT")
	for i := 0; i < len(log); {
		e, n := log[i], 1
		for e.Node != "" && i+n < len(log) && log[i+n].What == e.What && log[i+n].At.Equal(e.At) {
			n++
		}
		what := e.What
		switch {
		case e.Node != "":
			what = e.What + ": " + together(log[i:i+n])
		case e.Because != "":
			what = e.What + ": " + e.Because
		case e.What == pool.StageBegun:
			what = "stage " + e.Stage + " begins"
		}
		stage := e.Stage
		if stage == "" {
			stage = "-"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", e.At.Sub(start), e.At.UTC().Format(time.RFC3339), stage, what)
		i += n
	}
	return tw.Flush()
}
