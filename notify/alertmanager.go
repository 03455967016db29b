// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// These are the used parts of Alertmanager's API v2. Its own client would add a generator's runtime.
type (
	// silence is postableSilence and gettableSilence of that API.
	silence struct {
		ID        string         `json:"id,omitempty"`
		Matchers  []matcher      `json:"matchers"`
		StartsAt  time.Time      `json:"startsAt"`
		EndsAt    time.Time      `json:"endsAt"`
		CreatedBy string         `json:"createdBy"`
		Comment   string         `json:"comment"`
		Status    *silenceStatus `json:"status,omitempty"`
	}
	matcher struct {
		Name    string `json:"name"`
		Value   string `json:"value"`
		IsRegex bool   `json:"isRegex"`
		IsEqual bool   `json:"isEqual"`
	}
	silenceStatus struct {
		State string `json:"state"`
	}
)

// expired is the state of a silence that is over. Such a silence is still listed for some days.
const expired = "expired"

const silencesPath = "/api/v2/silences"

// Hold is a node that should be silent.
type Hold struct{ Node, Pool, Config string }

// Silences are the silences of a RolloutPolicy in an Alertmanager. Only the Alertmanager stores them. They are found
// again by their author and their content.
type Silences struct {
	Access Access
	Spec   api.NotificationAlertmanager
	Policy string
	UID    types.UID
}

// Holds returns the nodes of a pool that should be silent: those on their way. Alerts of a failed node must be heard.
func Holds(p progress.Pool) []Hold {
	var out []Hold
	for _, n := range p.Nodes {
		if n.Moving() {
			out = append(out, Hold{Node: n.Name, Pool: p.Name, Config: n.Desired})
		}
	}
	return out
}

// Settle makes, prolongs and ends silences until exactly the held nodes are silent. It returns how many nodes are
// silent. After an error it still does the rest.
func (s Silences) Settle(ctx context.Context, holds []Hold, now time.Time) (silent int, err error) {
	s.Access.URL = strings.TrimSuffix(s.Access.URL, "/")
	server, err := s.Access.call()
	if err != nil {
		return 0, err
	}
	defer server.client.CloseIdleConnections()
	text, err := server.ask(ctx, http.MethodGet, silencesPath, "", nil)
	if err != nil {
		return 0, err
	}
	var there []silence
	if err := json.Unmarshal(text, &there); err != nil {
		return 0, fmt.Errorf("GET %s: the answer is not that of an Alertmanager: %w", silencesPath, err)
	}
	post, end, silent := s.plan(there, holds, now)
	var errs []error
	for _, one := range post {
		body, err := json.Marshal(one)
		if err != nil {
			return 0, fmt.Errorf("making a silence: %w", err)
		}
		_, err = server.ask(ctx, http.MethodPost, silencesPath, "application/json", body)
		errs = append(errs, err)
	}
	for _, id := range end {
		_, err := server.ask(ctx, http.MethodDelete, "/api/v2/silence/"+url.PathEscape(id), "", nil)
		errs = append(errs, err)
	}
	return silent, errors.Join(errs...)
}

// plan returns which silences to post, new or longer, which to end by id, and how many nodes are silent then.
func (s Silences) plan(there []silence, holds []Hold, now time.Time) (post []silence, end []string, silent int) {
	mine := map[string][]silence{}
	var all []silence
	for _, one := range there {
		if one.CreatedBy == s.author() {
			all = append(all, one)
			mine[key(one)] = append(mine[key(one)], one)
		}
	}
	for _, h := range holds {
		held := false
		for _, label := range s.labels() {
			want := s.silence(h, label, now)
			old := slices.DeleteFunc(mine[key(want)], func(one silence) bool { return earlierUpdate(one, all) })
			delete(mine, key(want))
			one, more, keep := s.hold(want, old, now)
			if one != nil {
				post = append(post, *one)
			}
			end = append(end, more...)
			held = held || keep
		}
		if held {
			silent++
		}
	}
	for _, k := range slices.Sorted(maps.Keys(mine)) {
		end = append(end, active(mine[k])...)
	}
	return post, end, silent
}

// hold returns the silence to post for a wanted one, the old ones to end, and whether the node is held.
func (s Silences) hold(want silence, old []silence, now time.Time) (post *silence, end []string, held bool) {
	// The oldest silence tells how long the node has been silent.
	slices.SortFunc(old, func(a, b silence) int { return cmp.Or(a.StartsAt.Compare(b.StartsAt), cmp.Compare(a.ID, b.ID)) })
	length, most := s.length(), s.most()
	for i, one := range old {
		switch {
		case one.Status != nil && one.Status.State == expired:
			if one.EndsAt.Sub(one.StartsAt) >= most {
				return nil, active(old), false // its time is over, and the node is still on its way
			}
			continue
		case one.EndsAt.Sub(one.StartsAt) < most && one.EndsAt.Sub(now) < length*2/3:
			longer := one
			longer.Status = nil
			longer.EndsAt = earliest(want.EndsAt, one.StartsAt.Add(most))
			post = &longer
		}
		return post, active(old[i+1:]), true
	}
	return &want, nil, true
}

// earlierUpdate reports whether an expired silence was for an earlier update than the present one. Then a later silence
// of its node has another update.
func earlierUpdate(one silence, all []silence) bool {
	return one.Status != nil && one.Status.State == expired && slices.ContainsFunc(all, func(later silence) bool {
		return matched(later) == matched(one) && later.Comment != one.Comment && !later.StartsAt.Before(one.EndsAt)
	})
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// active returns the ids of the silences that are not over.
func active(list []silence) []string {
	var ids []string
	for _, one := range list {
		if one.Status == nil || one.Status.State != expired {
			ids = append(ids, one.ID)
		}
	}
	return ids
}

// silence returns the silence of a node, for alerts with the node in that label.
func (s Silences) silence(h Hold, label string, now time.Time) silence {
	out := silence{
		Matchers: []matcher{{Name: label, Value: regexp.QuoteMeta(h.Node) + "(:[0-9]+)?", IsRegex: true, IsEqual: true}},
		StartsAt: now.UTC(), EndsAt: now.UTC().Add(s.length()), CreatedBy: s.author(),
		Comment: fmt.Sprintf("node %s is updated to %s (pool %s, RolloutPolicy %s)", h.Node, h.Config, h.Pool, s.Policy),
	}
	for _, name := range slices.Sorted(maps.Keys(s.Spec.MatchLabels)) {
		out.Matchers = append(out.Matchers, matcher{Name: name, Value: s.Spec.MatchLabels[name], IsEqual: true})
	}
	return out
}

// key returns the identity of a silence: its matchers and its comment.
func key(one silence) string { return matched(one) + "\n" + one.Comment }

// matched returns the matchers of a silence.
func matched(one silence) string {
	var words []string
	for _, m := range one.Matchers {
		words = append(words, fmt.Sprintf("%s %q %t %t", m.Name, m.Value, m.IsRegex, m.IsEqual))
	}
	slices.Sort(words)
	return strings.Join(words, "\n")
}

// author distinguishes the silences of a policy from all others, also from those of other clusters.
func (s Silences) author() string { return "noderefit " + string(s.UID) }

// The schema has the same defaults. An object from before these defaults has none.
func (s Silences) labels() []string {
	if len(s.Spec.Labels) == 0 {
		return []string{"node", "instance"}
	}
	return s.Spec.Labels
}

func (s Silences) length() time.Duration {
	return time.Duration(cmp.Or(s.Spec.SilenceMinutes, 30)) * time.Minute
}

func (s Silences) most() time.Duration {
	return max(time.Duration(cmp.Or(s.Spec.MaxMinutes, 120))*time.Minute, s.length())
}

// Again returns when to check held silences again.
func (s Silences) Again() time.Duration { return s.length() / 4 }
