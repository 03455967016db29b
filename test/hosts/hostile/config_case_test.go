// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// deadline is how long a boot of a configuration may take to prove itself; margin is what a boot, a verdict and the way
// back take besides, on a machine that has other things to do. It is longer than the 90 s that systemd gives generators,
// and services that are to stop.
const (
	deadline = 20 * time.Second
	margin   = 2 * time.Minute
)

// attempts is how many boots a configuration gets; one more is the boot that gives it up, and two are on A.
const attempts = 3

// patience is how long one command may take on a host.
const patience = time.Minute

// poll is how often a host is looked at.
const poll = 100 * time.Millisecond

// end is how a hostile configuration ended.
type end string

const (
	refused end = "refused"
	proved  end = "proved"
	back    end = "came back"
	stuck   end = "stuck"
)

// result is what became of one configuration.
type result struct {
	end
	why      string // what is wrong when it is stuck, what the agent says otherwise
	switched int    // how often the lab had to switch the host on
	counted  bool   // the boot loader had to go back
	took     time.Duration
	journal  string // of a host that is stuck
}

func (r result) String() string {
	text := string(r.end)
	if r.switched > 0 {
		text += fmt.Sprintf(" (switched on %d times)", r.switched)
	}
	if r.counted {
		text += " (by the boot loader's counter)"
	}
	return fmt.Sprintf("%s in %.0f s: %s", text, r.took.Seconds(), r.why)
}

// onA is what every host starts from: one that has settled on A, switched off.
var onA = sync.OnceValues(func() (h *lab.Host, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	base, err := lab.Prepare(ctx, "", nopWriter{})
	if err != nil {
		return nil, err
	}
	program, err := agent()
	if err != nil {
		return nil, err
	}
	n, err := node.New(ctx, base, program, lab.Options{Name: "hostile"})
	if err != nil {
		return nil, err
	}
	shared(n.Close)
	if _, _, err := n.Apply(ctx, harmless("a")); err != nil {
		return nil, err
	}
	if s, err := n.WaitState(ctx, transaction.Done); err != nil || s.Config.Committed != "a" {
		return nil, fmt.Errorf("going to a: %+v, %w", s, err)
	}
	if _, err := n.Output(ctx, "systemctl", "poweroff", "--no-block"); err != nil {
		return nil, err
	}
	return n.Host, n.WaitOff(ctx)
})

type nopWriter struct{}

func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }

// subject is a host that a configuration is tried on.
type subject struct {
	*node.Node
	store *transaction.Store // its record, as its disk has it

	switched int
	counted  bool
}

func newSubject(ctx context.Context) (*subject, error) {
	from, err := onA()
	if err != nil {
		return nil, err
	}
	h, err := from.Base().NewHost(ctx, "", lab.Options{Name: "hostile"})
	if err != nil {
		return nil, err
	}
	s := &subject{Node: &node.Node{Host: h}}
	root, err := files.Open(filepath.Join(h.Sysroot(), "ostree/deploy", lab.OS))
	if err == nil {
		s.store, err = transaction.NewStore(root), h.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return s, nil
}

// try goes to a configuration, and says what came of it.
func try(ctx context.Context, doc []byte) (r result, err error) {
	began := time.Now()
	s, err := newSubject(ctx)
	if err != nil {
		return result{}, err
	}
	defer func() {
		if r.end == stuck {
			if text, jerr := s.Journal(ctx); jerr == nil {
				r.journal = text
			}
			console, _ := s.Console()
			r.journal += "\nconsole:\n" + console[max(0, len(console)-3000):]
		}
		r.switched, r.counted, r.took = s.switched, s.counted, time.Since(began)
		err = errors.Join(err, s.Close())
	}()
	before, err := s.store.Load()
	if err != nil {
		return result{}, err
	}
	exit, said, err := s.apply(ctx, "b", doc, deadline)
	if err != nil {
		return result{}, err
	}
	switch exit {
	case 0:
	case 1, 3:
		return s.untouched(ctx, before, said)
	default:
		return result{end: stuck, why: fmt.Sprintf("apply: exit %d: %s", exit, said)}, nil
	}
	rec, why := s.settle(ctx, deadline, s.Boots())
	switch {
	case why != "":
		return result{end: stuck, why: why}, nil
	case rec.Committed == nil:
		return result{end: stuck, why: "the record is gone"}, nil
	case on(rec, "b"):
		return s.andBack(ctx)
	case rec.State == transaction.RolledBack && rec.Committed.Config == "a":
		return s.andOn(ctx, rec.Reason)
	}
	return result{end: stuck, why: standing(rec)}, nil
}

// on reports whether a host has settled on a configuration.
func on(r *transaction.Record, config string) bool {
	return r.State == transaction.Done && r.Pending == nil && r.Committed != nil && r.Committed.Config == config
}

func standing(r *transaction.Record) string {
	text := fmt.Sprintf("%s: %s", r.State, r.Reason)
	if r.Committed != nil {
		text += ", committed " + r.Committed.Config
	}
	if p := r.Pending; p != nil {
		text += fmt.Sprintf(", pending %s, %s, attempt %d", p.Config, p.Phase, p.Attempts)
	}
	return text
}

// apply runs apply on the host. What a host says that goes down under the command is what it has done.
func (s *subject) apply(ctx context.Context, name string, doc []byte, timeout time.Duration) (int, string, error) {
	at, err := s.Document(name+".json", doc)
	if err != nil {
		return 0, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, said, exit, err := s.Agent(ctx, "apply", "--config", at, "--verdict-timeout", timeout.String())
	if ctx.Err() != nil {
		return -1, "it did not end in " + patience.String(), nil
	}
	if exit == -1 && err == nil {
		exit = 0
	}
	said = strings.TrimSpace(said)
	return exit, said[max(0, strings.LastIndex(said, "error: ")):], err
}

// untouched looks at a host that has refused a configuration.
func (s *subject) untouched(ctx context.Context, before *transaction.Record, said string) (result, error) {
	after, err := s.store.Load()
	if err != nil {
		return result{}, err
	}
	if after.Pending != nil || after.Committed == nil || after.Committed.Digest != before.Committed.Digest {
		return result{end: stuck, why: "refused, but " + standing(after) + ": " + said}, nil
	}
	if stdout, stderr, exit, err := s.Agent(ctx, "verify"); err != nil || exit != 0 {
		return result{end: stuck, why: fmt.Sprintf("refused (%s), but verify: exit %d, %v: %s%s", said, exit, err, stdout, stderr)}, nil
	}
	if !strings.Contains(said, "error: ") {
		return result{end: stuck, why: "refused without a word: " + said}, nil
	}
	r := result{end: refused, why: said}
	if after.State == transaction.Done || after.State == transaction.Unreconcilable {
		return r, nil
	}
	// It was found on the way, and taken back.
	if why := s.goOn(ctx); why != "" {
		return result{end: stuck, why: "refused (" + said + "), but " + why}, nil
	}
	return r, nil
}

// andBack goes from a configuration that proved itself back to A.
func (s *subject) andBack(ctx context.Context) (result, error) {
	boots := s.Boots()
	exit, said, err := s.apply(ctx, "a", harmless("a"), margin)
	if err != nil || exit != 0 {
		return result{end: stuck, why: fmt.Sprintf("it proves, but going back: exit %d: %s", exit, reason(said, err))}, nil
	}
	rec, why := s.settle(ctx, margin, boots)
	if why == "" && !on(rec, "a") {
		why = standing(rec)
	}
	if why != "" {
		return result{end: stuck, why: "it proves, but going back: " + why}, nil
	}
	return result{end: proved, why: "and went back to a"}, nil
}

// andOn goes from a host that has come back to a harmless configuration.
func (s *subject) andOn(ctx context.Context, reason string) (result, error) {
	why := s.waitUp(ctx)
	if why == "" {
		why = s.goOn(ctx)
	}
	if why != "" {
		return result{end: stuck, why: "RolledBack (" + reason + "), but " + why}, nil
	}
	return result{end: back, why: reason}, nil
}

// goOn goes to a harmless configuration, and says what is in the way.
func (s *subject) goOn(ctx context.Context) (why string) {
	boots := s.Boots()
	exit, said, err := s.apply(ctx, "c", harmless("c"), margin)
	if err != nil || exit != 0 {
		return fmt.Sprintf("the next one: exit %d: %s", exit, reason(said, err))
	}
	rec, why := s.settle(ctx, margin, boots)
	if why == "" && !on(rec, "c") {
		why = standing(rec)
	}
	if why != "" {
		return "the next one: " + why
	}
	return ""
}

// reason is why a command did not do what it was to, by what it said or by what kept it from saying so.
func reason(said string, err error) string {
	if err != nil {
		return err.Error()
	}
	return said
}

// waitUp waits until the host answers.
func (s *subject) waitUp(ctx context.Context) (why string) {
	ctx, cancel := context.WithTimeout(ctx, margin)
	defer cancel()
	if err := s.WaitBoot(ctx, s.Boots()); err != nil {
		return err.Error()
	}
	return ""
}

// settle waits until nothing is pending on the host, which has begun so many boots before, and returns its record; or
// says why that will not be. Each boot has its own limit, and there are no more of them than attempts allow.
func (s *subject) settle(ctx context.Context, deadline time.Duration, before int) (*transaction.Record, string) {
	boots, since := s.Boots(), time.Now()
	presses := 0
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		rec, err := s.store.Load()
		if err == nil && rec.Pending == nil {
			return rec, ""
		}
		if now := s.Boots(); now != boots {
			boots, since = now, time.Now()
		}
		last := "the record: " + fmt.Sprint(err)
		if err == nil {
			last = standing(rec)
		}
		switch {
		case boots-before > attempts+3:
			return nil, fmt.Sprintf("%d boots; %s", boots-before, last)
		case boots-before > attempts && !s.counted && err == nil && rec.Pending.Phase == transaction.PhaseBoot:
			// No boot of it came as far as recovery, which would have counted it: the boot loader has.
			if err := s.PowerCut(); err != nil {
				return nil, err.Error()
			}
			s.counted = true
			if err := s.PowerOnFallback(); err != nil {
				return nil, err.Error()
			}
		case time.Since(since) > deadline+margin:
			return nil, fmt.Sprintf("nothing more in %s; %s; the host %s", deadline+margin, last, s.condition(ctx))
		case s.off():
			if presses++; presses > attempts+1 {
				return nil, "it goes off whatever boots; " + last
			}
			s.switched++
			if err := s.PowerOn(); err != nil {
				return nil, err.Error()
			}
			since = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx).Error()
		case <-tick.C:
		}
	}
}

// off reports whether the host is off, without waiting.
func (s *subject) off() bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return s.WaitOff(ctx) == nil
}

// condition is what the host's systemd says of a host that does not get anywhere.
func (s *subject) condition(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stdout, stderr, exit, err := s.Exec(ctx, nil, "sh", "-c",
		`systemctl is-system-running; systemctl list-jobs --no-legend | head -5; systemctl --failed --no-legend | head -5
systemctl show -P LoadState -P ActiveState -P Result machine-config-daemon-recover machine-config-daemon-prove | tr '\n' ' '`)
	if err != nil {
		return "does not answer: " + err.Error()
	}
	return fmt.Sprintf("says (%d): %s", exit, strings.Join(strings.Fields(string(stdout)+string(stderr)), " "))
}

// runner returns what is needed to try configurations in a test.
func runner(t *testing.T) context.Context {
	t.Helper()
	lab.Need(t)
	if _, err := onA(); err != nil {
		t.Fatal(err)
	}
	return t.Context()
}
