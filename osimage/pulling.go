// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/noderefit/noderefit/files"
)

// Pulling is an OS, or contents, that a process is bringing to the disk.
type Pulling struct {
	Since string `json:"since"` // RFC 3339
	// Says is the OS manager's current message, or what the process waits for.
	Says string `json:"says"`
	// PID is the process that pulls: the report counts only while that process lives.
	PID int `json:"pid"`
}

// Progress reports in a file of the host what this process is bringing to the disk.
type Progress struct {
	Root *files.Root
	// File is the path of the report.
	File string
	Now  func() time.Time
	// Say is for people.
	Say func(text string)

	mu    sync.Mutex
	since time.Time
}

// Begin reports that something is being brought to the disk, until done is called.
func (p *Progress) Begin(what string) (done func()) {
	p.mu.Lock()
	p.since = p.Now()
	p.mu.Unlock()
	p.Says(what)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.since = time.Time{}
		if err := p.Root.Remove(p.File); err != nil {
			p.Say(err.Error())
		}
	}
}

// Says reports the progress. Other goroutines may call it.
func (p *Progress) Says(text string) {
	p.Say(text)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		return
	}
	data, err := json.Marshal(Pulling{Since: p.since.UTC().Format(time.RFC3339), Says: text, PID: os.Getpid()})
	if err == nil {
		err = p.Root.WriteRecord(p.File, data, 0o644)
	}
	if err != nil {
		p.Say(err.Error()) // the report is only for people and tools that read the status
	}
}

// Read returns what a living process is bringing to the disk, nil where no process is.
func (p *Progress) Read() *Pulling {
	data, err := p.Root.ReadFile(p.File)
	var found Pulling
	if err != nil || json.Unmarshal(data, &found) != nil {
		return nil
	}
	name, err := p.Root.ReadFile(fmt.Sprintf("/proc/%d/comm", found.PID))
	if err != nil {
		return nil
	}
	own, err := os.ReadFile("/proc/self/comm")
	if err != nil || strings.TrimSpace(string(name)) != strings.TrimSpace(string(own)) {
		return nil // that process was killed, and another one has its number now
	}
	return &found
}
