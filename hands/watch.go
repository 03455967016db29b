// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"path"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/transaction"
)

// watcher notices changes of the host's record and of the commands' reports.
type watcher struct {
	root    *files.Root
	changed chan struct{}
	inotify *fsnotify.Watcher // nil where the host has no inotify instance left: then the watcher polls
	stop    chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	waiting map[*waiter]bool
}

// waiter is woken when something happens in a directory.
type waiter struct {
	watch *watcher
	dir   string
	woken chan struct{}
}

// looks is the interval at which the record is read where nothing announces its changes.
const looks = 2 * time.Second

func newWatcher(root *files.Root) *watcher {
	w := &watcher{root: root, changed: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		waiting: map[*waiter]bool{}}
	inotify, err := fsnotify.NewWatcher()
	if err == nil {
		if err = inotify.Add(w.place(transaction.StateDir)); err != nil {
			_ = inotify.Close()
		} else {
			w.inotify = inotify
		}
	}
	go w.run()
	return w
}

// place returns the path at which this process finds a directory of the host.
func (w *watcher) place(dir string) string {
	at, err := w.root.Resolve(dir)
	if err != nil {
		at = dir
	}
	return path.Join(w.root.Path(), at)
}

func (w *watcher) close() {
	close(w.stop)
	<-w.done
}

func (w *watcher) run() {
	defer close(w.done)
	var events chan fsnotify.Event
	var errs chan error
	if w.inotify != nil {
		events, errs = w.inotify.Events, w.inotify.Errors
		defer func() { _ = w.inotify.Close() }()
	}
	tick := time.NewTicker(looks)
	defer tick.Stop()
	last := fileMark(w.root, transaction.RecordPath)
	for {
		select {
		case <-w.stop:
			return
		case e := <-events:
			if path.Base(e.Name) != handoverReport {
				break
			}
			w.rouse(path.Dir(e.Name))
			continue
		case <-errs: //nolint:errcheck // the queue ran over, or another error: look for the changes that were missed
		case <-tick.C:
			if w.inotify == nil {
				w.rouse("")
			}
		}
		if now := fileMark(w.root, transaction.RecordPath); now != last {
			last = now
			select {
			case w.changed <- struct{}{}:
			default:
			}
		}
	}
}

// rouse wakes the waiters of the directory, all for "".
func (w *watcher) rouse(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.waiting {
		if dir == "" || i.dir == dir {
			select {
			case i.woken <- struct{}{}:
			default:
			}
		}
	}
}

// wake returns a waiter that is woken when the report in dir appears.
func (w *watcher) wake(dir string) *waiter {
	i := &waiter{watch: w, dir: w.place(dir), woken: make(chan struct{}, 1)}
	w.mu.Lock()
	w.waiting[i] = true
	w.mu.Unlock()
	if w.inotify != nil {
		if err := w.inotify.Add(i.dir); err != nil {
			i.woken <- struct{}{} // the directory is gone, or the report is there already
		}
	}
	return i
}

func (i *waiter) end() {
	i.watch.mu.Lock()
	delete(i.watch.waiting, i)
	i.watch.mu.Unlock()
	if i.watch.inotify != nil {
		_ = i.watch.inotify.Remove(i.dir) // the watch ended with the directory
	}
}
