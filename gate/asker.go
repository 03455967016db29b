// SPDX-License-Identifier: Apache-2.0

// Package gate asks the questions of the gates of RolloutPolicies. It asks the cluster's objects, Prometheus, Jobs,
// hosts and programs that answer by annotations. Package gate decides nothing: package rollout has the questions, and
// judges the answers.
package gate

import (
	"context"
	"reflect"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/rollout"
)

const (
	// stale is after how long a question is asked again.
	stale = 15 * time.Second
	// patience is how long one answer may take.
	patience = 10 * time.Second
	// atOnce is how many questions are asked at the same time.
	atOnce = 8
	// pause is the time between two checks for questions that are due.
	pause = time.Second
)

// Asker asks questions in the background and remembers the answers. After its start it knows no answers.
type Asker struct {
	client client.Client
	now    func() time.Time
	wake   chan struct{}
	news   chan event.GenericEvent

	mu   sync.Mutex
	open map[rollout.Question]*question
}

type question struct {
	rollout.Ask

	// before is the answer of an earlier process.
	before, answer rollout.Answer
	asked          time.Time // by the machine's clock
	busy           bool
}

// New returns an asker. Its client must not cache the objects. now is the clock of the rollout.
func New(c client.Client, now func() time.Time) *Asker {
	return &Asker{
		client: c, now: now, wake: make(chan struct{}, 1), news: make(chan event.GenericEvent, 1),
		open: map[rollout.Question]*question{},
	}
}

// Ask replaces the questions. before are the answers of an earlier process. An answer keeps its start time from there,
// but does not count before it was asked again.
func (a *Asker) Ask(open []rollout.Ask, before rollout.Answers) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := make(map[rollout.Question]*question, len(open))
	for _, ask := range open {
		known := a.open[ask.Question]
		switch {
		case known == nil:
			known = &question{Ask: ask, before: before(ask.Question)}
		case !reflect.DeepEqual(known.How, ask.How):
			known = &question{Ask: ask}
		}
		known.Nodes = ask.Nodes
		next[ask.Question] = known
	}
	a.open = next
	poke(a.wake)
}

// Answer returns the known answer to a question.
func (a *Asker) Answer(q rollout.Question) rollout.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.open[q]; known != nil {
		return known.answer
	}
	return rollout.Answer{}
}

// Changed returns a channel that reports changed answers.
func (a *Asker) Changed() <-chan event.GenericEvent { return a.news }

// Start asks until the context ends. A manager runs Start in the leading process.
func (a *Asker) Start(ctx context.Context) error {
	var busy sync.WaitGroup
	defer busy.Wait()
	places := make(chan struct{}, atOnce)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		for _, q := range a.due() {
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			busy.Go(func() {
				a.put(ctx, q)
				<-places
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-tick.C:
		}
	}
}

// due returns the questions to ask now. Each is marked busy until its answer has come.
func (a *Asker) due() []*question {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*question
	for _, q := range a.open {
		if !q.busy && time.Since(q.asked) >= stale {
			q.busy = true
			out = append(out, q)
		}
	}
	return out
}

// put asks a question and records the answer.
func (a *Asker) put(ctx context.Context, q *question) {
	a.mu.Lock()
	ask := q.Ask
	open := a.open[ask.Question] == q
	a.mu.Unlock()
	if !open {
		return // the question is no longer open
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	message, err := a.evaluate(asking, ask)
	if ctx.Err() != nil {
		return // no answer came
	}
	if err != nil {
		message = "it can't be asked: " + explain(err)
	}
	a.mu.Lock()
	before := q.answer
	q.answer = follow(q.answer, q.before, api.ShortReason(message), a.now().UTC().Truncate(time.Second))
	q.asked, q.busy = time.Now(), false
	changed := before.At.IsZero() || before.Passed != q.answer.Passed || before.Message != q.answer.Message
	a.mu.Unlock()
	if changed {
		poke(a.news)
	}
}

// follow returns the answer after the last one, of this process or of an earlier one. An empty message is a yes.
func follow(last, before rollout.Answer, message string, now time.Time) rollout.Answer {
	if last.At.IsZero() {
		last = before
	}
	next := rollout.Answer{
		Passed: message == "", Message: message, At: now, Since: now, Closed: last.Closed, First: last.First,
	}
	switch {
	case last.At.IsZero():
		next.First = now
	case last.Passed == next.Passed:
		next.Since = last.Since
	case last.Passed:
		next.Closed = now
	}
	return next
}

// poke sends a value to the listener. Several calls before it is received send one value.
func poke[T any](c chan T) {
	var something T
	select {
	case c <- something:
	default:
	}
}
