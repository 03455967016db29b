// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// seed is CRASH_SEED, or another one each time; it is logged where a test that uses it fails.
func seed(t *testing.T) int64 {
	t.Helper()
	s := time.Now().UnixNano() & 0xffffffff
	if text := os.Getenv("CRASH_SEED"); text != "" {
		var err error
		if s, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatalf("CRASH_SEED: %v", err)
		}
	}
	t.Logf("CRASH_SEED=%d", s)
	return s
}

// random returns the source of the random moments of one test, which do not depend on those of the others.
func random(t *testing.T, seed int64) *rand.Rand {
	t.Helper()
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Name()))
	return rand.New(rand.NewPCG(uint64(seed), h.Sum64()))
}

// killAfter runs the agent and kills it after a while. It says whether that was before the agent was done.
func killAfter(binary, root string, after time.Duration, args ...string) (result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append(args, "--root", root)...)
	timer := time.AfterFunc(time.Hour, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	return finish(ctx, cmd, func() { timer.Reset(after) })
}

// TestKillAtRandomMoments kills updates of 300 files, and sometimes the recovery too, at moments that nobody chose: also
// between two points, within one effect.
func TestKillAtRandomMoments(t *testing.T) {
	kills := 200
	if testing.Short() {
		kills = 20
	}
	program := binary(t, plain)
	t.Parallel() // one process after the other, and the hosts mostly wait
	f := &fixture{pristine: pristine(t), binary: program,
		docs: documents(t, map[string]string{"a": manyFiles("a"), "b": manyFiles("b")})}
	defer os.RemoveAll(f.pristine)
	source := random(t, seed(t))

	// One tree goes to and fro. Once round first, so that both ends have what a configuration leaves behind it.
	root, err := copyTree(f.pristine)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	sides := map[string]*side{}
	var took time.Duration
	for i, name := range []string{"a", "b", "a", "b", "a"} {
		start := time.Now()
		f.do(t, root, "apply", "--config", f.docs[name])
		took = time.Since(start)
		if sides[name] == nil || i > 1 {
			p, err := take(root)
			if err != nil {
				t.Fatal(err)
			}
			sides[name] = &side{config: name, doc: f.docs[name], picture: p}
		}
	}
	start := time.Now()
	f.do(t, root, "recover")
	idle := time.Since(start)
	t.Logf("an update takes %v, recovery of nothing %v", took, idle)

	ended := map[string]int{}
	at := "a"
	for n := 1; n <= kills; {
		to := map[string]string{"a": "b", "b": "a"}[at]
		s := &scenario{name: "from " + at + " to " + to, from: *sides[at], to: *sides[to]}
		after := time.Duration(source.Int64N(int64(took + took/4)))
		where := fmt.Sprintf("kill %d: %s, after %v", n, s.name, after)
		r, err := killAfter(f.binary, root, after, "apply", "--config", f.docs[to])
		if err == nil && !r.killed && r.exit != 0 {
			err = fmt.Errorf("before it could be killed: %s", r)
		}
		killed := r.killed
		if err == nil && killed {
			counted.Cuts.Add(1)
			n++
			if source.IntN(3) == 0 {
				after = time.Duration(source.Int64N(int64(idle + took/2)))
				where += fmt.Sprintf(", recovery after %v", after)
				if r, err = killAfter(f.binary, root, after, "recover"); err == nil && r.killed {
					counted.Cuts.Add(1)
				} else if err == nil && r.exit != 0 {
					err = fmt.Errorf("%w: %s", errLost, r)
				}
			}
		}
		var now *side
		if err == nil {
			if _, err = must(f.binary, root, "recover"); err != nil {
				err = fmt.Errorf("%w: %w", errLost, err)
			}
		}
		if err == nil {
			now, err = s.judge(f.binary, root)
		}
		if err == nil {
			err = s.verified(f.binary, root, now)
		}
		if err == nil {
			err = tidy(root)
		}
		report(t, where, err)
		if now == nil {
			t.FailNow() // there is nothing to go on from
		}
		if killed {
			ended[map[bool]string{true: "new", false: "old"}[now.config == to]]++
		}
		at = now.config
	}
	t.Logf("of the updates that were killed these ended: %v", ended)
	if !testing.Short() && (ended["old"] == 0 || ended["new"] == 0) {
		t.Errorf("the kills came always before or always after the decision: %v", ended)
	}
}
