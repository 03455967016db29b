// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
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
)

// number is what the environment says, or other.
func number(t *testing.T, name string, other int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return other
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// configuration is B with its pieces.
type configuration []piece

func (c configuration) String() string {
	var names []string
	for _, p := range c {
		names = append(names, p.name)
	}
	return strings.Join(names, " + ")
}

func (c configuration) document() []byte {
	d := base("b")
	for _, p := range c {
		p.put(d)
	}
	return d.render("b")
}

// generate makes n configurations. The first two thirds are single pieces, none of them twice while there are others;
// the rest combines two or three, without those about the agent's own units, which are refused whatever is beside them.
func generate(seed uint64, n int) []configuration {
	source := rand.New(rand.NewPCG(seed, seed))
	all := pieces()
	slices.SortFunc(all, func(a, b piece) int { return strings.Compare(a.name, b.name) })
	order := source.Perm(len(all))
	var made []configuration
	for i := range n {
		if single := n - n/3; i < min(single, len(all)) {
			made = append(made, configuration{all[order[i]]})
			continue
		}
		c, size := configuration{}, 2+source.IntN(2)
		for _, k := range source.Perm(len(all)) {
			if len(c) < size && !strings.Contains(all[k].name, "machine-") {
				c = append(c, all[k])
			}
		}
		made = append(made, c)
	}
	return made
}

// named finds the configurations that HOSTILE_ONLY names, a line each.
func named(t *testing.T, text string) (all []configuration) {
	t.Helper()
	known := pieces() // once: some are in the order of a map
	for line := range strings.Lines(text) {
		var c configuration
		for name := range strings.SplitSeq(strings.TrimSpace(line), " + ") {
			i := slices.IndexFunc(known, func(p piece) bool { return p.name == name })
			if i < 0 {
				t.Fatalf("HOSTILE_ONLY: no piece is called %q", name)
			}
			c = append(c, known[i])
		}
		all = append(all, c)
	}
	return all
}

// tally counts what became of configurations.
type tally struct {
	sync.Mutex
	tried, counted int
	ends           map[end]int
	stuck          []string
}

func (c *tally) add(r result, minimal string) {
	c.Lock()
	defer c.Unlock()
	c.tried++
	c.ends[r.end]++
	if r.counted {
		c.counted++
	}
	if r.end == stuck {
		c.stuck = append(c.stuck, minimal)
	}
}

func (c *tally) line() (string, bool) {
	c.Lock()
	defer c.Unlock()
	text := fmt.Sprintf("hostile: %d refused: %d proved: %d came back: %d, %d of these by the boot loader's counter\n",
		c.tried, c.ends[refused], c.ends[proved], c.ends[back], c.counted)
	for _, s := range c.stuck {
		text += "stuck: " + s + "\n"
	}
	return text + fmt.Sprintf("hostile: %d stuck: %d", c.tried, len(c.stuck)), len(c.stuck) > 0
}

func TestHostileConfigurations(t *testing.T) {
	ctx := runner(t)
	count := 12
	if testing.Short() {
		count = 6
	}
	seed := uint64(number(t, "HOSTILE_SEED", int(time.Now().Unix())))
	cases := generate(seed, number(t, "HOSTILE", count))
	if only := os.Getenv("HOSTILE_ONLY"); only != "" {
		cases = named(t, only)
	}
	t.Logf("HOSTILE=%d HOSTILE_SEED=%d", len(cases), seed)
	counts := &tally{ends: map[end]int{}}
	endWith(counts.line)

	work := make(chan int)
	var workers sync.WaitGroup
	for range number(t, "HOSTILE_JOBS", 2*runtime.NumCPU()) { // hosts mostly wait
		workers.Go(func() {
			for i := range work {
				c := cases[i]
				r, err := try(ctx, c.document())
				if err != nil {
					t.Errorf("%d: %s: %v", i, c, err)
					continue
				}
				t.Logf("%d: %s: %s", i, c, r)
				minimal := ""
				if r.end == stuck {
					minimal = shrink(ctx, t, c, r)
				}
				counts.add(r, minimal)
			}
		})
	}
	for i := range cases {
		work <- i
	}
	close(work)
	workers.Wait()
}

// shrink leaves out pieces of a configuration that is stuck for as long as it stays so, and says what is left.
func shrink(ctx context.Context, t *testing.T, c configuration, r result) string {
	t.Helper()
	for i := 0; i < len(c) && len(c) > 1; {
		less := slices.Delete(slices.Clone(c), i, i+1)
		if again, err := try(ctx, less.document()); err == nil && again.end == stuck {
			c, r = less, again
			continue
		}
		i++
	}
	t.Errorf("stuck: %s: %s\n%s\n%s", c, r, c.document(), r.journal)
	return fmt.Sprintf("%s: %s", c, r.why)
}

// The generator is the same for everybody with the seed, and has no piece that no document can be made of.
func TestGeneratorIsDeterministic(t *testing.T) {
	a, b := generate(7, 300), generate(7, 300)
	for i := range a {
		if a[i].String() != b[i].String() || string(a[i].document()) != string(b[i].document()) {
			t.Errorf("%d: %s, and %s", i, a[i], b[i])
		}
	}
	seen := map[string]bool{}
	for _, p := range pieces() {
		if seen[p.name] {
			t.Errorf("two pieces are called %q", p.name)
		}
		seen[p.name] = true
		if string(configuration{p}.document()) == string(harmless("b")) {
			t.Errorf("%q changes nothing", p.name)
		}
	}
	if len(seen) < 300 {
		t.Errorf("there are only %d pieces", len(seen))
	}
	t.Logf("%d pieces", len(seen))
}
