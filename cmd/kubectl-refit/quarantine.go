// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

func quarantineCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quarantine",
		Short: "List the configurations that failed, and lift what is to be tried again",
		Args:  arguments(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("quarantine list or quarantine lift is needed")}
		},
	}
	cmd.AddCommand(quarantineList(o), quarantineLift(o))
	return cmd
}

// quarantineRow is one configuration that failed, and its JSON.
type quarantineRow struct {
	Pool string `json:"pool"`
	api.Quarantine

	// Present says that it is the configuration which the pool shall have, so that the pool is stopped by it.
	Present bool `json:"present"`
	// Lifted is who took it back; nil: it stands.
	Lifted *liftedRow `json:"lifted,omitempty"`
}

// liftedRow is who took a failure back, when, and why. What nobody has recorded is empty.
type liftedRow struct {
	By    string    `json:"by"`
	Since time.Time `json:"since,omitzero"`
	Why   string    `json:"why"`
}

func quarantineList(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list [POOL]",
		Short: "List the configurations that failed on a node and are offered to none, and those that were lifted",
		Args:  arguments(0, 1, "POOL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			v, err := c.quarantines(cmd.Context())
			if err != nil {
				return err
			}
			v.Follow = c.rulesIfKnown(cmd.Context())
			rows, err := quarantines(progress.NewReport(v), args)
			if err != nil {
				return err
			}
			return o.print(cmd, rows, func(w io.Writer) error { return writeQuarantines(w, rows, time.Now()) })
		},
	}
	o.outputFlag(cmd)
	return cmd
}

// quarantines brings together what pools and nodes say.
func (c *cluster) quarantines(ctx context.Context) (progress.View, error) {
	pools, err := c.pools(ctx)
	if err != nil {
		return progress.View{}, err
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		c.warn("what nodes quarantine and pools do not know yet: not known: %s", describe(err))
		nodes = []corev1.Node{}
	}
	return progress.View{Pools: pools, Nodes: nodes}, nil
}

func quarantines(r *progress.Report, only []string) ([]quarantineRow, error) {
	pools, err := chosen(r, only)
	if err != nil {
		return nil, err
	}
	rows := []quarantineRow{}
	for _, p := range pools {
		for _, q := range failed(p) {
			rows = append(rows, quarantineRow{
				Pool: p.Name, Quarantine: q,
				Present: api.SameContent(q.Config, p.Target) && p.Quarantine() != nil,
			})
		}
		for _, l := range p.Lifts {
			for _, f := range l.Failures {
				rows = append(rows, quarantineRow{
					Pool: p.Name, Quarantine: api.Quarantine{Config: l.Config, Node: f.Node, Since: f.Since},
					Lifted: &liftedRow{By: l.By, Since: l.Since, Why: l.Why},
				})
			}
		}
	}
	return rows, nil
}

// failed is what concerns a pool: what it knows itself, and what it is stopped by although it failed in another pool.
func failed(p progress.Pool) []api.Quarantine {
	return append(slices.Clone(p.Quarantined), slices.DeleteFunc(slices.Clone(p.Elsewhere), func(q api.Quarantine) bool {
		return !api.SameContent(q.Config, p.Target)
	})...)
}

func writeQuarantines(w io.Writer, rows []quarantineRow, now time.Time) error {
	stands := func(q quarantineRow) bool { return q.Lifted == nil }
	lifted := slices.DeleteFunc(slices.Clone(rows), stands)
	rows = slices.DeleteFunc(slices.Clone(rows), func(q quarantineRow) bool { return !stands(q) })
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(rows) == 0 {
		fmt.Fprintln(w, "nothing is quarantined")
	} else {
		fmt.Fprintln(tw, "POOL\tCONFIGURATION\tNODE\tSINCE\tSTOPS THE POOL\tREASON")
	}
	for _, q := range rows {
		if q.Gate != "" {
			q.Reason = "gate " + q.Gate + " " + q.Reason
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", q.Pool, q.Config, dash(q.Node), age(now, q.Since),
			map[bool]string{true: "yes", false: "no"}[q.Present], message.OneLine(q.Reason))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return writeLifted(w, lifted, now)
}

// liftsShown is how many lifts people see, the latest. The JSON has all that are on record.
const liftsShown = 10

func writeLifted(w io.Writer, rows []quarantineRow, now time.Time) error {
	if len(rows) == 0 {
		return nil
	}
	slices.SortStableFunc(rows, func(a, b quarantineRow) int { return b.Lifted.Since.Compare(a.Lifted.Since) })
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\nPOOL\tLIFTED\tFAILED ON\tSINCE\tBY\tWHY")
	for _, q := range rows[:min(len(rows), liftsShown)] {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", q.Pool, q.Config, dash(q.Node), age(now, q.Lifted.Since),
			dash(q.Lifted.By), dash(message.OneLine(q.Lifted.Why)))
	}
	if more := len(rows) - liftsShown; more > 0 {
		fmt.Fprintf(tw, "and %d more: see -o json\n", more)
	}
	return tw.Flush()
}

func quarantineLift(o *options) *cobra.Command {
	var by, why string
	cmd := poolCommand(o, "lift POOL [CONFIG] [--why TEXT]", "Let a configuration be tried again that failed", 1,
		func(ctx context.Context, c *cluster, p *mcfgv1.MachineConfigPool, args []string) (*change, string, error) {
			if err := checkWhy(why); err != nil {
				return nil, "", err
			}
			v, err := c.quarantines(ctx)
			if err != nil {
				return nil, "", err
			}
			known, _ := progress.NewReport(v).Pool(p.Name)
			if by == "" {
				if by, err = c.whoami(ctx); err != nil {
					c.warn("who lifts it can't be recorded: %s", describe(err))
				}
			}
			one := api.Lifted{By: by, Since: rollout.Now().UTC().Truncate(time.Second), Why: message.OneLine(why)}
			return lift(p, known, args, one)
		})
	cmd.Long = `Lets a configuration be tried again that failed on a node: that node tries it first and alone, and when it
fails again it is quarantined again. It is lifted for all pools that have the same content. Without CONFIG it is the one
that the pool shall have, or the only one there is. Who lifted it, when, and why is kept with the pool and shown by
kubectl refit quarantine list.`
	cmd.Flags().StringVar(&why, "why", "", "why it may be tried again, for those who come later")
	return cmd
}

const (
	// whyBytes is how long a reason may be: it has to go into an event, together with two names.
	whyBytes = 500
	// liftedBytes is how much a pool's lifts may take before the oldest are forgotten.
	liftedBytes = 64 << 10
)

func checkWhy(why string) error {
	if len(why) > whyBytes {
		return usageError{fmt.Errorf("flag --why: %d bytes, there is room for %d", len(why), whyBytes)}
	}
	return nil
}

// lift takes back the failures that are known now, and no other; one says by whom and why. Earlier lifts stay on record
// as long as there is room.
func lift(p *mcfgv1.MachineConfigPool, known progress.Pool, args []string, one api.Lifted) (*change, string, error) {
	config, err := liftable(p, known, args)
	if err != nil {
		return nil, "", err
	}
	lifted, err := progress.Lifted(p)
	if err != nil {
		return nil, "", fmt.Errorf("MachineConfigPool %s: %w", p.Name, err)
	}
	one.Config, one.Failures = config, []api.Failure{}
	for _, q := range slices.Concat(known.Quarantined, known.Elsewhere) {
		if !api.SameContent(q.Config, config) {
			continue
		}
		if q.Since.IsZero() {
			return nil, "", fmt.Errorf("the pool controller has not recorded yet that %s failed on node %s: try again, "+
				"or see whether it runs: kubectl -n %s get deployment %s", config, q.Node, api.Namespace, api.Controller)
		}
		one.Failures = append(one.Failures, api.Failure{Node: q.Node, Since: q.Since})
	}
	lifted = append([]api.Lifted{one}, lifted...)
	for len(lifted) > 1 && len(api.Encode(lifted)) > liftedBytes {
		lifted = lifted[:len(lifted)-1]
	}
	said := fmt.Sprintf("%s is no longer quarantined in pool %s", config, p.Name)
	if api.SameContent(config, p.Spec.Configuration.Name) {
		said += ": the nodes on which it failed try it again first"
		if p.Spec.Paused {
			said += ", after kubectl refit resume " + p.Name
		}
	}
	return &change{
		annotations: map[string]any{api.LiftedKey: api.Encode(lifted)},
		event:       &event{reason: "QuarantineLifted", note: liftNote(one)},
	}, said, nil
}

// liftNote is what the pool's event says.
func liftNote(l api.Lifted) string {
	note := cmp.Or(l.By, "somebody") + " lifted the quarantine of " + l.Config
	if l.Why != "" {
		note += ": " + l.Why
	}
	return note
}

// liftable is the quarantined configuration that is meant, by the pool's own name for it where it has one.
func liftable(p *mcfgv1.MachineConfigPool, known progress.Pool, args []string) (string, error) {
	var configs []string
	for _, q := range failed(known) {
		if !slices.ContainsFunc(configs, func(c string) bool { return api.SameContent(c, q.Config) }) {
			configs = append(configs, q.Config)
		}
	}
	present := p.Spec.Configuration.Name
	switch {
	case len(args) > 0 && known.Refuses(args[0]):
		return args[0], nil
	case len(args) > 0:
		return "", fmt.Errorf("%s is not quarantined in pool %s; quarantined are: %s", args[0], p.Name, list(configs))
	case len(configs) == 0:
		return "", fmt.Errorf("nothing is quarantined in pool %s", p.Name)
	case known.Refuses(present):
		return present, nil
	case len(configs) == 1:
		return configs[0], nil
	}
	return "", usageError{fmt.Errorf("CONFIG is needed, as several are quarantined in pool %s: %s", p.Name, list(configs))}
}
