// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/lab"
)

// untilLimit is how long Until waits on a machine that is busy with other work, untilPoll how often Until looks.
const (
	untilLimit = 90 * time.Second
	untilPoll  = 20 * time.Millisecond
)

// Suite is what the tests of a package share: a directory, and a control plane that starts when a test first asks for
// it.
//
//	var suite = cluster.Suite{Options: cluster.Options{Controllers: true}}
//
//	func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }
type Suite struct {
	// Options are the options of the control plane. Its directory is the suite's.
	Options Options
	// Prepare, where set, does once what all tests need in the control plane.
	Prepare func(context.Context, *Cluster) error
	// Lent is the number of control planes that tests borrow; each of them starts when no other is free.
	Lent int

	dir     string
	once    sync.Once
	cluster *Cluster
	err     error

	lending  sync.Mutex
	borrowed []*Cluster // all that were started to be lent
	free     chan *Cluster
}

// Main runs the tests, and returns the exit code of the process.
func (s *Suite) Main(m *testing.M) int {
	code, err := s.run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

func (s *Suite) run(m *testing.M) (code int, err error) {
	if s.dir, err = os.MkdirTemp("", "noderefit-suite-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(s.dir)) }()
	s.free = make(chan *Cluster, s.Lent)
	code = m.Run()
	if s.cluster != nil {
		err = s.cluster.Stop()
	}
	for _, c := range s.borrowed {
		err = errors.Join(err, c.Stop())
	}
	return code, err
}

// Dir returns a directory that is removed after all tests.
func (s *Suite) Dir() string { return s.dir }

// Cluster returns the control plane. A test gives its objects names of their own, or removes them at its end.
func (s *Suite) Cluster(t testing.TB) *Cluster {
	t.Helper()
	Need(t)
	s.once.Do(func() { s.cluster, s.err = s.start(t.Context()) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.cluster
}

// Borrow returns a control plane that no other test has until this one ends, and lets the test run beside others. Tests
// on a control plane wait for most of their time. The test removes its objects at its end.
func (s *Suite) Borrow(t *testing.T) *Cluster {
	t.Helper()
	Need(t)
	t.Parallel()
	c, err := s.lend(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.free <- c })
	return c
}

// lend takes a control plane that is free. If none is, and fewer than Lent have been started, lend starts one.
func (s *Suite) lend(ctx context.Context) (*Cluster, error) {
	select {
	case c := <-s.free:
		return c, nil
	default:
	}
	if s.Lent < 1 {
		return nil, errors.New("the suite lends no control planes: set its field Lent to how many")
	}
	s.lending.Lock()
	defer s.lending.Unlock()
	if len(s.borrowed) == s.Lent {
		return <-s.free, nil
	}
	c, err := s.start(ctx)
	if err == nil {
		s.borrowed = append(s.borrowed, c)
	}
	return c, err
}

// start starts a control plane, which outlives the test that asks first. Where Prepare fails, start stops the control
// plane: the suite has not noted it.
func (s *Suite) start(ctx context.Context) (*Cluster, error) {
	options := s.Options
	var err error
	if options.Dir, err = os.MkdirTemp(s.dir, "cluster-"); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	c, err := Start(ctx, options)
	if err != nil || s.Prepare == nil {
		return c, err
	}
	if err := s.Prepare(ctx, c); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// UntilTheEnd returns a context that ends before go test's own limit. So a test has the time to report what it was
// waiting for. Each wait has a limit of its own as well. Neither the number of waits in a test nor a busy machine makes
// that limit wrong.
func UntilTheEnd(t testing.TB) context.Context {
	t.Helper()
	limited, is := t.(interface{ Deadline() (time.Time, bool) })
	if !is {
		return t.Context()
	}
	deadline, is := limited.Deadline()
	if !is {
		return t.Context()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Until(deadline)*9/10)
	t.Cleanup(cancel)
	return ctx
}

// Until waits for a condition on the control plane, whose second result says what holds instead. The limit is 90 s:
// Kubernetes' garbage collector can take half a minute to learn of our kinds.
func Until(ctx context.Context, t testing.TB, what string, condition func() (done bool, instead any)) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, untilLimit, fmt.Errorf("not within %s", untilLimit))
	defer cancel()
	for {
		done, instead := condition()
		if done {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting until %s: %v; instead: %v", what, context.Cause(ctx), instead)
		case <-time.After(untilPoll):
		}
	}
}
