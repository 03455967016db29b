// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/progress"
)

type (
	// PlanDocument is the effect of a change on a pool, and its JSON.
	PlanDocument struct {
		api.Header

		Pool    string     `json:"pool"`
		Current string     `json:"current"` // the pool's target now
		Desired string     `json:"desired"`
		Counts  planCounts `json:"counts"`
		// Groups are the pool's nodes by their present configuration.
		Groups         []planGroup `json:"groups"`
		MaxUnavailable int         `json:"maxUnavailable"`
		// Stage is the stage that would be at work first, if MaxUnavailable is its own and not the pool's.
		Stage string `json:"stage,omitempty"`
		// Order is the order in which the nodes would go.
		Order []string `json:"order"`
		// Estimate is the time for the rollout. It is nil where no node has reported an update.
		Estimate *planEstimate `json:"estimate"`
		Budgets  []heldPod     `json:"budgets"`
		// Deleted are the MachineConfigs of the cluster that the plan leaves out.
		Deleted []string `json:"deleted"`
		Notes   []string `json:"notes"`
		// Warnings are skipped objects, and input that may be a mistake.
		Warnings []string `json:"warnings"`

		refused bool          // quarantined, so that no node would go
		strict  bool          // each doubt is an error
		doubts  []string      // the warnings, without those of files that are no documents
		policy  string        // RolloutPolicy of the pool
		nodes   []corev1.Node // of the cluster
	}
	// planCounts are numbers of nodes, except HeldPods.
	planCounts struct {
		Nodes   int `json:"nodes"`
		Going   int `json:"going"` // to another configuration
		Drained int `json:"drained"`
		Reboots int `json:"reboots"`
		// HeldPods is the number of pods that budgets hold. It is nil where that number is not known.
		HeldPods *int `json:"heldPods"`
	}
	planGroup struct {
		Current string   `json:"current"`
		Nodes   []string `json:"nodes"`
		// Plan is nil where Error is the reason for a missing plan.
		Plan  *plan.Plan  `json:"plan"`
		Diffs []plan.Diff `json:"diffs"`
		Error string      `json:"error,omitempty"`
	}
	// Proposal is the change that is planned.
	Proposal struct {
		Files, Deletions []string
		// Prune deletes the MachineConfigs that the pool selects and no file has, if their labels match Selector.
		Prune    bool
		Selector string
		// Diff is how much of the contents is shown.
		Diff string
		// Strict makes each warning an error, except those of files that are no documents.
		Strict bool
	}
	// heldPod is a pod that a budget would not let go now.
	heldPod struct {
		Node      string `json:"node"`
		Namespace string `json:"namespace"`
		Pod       string `json:"pod"`
		Budget    string `json:"budget"`
		Allowed   int32  `json:"allowed"`
		Placement string `json:"placement"`
	}
)

// How much of the differences between contents is shown to people. Programs get all differences or none.
const (
	DiffShort = "short"
	DiffAll   = "all"
	DiffNone  = "none"
)

// Check refuses a proposal that makes no sense.
func (p Proposal) Check() error {
	switch {
	case p.Prune && len(p.Files) == 0:
		return cli.Usagef("flag --prune: needs the files that stay, by -f")
	case p.Selector != "" && !p.Prune:
		return cli.Usagef("flag --selector: says what --prune may delete, and needs it")
	}
	return cli.OneOf("flag --diff", p.Diff, DiffShort, DiffAll, DiffNone)
}

// Plan returns the effect of a proposal on a pool.
func (c *Cluster) Plan(ctx context.Context, name string, what Proposal) (*PlanDocument, error) {
	doc, pool, desired, err := c.Rendered(ctx, name, what)
	if err != nil {
		return nil, err
	}
	policy, err := c.policy(ctx)
	if err != nil {
		return nil, err
	}
	pools, err := c.pools(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return nil, err
	}
	changed := progress.WithTarget(pools, pool, desired.Name)
	rules, err := c.rules(ctx)
	if err != nil {
		c.warnAll(doc, []string{rulesUnknown(err)})
	}
	report := progress.NewReport(progress.View{Pools: changed, Nodes: nodes, Follow: rules})
	p, _ := report.Pool(name)
	doc.Current, doc.Desired, doc.nodes = pool.Spec.Configuration.Name, desired.Name, nodes
	doc.Order = append(turned(p, desired.Name), report.Order(name)...)
	most := doc.most(p, pool)
	if err := c.groups(ctx, doc, p, desired, policy, what.Diff != DiffNone); err != nil {
		return nil, err
	}
	doc.note(p)
	held, err := c.held(ctx, doc)
	if err != nil {
		c.warnAll(doc, []string{"which disruption budgets are in the way: not known: " + Describe(err)})
	} else {
		doc.Budgets, doc.Counts.HeldPods = held, new(len(held))
	}
	doc.count()
	states, err := c.states(ctx)
	if err != nil {
		c.warnAll(doc, []string{"how long nodes took so far: not known: " + Describe(err)})
	}
	c.byPolicy(ctx, doc, p, pool, doc.estimate(p, states, most))
	return doc, nil
}

// Rendered returns what a proposal makes of a pool: the beginning of its plan, the pool, and what it renders to.
func (c *Cluster) Rendered(ctx context.Context, name string, what Proposal) (doc *PlanDocument,
	pool *mcfgv1.MachineConfigPool, desired *mcfgv1.MachineConfig, err error) {
	doc, docs, err := c.proposed(name, what)
	if err == nil {
		pool, err = c.planned(ctx, name, docs)
	}
	if err == nil {
		desired, err = c.render(ctx, doc, pool, docs, what)
	}
	return doc, pool, desired, err
}

// proposed reads the files of a proposal.
func (c *Cluster) proposed(pool string, what Proposal) (*PlanDocument, *machineconfig.Documents, error) {
	doc := &PlanDocument{
		Header: api.NewHeader("Plan"), Pool: pool, Groups: []planGroup{}, Budgets: []heldPod{}, Deleted: []string{},
		Notes: []string{}, Warnings: []string{}, strict: what.Strict,
	}
	if len(what.Files) == 0 {
		return doc, &machineconfig.Documents{}, nil
	}
	docs, warnings, err := machineconfig.Read(butane.Translate, what.Files...)
	c.warnAll(doc, warnings)
	if err != nil {
		return nil, nil, err
	}
	doc.doubts = slices.Clone(docs.Doubts)
	return doc, docs, nil
}

// turned returns the nodes that are on their way to another configuration, which are told the new one at once.
func turned(p progress.Pool, desired string) []string {
	names := []string{}
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.Moving() && n.Desired != desired && p.Rules.Kept[n.Name] == nil {
			names = append(names, n.Name)
		}
	}
	return names
}

func (c *Cluster) warnAll(doc *PlanDocument, warnings []string) {
	for _, w := range warnings {
		c.warn("%s", w)
		doc.Warnings = append(doc.Warnings, message.OneLine(w))
	}
	doc.doubts = append(doc.doubts, warnings...)
}

// planned returns the pool as it would be: with the specification in a file, or unchanged.
func (c *Cluster) planned(ctx context.Context, name string, docs *machineconfig.Documents,
) (*mcfgv1.MachineConfigPool, error) {
	var file *mcfgv1.MachineConfigPool
	for _, d := range docs.Pools {
		if d.Object.Name == name {
			file = d.Object.DeepCopy()
			file.Spec.Configuration = mcfgv1.MachineConfigPoolStatusConfiguration{}
		}
	}
	if file == nil {
		return c.pool(ctx, name)
	}
	pool, err := c.refit.MachineconfigurationV1().MachineConfigPools().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return file, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading MachineConfigPool %s: %w", name, err)
	}
	pool.Spec = declared(file.Spec, pool.Spec)
	return pool, nil
}

// declared returns a pool's specification with the fields that a file sets. Other fields stay, as with a server-side
// apply. A file never sets the rendered configuration.
func declared(file, is mcfgv1.MachineConfigPoolSpec) mcfgv1.MachineConfigPoolSpec {
	file.Configuration = is.Configuration
	file.MachineConfigSelector = cmp.Or(file.MachineConfigSelector, is.MachineConfigSelector)
	file.NodeSelector = cmp.Or(file.NodeSelector, is.NodeSelector)
	file.MaxUnavailable = cmp.Or(file.MaxUnavailable, is.MaxUnavailable)
	return file
}

// render returns the configuration that the controller would render, with the documents of files in place of the
// cluster's.
func (c *Cluster) render(ctx context.Context, doc *PlanDocument, pool *mcfgv1.MachineConfigPool,
	docs *machineconfig.Documents, what Proposal,
) (*mcfgv1.MachineConfig, error) {
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.MachineConfigSelector)
	if err != nil {
		return nil, fmt.Errorf("MachineConfigPool %s: spec.machineConfigSelector: %w", pool.Name, err)
	}
	// What somebody has just applied counts, so the list is not from the API server's memory alone.
	present, err := c.refit.MachineconfigurationV1().MachineConfigs().List(ctx,
		metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("listing MachineConfigs: %w", err)
	}
	pruned, err := what.pruned(present.Items, docs.Configs)
	if err != nil {
		return nil, err
	}
	doc.Deleted = append(doc.Deleted, slices.Sorted(slices.Values(slices.Concat(what.Deletions, pruned)))...)
	doc.Deleted = slices.Compact(doc.Deleted)
	together, err := replace(present.Items, docs.Configs, doc.Deleted)
	if err != nil {
		return nil, err
	}
	base, err := c.base(ctx)
	if err != nil {
		return nil, err
	}
	rendered, warnings, err := machineconfig.Render(pool.Name, &machineconfig.Documents{
		Configs: together, Pools: []*machineconfig.PoolDocument{{Object: pool}},
	}, base)
	c.warnAll(doc, warnings)
	if err == nil && what.Strict {
		err = machineconfig.Strict(doc.doubts) // before anything else is asked for
	}
	return rendered, err
}

// pruned returns the MachineConfigs that the files leave out. MachineConfigs that a controller makes are not pruned,
// because the controller would make them again.
func (p Proposal) pruned(present []mcfgv1.MachineConfig, files []*machineconfig.Document) ([]string, error) {
	if !p.Prune {
		return nil, nil
	}
	selector, err := labels.Parse(p.Selector)
	if err != nil {
		return nil, cli.Usagef("flag --selector: %w", err)
	}
	kept := map[string]bool{}
	for _, f := range files {
		kept[f.Object.Name] = true
	}
	var out []string
	for i := range present {
		mc := &present[i]
		_, generated := mc.Annotations[api.GeneratedBy]
		_, templated := mc.Annotations[api.MadeAs]
		if !kept[mc.Name] && selector.Matches(labels.Set(mc.Labels)) && !generated && !templated &&
			metav1.GetControllerOf(mc) == nil && machineconfig.PoolOf(mc.Name) == "" {
			out = append(out, mc.Name)
		}
	}
	return out, nil
}

// replace puts the documents of files in place of the cluster's documents with the same names, and drops the documents
// to delete. A rendered configuration is never a source.
func replace(present []mcfgv1.MachineConfig, files []*machineconfig.Document, deletions []string,
) ([]*machineconfig.Document, error) {
	out := slices.Clone(files)
	known := map[string]bool{}
	for _, f := range files {
		known[f.Object.Name] = true
	}
	left := map[string]bool{}
	for _, name := range deletions {
		if known[name] {
			return nil, cli.Usagef("flag --delete: MachineConfig %s is in a file as well", name)
		}
		left[name] = true
	}
	for i := range present {
		mc := &present[i]
		if !known[mc.Name] && !left[mc.Name] && machineconfig.PoolOf(mc.Name) == "" {
			if err := api.Unreadable(mc); err != nil {
				return nil, fmt.Errorf("MachineConfig %s: %w", mc.Name, err)
			}
			out = append(out, &machineconfig.Document{Object: mc})
		}
		delete(left, mc.Name)
	}
	for _, name := range deletions {
		if left[name] {
			return nil, fmt.Errorf("flag --delete: the pool has no MachineConfig %s", name)
		}
	}
	return out, nil
}

// base returns the document over which every pool is rendered.
func (c *Cluster) base(ctx context.Context) (*machineconfig.Document, error) {
	cc, err := c.refit.MachineconfigurationV1().ControllerConfigs().Get(ctx, api.ControllerConfig, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading ControllerConfig %s: %w", api.ControllerConfig, err)
	}
	if err := api.UnreadableImages(cc); err != nil {
		return nil, fmt.Errorf("ControllerConfig %s: %w", api.ControllerConfig, err)
	}
	return machineconfig.Defaults(cc), nil
}

// policy returns the cluster's MachineConfiguration, or nil where the cluster has none.
func (c *Cluster) policy(ctx context.Context) (*plan.Policy, error) {
	result := c.kube.CoreV1().RESTClient().Get().
		AbsPath("/apis/operator.openshift.io/v1/machineconfigurations/cluster").
		SetHeader("Accept", "application/json").Do(ctx)
	err := result.Error() // with the text of its Status, which Raw leaves out
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	var data []byte
	if err == nil {
		data, err = result.Raw()
	}
	if err != nil {
		return nil, fmt.Errorf("reading MachineConfiguration cluster: %w", err)
	}
	return plan.ParsePolicy(data)
}

// groups makes the plan of each group of nodes.
func (c *Cluster) groups(ctx context.Context, doc *PlanDocument, p progress.Pool, desired *mcfgv1.MachineConfig,
	policy *plan.Policy, diffs bool,
) error {
	want, err := machineconfig.Parse(desired)
	if err != nil {
		return err
	}
	by := map[string][]string{}
	var order []string
	for _, n := range p.Nodes {
		current := api.Rendered(n.Current)
		if by[current] == nil {
			order = append(order, current)
		}
		by[current] = append(by[current], n.Name)
	}
	// People look for the largest group.
	slices.SortStableFunc(order, func(a, b string) int { return len(by[b]) - len(by[a]) })
	if len(order) == 0 {
		c.warnAll(doc, plan.ImageUnknown.Warnings(nil, want))
	}
	for _, current := range order {
		g := planGroup{Current: current, Nodes: by[current], Diffs: []plan.Diff{}}
		from, err := c.had(ctx, current)
		if err == nil {
			g.Plan, err = between(from, want, policy, imageOf(doc.nodes, g.Nodes))
		}
		switch {
		case err != nil:
			g.Error = Describe(err)
		case diffs:
			g.Diffs = plan.Diffs(from, want, g.Plan.Changes)
		}
		doc.Groups = append(doc.Groups, g)
	}
	doc.Notes = append(doc.Notes, p.Makes(desired.Annotations[machineconfig.NamedKey])...)
	return nil
}

// imageOf returns what is known of the OS of some nodes.
func imageOf(nodes []corev1.Node, names []string) plan.Image {
	var managed []string
	for i := range nodes {
		if slices.Contains(names, nodes[i].Name) {
			managed = append(managed, nodes[i].Annotations[api.OSKey])
		}
	}
	return plan.ImageOf(managed)
}

// had returns a configuration by its name. For the empty name, of a node that was never configured, it returns nil.
func (c *Cluster) had(ctx context.Context, name string) (*machineconfig.Config, error) {
	if name == "" {
		return nil, nil
	}
	return c.rendered(ctx, name)
}

// between plans from one configuration to another. Of kernel arguments that may hold a secret only the names are left.
func between(from, want *machineconfig.Config, policy *plan.Policy, image plan.Image) (*plan.Plan, error) {
	p, err := plan.Make(from, want, plan.Options{Policy: policy})
	if err != nil {
		return nil, err
	}
	p.Unreconcilable = append(p.Unreconcilable, image.Refuses(from, want)...)
	p.Warnings = append(p.Warnings, image.Warnings(from, want)...)
	for i := range p.Changes {
		c := &p.Changes[i]
		c.Delete, c.Append = masked(c.Delete), masked(c.Append)
	}
	return p, nil
}

func masked(arguments []string) []string {
	out := slices.Clone(arguments)
	for i, a := range out {
		out[i] = machineconfig.MaskArgument(a)
	}
	return out
}

// count counts the nodes by what they would do. Where the plan can't be carried out no node does anything.
func (d *PlanDocument) count() {
	going := map[string]bool{}
	if d.obstacle() == nil {
		for _, n := range d.Order {
			going[n] = true
		}
	}
	counts := planCounts{Going: len(going), HeldPods: d.Counts.HeldPods}
	for _, g := range d.Groups {
		counts.Nodes += len(g.Nodes)
		for _, n := range g.Nodes {
			if going[n] && g.Plan.Reboot {
				counts.Reboots++
			}
			if going[n] && g.Plan.Drain {
				counts.Drained++
			}
		}
	}
	d.Counts = counts
}

// note adds what else would keep the nodes from going.
func (d *PlanDocument) note(p progress.Pool) {
	if d.Desired == d.Current {
		d.Notes = append(d.Notes, "the pool has this configuration already")
	}
	if q := p.Quarantine(); q != nil {
		d.refused = true
		d.Notes = append(d.Notes, fmt.Sprintf("%s; until that is lifted no node would go (kubectl refit quarantine lift %s)",
			progress.WhyRefused(q), p.Name))
	}
	if p.Paused {
		d.Notes = append(d.Notes, "the pool is paused: nothing happens until kubectl refit resume "+p.Name)
	}
	if p.Rules.Policy != "" {
		d.Notes = append(d.Notes, fmt.Sprintf("RolloutPolicy %s says in which order and when", p.Rules.Policy))
	}
	if h := p.Rules.Hold; h != nil {
		d.Notes = append(d.Notes, "no node would begin now: "+h.Because)
	}
	d.Notes = append(d.Notes, p.Problems...)
	for _, n := range p.NodeProblems {
		d.Notes = append(d.Notes, n.Text)
	}
}

// Err returns the error of a plan that can't be carried out, that could not be made, or that has warnings although it
// is strict.
func (d *PlanDocument) Err() error {
	if err := d.obstacle(); err != nil || !d.strict {
		return err
	}
	doubts := slices.Clone(d.doubts)
	for _, g := range d.Groups {
		doubts = append(doubts, g.Plan.Warnings...)
	}
	slices.Sort(doubts)
	return machineconfig.Strict(slices.Compact(doubts))
}

// obstacle returns the error of a plan that can't be carried out, or that could not be made.
func (d *PlanDocument) obstacle() error {
	var fields []string
	for _, g := range d.Groups {
		if g.Plan == nil {
			return fmt.Errorf("planning from %s: %s", g.Current, g.Error)
		}
		for _, u := range g.Plan.Unreconcilable {
			if text := u.Field + ": " + u.Reason; !slices.Contains(fields, text) {
				fields = append(fields, text)
			}
		}
	}
	switch {
	case len(fields) > 0:
		return cli.Unreachablef("%s can't be reached: %s", d.Desired, strings.Join(fields, "; "))
	case d.refused:
		return cli.Unreachablef("%s is quarantined in pool %s", d.Desired, d.Pool)
	}
	return nil
}

// drains returns the nodes that would be drained.
func (d *PlanDocument) drains() map[string]bool {
	out := map[string]bool{}
	for _, g := range d.Groups {
		for _, n := range g.Nodes {
			out[n] = g.drains()
		}
	}
	return out
}

func (g planGroup) drains() bool {
	return g.Plan != nil && g.Plan.Drain && len(g.Plan.Unreconcilable) == 0
}

// held returns the pods that a disruption budget would not let go now, on nodes that would be drained. It takes one
// list of all budgets, and one list of pods for each budget that allows no disruption.
func (c *Cluster) held(ctx context.Context, doc *PlanDocument) ([]heldPod, error) {
	out := []heldPod{}
	drains := doc.drains()
	if !slices.ContainsFunc(doc.Groups, planGroup.drains) {
		return out, nil
	}
	budgets, err := c.kube.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List(ctx, fromCache)
	if err != nil {
		return nil, fmt.Errorf("listing PodDisruptionBudgets: %w", err)
	}
	for i := range budgets.Items {
		b := &budgets.Items[i]
		if b.Status.DisruptionsAllowed > 0 {
			continue
		}
		pods, err := c.covered(ctx, b)
		if err != nil {
			return nil, err
		}
		for j := range pods {
			p := &pods[j]
			if drains[p.Spec.NodeName] && leaves(p) {
				out = append(out, heldPod{
					Node: p.Spec.NodeName, Namespace: p.Namespace, Pod: p.Name, Budget: b.Name,
					Allowed: b.Status.DisruptionsAllowed, Placement: drain.Placement(p, doc.nodes, p.Spec.NodeName),
				})
			}
		}
	}
	return out, nil
}

// covered returns the pods of a budget.
func (c *Cluster) covered(ctx context.Context, b *policyv1.PodDisruptionBudget) ([]corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return nil, nil //nolint:nilerr // a budget that selects nothing holds nothing
	}
	if _, selectable := selector.Requirements(); !selectable {
		return nil, nil
	}
	pods, err := c.kube.CoreV1().Pods(b.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: selector.String(), ResourceVersion: fromCache.ResourceVersion})
	if err != nil {
		return nil, fmt.Errorf("listing Pods of namespace %s: %w", b.Namespace, err)
	}
	return pods.Items, nil
}

// leaves reports whether a drain would evict the pod, and a budget decides on the eviction.
func leaves(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && !mirror &&
		(owner == nil || owner.Kind != "DaemonSet")
}
