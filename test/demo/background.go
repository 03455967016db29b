// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"sync"
)

// background is work that goes on while something else is shown.
type background struct {
	stop  context.CancelFunc
	ended chan struct{}
	path  string // of what was made
	err   error

	mu sync.Mutex
	to io.Writer // gets what the work says; nil while nothing waits for the work
}

// begin has work make a file.
func begin(ctx context.Context, work func(context.Context, io.Writer) (string, error)) *background {
	ctx, stop := context.WithCancel(ctx)
	b := &background{stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(b.ended)
		b.path, b.err = work(ctx, b)
	}()
	return b
}

// Write hands on what the work says.
func (b *background) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.to == nil {
		return len(p), nil
	}
	return b.to.Write(p)
}

// wait waits for the end of the work, and returns the path of what was made. log gets what the work says meanwhile.
func (b *background) wait(log io.Writer) (string, error) {
	b.mu.Lock()
	b.to = log
	b.mu.Unlock()
	<-b.ended
	return b.path, b.err
}

// end stops the work and waits for its end.
func (b *background) end() {
	b.stop()
	<-b.ended
}
