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

// pullingFile is where the process that composes an OS reports its progress.
const pullingFile = transaction.RunDir + "/pulling.json"

// Pulling is an OS that is being brought to the disk.
type Pulling struct {
	Since string `json:"since"` // RFC 3339
	// Says is the OS manager's current message, or what the process waits for.
	Says string `json:"says"`
	// PID is the process that composes: the report counts only while that process lives.
	PID int `json:"pid"`
}

// pull reports that an OS is being brought to the disk, until done is called.
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

// pullSays reports the progress. Other goroutines may call it.
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
		h.say("pull", message.OneLine(err.Error())) // the report is only for people and tools that read the status
	}
}

// pulls returns the OS that is being brought to the disk, nil where no OS is.
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
		return nil // that process was killed, and another one has its number now
	}
	return &p
}
