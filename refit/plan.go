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
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/progress"
)

type (
	// PlanDocument is what a change would do to a pool, and its JSON.
	PlanDocument struct {
		Pool    string     `json:"pool"`
		Current string     `json:"current"` // what the pool shall have now
		Desired string     `json:"desired"`
		Counts  planCounts `json:"counts"`
		// Groups are the pool's nodes by the configuration that they have.
		Groups         []planGroup `json:"groups"`
		MaxUnavailable int         `json:"maxUnavailable"`
		// Stage is the one that would be at work first, where that is its own maxUnavailable and not the pool's.
		Stage string `json:"stage,omitempty"`
		// Order is that in which the nodes would go.
		Order []string `json:"order"`
		// Estimate is how long that would take; nil where there is nothing to tell it by.
		Estimate *planEstimate `json:"estimate"`
		Budgets  []heldPod     `json:"budgets"`
		// Deleted are the MachineConfigs of the cluster that the plan is without.
		Deleted []string `json:"deleted"`
		Notes   []string `json:"notes"`
		// Warnings are what was passed over, or may not be meant.
		Warnings []string `json:"warnings"`

		refused bool          // quarantined, so that no node would go
		policy  string        // that the pool goes by
		nodes   []corev1.Node // of the cluster
	}
	// planCounts are of nodes, but for HeldPods.
	planCounts struct {
		Nodes   int `json:"nodes"`
		Going   int `json:"going"` // to another configuration
		Drained int `json:"drained"`
		Reboots int `json:"reboots"`
		// HeldPods is how many pods budgets hold; nil where that is not known.
		HeldPods *int `json:"heldPods"`
	}
	planGroup struct {
		Current string   `json:"current"`
		Nodes   []string `json:"nodes"`
		// Plan is nil where Error says why there is none.
		Plan  *plan.Plan  `json:"plan"`
		Diffs []plan.Diff `json:"diffs"`
		Error string      `json:"error,omitempty"`
	}
	// Proposal is what is planned for.
	Proposal struct {
		Files, Deletions []string
		// Prune: what the pool selects and no file has is deleted, as far as it has the labels of Selector.
		Prune    bool
		Selector string
		// Diff is how much of the contents is shown.
		Diff string
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

// How much of the differences between contents is shown to people. Programs get all or none.
const (
	DiffShort = "short"
	DiffAll   = "all"
	diffNone  = "none"
)

// Check refuses a proposal that can't be meant.
func (p Proposal) Check() error {
	switch {
	case p.Prune && len(p.Files) == 0:
		return cli.Usagef("flag --prune: needs the files that stay, by -f")
	case p.Selector != "" && !p.Prune:
		return cli.Usagef("flag --selector: says what --prune may delete, and needs it")
	}
	return cli.OneOf("flag --diff", p.Diff, DiffShort, DiffAll, diffNone)
}

// Plan says what a proposal would do to a pool.
func (c *Cluster) Plan(ctx context.Context, name string, what Proposal) (*PlanDocument, error) {
	docs := &machineconfig.Documents{}
	doc := &PlanDocument{
		Pool: name, Groups: []planGroup{}, Budgets: []heldPod{}, Deleted: []string{}, Notes: []string{},
		Warnings: []string{},
	}
	if len(what.Files) > 0 {
		var warnings []string
		var err error
		docs, warnings, err = machineconfig.Read(what.Files...)
		c.warnAll(doc, warnings)
		if err != nil {
			return nil, err
		}
	}
	pool, err := c.planned(ctx, name, docs)
	if err != nil {
		return nil, err
	}
	desired, err := c.render(ctx, doc, pool, docs, what)
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
	changed := wouldBe(pools, pool, desired.Name)
	report := progress.NewReport(progress.View{Pools: changed, Nodes: nodes, Follow: c.rulesIfKnown(ctx)})
	p, _ := report.Pool(name)
	doc.Current, doc.Desired, doc.nodes = pool.Spec.Configuration.Name, desired.Name, nodes
	doc.Order = append([]string{}, report.Order(name)...)
	most := doc.most(p, pool)
	if err := c.groups(ctx, doc, p, desired, policy, what.Diff != diffNone); err != nil {
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

func (c *Cluster) warnAll(doc *PlanDocument, warnings []string) {
	for _, w := range warnings {
		c.warn("%s", w)
		doc.Warnings = append(doc.Warnings, message.OneLine(w))
	}
}

// planned is the pool as it would be: with the specification that a file has, or as it is.
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

// declared is a pool's specification where a file says some of it: what it leaves open stays, as with a server-side
// apply, and what the pool is rendered to is not its to say.
func declared(file, is mcfgv1.MachineConfigPoolSpec) mcfgv1.MachineConfigPoolSpec {
	file.Configuration = is.Configuration
	file.MachineConfigSelector = cmp.Or(file.MachineConfigSelector, is.MachineConfigSelector)
	file.NodeSelector = cmp.Or(file.NodeSelector, is.NodeSelector)
	file.MaxUnavailable = cmp.Or(file.MaxUnavailable, is.MaxUnavailable)
	return file
}

// wouldBe is the cluster's pools with one changed or added, and pointed at a configuration.
func wouldBe(pools []mcfgv1.MachineConfigPool, changed *mcfgv1.MachineConfigPool, target string,
) []mcfgv1.MachineConfigPool {
	out := slices.DeleteFunc(slices.Clone(pools), func(p mcfgv1.MachineConfigPool) bool { return p.Name == changed.Name })
	pool := changed.DeepCopy()
	pool.Spec.Configuration.Name = target
	return append(out, *pool)
}

// render makes what the controller would make of the cluster's documents with those of the files in place of theirs.
func (c *Cluster) render(ctx context.Context, doc *PlanDocument, pool *mcfgv1.MachineConfigPool,
	docs *machineconfig.Documents, what Proposal,
) (*mcfgv1.MachineConfig, error) {
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.MachineConfigSelector)
	if err != nil {
		return nil, fmt.Errorf("MachineConfigPool %s: spec.machineConfigSelector: %w", pool.Name, err)
	}
	present, err := c.refit.MachineconfigurationV1().MachineConfigs().List(ctx,
		metav1.ListOptions{LabelSelector: selector.String(), ResourceVersion: fromCache.ResourceVersion})
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
	return rendered, err
}

// pruned are the MachineConfigs that the files leave out. What a controller makes, it makes again: that is not for
// people's files to have.
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

// replace puts the documents of files in the place of those of the cluster that have their names, and drops those that
// are to be deleted. What was rendered is no source.
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

// base is what every pool is rendered over.
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

// policy is the cluster's MachineConfiguration; nil where there is none.
func (c *Cluster) policy(ctx context.Context) (*plan.Policy, error) {
	result := c.kube.CoreV1().RESTClient().Get().
		AbsPath("/apis/operator.openshift.io/v1/machineconfigurations/cluster").
		SetHeader("Accept", "application/json").Do(ctx)
	err := result.Error() // with what its Status says, which Raw leaves out
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

// groups plans the way of each group of nodes.
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
		if by[n.Current] == nil {
			order = append(order, n.Current)
		}
		by[n.Current] = append(by[n.Current], n.Name)
	}
	// The largest group is what people look for.
	slices.SortStableFunc(order, func(a, b string) int { return len(by[b]) - len(by[a]) })
	for _, current := range order {
		g := planGroup{Current: current, Nodes: by[current], Diffs: []plan.Diff{}}
		from, err := c.had(ctx, current)
		if err == nil {
			g.Plan, err = between(from, want, policy)
		}
		switch {
		case err != nil:
			g.Error = Describe(err)
		case diffs:
			g.Diffs = plan.Diffs(from, want, g.Plan.Changes)
		}
		doc.Groups = append(doc.Groups, g)
	}
	return nil
}

// had is a configuration by its name; nil where that is empty, for a node that was never configured.
func (c *Cluster) had(ctx context.Context, name string) (*machineconfig.Config, error) {
	if name == "" {
		return nil, nil
	}
	return c.rendered(ctx, name)
}

// between plans from one configuration to another. Of kernel arguments that may hold a secret only the names are left.
func between(from, want *machineconfig.Config, policy *plan.Policy) (*plan.Plan, error) {
	p, err := plan.Make(from, want, plan.Options{Policy: policy})
	if err != nil {
		return nil, err
	}
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

// count says how many nodes would do what. Where the plan can't be carried out none does anything.
func (d *PlanDocument) count() {
	going := map[string]bool{}
	if d.Err() == nil {
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

// note says what else would keep the nodes from going.
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

// Err is the error of a plan that can't be carried out, or that could not be made.
func (d *PlanDocument) Err() error {
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
		return unreachableError{fmt.Errorf("%s can't be reached: %s", d.Desired, strings.Join(fields, "; "))}
	case d.refused:
		return unreachableError{fmt.Errorf("%s is quarantined in pool %s", d.Desired, d.Pool)}
	}
	return nil
}

// drains are the nodes that would be drained.
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

// held are the pods on nodes that would be drained which a disruption budget would not let go now. It takes one list of
// all budgets, and one of pods for each budget that allows nothing.
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

// covered are the pods that a budget is about.
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

// leaves says that a drain would evict the pod, and that the eviction is a budget's to allow.
func leaves(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && !mirror &&
		(owner == nil || owner.Kind != "DaemonSet")
}
