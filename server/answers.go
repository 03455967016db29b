// SPDX-License-Identifier: Apache-2.0

package server

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coreos/go-semver/semver"
	"golang.org/x/sync/singleflight"
)

const (
	// answersLimit is how many bytes of answers may be in memory, including those that clients still read. That is about
	// 25 of the largest MachineConfigs that an API server takes. With the limits below and Go's share for garbage, the
	// server stays below the 512 MiB that it is given.
	answersLimit = 64 << 20
	// makesAtOnce is how many answers are made at a time. Making an answer takes twelve times its size, and a processor.
	makesAtOnce = 4
	// asksAtOnce is how many questions about a configuration are asked at a time.
	asksAtOnce = 4
	// workLimit is how long making an answer may take, so that waiting for it ends.
	workLimit = 30 * time.Second
	// leastSize is the least size that an answer counts, because an error takes memory too.
	leastSize = 1 << 10
)

// recipe is everything that an answer depends on, besides the options of the server.
type recipe struct {
	// config and content are the name of the configuration and its version at the Source.
	config, content string
	version         semver.Version
	newest, known   bool
	// join is the digest of the kubeconfig for joining.
	join [sha256.Size]byte
}

// answer is the one copy for all clients with the same recipe: a body, or the error that the recipe always ends with.
type answer struct {
	recipe recipe
	body   []byte
	err    error
	// place is the answer's element of answers.order; nil once the answer was dropped.
	place *list.Element
	// readers are the clients that hold the answer.
	readers map[*reader]bool
}

func (a *answer) size() int64 { return max(int64(len(a.body)), leastSize) }

// reader is a client that holds an answer. cut ends its reading at once.
type reader struct{ cut func() }

// answers holds the answers, up to a limit in bytes. At the limit it drops the answer that was asked for longest ago,
// among those that no client reads.
//
// If clients read all answers, the readers of the oldest, which are the slowest, are cut. A new machine is served in a
// moment, and must not wait for clients that may never end. This is the last resort, since an Ignition that is cut
// stops.
type answers struct {
	limit int64

	mu sync.Mutex
	// left is signalled when readers have left an answer that was dropped.
	left  *sync.Cond
	found map[recipe]*answer
	order *list.List // of *answer; the answer that was asked for last is at the back
	// bytes counts all answers that are found or read. leaving counts those that were dropped, and that only cut readers
	// still hold.
	bytes, leaving int64
}

func newAnswers(limit int64) *answers {
	a := &answers{limit: limit, found: map[recipe]*answer{}, order: list.New()}
	a.left = sync.NewCond(&a.mu)
	return a
}

// take finds an answer and holds it for a reader, until the reader calls leave. It returns nil if the answer is not
// found.
func (a *answers) take(of recipe, by *reader) *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.found[of]
	if one != nil {
		a.order.MoveToBack(one.place)
		one.readers[by] = true
	}
	return one
}

// leave ends a reader's hold.
func (a *answers) leave(one *answer, by *reader) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(one.readers, by)
	a.settle(one)
}

// has reports whether an answer can be found.
func (a *answers) has(of recipe) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.found[of] != nil
}

// put makes an answer be found, as soon as there is room for it. No answer of the same recipe may be found yet. Waiting
// for room ends with ctx. Readers that were cut leave at once, unless something is wrong with them.
func (a *answers) put(ctx context.Context, one *answer) error {
	stop := context.AfterFunc(ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.left.Broadcast()
	})
	defer stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.bytes > 0 && a.bytes+one.size() > a.limit {
		if old := a.oldest(); old != nil && a.bytes-a.leaving+one.size() > a.limit {
			a.drop(old)
		} else if err := ctx.Err(); err != nil {
			return unavailable{fmt.Errorf("waiting for room to answer with %s: %w", one.recipe.config, err)}
		} else {
			a.left.Wait()
		}
	}
	one.readers = map[*reader]bool{}
	one.place = a.order.PushBack(one)
	a.found[one.recipe] = one
	a.bytes += one.size()
	return nil
}

// oldest returns the answer that goes first, and nil if no answer is found.
func (a *answers) oldest() *answer {
	for e := a.order.Front(); e != nil; e = e.Next() {
		if one, is := e.Value.(*answer); is && len(one.readers) == 0 {
			return one
		}
	}
	if first := a.order.Front(); first != nil {
		one, _ := first.Value.(*answer)
		return one
	}
	return nil
}

// drop makes an answer no longer be found, and cuts its readers.
func (a *answers) drop(one *answer) {
	a.order.Remove(one.place)
	one.place = nil
	delete(a.found, one.recipe)
	a.leaving += one.size()
	for r := range one.readers {
		r.cut()
	}
	a.settle(one)
}

// settle frees the room of an answer that is neither found nor read.
func (a *answers) settle(one *answer) {
	if one.place == nil && len(one.readers) == 0 {
		a.bytes -= one.size()
		a.leaving -= one.size()
		a.left.Broadcast()
	}
}

// held returns how many bytes of answers are in memory.
func (a *answers) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// works does one piece of work for all callers with the same key, and only a few pieces at a time.
type works[T any] struct {
	group singleflight.Group
	slots chan struct{}
	// With fresh, callers share only work that has not yet begun, so that no result is older than its question.
	fresh bool
}

// do returns the result of the work for a key. A client that goes away is released at once, and the work goes on for
// the others.
func (w *works[T]) do(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	var none T
	done := w.group.DoChan(key, func() (_ any, err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workLimit)
		defer cancel()
		defer func() {
			if cause := recover(); cause != nil {
				err = panicked{cause, debug.Stack()}
			}
		}()
		select {
		case w.slots <- struct{}{}:
			defer func() { <-w.slots }()
		case <-ctx.Done():
			return nil, unavailable{fmt.Errorf("waiting for a turn to answer: %w", ctx.Err())}
		}
		if w.fresh {
			w.group.Forget(key)
		}
		return work(ctx)
	})
	select {
	case <-ctx.Done():
		return none, unavailable{fmt.Errorf("waiting for an answer: %w", ctx.Err())}
	case result := <-done:
		if p, is := errors.AsType[panicked](result.Err); is {
			panic(p.Error())
		}
		out, _ := result.Val.(T)
		return out, result.Err
	}
}

// panicked carries a panic from the goroutine of a shared work to the goroutines of the clients. There the HTTP server
// ends the one request. In the former goroutine the panic would end the whole process.
type panicked struct {
	cause any
	stack []byte
}

func (p panicked) Error() string { return fmt.Sprintf("%v\n%s", p.cause, p.stack) }

// lasts reports whether an error always follows from the recipe. Other errors are temporary.
func lasts(err error) bool {
	return !errors.As(err, new(behind)) && !errors.As(err, new(unavailable))
}
