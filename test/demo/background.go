// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"sync"
)

// background is work that goes on while something else is shown.
type background[T any] struct {
	stop  context.CancelFunc
	ended chan struct{}
	made  T
	err   error

	mu sync.Mutex
	to io.Writer // gets what the work says; nil while nothing waits for the work
}

// begin has work make something.
func begin[T any](ctx context.Context, work func(context.Context, io.Writer) (T, error)) *background[T] {
	ctx, stop := context.WithCancel(ctx)
	b := &background[T]{stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(b.ended)
		b.made, b.err = work(ctx, b)
	}()
	return b
}

// Write hands on what the work says.
func (b *background[T]) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.to == nil {
		return len(p), nil
	}
	return b.to.Write(p)
}

// wait waits for the end of the work, and returns what was made. log gets what the work says meanwhile.
func (b *background[T]) wait(log io.Writer) (T, error) {
	b.mu.Lock()
	b.to = log
	b.mu.Unlock()
	<-b.ended
	return b.made, b.err
}

// end stops the work and waits for its end.
func (b *background[T]) end() {
	b.stop()
	<-b.ended
}
