// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"time"
)

const (
	// TrialKey is the annotation of a Node that holds a Trial. People write it, by kubectl refit try.
	TrialKey = ownPrefix + "trial"
	// TriedKey is the annotation of a Node that holds a Tried. The pool controller writes it.
	TriedKey = ownPrefix + "tried"
)

// LongestTrial is the longest time for which a configuration may be tried.
const LongestTrial = 7 * 24 * time.Hour

// Trial is a person's order that a node tries a rendered configuration that is not its pool's. Without the order the
// node goes back.
type Trial struct {
	Config string `json:"config"`
	// From is the configuration that the pool had when the order was made. The node goes back to it.
	From  string    `json:"from"`
	By    string    `json:"by"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
	// Seconds is how long the node keeps the configuration after the verdict.
	Seconds int `json:"seconds"`
	// Bypass is true where the trial begins although the pool's RolloutPolicy lets no node begin.
	Bypass bool `json:"bypass,omitempty"`
}

// For returns how long the node keeps the configuration after the verdict.
func (t *Trial) For() time.Duration { return time.Duration(t.Seconds) * time.Second }

// Tried is how far a trial is.
type Tried struct {
	Config string `json:"config"`
	From   string `json:"from"`
	By     string `json:"by,omitempty"`
	Why    string `json:"why,omitempty"`
	// Pool is the pool of the node when the trial began.
	Pool string `json:"pool,omitempty"`
	// Ordered is the Since of the order.
	Ordered time.Time `json:"ordered"`
	// Begun is when the node was sent. Proved is when the configuration had its verdict; zero before that.
	Begun  time.Time `json:"begun"`
	Proved time.Time `json:"proved,omitzero"`
	// Until is when the node goes back by itself.
	Until time.Time `json:"until,omitzero"`
	// Ended is when the trial ended, and Because the reason. Ended is zero before that.
	Ended   time.Time `json:"ended,omitzero"`
	Because string    `json:"because,omitempty"`
	// Kept is true where the node is not sent back: its pool got the configuration, or the node got another pool.
	Kept bool `json:"kept,omitempty"`
}

// trialOf reads the order and the record of a trial. An order that is not whole counts as no order, so that a node goes
// back rather than forward.
func trialOf(annotations map[string]string) (*Trial, *Tried, error) {
	order, orderErr := Decode[*Trial](annotations, TrialKey)
	if orderErr == nil && order != nil {
		orderErr = order.check()
	}
	if orderErr != nil {
		order = nil
	}
	tried, triedErr := Decode[*Tried](annotations, TriedKey)
	if triedErr == nil && tried != nil && (tried.Config == "" || tried.From == "" || tried.Begun.IsZero()) {
		tried, triedErr = nil, fmt.Errorf("annotation %s: config, from and begun are needed", TriedKey)
	}
	if order != nil {
		order.By, order.Why = line(order.By, longestName), line(order.Why, quarantineReason)
	}
	if tried != nil {
		tried.By, tried.Why = line(tried.By, longestName), line(tried.Why, quarantineReason)
		tried.Because = line(tried.Because, quarantineReason)
	}
	return order, tried, errors.Join(orderErr, triedErr)
}

// line returns a text of at most so many bytes in one line.
func line(text string, most int) string { return shorten(ShortReason(text), most) }

func (t *Trial) check() error {
	switch {
	case t.Config == "" || t.From == "" || t.Since.IsZero():
		return fmt.Errorf("annotation %s: config, from and since are needed", TrialKey)
	case len(t.Config) > longestName || len(t.From) > longestName:
		return fmt.Errorf("annotation %s: config or from has more than %d bytes", TrialKey, longestName)
	case t.Seconds < 0 || t.Seconds > int(LongestTrial/time.Second): // more would overflow a duration
		return fmt.Errorf("annotation %s: seconds is %d: at least 0 and at most %d", TrialKey, t.Seconds,
			int(LongestTrial/time.Second))
	}
	return nil
}
