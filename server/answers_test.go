// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	kruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/noderefit/noderefit/machineconfig"
)

// counting is a source that counts how often a configuration is read.
type counting struct {
	source
	read atomic.Int32
}

func (c *counting) Config(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, name string,
) (*mcfgv1.MachineConfig, string, error) {
	c.read.Add(1)
	version, err := c.Version(ctx, pool, name)
	return c.configs[name], version, err
}

// Version costs nothing, as these configurations never change.
func (c *counting) Version(context.Context, *mcfgv1.MachineConfigPool, string) (string, error) {
	return "1", nil
}

// large is a configuration whose answers have some 2.4 MB.
func large(name string) *mcfgv1.MachineConfig {
	return config(name, `{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/etc/large",
		"contents":{"source":"data:,`+strings.Repeat("x", 1<<20)+`"}}]}}`)
}

// listen serves until the test ends.
func listen(t *testing.T, s *Server) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	var group sync.WaitGroup
	group.Go(func() { _ = h.Serve(Bounded(l, h)) })
	t.Cleanup(func() {
		_ = h.Close()
		group.Wait()
	})
	return l.Addr().String()
}

// begin asks for a pool's configuration and reads nothing but the head of the answer.
func begin(t *testing.T, at, pool string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, wrong := fmt.Fprintf(conn, "GET /config/%s HTTP/1.1\r\nHost: a\r\nAccept: %s\r\n\r\n", pool, ignition35)
	head := make([]byte, len("HTTP/1.1 200"))
	_, err = io.ReadFull(conn, head)
	if err := errors.Join(wrong, err); err != nil || !strings.HasSuffix(string(head), "200") {
		t.Fatalf("%s: %s, %v", pool, head, err)
	}
	return conn
}

func download(t *testing.T, at, pool string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/config/"+pool, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", ignition35)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v", answer.StatusCode, err)
	}
	return string(body)
}

func TestOneCopyServesHoweverManyReadItAndHoweverSlowly(t *testing.T) {
	const slow = 250
	from := &counting{source: example()}
	from.configs["rendered-worker-a"] = large("rendered-worker-a")
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
	at := listen(t, s)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var conns []net.Conn
	for range slow {
		conns = append(conns, begin(t, at, "worker"))
	}
	took := heap() - before
	whole := download(t, at, "worker")
	held := s.answers.held()
	if read := from.read.Load(); read != 1 || held != int64(len(whole)) {
		t.Errorf("%d slow readers and another: made %d times, %d bytes held; want once and %d", slow, read, held, len(whole))
	}
	// Each connection has some 20 KiB of its own on both of its ends.
	if most := int64(len(whole)) + slow*100<<10; took > most {
		t.Errorf("%d slow readers have %d bytes of memory, want at most %d", slow, took, most)
	}
	rest, err := io.ReadAll(io.LimitReader(conns[0], int64(len(whole))))
	if err != nil || len(rest) != len(whole) {
		t.Errorf("a slow reader got %d bytes: %v", len(rest), err)
	}
}

func TestWhatSlowReadersHoldIsBoundedAndTheSlowestGoFirst(t *testing.T) {
	const pools = 10
	from := &counting{source: example()}
	for i := range pools {
		name := "p" + strconv.Itoa(i)
		from.pools[name] = pool(name, "rendered-"+name)
		from.configs["rendered-"+name] = large("rendered-" + name)
	}
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
	size := int64(len(get(t, s, "GET", "/config/p0", "Accept", ignition35).Body.String()))
	s.answers.limit = 3*size + size/2
	at := listen(t, s)
	var conns []net.Conn
	for i := range pools {
		conns = append(conns, begin(t, at, "p"+strconv.Itoa(i)))
		if held := s.answers.held(); held > s.answers.limit {
			t.Fatalf("%d bytes are held, more than %d", held, s.answers.limit)
		}
	}
	if held := s.answers.held(); held < 3*size-int64(pools) {
		t.Errorf("%d bytes are held: there is room for three answers of %d", held, size)
	}
	if body := download(t, at, "worker"); !strings.Contains(body, "/etc/motd") {
		t.Error("another client is not served")
	}
	for i, conn := range conns {
		got, err := io.Copy(io.Discard, io.LimitReader(conn, size))
		if whole := got == size && err == nil; whole != (i >= pools-3) {
			t.Errorf("the slow reader %d of %d got %d of %d bytes: %v", i, pools, got, size, err)
		}
	}
}

func TestASlowReaderIsNotCutWhileThereAreAnswersThatNoClientReads(t *testing.T) {
	from := &counting{source: example()}
	for i := range 10 {
		name := "p" + strconv.Itoa(i)
		from.pools[name] = pool(name, "rendered-"+name)
		from.configs["rendered-"+name] = large("rendered-" + name)
	}
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
	s.answers.limit = 8 << 20
	at := listen(t, s)
	slow := begin(t, at, "p0")
	for i := range 10 {
		download(t, at, "p"+strconv.Itoa(i))
	}
	size := s.answers.held() / 3
	if got, err := io.Copy(io.Discard, io.LimitReader(slow, size)); got != size || err != nil {
		t.Errorf("the slow reader got %d of %d bytes: %v", got, size, err)
	}
}

func TestAnAnswerThatIsAskedForAllTheTimeIsNotMadeAgainForOthers(t *testing.T) {
	from := &counting{source: example()}
	for i := range 10 {
		name := "p" + strconv.Itoa(i)
		from.pools[name] = pool(name, "rendered-"+name)
		from.configs["rendered-"+name] = large("rendered-" + name)
	}
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
	s.answers.limit = 8 << 20
	for i := range 10 {
		get(t, s, "GET", "/config/p"+strconv.Itoa(i), "Accept", ignition35)
		get(t, s, "GET", "/config/worker", "Accept", ignition35)
	}
	if read := from.read.Load(); read != 11 {
		t.Errorf("%d answers were made of 11", read)
	}
}

// A server that holds answers says at each moment what one that has just started says.
func TestAnAnswerFollowsAllThatItIsMadeOf(t *testing.T) {
	dir := t.TempDir()
	kubeconfig, tokens := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "tokens")
	write := func(file, text string) func() error {
		return func() error { return os.WriteFile(file, []byte(text), 0o600) }
	}
	if err := errors.Join(write(kubeconfig, "token: one\n")(), write(tokens, secret+"\n")()); err != nil {
		t.Fatal(err)
	}
	from := withSecret()
	options := Options{Source: from, Gate: Gate{TokenFile: tokens}, BootstrapKubeconfig: kubeconfig, Log: logr.Discard()}
	s := New(options)
	requests := [][]string{}
	for _, accept := range []string{ignition35, ignitionType + ";version=3.2.0", ignitionType + ";version=3.6.0", ""} {
		for _, auth := range []string{"", "Bearer " + secret, "Bearer not-the-token-of-anybody"} {
			for _, pool := range []string{"worker", "secret", "gone"} {
				r := []string{"/config/" + pool, "Accept", accept}
				if auth != "" {
					r = append(r, "Authorization", auth)
				}
				requests = append(requests, r)
			}
		}
	}
	said := map[string]string{}
	for _, step := range []struct {
		name    string
		do      func() error
		changes bool
	}{
		{"at first", func() error { return nil }, true},
		{"nothing", func() error { return nil }, false},
		{"another content under the same name", func() error {
			from.configs["rendered-worker-a"] = config("rendered-worker-a", `{"ignition":{"version":"3.5.0"}}`)
			return nil
		}, true},
		{"other kernel arguments", func() error {
			mc := from.configs["rendered-worker-a"].DeepCopy()
			mc.Spec.KernelArguments = []string{"b=2"}
			from.configs["rendered-worker-a"] = mc
			return nil
		}, true},
		{"a secret comes", func() error {
			from.configs["rendered-worker-a"] = from.configs["rendered-secret-a"].DeepCopy()
			from.configs["rendered-worker-a"].Name = "rendered-worker-a"
			return nil
		}, true},
		{"the secret goes", func() error {
			from.configs["rendered-secret-a"] = config("rendered-secret-a", `{"ignition":{"version":"3.5.0"}}`)
			return nil
		}, true},
		{"an invalid one", func() error {
			from.configs["rendered-worker-a"] = config("rendered-worker-a", `{"ignition":{"version":"9.5.0"}}`)
			return nil
		}, true},
		{"the pool has another", func() error {
			from.pools["worker"] = pool("worker", "rendered-secret-a")
			return nil
		}, true},
		{"a pool comes", func() error { from.pools["gone"] = pool("gone", "rendered-secret-a"); return nil }, true},
		{"another kubeconfig to join with", write(kubeconfig, "token: two\n"), true},
		{"no kubeconfig", func() error { return os.Remove(kubeconfig) }, true},
		{"the kubeconfig of before", write(kubeconfig, "token: one\n"), true},
		{"the token ends", write(tokens, "a-token-of-another-one\n"), true},
		{"the configuration goes", func() error { delete(from.configs, "rendered-secret-a"); return nil }, true},
		{"the pool goes", func() error { delete(from.pools, "gone"); return nil }, true},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		changed := false
		for _, r := range requests {
			got, want := get(t, s, "GET", r[0], r[1:]...), get(t, New(options), "GET", r[0], r[1:]...)
			if got.Code != want.Code || got.Body.String() != want.Body.String() {
				t.Errorf("%s: %v: held %d %s\nmade %d %s", step.name, r, got.Code, got.Body, want.Code, want.Body)
			}
			now := strconv.Itoa(want.Code) + want.Body.String()
			changed = changed || said[strings.Join(r, " ")] != now
			said[strings.Join(r, " ")] = now
		}
		if changed != step.changes {
			t.Errorf("%s: some answer is another: %t, want %t", step.name, changed, step.changes)
		}
	}
}

// turning has a configuration change between the question for its version and its reading, a number of times.
type turning struct {
	source
	turns int
}

func (c *turning) Config(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, name string,
) (*mcfgv1.MachineConfig, string, error) {
	if c.turns > 0 {
		c.turns--
		c.configs[name] = config(name, `{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/etc/turn",
			"contents":{"source":"data:,`+strconv.Itoa(c.turns)+`"}}]}}`)
	}
	return c.source.Config(ctx, pool, name)
}

func TestWhatChangesWhileAnAnswerIsMadeIsNotHeldUnderTheVersionOfBefore(t *testing.T) {
	for turns, want := range map[int]int{0: 200, 1: 200, 2: 200, 3: 503} {
		from := &turning{source: example(), turns: turns}
		before := from.configs["rendered-worker-a"]
		s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
		w := get(t, s, "GET", "/config/worker", "Accept", ignition35)
		if w.Code != want || want == 200 && strings.Contains(w.Body.String(), "/etc/turn") != (turns > 0) {
			t.Errorf("%d changes: %d %s; want %d", turns, w.Code, w.Body, want)
		}
		// Back to what it was: what was made meanwhile is not that.
		from.configs["rendered-worker-a"] = before
		if w := get(t, s, "GET", "/config/worker", "Accept", ignition35); !strings.Contains(w.Body.String(), "/etc/motd") {
			t.Errorf("%d changes and back: %d %s", turns, w.Code, w.Body)
		}
	}
}

func TestAQuestionIsSharedOnlyByWhoAskedBeforeItBegan(t *testing.T) {
	w := works[int]{slots: make(chan struct{}, 2), fresh: true}
	var begun atomic.Int32
	first, release := make(chan struct{}), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		_, _ = w.do(t.Context(), "a", func(context.Context) (int, error) {
			close(first)
			<-release
			return int(begun.Add(1)), nil
		})
	})
	<-first // the first has begun to ask; what it hears may be old by now
	got, err := w.do(t.Context(), "a", func(context.Context) (int, error) { return int(begun.Add(1)), nil })
	close(release)
	group.Wait()
	if err != nil || got != 1 || begun.Load() != 2 {
		t.Errorf("who came later heard %d, %v, of %d questions; want an answer of its own", got, err, begun.Load())
	}
}

func TestWhoGoesAwayIsLetGoAtOnceAndDoesNotEndTheWorkForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := works[int]{slots: make(chan struct{}, 1)}
		release := make(chan struct{})
		var begun, gone, served atomic.Int32
		work := func(ctx context.Context) (int, error) {
			begun.Add(1)
			<-release
			return 1, ctx.Err()
		}
		ctx, leave := context.WithCancel(t.Context())
		for range 100 {
			go func() {
				if _, err := w.do(ctx, "a", work); errors.As(err, new(unavailable)) {
					gone.Add(1)
				}
			}()
		}
		synctest.Wait()
		go func() {
			if got, err := w.do(t.Context(), "a", work); got == 1 && err == nil {
				served.Add(1)
			}
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		if gone.Load() != 100 || served.Load() != 0 {
			t.Errorf("%d of 100 clients who went away are let go, while %d are served", gone.Load(), served.Load())
		}
		close(release)
		synctest.Wait()
		if begun.Load() != 1 || served.Load() != 1 {
			t.Errorf("the work was done %d times, and %d are served", begun.Load(), served.Load())
		}
	})
}

func TestAPanicInSharedWorkIsThatOfWhoAskedAndEndsNoServer(t *testing.T) {
	w := works[int]{slots: make(chan struct{}, 1)}
	for range 2 {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, "boom") {
					t.Errorf("who asked recovered %q", said)
				}
			}()
			got, err := w.do(t.Context(), "a", func(context.Context) (int, error) { panic("boom") })
			t.Errorf("%d, %v", got, err)
		}()
	}
	if got, err := w.do(t.Context(), "a", func(context.Context) (int, error) { return 1, nil }); got != 1 || err != nil {
		t.Errorf("afterwards: %d, %v", got, err)
	}
}

func TestAClusterIsAskedForAConfigurationOnceAndForItsVersionEachTime(t *testing.T) {
	scheme := kruntime.NewScheme()
	if err := mcfgv1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	whole, _, err := machineconfig.Merge("worker", []*machineconfig.Document{{Object: config("50-a",
		`{"ignition":{"version":"3.5.0"}}`)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	asked := map[schema.GroupVersionKind]int{}
	kinds := func(o client.Object) schema.GroupVersionKind {
		kind := o.GetObjectKind().GroupVersionKind()
		if _, ok := o.(*mcfgv1.MachineConfig); ok {
			kind.Kind = "whole"
		}
		return schema.GroupVersionKind{Kind: kind.Kind}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(whole.Object.DeepCopy(), pool("worker", whole.Name)).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey,
			o client.Object, more ...client.GetOption,
		) error {
			asked[kinds(o)]++
			return c.Get(ctx, key, o, more...)
		}}).Build()
	s := New(Options{Source: &Cluster{Pools: c, Configs: c}, Gate: Gate{Open: true}, Log: logr.Discard()})
	code := func(want int) {
		t.Helper()
		if w := get(t, s, "GET", "/config/worker", "Accept", ignition35); w.Code != want {
			t.Errorf("got %d %s, want %d", w.Code, w.Body, want)
		}
	}
	for range 10 {
		code(200)
	}
	if full, meta := asked[schema.GroupVersionKind{Kind: "whole"}], asked[schema.GroupVersionKind{Kind: "MachineConfig"}]; full != 1 || meta != 10 {
		t.Errorf("ten requests: %d times read, %d times asked for the version: %v", full, meta, asked)
	}
	changed := &mcfgv1.MachineConfig{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: whole.Name}, changed); err != nil {
		t.Fatal(err)
	}
	changed.Spec.KernelArguments = []string{"init=/bin/sh"}
	if err := c.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	code(500)
	if err := c.Delete(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	code(503)
	if err := c.Create(t.Context(), whole.Object.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	code(200)
}

// BenchmarkAnswerHeld is what a request for a configuration of 1 MB costs once it was made.
func BenchmarkAnswerHeld(b *testing.B) {
	from := &counting{source: example()}
	from.configs["rendered-worker-a"] = large("rendered-worker-a")
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
	benchmark(b, s, func() {})
	b.ReportMetric(float64(from.read.Load()), "makings")
}

// BenchmarkAnswerMade is what the first one costs.
func BenchmarkAnswerMade(b *testing.B) {
	from := &counting{source: example()}
	from.configs["rendered-worker-a"] = large("rendered-worker-a")
	s := New(Options{Source: from, Gate: Gate{Open: true}, Log: logr.Discard()})
	benchmark(b, s, func() { s.answers = newAnswers(answersLimit) })
}

// nowhere is a client that keeps nothing.
type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header            { return n.header }
func (n nowhere) Write(text []byte) (int, error) { return len(text), nil }
func (n nowhere) WriteHeader(int)                {}

func benchmark(b *testing.B, s *Server, before func()) {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "/config/worker", http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Accept", ignition35)
	b.ReportAllocs()
	for b.Loop() {
		before()
		s.ServeHTTP(nowhere{http.Header{}}, r)
	}
}
