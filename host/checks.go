// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/transaction"
)

// checksPath is where it is kept what check scripts said in the last verdict: that one of wanted.d said no is no reason
// to go back, and gates of a rollout ask for it.
const checksPath = transaction.StateDir + "/checks.json"

const (
	// A Node's annotations take 256 KiB: so many checks are shown, with so much of why one says no.
	checksShown = 50
	checkReason = 200
)

// heard collects what check scripts say.
type heard map[string]string

// note keeps the last word of a script. One that has the same file name as another says no if either does.
func (s heard) note(script string, no error) {
	name := path.Base(script)
	if _, known := s[name]; !known && len(s) >= checksShown {
		return
	}
	s[name] = ""
	if no != nil {
		text := api.ShortReason(message.OneLine(no.Error()))
		s[name] = text[:min(len(text), checkReason)]
	}
}

// judge asks the checks, and keeps what the scripts said of a configuration in the end. Without a word of theirs in
// this verdict it is not known: that is kept, too.
func (h *Host) judge(ctx context.Context, config string, said heard, checks []transaction.Check,
	until time.Time) error {
	verdict := transaction.Verdict(ctx, checks, until, h.say)
	if ctx.Err() != nil {
		return verdict
	}
	data, err := json.Marshal(api.Checks{Config: config, At: h.now().UTC().Truncate(time.Second), Said: said})
	if err == nil {
		err = h.root.WriteRecord(checksPath, data, 0o600)
	}
	if err != nil {
		h.say("prove", "what the checks said could not be kept: "+err.Error()) // which closes gates, and nothing else
	}
	return verdict
}

// checked is what check scripts said of the configuration that the host has; nil: that is not known.
func (h *Host) checked(config string) *api.Checks {
	data, err := h.root.ReadFile(checksPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var c api.Checks
	if err != nil || json.Unmarshal(data, &c) != nil || config == "" || c.Config != config {
		return nil
	}
	return &c
}
