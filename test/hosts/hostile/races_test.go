// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// The races: a managed user without any right exchanges what is below their home for links to places where a file of
// theirs would make them root, without pause, while the agent applies, repairs, is killed, recovers and goes back.
var races struct {
	once    sync.Once
	swaps   atomic.Int64
	outside atomic.Int64
}

func countRaces() {
	races.once.Do(func() {
		endWith(func() (string, bool) {
			return fmt.Sprintf("races: %d written outside: %d", races.swaps.Load(), races.outside.Load()), races.outside.Load() > 0
		})
	})
}

const (
	racer     = "dev"
	racerID   = 1500
	raceHome  = "var/home/" + racer
	raceKeys  = ".ssh/authorized_keys.d/ignition"
	generator = "etc/systemd/system-generators"
)

// raceLinks are what is exchanged, and for a link to what.
var raceLinks = []struct{ name, target string }{
	{".ssh/authorized_keys.d", "/" + generator},
	{".ssh", "/etc"},
	{".ssh/authorized_keys.d/ignition", "/etc/shadow"},
	{"conf", "/etc/systemd"},
	{"conf/deep", "/" + generator},
	{"conf/deep/f", "/etc/shadow"},
}

// race swaps in the home of the user, below the directory root, until it is stopped. As another user in a thread of its
// own it may do what that user may.
func race(t *testing.T, root string) (stop func()) {
	t.Helper()
	home := filepath.Join(root, raceHome)
	end, ended := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ended <- swapUntil(home, end)
	}()
	return func() {
		t.Helper()
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func swapUntil(home string, end chan struct{}) error {
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0},
		{unix.SYS_SETRESGID, racerID, racerID, racerID},
		{unix.SYS_SETRESUID, racerID, racerID, racerID},
	} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return fmt.Errorf("becoming %s: %w", racer, errno)
		}
	}
	source := rand.New(rand.NewPCG(1, 2))
	for i, l := range raceLinks {
		if err := os.Symlink(l.target, filepath.Join(home, fmt.Sprint("link", i))); err != nil {
			return err
		}
	}
	swap := func(i int) {
		name, link := filepath.Join(home, raceLinks[i].name), filepath.Join(home, fmt.Sprint("link", i))
		if unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil {
			races.swaps.Add(1)
		}
	}
	for n := 0; ; n++ {
		// One component for a while, so that the rest of the way is as the agent wants it; and then all of them.
		one := n % (len(raceLinks) + 1)
		_ = os.RemoveAll(filepath.Join(home, ".ssh"))
		_ = os.MkdirAll(filepath.Join(home, filepath.Dir(raceKeys)), 0o700)
		pace := time.Duration(source.IntN(3)) * 200 * time.Microsecond
		for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); {
			select {
			case <-end:
				return nil
			case <-time.After(pace):
			}
			if one < len(raceLinks) {
				swap(one)
			} else {
				swap(source.IntN(len(raceLinks)))
			}
			switch source.IntN(50) {
			case 0:
				_ = unix.Unlink(filepath.Join(home, raceKeys)) // drift
			case 1:
				_ = os.WriteFile(filepath.Join(home, raceKeys), []byte("mine"), 0o600)
			}
		}
	}
}

// outside finds what a race has brought about below root and outside the home: anything that is the user's, and canaries
// that are not as they were.
func outside(root string, canaries map[string]string) (found []string, err error) {
	err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		below := strings.TrimPrefix(path, root+"/")
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case below == raceHome:
			return fs.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return nil //nolint:nilerr // it is gone by now
		}
		// Pre-images and originals keep their owners, who can't come there.
		// Each deployment has an /etc of its own.
		for _, kept := range []string{"/var/lib/machine-config-daemon/transactions", "/var/lib/machine-config-daemon/drift",
			"/machine-config-daemon/orig"} {
			if strings.HasSuffix("/"+below, kept) && st.Uid == 0 && st.Mode&0o077 == 0 {
				return fs.SkipDir
			}
		}
		if st.Uid == racerID {
			found = append(found, fmt.Sprintf("%s of %d", below, st.Uid))
		}
		return nil
	})
	for name, want := range canaries {
		if got := canary(root, name); got != want {
			found = append(found, fmt.Sprintf("%s is %s, was %s", name, got, want))
		}
	}
	return found, err
}

func canary(root, name string) string {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
		return err.Error()
	}
	data, err := os.ReadFile(filepath.Join(root, name))
	return fmt.Sprintf("%o %d:%d %q %v", st.Mode, st.Uid, st.Gid, data, err)
}

// raceDocument has keys of the user, and files of other kinds in their home: one that each configuration has, one that
// comes and goes, and a second name that leads to another file each time.
func raceDocument(name string) []byte {
	var doc object
	if err := json.Unmarshal(harmless(name), &doc); err != nil {
		panic(err)
	}
	config := doc["spec"].(object)["config"].(object)
	config["passwd"] = object{"users": []object{{"name": racer, "sshAuthorizedKeys": []string{"ssh-rsa " + name}}}}
	storage := config["storage"].(object)
	owner := object{"id": racerID}
	deep := "/home/" + racer + "/conf/deep/"
	for _, at := range []string{deep + "f", deep + "only-" + name} {
		storage["files"] = append(storage["files"].([]any), object{"path": at, "mode": 0o640,
			"overwrite": true, "user": owner, "group": owner, "contents": object{"source": "data:," + name}})
	}
	storage["links"] = []object{{"path": deep + "hard", "target": deep + "only-" + name, "hard": true, "overwrite": true}}
	storage["directories"] = []object{{"path": deep + name, "user": owner, "group": owner}}
	text, err := json.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return text
}

var faultyAgent = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "faults")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return node.Build(context.Background(), dir, "faults")
})

// On a tree: each verb stays at each of its points for a while, and is killed at random ones.
func TestRacesInAHomeWriteNothingOutsideOfATree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to users")
	}
	countRaces()
	binary, err := faultyAgent()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	docs := t.TempDir()
	for dir := root; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o5 != 0o5 {
			must(t, os.Chmod(dir, st.Mode()|0o055)) // the user walks through it
		}
	}
	for name, text := range map[string]string{
		"etc/passwd":      "root:x:0:0::/root:/bin/sh\n" + racer + ":x:1500:1500::/home/" + racer + ":/bin/sh\n",
		"etc/group":       "root:x:0:\n" + racer + ":x:1500:\n",
		"etc/shadow":      "root:*:1::::::\n",
		generator + "/x":  "",
		raceHome + "/x":   "",
		"etc/hosts":       "",
		"usr/local/x":     "",
		"var/lib/x":       "",
		"etc/systemd/foo": "",
	} {
		must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o600))
	}
	must(t, os.Symlink("var/home", filepath.Join(root, "home")))
	must(t, os.Chmod(filepath.Join(root, "etc/passwd"), 0o644))
	must(t, os.Chown(filepath.Join(root, raceHome), racerID, racerID))
	for _, name := range []string{"a", "b"} {
		must(t, os.WriteFile(filepath.Join(docs, name), tree(raceDocument(name)), 0o600))
	}
	canaries := map[string]string{}
	for _, name := range []string{"etc/shadow", "etc/passwd", generator + "/x", "etc/systemd/foo"} {
		canaries[name] = canary(root, name)
	}
	agent := func(fault string, allowed []int, verb string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), binary, append([]string{verb, "--root", root}, args...)...)
		cmd.Env = append(os.Environ(), "NODEREFIT_FAULT="+verb+" "+fault)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); !slices.Contains(allowed, code) {
			t.Errorf("%s %v, %s: exit %d:\n%s", verb, args, fault, code, out)
		}
		found, err := outside(root, canaries)
		must(t, err)
		if len(found) > 0 {
			races.outside.Add(int64(len(found)))
			t.Fatalf("%s %v, %s wrote outside: %v\n%s", verb, args, fault, found, out)
		}
	}
	const killed = -1
	done, linger := []int{0}, "linger 500us"
	agent(linger, done, "apply", "--config", filepath.Join(docs, "a"))

	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	stop := race(t, root)
	defer stop()
	source := rand.New(rand.NewPCG(3, 4))
	for range rounds {
		for _, to := range []string{"b", "a"} {
			agent(linger, []int{0, 4}, "verify")
			agent(linger, done, "apply", "--config", filepath.Join(docs, to))
			agent(linger, done, "repair")
			agent(linger, done, "rollback")
			agent(fmt.Sprint("kill ", 1+source.IntN(60)), []int{0, killed}, "apply", "--config", filepath.Join(docs, to))
			agent(fmt.Sprint("kill ", 1+source.IntN(20)), []int{0, killed}, "recover")
			agent(linger, done, "recover")
			agent(linger, done, "apply", "--config", filepath.Join(docs, to))
		}
	}
}

// tree takes from a document what no tree can be given.
func tree(doc []byte) []byte {
	var o object
	if err := json.Unmarshal(doc, &o); err != nil {
		panic(err)
	}
	delete(o["spec"].(object), "kernelArguments")
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return text
}

// On a booted host: over updates with a boot, their recovery, repairs and the way back, none of which the user can stop.
func TestRacesInAHomeWriteNothingOutsideOfAHost(t *testing.T) {
	lab.Need(t)
	countRaces()
	ctx := t.Context()
	binary, err := faultyAgent()
	if err != nil {
		t.Fatal(err)
	}
	base, err := lab.Prepare(ctx, "", t.Output())
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.New(ctx, base, binary, lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := n.Journal(context.Background()); err == nil {
				t.Log(text)
			}
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if out, _, exit, err := n.Exec(ctx, nil, "sh", "-c", fmt.Sprintf(
		"groupadd -g %[2]d %[1]s && useradd -m -u %[2]d -g %[2]d %[1]s && mkdir -p /%[3]s && touch /%[3]s/x",
		racer, racerID, generator)); err != nil || exit != 0 {
		t.Fatalf("adding a user: %d, %v, %s", exit, err, out)
	}
	root := n.HostPath("/var")
	root = strings.TrimSuffix(root, "/var")
	must(t, unix.Access(filepath.Join(root, raceHome), unix.F_OK))
	look := func(after string) {
		t.Helper()
		for _, at := range []string{root, n.HostPath("/etc")} { // the deployment's, and all of /var
			found, err := outside(at, nil)
			must(t, err)
			if len(found) > 0 {
				races.outside.Add(int64(len(found)))
				t.Fatalf("%s wrote outside: %v", after, found)
			}
		}
	}
	to := func(name string) {
		t.Helper()
		if _, exit, err := n.Apply(ctx, raceDocument(name), "--verdict-timeout", "2m"); err != nil {
			t.Fatalf("apply %s: exit %d, %v", name, exit, err)
		}
		s, err := n.WaitState(ctx, transaction.Done, transaction.Degraded, transaction.RolledBack)
		if err != nil || s.Config.Committed != name || s.State != transaction.Done {
			t.Fatalf("after %s: %+v, %v", name, s, err)
		}
		look("the update to " + name)
	}
	to("a")
	stop := race(t, root)
	defer stop()
	repairs := 40
	if testing.Short() {
		repairs = 10
	}
	for _, name := range []string{"b", "a"} {
		for range repairs {
			if _, stderr, exit, err := n.Agent(ctx, "repair"); err != nil || exit != 0 {
				t.Fatalf("repair: exit %d, %v: %s", exit, err, stderr)
			}
			look("a repair")
		}
		to(name)
	}
	if _, stderr, exit, err := n.Agent(ctx, "rollback"); err != nil || exit != 0 {
		t.Fatalf("rollback: exit %d, %v: %s", exit, err, stderr)
	}
	if s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Done); err != nil || s.Config.Committed != "b" {
		t.Fatalf("after a rollback: %+v, %v", s, err)
	}
	look("a rollback")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
