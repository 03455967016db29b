// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
)

// made is what an update has had made on a host, up to the reboot.
type made struct {
	transactions int // of rpm-ostree, cleanup among them
	composes     int // commits that rpm-ostree has put together of a base and packages: minutes each on a real host
	deployments  int // checkouts, staged ones among them
}

// transactionSocket is where rpm-ostree's daemon listens for the clients of a transaction, in /run. It is made anew for
// each.
const transactionSocket = "rpm-ostree-transaction.sock"

// layerKey is in the metadata of every commit that was composed on the machine, and in no other.
const layerKey = "rpmostree.clientlayer"

var deploymentName = regexp.MustCompile(`^([0-9a-f]{64})\.[0-9]+$`)

// watcher sees from outside of a host what is made on it.
type watcher struct {
	repository string
	events     *fsnotify.Watcher
	ended      chan struct{}

	made   made
	err    error
	layers map[string]bool // by checksum
}

// watch watches the present boot of a host.
func watch(h *lab.Host) (*watcher, error) {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	w := &watcher{repository: h.HostPath("/ostree/repo"), events: events, ended: make(chan struct{}),
		layers: map[string]bool{}}
	for _, dir := range []string{
		h.HostPath("/ostree/deploy/" + lab.OS + "/deploy"), fmt.Sprintf("/proc/%d/root/run", h.Leader()),
	} {
		if err := events.Add(dir); err != nil {
			return nil, errors.Join(fmt.Errorf("watching %s: %w", dir, err), events.Close())
		}
	}
	go w.loop()
	return w, nil
}

func (w *watcher) loop() {
	defer close(w.ended)
	for {
		select {
		case e, ok := <-w.events.Events:
			if !ok {
				return
			}
			if e.Has(fsnotify.Create) {
				w.err = errors.Join(w.err, w.see(filepath.Base(e.Name)))
			}
		case err, ok := <-w.events.Errors:
			if !ok {
				return
			}
			w.err = errors.Join(w.err, err)
		}
	}
}

// see counts what has come to be.
func (w *watcher) see(name string) error {
	if name == transactionSocket {
		w.made.transactions++
		return nil
	}
	m := deploymentName.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	w.made.deployments++
	commit, err := os.ReadFile(filepath.Join(w.repository, "objects", m[1][:2], m[1][2:]+".commit"))
	if err != nil {
		return fmt.Errorf("reading the commit of a deployment: %w", err)
	}
	if !w.layers[m[1]] && bytes.Contains(commit, []byte(layerKey)) {
		w.layers[m[1]] = true
		w.made.composes++
	}
	return nil
}

// close ends the watching and returns what was seen.
func (w *watcher) close() (made, error) {
	err := w.events.Close()
	<-w.ended
	return w.made, errors.Join(w.err, err)
}

// written adds up what the processes of the host have written to disks so far. A process has in its count what children
// wrote that are gone, so nothing of PID 1's descendants is missing, and nothing is there twice.
func (h *osHost) written(ctx context.Context) (uint64, error) {
	// A process may go while its directory is read.
	text, err := h.Output(ctx, "sh", "-c", "cat /proc/[0-9]*/io 2>/dev/null || true")
	if err != nil {
		return 0, err
	}
	return sumWritten(text)
}

// sumWritten adds up the lines "write_bytes: N" of files /proc/PID/io.
func sumWritten(text string) (uint64, error) {
	var sum uint64
	found := false
	for line := range strings.Lines(text) {
		number, ok := strings.CutPrefix(line, "write_bytes: ")
		if !ok {
			continue
		}
		bytes, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading what processes have written: %w", err)
		}
		sum, found = sum+bytes, true
	}
	if !found {
		return 0, errors.New("reading what processes have written: the kernel does not count it")
	}
	return sum, nil
}

// traceForks counts the processes that PID 1 of a host and its descendants start while do runs, without those of
// rpm-ostree's daemon.
func traceForks(ctx context.Context, n *node.Node, do func() error) (forks int, err error) {
	const dir = "/var/tmp/trace"
	at := n.HostPath(dir)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return 0, err
	}
	strace, err := n.Command(ctx, "strace", "-ff", "-qq", "-s", "64", "-e", "signal=none",
		"-e", "trace=?fork,?vfork,clone,clone3,execve,execveat", "-o", dir+"/t", "-p", "1")
	if err != nil {
		return 0, err
	}
	var stderr bytes.Buffer
	strace.Stderr = &stderr
	if err := strace.Start(); err != nil {
		return 0, fmt.Errorf("tracing the host: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		// How it ends is a signal, or on standard error.
		_ = strace.Wait()
		close(ended)
	}()
	tracer := 0
	for tracer == 0 {
		select {
		case <-ended:
			return 0, fmt.Errorf("tracing the host: strace has ended: %s", stderr.Bytes())
		case <-time.After(10 * time.Millisecond):
		}
		if tracer, err = tracerOf(n.Leader()); err != nil {
			return 0, err
		}
	}
	err = do()
	// Before the host goes down: it would stop the tracer, and then wait for it for ever.
	if err := errors.Join(err, syscall.Kill(tracer, syscall.SIGINT)); err != nil {
		return 0, err
	}
	<-ended
	names, err := filepath.Glob(filepath.Join(at, "t.*"))
	if err != nil {
		return 0, err
	}
	texts := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return 0, err
		}
		texts[strings.TrimPrefix(filepath.Ext(name), ".")] = string(text)
	}
	return forksOf(texts), nil
}

// tracerOf is who traces a process, 0 for nobody.
func tracerOf(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "\nTracerPid:")
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.Atoi(strings.TrimSpace(line))
}

// daemonArgument is on the command line of rpm-ostree's daemon.
const daemonArgument = `"start-daemon"`

// forksOf counts the forks in the files that strace has written, by thread, without those of rpm-ostree's daemon and of
// what that started.
func forksOf(texts map[string]string) int {
	threads, forks := map[string]*thread{}, map[string]int{}
	var daemons []string
	for id, text := range texts {
		th, c := &thread{}, counts{Programs: map[string]int{}}
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			c.count(line)
			th.follow(line)
			if strings.HasPrefix(line, "execve") && strings.Contains(line, daemonArgument) {
				daemons = append(daemons, id)
			}
		}
		threads[id], forks[id] = th, c.Forks
	}
	var leave func(id string)
	leave = func(id string) {
		th := threads[id]
		if th == nil {
			return
		}
		delete(threads, id)
		for _, child := range th.children {
			leave(child)
		}
	}
	for _, id := range daemons {
		leave(id)
	}
	sum := 0
	for id := range threads {
		sum += forks[id]
	}
	return sum
}
