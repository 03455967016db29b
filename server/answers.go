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
	// answersLimit is how many bytes of answers are in memory, those that clients still read among them: some 25 of the
	// largest MachineConfigs that an API server takes. With what is below and Go's share for garbage that is less than
	// the 512 MiB that the server is given.
	answersLimit = 64 << 20
	// makesAtOnce is how many answers are made at a time: making one takes twelve times its size, and a processor.
	makesAtOnce = 4
	// asksAtOnce is how many questions about a configuration are asked at a time.
	asksAtOnce = 4
	// workLimit is how long an answer may take to be made, so that waiting for one ends.
	workLimit = 30 * time.Second
	// leastSize is what an answer counts at least, for one that is an error has memory too.
	leastSize = 1 << 10
)

// recipe is all that an answer is a function of, beside what the server was started with.
type recipe struct {
	// config and content are the name of the configuration and its version at the Source.
	config, content string
	version         semver.Version
	newest, known   bool
	// join is the digest of the kubeconfig to join with.
	join [sha256.Size]byte
}

// answer is the one copy for all clients who are to have it: a body, or the error that the recipe always ends with.
type answer struct {
	recipe recipe
	body   []byte
	err    error
	// place is where the answer is among those that are found, nil once it is not.
	place *list.Element
	// readers are those who hold the answer.
	readers map[*reader]bool
}

func (a *answer) size() int64 { return max(int64(len(a.body)), leastSize) }

// reader is a client who holds an answer. cut ends its reading at once.
type reader struct{ cut func() }

// answers hold what was made, up to a limit in bytes. Where the limit is met, the answer goes that was asked for
// longest ago, of those that no client reads if there are any. Else its readers, the slowest, are cut: a new machine is
// served in a moment, and must not wait for clients that may never end. An Ignition that is cut stops, so this is the
// last resort.
type answers struct {
	limit int64

	mu sync.Mutex
	// left is told when readers have left an answer that is not found any more.
	left  *sync.Cond
	found map[recipe]*answer
	order *list.List // of *answer, the one that was asked for last at the back
	// bytes are those of all that are found or read, leaving those of the ones that only readers who were cut hold.
	bytes, leaving int64
}

func newAnswers(limit int64) *answers {
	a := &answers{limit: limit, found: map[recipe]*answer{}, order: list.New()}
	a.left = sync.NewCond(&a.mu)
	return a
}

// take finds an answer and holds it for a reader, who leaves it. It is nil where there is none.
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

// has reports whether an answer is found.
func (a *answers) has(of recipe) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.found[of] != nil
}

// put has an answer found from now on, as soon as there is room for it. There is none of its recipe yet. What waits
// for room ends with ctx: readers that were cut leave at once, unless something is wrong with them.
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

// oldest is the answer that goes first; nil: there is none.
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

// drop has an answer not be found any more, and its readers cut.
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

// settle gives the room back of an answer that is neither found nor read.
func (a *answers) settle(one *answer) {
	if one.place == nil && len(one.readers) == 0 {
		a.bytes -= one.size()
		a.leaving -= one.size()
		a.left.Broadcast()
	}
}

// held returns the bytes in memory.
func (a *answers) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// works does one piece of work for all who ask for the same, and a few pieces at a time.
type works[T any] struct {
	group singleflight.Group
	slots chan struct{}
	// fresh keeps from somebody what was begun before they asked: they share only what has yet to begin.
	fresh bool
}

// do returns what the work of that key came to. A client who goes away is let go at once, and the work goes on for the
// others.
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

// panicked is a panic on its way from the goroutine of a shared work to those of the clients, where the HTTP server
// ends the one request. Where it was born, the whole process would end.
type panicked struct {
	cause any
	stack []byte
}

func (p panicked) Error() string { return fmt.Sprintf("%v\n%s", p.cause, p.stack) }

// lasts reports whether an error is that of the recipe, rather than of the moment.
func lasts(err error) bool {
	return !errors.As(err, new(behind)) && !errors.As(err, new(unavailable))
}
