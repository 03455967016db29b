// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
)

const keptContents = "/var/lib/machine-config-daemon/contents"

// shelf is a server with TLS whose files a test changes.
type shelf struct {
	*httptest.Server

	mu     sync.Mutex
	files  map[string][]byte
	ranges []string      // what was asked for, "" for everything
	slow   chan struct{} // not nil: half of a file comes, and then nothing until the channel closes
}

// newShelf makes a shelf whose certificate the host trusts.
func newShelf(t *testing.T, n *Node) *shelf {
	t.Helper()
	s := &shelf{files: map[string][]byte{}}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		data, there := s.files[strings.TrimPrefix(r.URL.Path, "/")]
		slow := s.slow
		s.ranges = append(s.ranges, r.Header.Get("Range"))
		s.mu.Unlock()
		if !there {
			http.NotFound(w, r)
			return
		}
		if slow == nil {
			http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(data))
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		_ = http.NewResponseController(w).Flush()
		<-slow
	}))
	t.Cleanup(s.Close)
	if err := n.ConnectAt(s.Listener.Addr().String(), s.Listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	put(t, n, "/etc/ssl/certs/shelf.pem",
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})), 0o644)
	return s
}

// put puts a file onto the shelf.
func (s *shelf) put(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = data
}

// asked returns what was asked for since the last call.
func (s *shelf) asked() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, s.ranges = s.ranges, nil
	return out
}

// stall has half of a file come until the result is called.
func (s *shelf) stall() (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow = make(chan struct{})
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(s.slow)
		s.slow = nil
	})
}

// at returns the contents of a file on the shelf, as a configuration refers to them.
func (s *shelf) at(name string, data []byte) string {
	return fmt.Sprintf(`{"source":"%s/%s","verification":{"hash":%q}}`, s.URL, name, hashOf(data))
}

func hashOf(data []byte) string { return fmt.Sprintf("sha512-%x", sha512.Sum512(data)) }

// referring returns a configuration of files by their contents, as JSON.
func referring(files map[string]string, more ...string) string {
	list := more
	for path, contents := range files {
		list = append(list, fmt.Sprintf(`{"path":%q,"mode":493,"contents":%s}`, path, contents))
	}
	return `{"config":{"ignition":{"version":"3.4.0"},"storage":{"files":[` + strings.Join(list, ",") + `]}}}`
}

// refused stages a configuration that can't be had, and checks that nothing has changed.
func refused(ctx context.Context, t *testing.T, n *Node, doc []byte, exit int, says ...string) {
	t.Helper()
	before, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	path, err := n.Document("refused.json", doc)
	if err != nil {
		t.Fatal(err)
	}
	_, errs, got, err := n.Agent(ctx, "stage", "--config", path)
	if err != nil || got != exit {
		t.Errorf("exit %d, not %d: %s %v", got, exit, errs, err)
	}
	for _, want := range says {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is not in: %s", want, errs)
		}
	}
	after, err := n.Status(ctx)
	if err != nil || after.State != before.State || after.Config != before.Config || len(after.Quarantined) > 0 {
		t.Errorf("the host is %+v, and was %+v: %v", after, before, err)
	}
}

// until waits for a condition, whose second result says what holds instead.
func until(ctx context.Context, t *testing.T, what string, condition func() (done bool, instead any)) {
	t.Helper()
	for {
		done, instead := condition()
		if done {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting until %s: %v; instead: %v", what, context.Cause(ctx), instead)
		case <-time.After(poll):
		}
	}
}

func TestContentsByReferenceReachAHost(t *testing.T) {
	ctx, n := start(t)
	s := newShelf(t, n)
	tool, data := bytes.Repeat([]byte("tool\n"), 1<<20), []byte("a table\n")
	s.put("tool", tool)
	s.put("table", data)
	both := referring(map[string]string{"/etc/testos/tool": s.at("tool", tool), "/var/lib/testos/table": s.at("table", data)})

	// What can't be had is named, and changes nothing.
	refused(ctx, t, n, mc("a", referring(map[string]string{"/etc/testos/tool": s.at("absent", tool)})), host.ExitFailed,
		"file /etc/testos/tool", s.URL+"/absent", "404")
	refused(ctx, t, n, mc("a", referring(map[string]string{"/etc/testos/tool": s.at("tool", data)})), host.ExitUnreconcilable,
		"file /etc/testos/tool", s.URL+"/tool", "correct the configuration")
	away := strings.Replace(both, s.URL, "https://127.0.0.1:1", 1)
	refused(ctx, t, n, mc("a", away), host.ExitFailed, "https://127.0.0.1:1/t", "connection refused")
	if out, exit := shell(ctx, t, n, "mkdir -p "+keptContents+" && mount -t tmpfs -o size=66m full "+keptContents); exit != 0 {
		t.Fatal(out)
	}
	refused(ctx, t, n, mc("a", both), host.ExitFailed, s.URL+"/t", "no space left on device")
	if out, exit := shell(ctx, t, n, "umount "+keptContents); exit != 0 {
		t.Fatal(out)
	}

	// A plan names the reference.
	path, err := n.Document("a.json", mc("a", both))
	if err != nil {
		t.Fatal(err)
	}
	out, errs, _, err := n.Agent(ctx, "plan", "--desired", path)
	if err != nil || !strings.Contains(out, "+ file /etc/testos/tool, contents from "+s.URL+"/tool (sha512-") {
		t.Errorf("%s %s %v", out, errs, err)
	}

	// The plug is pulled in the middle of a file, and the next try goes on there.
	if _, errs, exit, err := n.Agent(ctx, "stage", "--config", path); err != nil || exit != 0 {
		t.Fatalf("%d %s %v", exit, errs, err)
	}
	if out, exit := shell(ctx, t, n, "rm -r "+keptContents); exit != 0 {
		t.Fatal(out)
	}
	s.asked()
	end := s.stall()
	defer end()
	go func() { _, _, _, _ = n.Agent(ctx, "stage", "--config", path) }()
	half := int64(len(tool) / 2)
	until(ctx, t, "half of the file is there", func() (bool, any) {
		found, err := os.Stat(n.HostPath(keptContents) + "/.part-" + hashOf(tool))
		return err == nil && found.Size() == half, err
	})
	shell(ctx, t, n, "sync") // what was written is on the disk by now
	if err := n.PowerCut(); err != nil {
		t.Fatal(err)
	}
	end()
	boots := n.Boots()
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.asked()
	apply(ctx, t, n, mc("a", both))
	settled(ctx, t, n, "a")
	if asked := s.asked(); !strings.Contains(strings.Join(asked, " "), fmt.Sprintf("bytes=%d-", half)) {
		t.Errorf("the fetch did not go on where it ended: %q", asked)
	}
	if n.Boots() != boots+2 || read(t, n, "/etc/testos/tool") != string(tool) || read(t, n, "/var/lib/testos/table") != string(data) {
		t.Errorf("%d boots, or other contents", n.Boots()-boots)
	}

	// Another configuration shares the kept contents, drift is written back from there, and contents without a user go.
	apply(ctx, t, n, mc("b", strings.Replace(both, "/etc/testos/tool", "/etc/testos/other", 1)))
	settled(ctx, t, n, "b")
	put(t, n, "/etc/testos/other", "by hand", 0o755)
	if _, errs, exit, err := n.Agent(ctx, "repair"); err != nil || exit != 0 || read(t, n, "/etc/testos/other") != string(tool) {
		t.Errorf("%d %s %v", exit, errs, err)
	}
	if asked := s.asked(); len(asked) > 0 {
		t.Errorf("what is kept was asked for again: %q", asked)
	}
	for _, c := range []string{"c", "d"} { // of d, c is the configuration before
		apply(ctx, t, n, mc(c, bootFile(c)))
		settled(ctx, t, n, c)
	}
	// The clean-up follows the verdict.
	until(ctx, t, "no contents are kept", func() (bool, any) {
		left, err := os.ReadDir(n.HostPath(keptContents))
		return err == nil && len(left) == 0, fmt.Sprint(left, err)
	})
}
