// SPDX-License-Identifier: Apache-2.0

package render

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// Reasons of RenderDegraded and RenderPending.
const (
	reasonRendered       = "Rendered"
	reasonPinUnusable    = "PinUnusable"
	reasonUnreadable     = "Unreadable"
	reasonRenderFailed   = "RenderFailed"
	reasonUnreconcilable = "Unreconcilable"
	reasonPublishFailed  = "PublishFailed"
	reasonUnfinished     = "Unfinished"
	reasonFinished       = "Finished"
)

// rendering is what the documents of a pool merge to.
type rendering struct {
	config   *machineconfig.Config
	selected []*machineconfig.Document
	// base is the default OS image, "" where there is none.
	base     string
	warnings []string
	carried  carried
}

// overridden says that a MachineConfig asks for another OS image than the cluster's default.
func (r *rendering) overridden() bool { return r.base != "" && r.config.OSImageURL != r.base }

// failure is why a pool keeps what it has.
type failure struct{ reason, message string }

// renderPool merges what the pool selects of sources over base.
func renderPool(
	pool *mcfgv1.MachineConfigPool, sources []*mcfgv1.MachineConfig, base *machineconfig.Document,
) (*rendering, *failure) {
	docs := &machineconfig.Documents{Pools: []*machineconfig.PoolDocument{{Object: pool}}}
	for _, mc := range sources {
		docs.Configs = append(docs.Configs, &machineconfig.Document{Object: mc})
	}
	out := &rendering{}
	if base != nil {
		out.base = base.Object.Spec.OSImageURL
	}
	if err := api.Unreadable(pool); err != nil {
		return nil, unreadable("MachineConfigPool", pool.Name, err)
	}
	if base != nil {
		if err := api.Unreadable(base.Object); err != nil {
			return nil, unreadable(kindControllerConfig, api.ControllerConfig, err)
		}
	}
	var err error
	if out.selected, err = machineconfig.Select(pool.Name, docs); err == nil {
		for _, d := range out.selected {
			if err := api.Unreadable(d.Object); err != nil {
				return nil, unreadable("MachineConfig", d.Object.Name, err)
			}
		}
		out.config, out.warnings, err = machineconfig.Merge(pool.Name, out.selected, base)
	}
	switch {
	case errors.Is(err, machineconfig.ErrNoneSelected):
		return nil, &failure{api.NoMachineConfigs, err.Error()}
	case err != nil:
		return nil, &failure{reasonRenderFailed, err.Error()}
	}
	return out, nil
}

// unreadable is the failure of a pool for an object of which something can't be read: what would be rendered is not
// what is asked for.
func unreadable(kind, name string, err error) *failure {
	return &failure{reasonUnreadable, fmt.Sprintf("%s/%s: %v: correct it, and the pool is rendered", kind, name, err)}
}

// references are the sources as spec.configuration lists them, by name.
func (r *rendering) references() []corev1.ObjectReference {
	var out []corev1.ObjectReference
	for _, d := range r.selected {
		out = append(out, corev1.ObjectReference{
			APIVersion: mcfgv1.GroupVersion.String(), Kind: "MachineConfig", Name: d.Object.Name,
		})
	}
	slices.SortFunc(out, func(a, b corev1.ObjectReference) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// input is all that decide depends on.
type input struct {
	pool *mcfgv1.MachineConfigPool
	pin  *api.Pin
	// pinErr says why the pin can't be followed.
	pinErr error
	// waiting names what is not finished; then there is no rendering but of what the pool had before.
	waiting []string
	// refused names what stays what it was before, because it is wrong now.
	refused   []string
	rendering *rendering
	failure   *failure
	// carried is for the nodes, beside what is rendered.
	carried carried
}

// hold has the pool wait where something is unfinished, or a definition is away. What was rendered stays where the pool
// had that before: it is complete, whatever is being made now, and who goes back to it must not have to wait for
// somebody who may never finish. While a definition is away, that is no wish of people: MachineConfigs that go one by
// one render to what the pool had before the last of them came. A pin still goes back then.
func (in *input) hold(away []string, nodes []corev1.Node) {
	in.waiting = append(in.waiting, away...)
	if len(in.waiting) == 0 {
		return
	}
	in.failure = nil
	if in.rendering != nil && (len(away) > 0 || !had(in.pool, nodes, in.rendering.config.Name)) {
		in.rendering = nil
	}
}

// had says that the whole of a pool, or a node of it, is known to have had a configuration. The name is the pool's own,
// so a node that has it is one of the pool's.
func had(pool *mcfgv1.MachineConfigPool, nodes []corev1.Node, name string) bool {
	history, err := api.Decode[[]string](pool.Annotations, api.HistoryKey)
	return name == pool.Status.Configuration.Name || err == nil && slices.Contains(history, name) ||
		slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Annotations[api.CurrentConfig] == name })
}

// pinned says that the pin holds: the MachineConfigs do not make anything else than what was rolled back from.
func (in *input) pinned() bool {
	return in.pin != nil && (in.rendering == nil || in.rendering.config.Name == in.pin.From)
}

// held says that somebody pinned the pool in a way that nobody can read: going on without it could be what the pin was
// to prevent.
func (in *input) held() bool { return in.pin == nil && in.pinErr != nil }

// moves says that what was rendered is to become the pool's configuration and is not yet.
func (in *input) moves() bool {
	return in.rendering != nil && !in.pinned() && !in.held() && in.rendering.config.Name != in.pool.Spec.Configuration.Name
}

// unused says that the pool has no MachineConfigs and never had any. A pool that had some and selects none any more is
// another matter: a slip in a selector must not pass for the wish to have nothing.
func (in *input) unused() bool {
	return in.failure != nil && in.failure.reason == api.NoMachineConfigs && in.pin == nil && in.pinErr == nil &&
		in.pool.Spec.Configuration.Name == "" && in.pool.Status.Configuration.Name == ""
}

// decision is what is to be done about a pool.
type decision struct {
	// publish asks for the rendered object.
	publish bool
	// target is what spec.configuration shall name, "" to leave it; sources what that was made of.
	target  string
	sources []corev1.ObjectReference
	// unpin says why the pin goes, "" where it stays or there is none.
	unpin string
	// conditions are those of the pool that are ours.
	conditions []mcfgv1.MachineConfigPoolCondition
}

// decide is the whole of the controller's mind about one pool. Whatever goes wrong, the pool keeps the last good
// configuration; a pin is followed also while nothing can be rendered, since who rolls back does not want to wait.
func decide(in input) decision {
	var out decision
	pending := mcfgv1.MachineConfigPoolCondition{
		Type: api.PoolRenderPending, Status: corev1.ConditionFalse, Reason: reasonFinished,
	}
	switch {
	case len(in.waiting) > 0:
		pending.Status, pending.Reason = corev1.ConditionTrue, reasonUnfinished
		pending.Message = api.ShortReason("not rendered until this is finished: " + strings.Join(in.waiting, "; "))
	case len(in.refused) > 0:
		pending.Status, pending.Reason = corev1.ConditionTrue, api.PartRefused
		pending.Message = api.ShortReason("rendered without this, or with what it was before: " +
			strings.Join(in.refused, "; "))
	}
	if in.unused() {
		pending.Status, pending.Reason = corev1.ConditionTrue, in.failure.reason
		pending.Message = api.ShortReason(in.failure.message)
	}
	out.conditions = append(out.conditions, pending)

	var trouble []failure
	if in.failure != nil && !in.unused() {
		trouble = append(trouble, *in.failure)
	}
	if in.pinErr != nil && (in.held() || in.pinned()) {
		trouble = append(trouble, failure{reasonPinUnusable, fmt.Sprintf("can't pin pool %s: %v", in.pool.Name, in.pinErr)})
	}
	switch {
	case in.pinned() && in.pinErr == nil:
		out.target = in.pin.Config
		if in.pin.Config == in.pool.Spec.Configuration.Name {
			out.sources = in.pool.Spec.Configuration.Source
		}
	case in.rendering != nil && in.failure == nil && !in.pinned() && !in.held():
		out.publish = true
		out.target, out.sources = in.rendering.config.Name, in.rendering.references()
		if in.pin != nil {
			out.unpin = fmt.Sprintf("pool is no longer pinned to %s: its MachineConfigs render to %s, and not to %s any more",
				in.pin.Config, out.target, in.pin.From)
		}
	}
	if c, known := degraded(in, out, trouble); known {
		out.conditions = append(out.conditions, c)
	}
	return out
}

// degraded is the condition RenderDegraded; unknown while something else has to be finished first, then the last word
// stands.
func degraded(in input, out decision, trouble []failure) (mcfgv1.MachineConfigPoolCondition, bool) {
	c := mcfgv1.MachineConfigPoolCondition{Type: mcfgv1.MachineConfigPoolRenderDegraded, Status: corev1.ConditionFalse}
	switch {
	case len(trouble) > 0:
		c.Status, c.Reason = corev1.ConditionTrue, trouble[0].reason
		var words []string
		for _, t := range trouble {
			words = append(words, t.message)
		}
		if name := in.pool.Spec.Configuration.Name; name != "" && out.target == "" {
			words = append(words, "the pool keeps "+name)
		}
		if in.pinned() && in.pinErr == nil {
			words = append(words, pinnedMessage(in.pin))
		}
		c.Message = api.ShortReason(strings.Join(words, "; "))
	case in.pinned():
		c.Reason, c.Message = api.RenderPinned, pinnedMessage(in.pin)
	case in.unused():
		c.Reason = in.failure.reason
	case in.rendering == nil:
		return c, false
	default:
		c.Reason = reasonRendered
	}
	return c, true
}

func pinnedMessage(pin *api.Pin) string {
	return fmt.Sprintf("pinned to %s since %s, until the MachineConfigs render to something else than %s",
		pin.Config, pin.Since.UTC().Format(time.RFC3339), pin.From)
}

// unpublished is the condition of a pool whose rendered object the API server does not take. An invalid object is told
// by its fields, because the server quotes their values.
func unpublished(err error) mcfgv1.MachineConfigPoolCondition {
	message := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) && apierrors.IsInvalid(err) {
		var fields []string
		if d := status.Status().Details; d != nil {
			for _, cause := range d.Causes {
				fields = append(fields, cause.Field)
			}
			message = fmt.Sprintf("MachineConfig/%s is refused: invalid fields %s", d.Name, strings.Join(fields, ", "))
		}
	}
	return mcfgv1.MachineConfigPoolCondition{
		Type: mcfgv1.MachineConfigPoolRenderDegraded, Status: corev1.ConditionTrue, Reason: reasonPublishFailed,
		Message: api.ShortReason(message),
	}
}

// setConditions puts conditions among those of others and says whether that changed anything. The time is that of the
// last change of the status, whatever reason and message do.
func setConditions(
	to *[]mcfgv1.MachineConfigPoolCondition, conditions []mcfgv1.MachineConfigPoolCondition, now metav1.Time,
) bool {
	changed := false
	for _, c := range conditions {
		i := slices.IndexFunc(*to, func(old mcfgv1.MachineConfigPoolCondition) bool { return old.Type == c.Type })
		if i < 0 {
			c.LastTransitionTime = now
			*to, changed = append(*to, c), true
			continue
		}
		old := (*to)[i]
		if c.LastTransitionTime = now; old.Status == c.Status && !old.LastTransitionTime.IsZero() {
			c.LastTransitionTime = old.LastTransitionTime
		}
		if c != old {
			(*to)[i], changed = c, true
		}
	}
	return changed
}
