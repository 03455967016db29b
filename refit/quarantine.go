// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/rollout"
)

// Quarantines are the configurations that failed, and the lifted ones.
type Quarantines []quarantineRow

// quarantineRow is one configuration that failed, and its JSON.
type quarantineRow struct {
	api.Header

	Pool string `json:"pool"`
	api.Quarantine

	// Present means that the pool's desired configuration is quarantined, so the pool is stopped.
	Present bool `json:"present"`
	// Lifted is the lift of the quarantine. It is nil while the quarantine is in force.
	Lifted *liftedRow `json:"lifted,omitempty"`
}

// liftedRow is the person, time and reason of a lift. Facts that were not recorded are empty.
type liftedRow struct {
	By    string    `json:"by"`
	Since time.Time `json:"since,omitzero"`
	Why   string    `json:"why"`
}

// Quarantines lists the configurations that failed, of all pools or of the named one.
func (c *Cluster) Quarantines(ctx context.Context, only []string) (Quarantines, error) {
	v, err := c.quarantines(ctx)
	if err != nil {
		return nil, err
	}
	v.Follow = c.rulesIfKnown(ctx)
	return quarantines(progress.NewReport(v), only)
}

// quarantines reads the failures from pools and nodes.
func (c *Cluster) quarantines(ctx context.Context) (progress.View, error) {
	pools, err := c.pools(ctx)
	if err != nil {
		return progress.View{}, err
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		c.warn("quarantines of nodes that pools have not recorded yet are not known: %s", Describe(err))
		nodes = []corev1.Node{}
	}
	return progress.View{Pools: pools, Nodes: nodes}, nil
}

func quarantines(r *progress.Report, only []string) (Quarantines, error) {
	pools, err := chosen(r, only)
	if err != nil {
		return nil, err
	}
	rows := Quarantines{}
	for _, p := range pools {
		for _, q := range failed(p) {
			rows = append(rows, quarantineRow{
				Header: api.NewHeader("Quarantine"), Pool: p.Name, Quarantine: q,
				Present: api.SameContent(q.Config, p.Target) && p.Quarantine() != nil,
			})
		}
		for _, l := range p.Lifts {
			for _, f := range l.Failures {
				rows = append(rows, quarantineRow{
					Header: api.NewHeader("Quarantine"), Pool: p.Name,
					Quarantine: api.Quarantine{Config: l.Config, Node: f.Node, Since: f.Since},
					Lifted:     &liftedRow{By: l.By, Since: l.Since, Why: l.Why},
				})
			}
		}
	}
	return rows, nil
}

// failed returns the quarantines that concern a pool: its own, and those of other pools that stop it.
func failed(p progress.Pool) []api.Quarantine {
	return append(slices.Clone(p.Quarantined), slices.DeleteFunc(slices.Clone(p.Elsewhere), func(q api.Quarantine) bool {
		return !api.SameContent(q.Config, p.Target)
	})...)
}

// WriteText writes the quarantines for people, and the latest lifts.
func (rows Quarantines) WriteText(w io.Writer, now time.Time) error {
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

// liftsShown is how many of the latest lifts people see. The JSON has all on record.
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

// Lift lets the nodes try a failed configuration again. A nil config is the pool's desired one, or the only quarantined
// one. why is for the record.
func (c *Cluster) Lift(ctx context.Context, pool string, config *string, why string) (said string, err error) {
	if err := CheckWhy(why); err != nil {
		return "", err
	}
	by := ""
	return c.changePool(ctx, pool, func(p *mcfgv1.MachineConfigPool) (*change, string, error) {
		v, err := c.quarantines(ctx)
		if err != nil {
			return nil, "", err
		}
		known, _ := progress.NewReport(v).Pool(p.Name)
		if by == "" {
			if by, err = c.whoami(ctx); err != nil {
				c.warn("the author of the lift can't be recorded: %s", Describe(err))
			}
		}
		one := api.Lifted{By: by, Since: rollout.Now().UTC().Truncate(time.Second), Why: message.OneLine(why)}
		return lift(p, known, config, one)
	})
}

const (
	// whyBytes is how long a reason may be. The reason has to fit into an event, together with two names.
	whyBytes = 500
	// liftedBytes is how much space a pool's lifts may take before the oldest are forgotten.
	liftedBytes = 64 << 10
)

// CheckWhy refuses a reason that does not fit into an event.
func CheckWhy(why string) error {
	if len(why) > whyBytes {
		return cli.Usagef("flag --why: %d bytes, there is room for %d", len(why), whyBytes)
	}
	return nil
}

// lift lifts the failures that are known now, and no others. one holds the person and the reason. Earlier lifts stay
// on record as long as they fit.
func lift(p *mcfgv1.MachineConfigPool, known progress.Pool, asked *string, one api.Lifted) (*change, string, error) {
	config, err := liftable(p, known, asked)
	if err != nil {
		return nil, "", err
	}
	return liftConfig(p, known, config, one)
}

// liftConfig lifts all known failures of a configuration.
func liftConfig(p *mcfgv1.MachineConfigPool, known progress.Pool, config string, one api.Lifted,
) (*change, string, error) {
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
			return nil, "", fmt.Errorf("the pool controller has not recorded yet that %s failed on node %s: try "+
				"again, or see whether the controller runs: kubectl -n %s get deployment %s", config, q.Node, api.Namespace,
				api.Controller)
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

// liftNote returns the note of the pool's event.
func liftNote(l api.Lifted) string {
	note := cmp.Or(l.By, "somebody") + " lifted the quarantine of " + l.Config
	if l.Why != "" {
		note += ": " + l.Why
	}
	return note
}

// liftable returns the quarantined configuration that is meant, by the pool's own name for it if it has one.
func liftable(p *mcfgv1.MachineConfigPool, known progress.Pool, asked *string) (string, error) {
	var configs []string
	for _, q := range failed(known) {
		if !slices.ContainsFunc(configs, func(c string) bool { return api.SameContent(c, q.Config) }) {
			configs = append(configs, q.Config)
		}
	}
	present := p.Spec.Configuration.Name
	switch {
	case asked != nil && known.Refuses(*asked):
		return *asked, nil
	case asked != nil:
		return "", fmt.Errorf("%s is not quarantined in pool %s; quarantined are: %s", *asked, p.Name, list(configs))
	case len(configs) == 0:
		return "", fmt.Errorf("nothing is quarantined in pool %s", p.Name)
	case known.Refuses(present):
		return present, nil
	case len(configs) == 1:
		return configs[0], nil
	}
	return "", cli.Usagef("CONFIG is needed, as several are quarantined in pool %s: %s", p.Name, list(configs))
}
