// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// shortRun is how many cuts are made of an update where VM_CUTS says nothing. A cut takes minutes of a processor where
// machines are emulated.
const shortRun = 2

func number(t *testing.T, variable string, otherwise int64) int64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// updateCuts is how many cuts are made of one update. A cut needs the disk of a machine that is on its way, and not the
// machine: its memory is lost. So the disk of one update is recorded, and has as many cuts as are wanted.
const updateCuts = 10

// cutPlan is one power cut to be made, and what follows it.
type cutPlan struct {
	road    *road
	request int // of the disk, since the update began, that is not served any more
	// any order: of what was not flushed an arbitrary part lasts, instead of nothing.
	any bool
	// again is the request of the boot after the cut at which the power goes a second time, 0 for never.
	again int
	// repeat does the update once more where the cut undid it.
	repeat bool
	source *rand.Rand
}

// plans spreads n cuts over all parts of the road, and within a part where the source says; with twice some are followed
// by another.
func (r *road) plans(n int, twice bool, source *rand.Rand) []cutPlan {
	out := make([]cutPlan, n)
	order := source.Perm(len(r.marks))
	for i := range out {
		part := order[i%len(order)]
		from, to := r.marks[part].at, r.end
		if part+1 < len(r.marks) {
			to = r.marks[part+1].at
		}
		out[i] = cutPlan{road: r, request: from + 1 + source.IntN(max(1, to-from)), any: i%2 == 1, repeat: i%4 == 0,
			source: rand.New(rand.NewPCG(source.Uint64(), source.Uint64()))}
		if twice && i%4 == 3 {
			out[i].again = 1 + source.IntN(200)
		}
	}
	source.Shuffle(n, func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// TestPowerCutsOverAnUpdate cuts the power of machines that go from a to b, in every part of that, and asks each what
// it is after the next boot. VM_CUTS is how many times, VM_SEED repeats the places of an earlier run.
func TestPowerCutsOverAnUpdate(t *testing.T) {
	s := set(t, Options{})
	t.Parallel()
	cuts := number(t, "VM_CUTS", shortRun)
	s.cuts(t, int(cuts), cuts > shortRun)
}

// TestPowerCutsOverAnUpdateThatIsCounted does the same on machines whose boot loader counts the boots of b, and boots a
// when there were too many. None has anything left to count in the end. VM_GRUB_CUTS is how many times; otherwise it is
// for every fourth of VM_CUTS.
func TestPowerCutsOverAnUpdateThatIsCounted(t *testing.T) {
	s := counting(t)
	t.Parallel()
	cuts := number(t, "VM_CUTS", shortRun)
	s.cuts(t, int(number(t, "VM_GRUB_CUTS", max(1, cuts/4))), cuts > shortRun)
}

// cuts makes so many cuts, some of them twice in a row.
func (s *scene) cuts(t *testing.T, cuts int, twice bool) {
	t.Helper()
	ctx := context.Background()
	seed := number(t, "VM_SEED", time.Now().UnixNano()&0xffffffff)
	t.Logf("VM_SEED=%d", seed)
	source := rand.New(rand.NewPCG(uint64(seed), 0))
	began := time.Now()
	var mu sync.Mutex
	ended, made := map[string]int{}, 0
	queue := make(chan cutPlan)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for plan := range queue {
				began := time.Now()
				mu.Lock()
				made++
				n := made
				mu.Unlock()
				at, what, err := s.cut(ctx, fmt.Sprintf("%s-cut-%d", s.image.options.name(), n), plan)
				mu.Lock()
				ended[plan.road.in(plan.request)+" "+at]++
				mu.Unlock()
				t.Logf("cut %d, %s: ended on %q, %v", n, what, at, time.Since(began).Round(time.Second))
				report(t, fmt.Sprintf("cut %d, %s", n, what), err)
			}
		})
	}
	road := s.road
	for n := 0; n < cuts; n += updateCuts {
		if n > 0 {
			var err error
			if road, err = s.update(ctx); err != nil {
				t.Error(err)
				break
			}
		}
		for _, plan := range road.plans(min(updateCuts, cuts-n), twice, source) {
			queue <- plan
		}
	}
	close(queue)
	workers.Wait()
	t.Logf("%d cuts in %v: %v", cuts, time.Since(began).Round(time.Second), ended)
}

// report counts what a cut left wrong, and fails the test.
func report(t *testing.T, what string, err error) {
	t.Helper()
	switch {
	case err == nil:
		return
	case errors.Is(err, errTorn):
		counted.Torn.Add(1)
	case errors.Is(err, errLost):
		counted.Lost.Add(1)
	}
	t.Errorf("%s: %v", what, err)
}

// update goes from a to b once more.
func (s *scene) update(ctx context.Context) (_ *road, err error) {
	h, err := s.resume(ctx, s.image.options.name()+"-again", s.saved["a"])
	if err != nil {
		return nil, err
	}
	defer func() {
		counted.Boots.Add(int64(h.Boots() - 1))
		if err != nil {
			err = fmt.Errorf("%w; %s", err, h.lately())
		}
		err = errors.Join(err, h.Close())
	}()
	return h.walk(ctx)
}

// cut makes one cut on a machine of its own. It returns which side that was on then, and what was done.
func (s *scene) cut(ctx context.Context, name string, plan cutPlan) (at, what string, err error) {
	what = fmt.Sprintf("request %d (%s)", plan.request, plan.road.in(plan.request))
	m, err := s.image.Off(name, plan.road.disk, plan.request)
	if err != nil {
		return "", what, err
	}
	h := &vmHost{m}
	defer func() {
		counted.Boots.Add(int64(h.Boots()))
		if err != nil {
			err = fmt.Errorf("%w; %s", err, h.lately())
		}
		err = errors.Join(err, h.Close())
	}()
	lost, err := h.cutPower(plan)
	if err != nil {
		return "", what, err
	}
	what += fmt.Sprintf(", %d of %d unflushed blocks gone", lost.Lost, lost.Unflushed)
	if plan.again > 0 {
		silent := h.Silence(h.Traffic().Requests + plan.again)
		if err := h.PowerOn(ctx); err != nil {
			return "", what, err
		}
		// A boot that comes to rest with less is cut there.
		rest, cancel := context.WithCancel(ctx)
		go func() { _, _ = h.settled(rest); cancel() }()
		select {
		case <-silent:
		case <-rest.Done():
		}
		cancel()
		if lost, err = h.cutPower(plan); err != nil {
			return "", what, err
		}
		what += fmt.Sprintf(", and %d requests later once more, %d of %d gone", plan.again, lost.Lost, lost.Unflushed)
	}
	// Recovery may boot once more before everything has started.
	next := h.Boots() + 1
	if err = h.PowerOn(ctx); err == nil {
		err = h.WaitBoot(ctx, next)
	}
	if err != nil {
		counted.Ended(false)
		return "", what, fmt.Errorf("%w: it does not boot: %w", errTorn, err)
	}
	if at, _, err = h.judge(ctx, s.sides); err != nil {
		return at, what, err
	}
	left, err := h.leftovers(ctx)
	if err != nil {
		return at, what, err
	}
	what += fmt.Sprintf(", left over %v", left)
	if err := s.countsNothing(ctx, h); err != nil {
		return at, what, err
	}
	if at == "a" && plan.repeat {
		what += ", and the update once more"
		err = errors.Join(h.repeat(ctx, s.sides), s.countsNothing(ctx, h))
	}
	return at, what, err
}

// countsNothing asks the boot loader of a machine at rest. What it counted on it would leave some boots later.
func (s *scene) countsNothing(ctx context.Context, h *vmHost) error {
	if !s.image.options.counts() {
		return nil
	}
	left, err := h.uncounted(ctx)
	if err == nil && left != "" {
		err = fmt.Errorf("%w: the boot loader counts %q", errTorn, left)
	}
	return err
}

// repeat does the update again that a cut undid, and holds it to ending where it should with nothing left over.
func (h *vmHost) repeat(ctx context.Context, sides map[string]picture) error {
	if err := h.moveTo(ctx, "b", ignore); err != nil {
		return fmt.Errorf("%w: the update after the cut: %w", errTorn, err)
	}
	at, status, err := h.judge(ctx, sides)
	if err != nil {
		return err
	}
	if at != "b" || status.State != transaction.Done {
		return fmt.Errorf("%w: the update after the cut ended on %s, %s: %s", errTorn, at, status.State, status.Reason)
	}
	left, err := h.leftovers(ctx)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("the update after the cut left %v over", left)
	}
	return err
}

// cutPower counts the cut.
func (h *vmHost) cutPower(plan cutPlan) (Cut, error) {
	counted.Cuts.Add(1)
	if plan.any {
		return h.Cut(plan.source)
	}
	return h.Cut(nil)
}

// leftovers are what a machine at rest has of updates that are over: checkouts that are no deployment, journals besides
// that of the present configuration, and a staged deployment.
func (h *vmHost) leftovers(ctx context.Context) ([]string, error) {
	status, err := h.status(ctx)
	if err != nil {
		return nil, err
	}
	text, err := h.Output(ctx, "sh", "-c", `cd /ostree/deploy/`+lab.OS+`/deploy && ls -d *.[0-9]
cd `+transaction.StateDir+`/transactions && test $(ls | wc -l) -le 1 || ls
ls -d /run/ostree/staged-deployment* 2>/dev/null; true`)
	if err != nil {
		return nil, err
	}
	left := strings.Fields(text)
	return slices.DeleteFunc(left, func(name string) bool {
		return slices.ContainsFunc(status.Deployments, func(d host.DeploymentStatus) bool {
			return lab.OS+"/"+name == d.ID
		})
	}), nil
}
