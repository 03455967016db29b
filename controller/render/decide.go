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

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
)

// The reasons of RenderDegraded, RenderPending and RenderWarning.
const (
	reasonRendered       = "Rendered"
	reasonPinUnusable    = "PinUnusable"
	reasonUnreadable     = "Unreadable"
	reasonRenderFailed   = "RenderFailed"
	reasonUnreconcilable = "Unreconcilable"
	reasonPublishFailed  = "PublishFailed"
	reasonUnfinished     = "Unfinished"
	reasonFinished       = "Finished"
	reasonDoubts         = "Doubts"
	reasonNoStream       = "NoSuchOSImageStream"
)

// rendering is the result of merging a pool's documents.
type rendering struct {
	config   *machineconfig.Config
	selected []*machineconfig.Document
	// base is the default OS image, "" without one.
	base     string
	warnings []string
	// image is what is known of the pool's hosts. It is looked up where it matters.
	image   plan.Image
	carried carried
	// signatures are the annotations that may have signatures of it.
	signatures []string
}

// overridden reports whether a MachineConfig asks for another OS image than the cluster's default.
func (r *rendering) overridden() bool { return r.base != "" && r.config.OSImageURL != r.base }

// failure is why a pool keeps what it has.
type failure struct{ reason, message string }

// renderPool merges the sources that the pool selects over base.
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

// unreadable returns the failure of a pool for an object that can't be read in full. What would be rendered is not what
// the object asks for.
func unreadable(kind, name string, err error) *failure {
	return &failure{reasonUnreadable, fmt.Sprintf("%s/%s: %v: correct it, and the pool is rendered", kind, name, err)}
}

// references returns the sources by name, as spec.configuration lists them.
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

// input is everything that decide depends on.
type input struct {
	pool *mcfgv1.MachineConfigPool
	pin  *api.Pin
	// pinErr is why the pin can't be followed.
	pinErr error
	// waiting names what is not finished. rendering is nil then, unless the pool had the same before.
	waiting []string
	// refused names the parts that are wrong now, and keep what was made of them before.
	refused   []string
	rendering *rendering
	failure   *failure
	// carried is what the nodes get besides the rendering.
	carried carried
	// signatures are the annotations of MachineConfigs that have signatures.
	signatures []string
}

// hold has the pool wait where something is unfinished, or a definition is away.
//
// While something is unfinished, a rendering that the pool had before is used. It is complete, and a return to it must
// not wait for a part that may never be finished. While a definition is away, no rendering is used. MachineConfigs that
// go one by one render to what the pool had before the last of them came, and people did not ask for that. A pin still
// takes the pool back then.
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

// had reports whether a whole pool, or one of its nodes, is known to have had a configuration. The name is the pool's
// own, so a node that has it belongs to the pool.
func had(pool *mcfgv1.MachineConfigPool, nodes []corev1.Node, name string) bool {
	history, err := api.Decode[[]string](pool.Annotations, api.HistoryKey)
	return name == pool.Status.Configuration.Name || err == nil && slices.Contains(history, name) ||
		slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Annotations[api.CurrentConfig] == name })
}

// pinned reports whether the pin holds: the MachineConfigs make nothing other than what was rolled back from.
func (in *input) pinned() bool {
	return in.pin != nil && (in.rendering == nil || in.rendering.config.Name == in.pin.From)
}

// held reports whether the pool has a pin that can't be read. Going on without the pin could bring what the pin was to
// prevent.
func (in *input) held() bool { return in.pin == nil && in.pinErr != nil }

// moves reports whether the rendering is to become the pool's configuration and is not yet.
func (in *input) moves() bool {
	return in.rendering != nil && !in.pinned() && !in.held() && in.rendering.config.Name != in.pool.Spec.Configuration.Name
}

// unused reports whether the pool has no MachineConfigs and never had any. A pool that had some and now selects no
// MachineConfig is not unused. A slip in a selector must not count as the wish to have nothing.
func (in *input) unused() bool {
	return in.failure != nil && in.failure.reason == api.NoMachineConfigs && in.pin == nil && in.pinErr == nil &&
		in.pool.Spec.Configuration.Name == "" && in.pool.Status.Configuration.Name == ""
}

// decision is what to do about a pool.
type decision struct {
	// publish is true where the rendered object has to be there.
	publish bool
	// target is the name that spec.configuration shall have, "" to leave it. sources is what the target was made of.
	target  string
	sources []corev1.ObjectReference
	// unpin is why the pin is removed, "" if the pin stays or does not exist.
	unpin string
	// conditions are the pool's conditions of this controller.
	conditions []mcfgv1.MachineConfigPoolCondition
}

// decide makes the whole decision about one pool. After any failure the pool keeps its last good configuration. A pin
// is followed even while nothing can be rendered, since a person who rolls back does not want to wait.
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
		pending.Message = api.ShortReason("rendered without this object, or with its last accepted content: " +
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
	if c, known := doubted(in); known {
		out.conditions = append(out.conditions, c)
	}
	return out
}

// doubted returns the condition RenderWarning. The second result is false where there is nothing to say, and was not
// before.
func doubted(in input) (mcfgv1.MachineConfigPoolCondition, bool) {
	c := mcfgv1.MachineConfigPoolCondition{
		Type: api.PoolRenderWarning, Status: corev1.ConditionFalse, Reason: reasonRendered,
	}
	if in.rendering == nil {
		return c, false
	}
	if len(in.rendering.warnings) > 0 {
		c.Status, c.Reason = corev1.ConditionTrue, reasonDoubts
		c.Message = api.ShortReason(strings.Join(in.rendering.warnings, "; "))
	}
	return c, c.Message != "" || slices.ContainsFunc(in.pool.Status.Conditions,
		func(old mcfgv1.MachineConfigPoolCondition) bool { return old.Type == c.Type })
}

// degraded returns the condition RenderDegraded. The second result is false while something else has to be finished
// first: the condition stays as it was then.
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

// unpublished returns the condition of a pool whose rendered object the API server refuses. An invalid object is
// reported by its fields alone, because the server's message quotes their values.
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
