// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

// The limits of a watch.
const (
	// watchedDirs is how many directories are watched at most: a configuration has files in a few dozen. The kernel's own
	// limit is for all programs together.
	watchedDirs = 1024
	// blindLooks is the interval at which managed paths are examined where the kernel does not announce changes.
	blindLooks = 10 * time.Second
	// blindRetry is the interval at which the kernel is asked again to announce changes.
	blindRetry = 10 * time.Minute
	// longestTrail is how many links may lead to a path; the kernel has the same limit.
	longestTrail = 40
)

// anyName means every entry of a directory, as the last component of a watched path.
const anyName = "*"

// driftWatch notices changes of managed paths on the host. It watches directories and not files: every existing
// directory through which a managed path leads. So driftWatch notices a replaced file, and a file that appears later.
type driftWatch struct {
	root    *files.Root
	touched chan struct{}
	stop    chan struct{}
	done    chan struct{}
	looks   time.Duration
	retries time.Duration
	most    int

	mu    sync.Mutex
	paths []string // as last set
	fresh chan struct{}
	blind error // why the kernel does not announce all changes; nil: it does
}

func newDriftWatch(root *files.Root) *driftWatch {
	return &driftWatch{root: root, touched: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		fresh: make(chan struct{}, 1), looks: blindLooks, retries: blindRetry, most: watchedDirs}
}

// watch replaces the paths. Changes from before this call are not announced.
func (w *driftWatch) watch(paths []string) {
	w.mu.Lock()
	same := slices.Equal(w.paths, paths)
	w.paths = paths
	w.mu.Unlock()
	if same {
		return
	}
	select {
	case w.fresh <- struct{}{}:
	default:
	}
}

func (w *driftWatch) close() {
	close(w.stop)
	<-w.done
}

// why returns the reason why the kernel does not announce all changes, nil where it does.
func (w *driftWatch) why() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.blind
}

func (w *driftWatch) touch() {
	select {
	case w.touched <- struct{}{}:
	default:
	}
}

// run runs until close.
func (w *driftWatch) run() {
	defer close(w.done)
	s := &sight{root: w.root, most: w.most}
	defer s.close()
	var last string // the marks of the managed paths, where they have to be examined
	look := time.NewTimer(w.looks)
	defer look.Stop()
	var retry time.Time
	see := func() {
		w.mu.Lock()
		paths := w.paths
		w.mu.Unlock()
		err := s.focus(paths)
		w.mu.Lock()
		w.blind = err
		w.mu.Unlock()
		if last = ""; err != nil {
			last, retry = s.marks(), time.Now().Add(w.retries)
		}
		look.Reset(w.looks)
	}
	for {
		events, errs := s.channels()
		select {
		case <-w.stop:
			return
		case <-w.fresh:
			see()
		case e, open := <-events:
			told, moved := s.reads(e)
			if !open {
				s.close() // the watch has ended by itself
			}
			if moved || !open {
				see()
			}
			if told || moved || !open {
				w.touch()
			}
		case _, open := <-errs: // the queue ran over, or another error: look for the changes that were missed
			if !open {
				s.close()
			}
			see()
			w.touch()
		case now := <-look.C:
			look.Reset(w.looks)
			if last == "" {
				continue
			}
			if marks := s.marks(); marks != last {
				see()
				w.touch()
			} else if now.After(retry) {
				see()
			}
		}
	}
}

// inode identifies a directory under all of its names.
type inode struct{ dev, ino uint64 }

// sight is the set of currently watched directories.
type sight struct {
	root    *files.Root
	most    int
	inotify *fsnotify.Watcher // nil: nothing is watched, or nothing can be
	entries entries
	at      map[inode]string    // the watched directories, each with one of its names
	names   map[string][]string // for each such name, all names of the same directory
}

func (s *sight) close() {
	if s.inotify != nil {
		_ = s.inotify.Close()
	}
	s.inotify, s.at, s.names = nil, nil, nil
}

func (s *sight) channels() (chan fsnotify.Event, chan error) {
	if s.inotify == nil {
		return nil, nil
	}
	return s.inotify.Events, s.inotify.Errors
}

// focus watches what these paths depend on now. The error is the reason why changes may go unnoticed; entries are set
// in that case too.
func (s *sight) focus(paths []string) error {
	const turns = 5 // a change that takes longer is announced by its own events
	var err error
	for range turns {
		found := entriesOf(s.root, paths)
		if err = s.place(found); err != nil {
			s.close()
			return err
		}
		// This second look finds a directory that was made after the first look and before its parent was watched.
		if again := entriesOf(s.root, paths); again.equal(found) && s.stands() {
			return nil
		}
	}
	return nil
}

// place makes the kernel watch these directories and no others.
func (s *sight) place(found entries) error {
	s.entries = found
	if len(found) > s.most {
		return fmt.Errorf("watching %d directories: the agent watches at most %d", len(found), s.most)
	}
	if len(found) == 0 {
		s.close()
		return nil
	}
	if s.inotify == nil {
		inotify, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watching the managed paths: %w", err)
		}
		s.inotify, s.at = inotify, map[inode]string{}
	}
	want, names := map[inode]string{}, map[string][]string{}
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		is, err := s.identify(dir)
		if err != nil {
			continue // the directory is gone again, which its parent announces
		}
		if want[is] == "" {
			want[is] = dir
		}
		names[want[is]] = append(names[want[is]], dir)
	}
	for is, dir := range s.at {
		if want[is] != dir {
			_ = s.inotify.Remove(s.path(dir)) // the watch ended with the directory
			delete(s.at, is)
		}
	}
	s.names = names
	for is, dir := range want {
		// Known directories too: a directory that was moved away and back, or that reuses a deleted one's inode, has lost its
		// watch.
		err := s.inotify.Add(s.path(dir))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watching %s: %w", dir, err)
		}
		s.at[is] = dir
	}
	return nil
}

// stands reports whether the watched directories are those that have these names now.
func (s *sight) stands() bool {
	for is, dir := range s.at {
		if now, err := s.identify(dir); err != nil || now != is {
			return false
		}
	}
	return true
}

func (s *sight) path(dir string) string { return path.Join(s.root.Path(), dir) }

func (s *sight) identify(dir string) (inode, error) {
	var st unix.Stat_t
	if err := unix.Lstat(s.path(dir), &st); err != nil {
		return inode{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return inode{}, unix.ENOTDIR
	}
	return inode{st.Dev, st.Ino}, nil
}

// reads reports whether an event is about a managed path, and whether it is about a directory on the way to one.
func (s *sight) reads(e fsnotify.Event) (told, moved bool) {
	if e.Name == "" {
		return false, false
	}
	name := path.Join("/", strings.TrimPrefix(e.Name, s.root.Path()))
	gone := e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
	if s.names[name] != nil && gone {
		moved = true // the event of the directory itself, or that of its parent about it
	}
	dirs := s.names[path.Dir(name)]
	for _, dir := range dirs {
		entry := s.entries[dir]
		part := entry[path.Base(name)] | entry[anyName]
		told = told || part&leaf != 0
		moved = moved || part&onWay != 0 && (gone || e.Has(fsnotify.Create))
	}
	return told, moved
}

// marks returns the marks of everything that would be watched.
func (s *sight) marks() string {
	var b strings.Builder
	for _, dir := range slices.Sorted(maps.Keys(s.entries)) {
		for _, name := range slices.Sorted(maps.Keys(s.entries[dir])) {
			at := path.Join(dir, name)
			if name == anyName {
				at = dir // the times of a directory change with its entries
			}
			mark := fileMark(s.root, at)
			if s.entries[dir][name] == onWay {
				mark = wayMark(s.root, at)
			}
			fmt.Fprintln(&b, at, mark)
		}
	}
	return b.String()
}

// wayMark returns a mark that changes when a way leads elsewhere; other changes in a directory on the way do not
// matter.
func wayMark(root *files.Root, name string) string {
	at := path.Join(root.Path(), name)
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		return "none"
	}
	link, _ := os.Readlink(at)
	return fmt.Sprintf("%d.%d %q", st.Dev, st.Ino, link)
}

// entries are the names in each directory, with the part of each name in the managed paths.
type entries map[string]map[string]part

// part is a set of bits.
type part uint8

const (
	// leaf marks a managed path itself, onWay a component on the way to it.
	leaf part = 1 << iota
	onWay
)

func (e entries) equal(o entries) bool {
	return maps.EqualFunc(e, o, maps.Equal)
}

// inspector is a host whose paths can be followed.
type inspector interface {
	Inspect(name string) (files.Node, error)
}

// entriesOf returns the entries that decide what is at these paths: each component of a path and, where a component is
// a link, those of the link's target. The last component of a path is not followed. A missing component ends the way.
func entriesOf(host inspector, paths []string) entries {
	out := entries{}
	known := map[string]files.Node{}
	inspect := func(name string) files.Node {
		n, is := known[name]
		if !is {
			var err error
			if n, err = host.Inspect(name); err != nil {
				n = files.Node{Type: files.Absent}
			}
			known[name] = n
		}
		return n
	}
	for _, p := range paths {
		out.follow(inspect, p)
	}
	return out
}

func (e entries) follow(inspect func(string) files.Node, name string) {
	rest, dir := components(name), "/"
	for links := 0; len(rest) > 0; {
		next := rest[0]
		rest = rest[1:]
		if next == ".." {
			dir = path.Dir(dir)
			continue
		}
		if e[dir] == nil {
			e[dir] = map[string]part{}
		}
		if len(rest) == 0 {
			e[dir][next] |= leaf
			return
		}
		e[dir][next] |= onWay
		switch n := inspect(path.Join(dir, next)); n.Type {
		case files.Directory:
			dir = path.Join(dir, next)
		case files.Symlink:
			if links++; links > longestTrail {
				return
			}
			if path.IsAbs(n.Target) {
				dir = "/"
			}
			rest = append(components(n.Target), rest...)
		default:
			return
		}
	}
}

func components(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(c string) bool { return c == "" || c == "." })
}
