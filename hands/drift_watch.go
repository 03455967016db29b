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

// The bounds of a watch.
const (
	// watchedDirs is how many directories are watched at most: a configuration has files in a few dozen. The kernel's own
	// limit is for all programs together.
	watchedDirs = 1024
	// blindLooks is how often what is managed is looked at where the kernel does not tell of changes.
	blindLooks = 10 * time.Second
	// blindRetry is how often it is asked again whether it does.
	blindRetry = 10 * time.Minute
	// longestTrail is how many links lead to a path at most; the kernel gives up there too.
	longestTrail = 40
)

// anyName stands for every entry of a directory, as the last component of a watched path.
const anyName = "*"

// driftWatch sees what is managed on the host change. It watches directories and not files: each one through which a
// managed path leads, as far as it exists, so that what is replaced, or comes later, is seen as well.
type driftWatch struct {
	root    *files.Root
	touched chan struct{}
	stop    chan struct{}
	done    chan struct{}
	looks   time.Duration
	retries time.Duration
	most    int

	mu    sync.Mutex
	paths []string // as they were set last
	fresh chan struct{}
	blind error // why the kernel does not tell of all changes; nil: it does
}

func newDriftWatch(root *files.Root) *driftWatch {
	return &driftWatch{root: root, touched: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		fresh: make(chan struct{}, 1), looks: blindLooks, retries: blindRetry, most: watchedDirs}
}

// watch replaces the paths. What has changed before that is not told.
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

// why is why the kernel does not tell of all changes, nil where it does.
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

// run goes on until close.
func (w *driftWatch) run() {
	defer close(w.done)
	s := &sight{root: w.root, most: w.most}
	defer s.close()
	var last string // what it looked like, where that has to be looked at
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
				s.close() // it has ended by itself
			}
			if moved || !open {
				see()
			}
			if told || moved || !open {
				w.touch()
			}
		case _, open := <-errs: // a queue that ran over, or whatever it is: what it hides is looked for
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

// inode is what a directory is, whatever its names.
type inode struct{ dev, ino uint64 }

// sight is what is watched at the moment.
type sight struct {
	root    *files.Root
	most    int
	inotify *fsnotify.Watcher // nil: nothing is, or can be
	entries entries
	at      map[inode]string    // the directories that are watched, by one of their names
	names   map[string][]string // of such a name, all that lead to the same directory
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

// focus watches what these paths depend on now. The error says why changes may go unseen; entries are known then too.
func (s *sight) focus(paths []string) error {
	const turns = 5 // what changes for longer than that is told by its own events
	var err error
	for range turns {
		found := entriesOf(s.root, paths)
		if err = s.place(found); err != nil {
			s.close()
			return err
		}
		// A directory that was made after we had looked for it, and before its parent was watched, is found now.
		if again := entriesOf(s.root, paths); again.equal(found) && s.stands() {
			return nil
		}
	}
	return nil
}

// place has the kernel watch these directories and no others.
func (s *sight) place(found entries) error {
	s.entries = found
	if len(found) > s.most {
		return fmt.Errorf("watching %d directories: more than %d are not watched", len(found), s.most)
	}
	if len(found) == 0 {
		s.close()
		return nil
	}
	if s.inotify == nil {
		inotify, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watching what is managed: %w", err)
		}
		s.inotify, s.at = inotify, map[inode]string{}
	}
	want, names := map[inode]string{}, map[string][]string{}
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		is, err := s.identify(dir)
		if err != nil {
			continue // gone again, which its parent tells
		}
		if want[is] == "" {
			want[is] = dir
		}
		names[want[is]] = append(names[want[is]], dir)
	}
	for is, dir := range s.at {
		if want[is] != dir {
			_ = s.inotify.Remove(s.path(dir)) // gone with the directory
			delete(s.at, is)
		}
	}
	s.names = names
	for is, dir := range want {
		// Also where it is known: what was moved away and back, or has the inode of what went, is watched no more.
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

// stands says that what is watched is what has these names now.
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

// reads says what an event is about: something that is managed, or the way to it.
func (s *sight) reads(e fsnotify.Event) (told, moved bool) {
	if e.Name == "" {
		return false, false
	}
	name := path.Join("/", strings.TrimPrefix(e.Name, s.root.Path()))
	gone := e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
	if s.names[name] != nil && gone {
		moved = true // the directory itself, or what its parent says of it
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

// marks is what everything that would be watched looks like.
func (s *sight) marks() string {
	var b strings.Builder
	for _, dir := range slices.Sorted(maps.Keys(s.entries)) {
		for _, name := range slices.Sorted(maps.Keys(s.entries[dir])) {
			at := path.Join(dir, name)
			if name == anyName {
				at = dir // whose times change with its entries
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

// wayMark tells whether a way leads elsewhere; what else happens in a directory on it does not matter.
func wayMark(root *files.Root, name string) string {
	at := path.Join(root.Path(), name)
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		return "none"
	}
	link, _ := os.Readlink(at)
	return fmt.Sprintf("%d.%d %q", st.Dev, st.Ino, link)
}

// entries are names in directories, by the directory, and what each of them is to the managed paths.
type entries map[string]map[string]part

// part is a set.
type part uint8

const (
	// leaf is what is managed itself, onWay what leads there.
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

// entriesOf are those that decide what stands at these paths: each component of a path, and where one is a link, those
// of what it leads to. The last component of a path is not followed. What does not exist ends the way.
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
