// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/transaction"
)

// pullingFile is where whoever composes an OS says how far it is.
const pullingFile = transaction.RunDir + "/pulling.json"

// Pulling is an OS that is being brought to the disk.
type Pulling struct {
	Since string `json:"since"` // RFC 3339
	// Says is what the OS manager says of itself at the moment, or what is waited for.
	Says string `json:"says"`
	// PID is the process that composes: nothing holds for longer than it.
	PID int `json:"pid"`
}

// pull tells that an OS is being brought to the disk, until done is called.
func (h *Host) pull(what string) (done func()) {
	h.pulling.Lock()
	h.pullingSince = h.now()
	h.pulling.Unlock()
	h.pullSays(what)
	return func() {
		h.pulling.Lock()
		defer h.pulling.Unlock()
		h.pullingSince = time.Time{}
		if err := h.root.Remove(pullingFile); err != nil {
			h.say("pull", message.OneLine(err.Error()))
		}
	}
}

// pullSays tells how far it is. It may be called from other goroutines.
func (h *Host) pullSays(text string) {
	h.say("pull", text)
	h.pulling.Lock()
	defer h.pulling.Unlock()
	if h.pullingSince.IsZero() {
		return
	}
	data, err := json.Marshal(Pulling{Since: h.pullingSince.UTC().Format(time.RFC3339), Says: text, PID: os.Getpid()})
	if err == nil {
		err = h.root.WriteRecord(pullingFile, data, 0o644)
	}
	if err != nil {
		h.say("pull", message.OneLine(err.Error())) // it is only for those who look
	}
}

// pulls is what is being brought to the disk, nil for nothing.
func (h *Host) pulls() *Pulling {
	data, err := h.root.ReadFile(pullingFile)
	var p Pulling
	if err != nil || json.Unmarshal(data, &p) != nil {
		return nil
	}
	name, err := h.root.ReadFile(fmt.Sprintf("/proc/%d/comm", p.PID))
	if err != nil {
		return nil
	}
	own, err := os.ReadFile("/proc/self/comm")
	if err != nil || strings.TrimSpace(string(name)) != strings.TrimSpace(string(own)) {
		return nil // it was killed, and the number is somebody else's
	}
	return &p
}
