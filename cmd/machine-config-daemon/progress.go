// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// patience is how long an operation may run before its progress is shown at a terminal.
const patience = time.Second

// progress shows people the progress of an operation. On a terminal this is one line that changes, once the operation
// takes longer than a second. In a pipe or the journal it is a plain line for each phase.
type progress struct {
	mu      sync.Mutex
	out     *os.File
	tty     bool
	started time.Time
	text    string
	shown   bool
	stop    chan struct{}
	once    sync.Once
}

func newProgress(out *os.File) *progress {
	p := &progress{out: out, tty: term.IsTerminal(int(out.Fd())), started: time.Now(), stop: make(chan struct{})}
	if p.tty {
		go p.run()
	}
	return p
}

func (p *progress) say(phase, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = phase
	if what != "" {
		p.text += ": " + what
	}
	if !p.tty {
		fmt.Fprintln(p.out, p.text)
	}
}

func (p *progress) run() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.draw()
		}
	}
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := time.Since(p.started)
	if took < patience || p.text == "" {
		return
	}
	p.shown = true
	text := []rune(fmt.Sprintf("%3.0fs %s", took.Seconds(), p.text))
	if width, _, err := term.GetSize(int(p.out.Fd())); err == nil && width > 1 && len(text) >= width {
		text = text[:width-1]
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s", string(text))
}

// done removes the line, before the result is printed.
func (p *progress) done() {
	p.once.Do(func() { close(p.stop) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}
