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

// checksPath keeps the answers of the check scripts in the last verdict. A failed script of wanted.d does not roll back
// the host, and the gates of a rollout ask for its answer.
const checksPath = transaction.StateDir + "/checks.json"

const (
	// A Node's annotations are limited to 256 KiB: checksShown limits the checks shown, checkReason the length of each
	// reason.
	checksShown = 50
	checkReason = 200
)

// heard collects the answers of check scripts.
type heard map[string]string

// note keeps the last answer of a script. Of two scripts with the same file name, the answer is negative if either
// answer is.
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

// judge asks the checks, and keeps the last answers of the scripts about a configuration. A script without an answer in
// this verdict is unknown; the record shows that too.
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
		h.say("prove", "recording the output of the checks failed: "+err.Error()) // the only effect: gates stay closed
	}
	return verdict
}

// checked returns the scripts' answers about the host's configuration, nil where the answers are not known.
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
