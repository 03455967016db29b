// SPDX-License-Identifier: Apache-2.0

// Package notify decides what to tell people about a rollout, and sends it: CloudEvents to webhooks, silences to an
// Alertmanager. The decision is a pure function of the pool's state and of the notifications before.
package notify

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

const (
	// patience is how long a node may wait for one thing before a notification.
	patience = 15 * time.Minute
	// quiet is how long the same need is not told again. So a need that comes and goes is told once.
	quiet = 10 * time.Minute
	// rememberedNodes is how many rolled-back nodes are remembered. Further ones are not told.
	rememberedNodes = 100
	// rememberedWaits is for how many nodes the start of their wait is remembered.
	rememberedWaits = 32
	// askedNodes is how many nodes of a pool are asked what they wait for.
	askedNodes = 50
	// namedNodes is how many nodes a notification names.
	namedNodes = 20
	// textLimit is the longest text, in bytes.
	textLimit = 1024
)

// Seen is the state of a pool.
type Seen struct {
	// Policy is the policy that names the receivers, PolicyUID is the UID of that object, and Cluster is its name for this
	// cluster.
	Policy, Cluster string
	PolicyUID       types.UID
	UID             types.UID
	Generation      int64
	Pool            progress.Pool
	// Answer is why the pool is not in its desired state.
	Answer progress.Answer
	// Waits are the answers about nodes that do not go on, by name. It is nil where no node was asked.
	Waits map[string]progress.Answer
}

// MayWait returns the first of the nodes to ask what they wait for. First come nodes that are on their way or out of
// service. Then come those that serve and wait for a gate, or can't stage.
func MayWait(p progress.Pool) []string {
	var first, then []string
	for _, n := range p.Nodes {
		held := p.Rules.Holds[n.Name]
		switch {
		case !n.Serving(), n.Moving():
			first = append(first, n.Name)
		case p.Rules.Gated[n.Name] != nil, held != nil && held.Verdict == progress.CannotStage:
			then = append(then, n.Name)
		}
	}
	names := slices.Concat(first, then)
	return names[:min(len(names), askedNodes)]
}

// Decide returns what to tell about a pool, in order, and what to remember of that. With the same memory it returns the
// same, ids included.
func Decide(before api.NotifiedPool, s Seen, now time.Time) (api.NotifiedPool, []api.Notification) {
	after := *before.DeepCopy()
	if s.Pool.Target == "" || before.UID == s.UID && s.Generation < before.Generation {
		return after, nil // the pool has no target, or its state is older than the last one
	}
	if before.UID != s.UID {
		after = api.NotifiedPool{Name: s.Pool.Name, UID: s.UID, Sequence: before.Sequence}
	}
	after.Generation = s.Generation
	if after.Sequence == 0 {
		// The memory may be lost. No id and no number is used twice, and the numbers keep growing.
		after.Sequence = now.UnixMilli()
	}
	if after.Config != s.Pool.Target {
		// A node that is up to date when the pool is first seen was not sent by a known rollout.
		nothing := s.Pool.Machines == 0 || after.Config == "" && s.Pool.Updated == s.Pool.Machines
		after = api.NotifiedPool{
			Name: s.Pool.Name, UID: s.UID, Generation: s.Generation, Sequence: after.Sequence,
			Config: s.Pool.Target, From: s.Pool.Previous, Done: nothing,
		}
		if after.From == after.Config {
			after.From = ""
		}
	}
	t := teller{seen: s, memory: &after, now: now}
	t.started()
	t.rolledBack()
	t.blocked()
	t.needsYou()
	t.done()
	return after, t.out
}

// teller collects the notifications of one check.
type teller struct {
	seen   Seen
	memory *api.NotifiedPool
	now    time.Time
	out    []api.Notification
}

func (t *teller) tell(kind api.NotificationKind, news api.RolloutNews) {
	s, p := t.seen, t.seen.Pool
	t.memory.Sequence++
	news.Cluster, news.Policy, news.Pool = s.Cluster, s.Policy, p.Name
	news.From, news.To = t.memory.From, t.memory.Config
	news.Machines, news.Updated, news.Failed = int32(p.Machines), int32(p.Updated), int32(len(p.Failed()))
	slices.Sort(news.Nodes)
	news.Nodes = news.Nodes[:min(len(news.Nodes), namedNodes)]
	news.Because, news.Do, news.Text = Short(news.Because), Short(news.Do), Short(news.Text)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s\n%d", s.PolicyUID, s.UID, t.memory.Config, kind,
		t.memory.Sequence))
	t.out = append(t.out, api.Notification{
		ID: hex.EncodeToString(sum[:16]), Sequence: t.memory.Sequence, Kind: kind,
		Time: metav1.NewTime(t.now.UTC().Truncate(time.Second)), RolloutNews: news,
	})
}

// started is told when a node has been sent. It is also told when all nodes are up to date but none was seen on its
// way.
func (t *teller) started() {
	m, p := t.memory, t.seen.Pool
	if m.Started || m.Done {
		return
	}
	var sent []string
	for _, n := range p.Nodes {
		if n.Desired == p.Target && n.Current != p.Target {
			sent = append(sent, n.Name)
		}
	}
	if len(sent) == 0 && !p.Complete() {
		return
	}
	m.Started = true
	text := fmt.Sprintf("pool %s: the update to %s begins; %d of %d nodes have the configuration", p.Name, p.Target,
		p.Updated, p.Machines)
	if len(sent) > 0 {
		text += "; first: " + names(sent)
	}
	t.tell(api.RolloutStarted, api.RolloutNews{Nodes: sent, Text: text})
}

// gatePrefix marks the gates among the remembered rollbacks: no node's name has a slash.
const gatePrefix = "gate/"

// rolledBack is told once for each node and each time that it rolled back, and for each gate that sends nodes back.
func (t *teller) rolledBack() {
	m, p := t.memory, t.seen.Pool
	var back, fresh []string
	gate := gateClosed(p)
	if gate != nil {
		back = append(back, gatePrefix+gate.Gate)
	}
	reason := ""
	for _, n := range p.Nodes {
		if n.State != api.RolledBack || n.Desired != p.Target {
			continue
		}
		back = append(back, n.Name)
		if !slices.Contains(m.RolledBack, n.Name) && len(m.RolledBack)+len(fresh) < rememberedNodes {
			fresh = append(fresh, n.Name)
			reason = cmp.Or(reason, n.Reason)
		}
	}
	m.RolledBack = slices.DeleteFunc(m.RolledBack, func(name string) bool { return !slices.Contains(back, name) })
	if gate != nil && !slices.Contains(m.RolledBack, gatePrefix+gate.Gate) {
		m.RolledBack = append(m.RolledBack, gatePrefix+gate.Gate)
		slices.Sort(m.RolledBack)
		t.gateRolledBack(gate)
	}
	if len(fresh) == 0 {
		return
	}
	m.RolledBack = append(m.RolledBack, fresh...)
	slices.Sort(m.RolledBack)
	because := fmt.Sprintf("%s failed on node %s, which went back and serves", p.Target, names(fresh))
	if len(fresh) > 1 {
		because = fmt.Sprintf("%s failed on nodes %s, which went back and serve", p.Target, names(fresh))
	}
	if reason != "" {
		because += ": " + reason
	}
	t.tell(api.RolloutRolledBack, api.RolloutNews{
		Nodes: fresh, Reason: string(progress.RolledBack), Because: because,
		Object: progress.Object{Kind: "MachineConfig", Name: p.Target}.String(),
		Do:     "kubectl refit explain node/" + fresh[0],
		Text:   "pool " + p.Name + ": " + because,
	})
}

// gateClosed returns the failure of a gate of this pool that quarantines the target, or nil.
func gateClosed(p progress.Pool) *api.Quarantine {
	at := slices.IndexFunc(p.Quarantined, func(q api.Quarantine) bool {
		return q.Gate != "" && api.SameContent(q.Config, p.Target)
	})
	if at < 0 {
		return nil
	}
	return &p.Quarantined[at]
}

func (t *teller) gateRolledBack(q *api.Quarantine) {
	p := t.seen.Pool
	because := progress.WhyRefused(q)
	if p.GoesBack() {
		because += "; nodes with the configuration go back to " + p.Previous
	}
	t.tell(api.RolloutRolledBack, api.RolloutNews{
		Reason: string(progress.Quarantined), Because: because,
		Object: progress.Object{Kind: "MachineConfig", Name: q.Config}.String(),
		Do:     "kubectl refit explain pool/" + p.Name,
		Text:   "pool " + p.Name + ": " + because,
	})
}

// waits are the verdicts of nodes that may pass by themselves, and are told when they don't. poolWaits are those of
// pools.
var (
	waits = []progress.Verdict{
		progress.Draining, progress.HeldByHook, progress.NotReady, progress.NoDaemon, progress.NotTakenUp,
		progress.Rebooting, progress.Cordoned, progress.DrainHeld, progress.GateClosed, progress.CannotStage,
	}
	poolWaits = []progress.Verdict{progress.GateClosed, progress.EtcdUnhealthy}
)

// blocked is told when nodes, or the pool, have waited for longer than patience. It is told once for each cause of the
// longest wait. A node's state after the rollout is not part of the rollout.
func (t *teller) blocked() {
	m := t.memory
	if t.seen.Waits == nil {
		return
	}
	known := m.Waiting
	m.Waiting = nil
	var late []string
	first := t.poolWaits(known)
	for _, n := range t.seen.Pool.Nodes {
		a, asked := t.seen.Waits[n.Name]
		if !asked || !slices.Contains(waits, a.Verdict) || m.Done && n.Updated(t.seen.Pool.Target) {
			continue
		}
		if a.Since.IsZero() {
			a.Since = t.since(known, n, a.Verdict)
		}
		if t.now.Sub(a.Since) < patience {
			continue
		}
		late = append(late, n.Name)
		if first.Since.IsZero() || a.Since.Before(first.Since) {
			first = a
		}
	}
	if first.Since.IsZero() {
		m.Blocked = nil
		return
	}
	cause := causeOf(first)
	if m.Blocked != nil && m.Blocked.Cause == cause {
		return
	}
	m.Blocked = &api.NotifiedCause{Cause: cause, Since: metav1.NewTime(first.Since.Truncate(time.Second))}
	who := ""
	if first.Subject.Kind == "Node" {
		who = "node " + first.Subject.Name + " "
	}
	text := fmt.Sprintf("pool %s: %swaits since %s: %s", t.seen.Pool.Name, who,
		first.Since.UTC().Format(time.RFC3339), first.Sentence())
	t.tell(api.RolloutBlocked, ofAnswer(first, late, text))
}

// poolWaits returns what the pool itself has waited for longer than patience, or the zero Answer.
func (t *teller) poolWaits(known []api.NotifiedCause) progress.Answer {
	a := t.seen.Answer
	if !slices.Contains(poolWaits, a.Verdict) {
		return progress.Answer{}
	}
	if a.Since.IsZero() {
		a.Since = t.firstSeen(known, string(a.Verdict)+" pool/")
	}
	if t.now.Sub(a.Since) < patience {
		return progress.Answer{}
	}
	return a
}

// since returns the start of a wait that has no start of its own: when the node was cordoned, or when the wait was
// first seen.
func (t *teller) since(known []api.NotifiedCause, n progress.Node, v progress.Verdict) time.Time {
	if n.Cordon != nil && !n.Cordon.Since.IsZero() {
		return n.Cordon.Since
	}
	return t.firstSeen(known, string(v)+" "+n.Name)
}

// firstSeen returns when a cause was first seen. This is remembered as long as the cause is seen.
func (t *teller) firstSeen(known []api.NotifiedCause, cause string) time.Time {
	seen := api.NotifiedCause{Cause: cause, Since: metav1.NewTime(t.now.Truncate(time.Second))}
	if i := slices.IndexFunc(known, func(k api.NotifiedCause) bool { return k.Cause == seen.Cause }); i >= 0 {
		seen = known[i]
	}
	if len(t.memory.Waiting) < rememberedWaits {
		t.memory.Waiting = append(t.memory.Waiting, seen)
	}
	return seen.Since.Time
}

// needsYou is told when the rollout stops until a person acts.
func (t *teller) needsYou() {
	m, a := t.memory, t.seen.Answer
	second := metav1.NewTime(t.now.UTC().Truncate(time.Second))
	if !needs(t.seen.Pool, a) {
		if m.NeedsYou != nil && m.NeedsYou.Over == nil {
			m.NeedsYou.Over = &second
		}
		return
	}
	cause := causeOf(a)
	if last := m.NeedsYou; last != nil && last.Cause == cause && (last.Over == nil || t.now.Sub(last.Over.Time) < quiet) {
		last.Over = nil
		return
	}
	m.NeedsYou = &api.NotifiedCause{Cause: cause, Since: second}
	var nodes []string
	if a.Blocking != nil && a.Blocking.Kind == "Node" {
		nodes = []string{a.Blocking.Name}
	}
	text := fmt.Sprintf("pool %s needs you: %s", t.seen.Pool.Name, a.Sentence())
	t.tell(api.RolloutNeedsYou, ofAnswer(a, nodes, text))
}

// needs reports whether a person has to act.
func needs(p progress.Pool, a progress.Answer) bool {
	switch a.Verdict {
	case progress.Paused, progress.HeldByPerson, progress.Skipped, progress.Trying: // a person decided so
		return false
	case progress.RolledBack:
		return stands(p)
	default:
		return a.Stops()
	}
}

// stands reports whether no node is on its way, and none is about to be sent.
func stands(p progress.Pool) bool {
	full := len(p.Taking()) >= p.MaxUnavailable
	return !slices.ContainsFunc(p.Nodes, func(n progress.Node) bool {
		goes := !full && n.Desired != p.Target && p.Held(&n) == nil && !p.FailedOn(&n)
		_, soaks := p.Rules.Soaking[n.Name]
		return n.Moving() || goes || soaks
	})
}

// done is told once, after started.
func (t *teller) done() {
	m, p := t.memory, t.seen.Pool
	if m.Done || !p.Complete() {
		return
	}
	m.Done, m.Blocked = true, nil
	t.tell(api.RolloutDone, api.RolloutNews{
		Text: fmt.Sprintf("pool %s: all %d nodes have %s", p.Name, p.Machines, p.Target),
	})
}

func causeOf(a progress.Answer) string {
	cause := string(a.Verdict)
	if a.Blocking != nil {
		cause += " " + a.Blocking.String()
	}
	return cause
}

func ofAnswer(a progress.Answer, nodes []string, text string) api.RolloutNews {
	news := api.RolloutNews{Nodes: nodes, Reason: string(a.Verdict), Because: a.Because, Do: a.Do, Text: text}
	if a.Blocking != nil {
		news.Object = a.Blocking.String()
	}
	return news
}

// names returns the first names of a list, and how many more follow.
func names(list []string) string {
	const most = 5
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// Short returns a text on one line that fits into every condition and event.
func Short(text string) string {
	text = strings.ReplaceAll(text, "\n", "; ")
	if len(text) <= textLimit {
		return text
	}
	return strings.ToValidUTF8(text[:textLimit-len("…")], "") + "…"
}
