// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/noderefit/noderefit/api"
)

// toUpgrade is what an upgrade needs.
func toUpgrade() []right { return append(toInstall(), rights("delete")...) }

// plan is a move with what it needs.
type plan struct {
	*move

	objects []*unstructured.Unstructured
	noted   *record
}

// Upgrade brings an installation to a release, a newer or an older one, or to other values. A command that was killed
// is given again, and goes on. With dryRun it only says what it would do.
func (c *Cluster) Upgrade(ctx context.Context, want Change, dryRun bool) error {
	p, err := c.plan(ctx, want)
	if err != nil {
		return err
	}
	for _, said := range p.said {
		c.say("warning: %s", said)
	}
	if dryRun {
		return c.preview(ctx, p)
	}
	c.say("%s", p.title())
	if err := c.carryOut(ctx, p); err != nil {
		return fmt.Errorf("%w; what was done stays: kubectl refit upgrade goes on from there, and that of the version "+
			"before goes back", err)
	}
	c.say("Noderefit %s is installed", p.to)
	return nil
}

// title says what a move is.
func (m *move) title() string {
	from := strings.Join(m.from, " and ")
	switch {
	case len(m.from) == 0:
		return "applying Noderefit " + m.to + " again"
	case m.back:
		return "taking Noderefit back from " + from + " to " + m.to
	}
	return "upgrading Noderefit from " + from + " to " + m.to
}

// plan decides, before anything is touched.
func (c *Cluster) plan(ctx context.Context, want Change) (*plan, error) {
	if err := c.may(ctx, toUpgrade()); err != nil {
		return nil, err
	}
	before, err := c.record(ctx)
	if err != nil {
		return nil, err
	}
	if before == nil {
		before = &record{}
	}
	values, err := want.Values(before.Values)
	if err != nil {
		return nil, err
	}
	objects, err := want.Release.Render(values)
	if err != nil {
		return nil, err
	}
	there, err := c.look(ctx, installs(objects))
	if err != nil {
		return nil, err
	}
	definitions, err := c.definitions(ctx, objects)
	if err != nil {
		return nil, err
	}
	m, err := decideUpgrade(there, definitions, want.Release.Version)
	if err != nil {
		return nil, err
	}
	if err := c.ready(want.Release, objects); err != nil {
		return nil, err
	}
	if tag, _, _ := unstructured.NestedString(values, "image", "tag"); tag != "" && tag != m.to {
		m.said = append(m.said, fmt.Sprintf("value image.tag is %s: the pods get images of that tag; --set image.tag=null "+
			"takes those of %s", tag, m.to))
	}
	noted := &record{Version: m.to, From: m.from, Phase: upgrading, Values: values,
		Objects: union(there.record.Objects, refs(objects))}
	return &plan{m, objects, noted}, nil
}

// definitions returns the versions of the definitions in the cluster.
func (c *Cluster) definitions(ctx context.Context, objects []*unstructured.Unstructured) ([]string, error) {
	versions := map[string]bool{}
	for _, object := range inStage("definitions", objects) {
		live, err := c.get(ctx, refOf(object))
		if err != nil {
			return nil, err
		}
		if live != nil {
			versions[live.GetLabels()[versionLabel]] = true
		}
	}
	return slices.Sorted(maps.Keys(versions)), nil
}

// inStage returns the objects of a stage.
func inStage(name string, objects []*unstructured.Unstructured) []*unstructured.Unstructured {
	at := slices.IndexFunc(stages, func(s stage) bool { return s.name == name })
	return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return stageOf(o) != at })
}

// carryOut notes that a move has begun, takes its steps, and notes that it has ended.
func (c *Cluster) carryOut(ctx context.Context, p *plan) error {
	if err := c.note(ctx, p.noted); err != nil {
		return err
	}
	for _, s := range p.steps {
		if err := c.ours(ctx, p.to); err != nil {
			return err
		}
		if err := c.take(ctx, s, p); err != nil {
			return err
		}
	}
	if err := c.ours(ctx, p.to); err != nil {
		return err
	}
	now := refs(p.objects)
	for _, ref := range gone(p.noted.Objects, now) {
		if err := c.prune(ctx, ref); err != nil {
			return err
		}
	}
	done := *p.noted
	done.Phase, done.From, done.Objects = installed, nil, now
	return c.note(ctx, &done)
}

// ours refuses to go on where another command has begun meanwhile.
func (c *Cluster) ours(ctx context.Context, version string) error {
	r, err := c.record(ctx)
	switch {
	case err != nil:
		return err
	case r == nil:
		return fmt.Errorf("another command has removed the record, ConfigMap %s/%s, meanwhile", api.Namespace, recordName)
	case r.Version != version || r.Phase != upgrading:
		return fmt.Errorf("another command has begun meanwhile: it has noted version %s, phase %s", r.Version, r.Phase)
	}
	return nil
}

// take takes a step, and waits until its objects are in force.
func (c *Cluster) take(ctx context.Context, s step, p *plan) error {
	objects := inStage(s.stage, p.objects)
	if len(objects) == 0 {
		return nil
	}
	count := tally{}
	for _, object := range objects {
		what, err := c.effect(ctx, s, object, p.to)
		if err != nil {
			return err
		}
		switch {
		case what == same:
		case s.do == add:
			_, err = c.create(ctx, object)
		default:
			err = c.apply(ctx, object)
		}
		if err != nil {
			return err
		}
		count[what]++
	}
	if err := c.settle(ctx, stageOf(objects[0]), objects); err != nil {
		return err
	}
	c.say("%s: %s", s.stage, count.text("%d made", "%d changed", "%d as they were"))
	return nil
}

// effect is what a step does to an object.
type effect int

// The effects.
const (
	made effect = iota
	changed
	same
)

// tally counts effects.
type tally map[effect]int

// text says the counts, with the words of the effects in their order.
func (t tally) text(words ...string) string {
	var out []string
	for i, format := range words {
		if n := t[effect(i)]; n > 0 {
			out = append(out, fmt.Sprintf(format, n))
		}
	}
	return strings.Join(out, ", ")
}

// effect asks the API server what a step would do to an object.
func (c *Cluster) effect(
	ctx context.Context, s step, object *unstructured.Unstructured, version string,
) (effect, error) {
	at := refOf(object)
	live, err := c.get(ctx, at)
	switch {
	case err != nil:
		return 0, err
	case live == nil:
		return made, nil
	case s.do == add || s.stage == "definitions" && newer(live.GetLabels()[versionLabel], version):
		return same, nil
	}
	client, err := c.client(at)
	if err != nil {
		return 0, fmt.Errorf("applying %s: %w", at, err)
	}
	would, err := client.Apply(ctx, at.Name, object, metav1.ApplyOptions{
		FieldManager: manager, Force: true, DryRun: []string{metav1.DryRunAll},
	})
	if err != nil {
		return 0, fmt.Errorf("applying %s: %w", at, err)
	}
	if equality.Semantic.DeepEqual(written(live), written(would)) {
		return same, nil
	}
	return changed, nil
}

// written is an object without what the API server notes of writes.
func written(object *unstructured.Unstructured) map[string]any {
	out := object.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	return out.Object
}

// prune removes an object that the release does not have, unless it has become somebody else's.
func (c *Cluster) prune(ctx context.Context, ref reference) error {
	live, err := c.removable(ctx, ref)
	if err != nil || live == nil {
		return err
	}
	if err := c.delete(ctx, ref, live.GetUID()); err != nil {
		return err
	}
	c.say("%s: removed, this version does not have it", ref)
	return nil
}

// removable reads an object that the release does not have, nil where it is not there or not ours.
func (c *Cluster) removable(ctx context.Context, ref reference) (*unstructured.Unstructured, error) {
	live, err := c.get(ctx, ref)
	if err != nil || live == nil {
		return nil, err
	}
	if live.GetLabels()[partOfLabel] != partOfValue || !slices.ContainsFunc(live.GetManagedFields(), byPlugin) {
		c.say("%s: stays, it has become somebody else's", ref)
		return nil, nil
	}
	return live, nil
}

// preview says what a move would do. What a step needs of a definition that is not there yet is made.
func (c *Cluster) preview(ctx context.Context, p *plan) error {
	c.say("%s would do this, in this order; nothing is changed:", p.title())
	for _, s := range p.steps {
		count := tally{}
		var news []string
		for _, object := range inStage(s.stage, p.objects) {
			what, err := c.effect(ctx, s, object, p.to)
			if err != nil && !meta.IsNoMatchError(err) {
				return err
			}
			count[what]++
			if what == made {
				news = append(news, nameOf(object))
			}
		}
		if len(count) == 0 {
			continue
		}
		c.say("%s: %s", s.stage, count.text("%d to make ("+some(news)+")", "%d to change", "%d as they are"))
	}
	for _, ref := range gone(p.noted.Objects, refs(p.objects)) {
		live, err := c.removable(ctx, ref)
		if err != nil {
			return err
		}
		if live != nil {
			c.say("%s: to remove, this version does not have it", ref)
		}
	}
	return nil
}
