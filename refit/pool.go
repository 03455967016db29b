// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/progress"
)

// fieldManager is the owner of our changes for the API server.
const fieldManager = "kubectl-refit"

// change is a merge patch of a pool. It is valid only for the version that was read.
type change struct {
	paused      *bool
	annotations map[string]any // nil removes an annotation
	event       *event         // nil: the change needs no event
}

// noteBytes is the API server's limit for an event's note.
const noteBytes = 1024

// event is a message for readers of the pool's events.
type event struct{ reason, note string }

func (c *Cluster) apply(ctx context.Context, pool *mcfgv1.MachineConfigPool, ch change) error {
	metadata := map[string]any{"resourceVersion": pool.ResourceVersion}
	if ch.annotations != nil {
		metadata["annotations"] = ch.annotations
	}
	patch := map[string]any{"metadata": metadata}
	if ch.paused != nil {
		patch["spec"] = map[string]any{"paused": *ch.paused}
	}
	_, err := c.refit.MachineconfigurationV1().MachineConfigPools().Patch(ctx, pool.Name, types.MergePatchType,
		[]byte(api.Encode(patch)), metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("changing MachineConfigPool %s: %w", pool.Name, err)
	}
	return nil
}

// tell writes an event about a pool, if we have the right. The pool itself has the same facts.
func (c *Cluster) tell(ctx context.Context, pool *mcfgv1.MachineConfigPool, e event) {
	_, err := c.kube.EventsV1().Events(metav1.NamespaceDefault).Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{GenerateName: pool.Name + "-", Namespace: metav1.NamespaceDefault},
		EventTime:           metav1.NewMicroTime(time.Now()),
		ReportingController: "noderefit.dev/" + fieldManager,
		ReportingInstance:   fieldManager,
		Action:              e.reason,
		Reason:              e.reason,
		Note:                strings.ToValidUTF8(e.note[:min(len(e.note), noteBytes)], ""),
		Type:                corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{
			APIVersion: mcfgv1.GroupVersion.String(), Kind: kindPool, Name: pool.Name, UID: pool.UID,
		},
	}, metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsForbidden(err) {
		c.warn("there is no event about it: %s", Describe(err))
	}
}

// meanwhile is how often, and after what, a change is made again because its object had changed in between. During a
// rollout the controllers change pools, nodes and streams often.
var meanwhile = wait.Backoff{Steps: 10, Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 0.1}

// changePool reads a pool, lets decide choose the change and the message, and changes the pool.
func (c *Cluster) changePool(ctx context.Context, name string,
	decide func(*mcfgv1.MachineConfigPool) (*change, string, error),
) (said string, err error) {
	err = retry.RetryOnConflict(meanwhile, func() error {
		pool, err := c.pool(ctx, name)
		if err != nil {
			return err
		}
		var ch *change
		if ch, said, err = decide(pool); err != nil || ch == nil {
			return err
		}
		if err := c.apply(ctx, pool, *ch); err != nil {
			return err
		}
		if ch.event != nil {
			c.tell(ctx, pool, *ch.event)
		}
		return nil
	})
	return said, err
}

// Pause stops the pool from telling further nodes to change their configuration. Like all changes of a pool it returns
// a message for people.
func (c *Cluster) Pause(ctx context.Context, pool string) (said string, err error) {
	return c.changePool(ctx, pool, func(p *mcfgv1.MachineConfigPool) (*change, string, error) {
		if p.Spec.Paused {
			return nil, fmt.Sprintf("pool %s is paused already", p.Name), nil
		}
		return &change{paused: new(true)}, fmt.Sprintf("pool %s is paused: nodes that are on their way arrive, no other "+
			"sets out; kubectl refit resume %s goes on", p.Name, p.Name), nil
	})
}

// Resume lets a paused pool go on. It also ends the pin of a rollback, unless keepPin is set.
func (c *Cluster) Resume(ctx context.Context, pool string, keepPin bool) (said string, err error) {
	return c.changePool(ctx, pool, func(p *mcfgv1.MachineConfigPool) (*change, string, error) {
		ch, said := resume(p, keepPin)
		return ch, said, nil
	})
}

// resume removes what holds a pool.
func resume(p *mcfgv1.MachineConfigPool, keepPin bool) (*change, string) {
	_, pinned := p.Annotations[api.PinKey]
	unpin := pinned && !keepPin
	var said []string
	ch := &change{}
	if p.Spec.Paused {
		ch.paused = new(false)
		said = append(said, "is no longer paused")
	}
	if unpin {
		ch.annotations = map[string]any{api.PinKey: nil}
		said = append(said, "is no longer held by a rollback")
	}
	if len(said) == 0 {
		return nil, fmt.Sprintf("pool %s is neither paused nor held by a rollback", p.Name)
	}
	next := "its nodes go to " + p.Spec.Configuration.Name
	if unpin {
		next = "the pool goes to the configuration that its MachineConfigs render to"
	}
	return ch, fmt.Sprintf("pool %s %s: %s", p.Name, strings.Join(said, " and "), next)
}

// Rollback takes a pool back to a configuration that it had. An empty name means the last configuration that all its
// nodes had. With andResume a paused pool is resumed; one that was rolled back while it was paused is only resumed.
func (c *Cluster) Rollback(ctx context.Context, pool, to string, andResume bool) (said string, err error) {
	return c.changePool(ctx, pool, func(p *mcfgv1.MachineConfigPool) (*change, string, error) {
		if _, pinned := p.Annotations[api.PinKey]; andResume && p.Spec.Paused && pinned && to == "" {
			ch, said := resume(p, true)
			return ch, said, nil
		}
		v, err := c.quarantines(ctx)
		if err != nil {
			return nil, "", err
		}
		known, _ := progress.NewReport(v).Pool(p.Name)
		target, pin, err := rollback(p, known, to, time.Now())
		if err != nil {
			return nil, "", err
		}
		if _, err := c.rendered(ctx, target); err != nil {
			return nil, "", fmt.Errorf("pool %s can't go back: %w", p.Name, err)
		}
		ch := &change{annotations: map[string]any{api.PinKey: api.Encode(pin)}}
		if andResume && p.Spec.Paused {
			ch.paused = new(false)
		}
		return ch, rollbackSaid(p, pin, andResume), nil
	})
}

// rollback decides on the configuration, and pins the pool to it. known tells which configurations the pool would
// refuse.
func rollback(p *mcfgv1.MachineConfigPool, known progress.Pool, to string, now time.Time) (string, api.Pin, error) {
	present := p.Spec.Configuration.Name
	if present == "" {
		return "", api.Pin{}, fmt.Errorf("pool %s has no configuration yet", p.Name)
	}
	history, err := api.Decode[[]string](p.Annotations, api.HistoryKey)
	if err != nil {
		return "", api.Pin{}, fmt.Errorf("MachineConfigPool %s: %w", p.Name, err)
	}
	// In the middle of a rollout the way back leads to the configuration of the whole pool before it.
	if last := p.Status.Configuration.Name; last != "" {
		history = append([]string{last}, history...)
	}
	history = slices.DeleteFunc(history, func(c string) bool { return c == present })
	switch {
	case to == present:
		return "", api.Pin{}, fmt.Errorf("pool %s has %s already", p.Name, to)
	case to == "" && len(history) == 0:
		return "", api.Pin{}, fmt.Errorf("pool %s had no other configuration as a whole before %s: name one with --to",
			p.Name, present)
	case to == "":
		to = history[0]
	case !strings.HasPrefix(to, "rendered-"+p.Name+"-"):
		return "", api.Pin{}, cli.Usagef("flag --to: %s is not a rendered configuration of pool %s (it had: %s)",
			to, p.Name, list(history))
	}
	if known.Refuses(to) {
		return "", api.Pin{}, fmt.Errorf("%s is quarantined in pool %s, so no node would take it: "+
			"kubectl refit quarantine lift %s %s comes first", to, p.Name, p.Name, to)
	}
	pin := api.Pin{Config: to, From: present, Since: now.UTC().Truncate(time.Second)}
	// Under a pin, the present configuration is the pin's. So the configuration that the MachineConfigs render to is in
	// the pin.
	if old, err := api.Decode[*api.Pin](p.Annotations, api.PinKey); err == nil && old != nil {
		pin.From = old.From
	}
	return to, pin, nil
}

func rollbackSaid(p *mcfgv1.MachineConfigPool, pin api.Pin, resumed bool) string {
	said := fmt.Sprintf("pool %s goes back to %s and stays there until its MachineConfigs render to something else than "+
		"%s, or until kubectl refit resume %s", p.Name, pin.Config, pin.From, p.Name)
	if was := p.Status.Configuration.Name; was != "" && was != pin.Config {
		said += fmt.Sprintf("; a RolloutPolicy for the pool applies, as with any update (in an emergency: "+
			"kubectl refit bypass %s --why TEXT)", p.Name)
	}
	switch {
	case p.Spec.Paused && resumed:
		said += "; the pool is no longer paused"
	case p.Spec.Paused:
		said += fmt.Sprintf("; but the pool is paused, so no node goes back yet: kubectl refit rollback %s --resume ends "+
			"the pause and stays with the rollback (kubectl refit resume %s --keep-pin does the same)", p.Name, p.Name)
	}
	return said
}
