// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
)

// blockSize is the smallest unit that the disk writes as a whole: a physical sector of most real disks.
const blockSize = 4096

type block = [blockSize]byte

// disk is a disk with a volatile write cache. Written data is read back at once, and lasts only from the next flush on.
// Below the disk is a file that is never changed. A disk is safe for concurrent use.
type disk struct {
	base *os.File
	size int64

	mu      sync.Mutex
	durable map[int64]*block // by number; blocks are never written to, so a copy of the map is enough
	cached  map[int64]*block // lost in a power cut
	writes  int              // requests, including flushes
	flushes int
	bytes   int64
	// stop is the number of the write request that is never served, if more than zero. From that request on the disk is
	// silent.
	stop    int
	stopped chan struct{} // closed when the disk becomes silent
	// recorded gets what the disk serves, nil for nothing.
	recorded *recording
}

// recording is what a disk had at a moment, and each write request that it has served since. So it has the disk of a
// power cut at any of these requests, as often as one is wanted.
type recording struct {
	durable, cached map[int64]*block
	requests        []map[int64]*block // what each wrote, nil for a flush
}

func newDisk(base *os.File, durable, cached map[int64]*block) (*disk, error) {
	info, err := base.Stat()
	if err != nil {
		return nil, fmt.Errorf("making a disk: %w", err)
	}
	d := &disk{base: base, size: info.Size(), durable: map[int64]*block{}, cached: map[int64]*block{},
		stopped: make(chan struct{})}
	maps.Copy(d.durable, durable)
	maps.Copy(d.cached, cached)
	return d, nil
}

// record has the disk record what it serves until stop is called.
func (d *disk) record() (stop func() *recording) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &recording{durable: maps.Clone(d.durable), cached: maps.Clone(d.cached)}
	d.recorded = r
	return func() *recording {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.recorded = nil
		return r
	}
}

// before returns what the disk had when request n came, counted from 1 at the beginning of the recording.
func (r *recording) before(n int) (durable, cached map[int64]*block) {
	durable, cached = maps.Clone(r.durable), maps.Clone(r.cached)
	for _, wrote := range r.requests[:min(n-1, len(r.requests))] {
		if wrote == nil {
			maps.Copy(durable, cached)
			clear(cached)
		}
		maps.Copy(cached, wrote)
	}
	return durable, cached
}

// current returns the content of a block, including the cache.
func (d *disk) current(number int64) (*block, error) {
	if b := d.cached[number]; b != nil {
		return b, nil
	}
	if b := d.durable[number]; b != nil {
		return b, nil
	}
	b := new(block)
	if n, err := d.base.ReadAt(b[:], number*blockSize); err != nil && (!errors.Is(err, io.EOF) || n == 0) {
		return nil, err
	}
	return b, nil
}

// each calls do for every block that a range touches, with that block's part of the data.
func each(data []byte, offset int64, do func(number int64, within int, part []byte) error) error {
	for len(data) > 0 {
		within := int(offset % blockSize)
		part := data[:min(len(data), blockSize-within)]
		if err := do(offset/blockSize, within, part); err != nil {
			return err
		}
		data, offset = data[len(part):], offset+int64(len(part))
	}
	return nil
}

func (d *disk) read(data []byte, offset int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return each(data, offset, func(number int64, within int, part []byte) error {
		b, err := d.current(number)
		if err == nil {
			copy(part, b[within:])
		}
		return err
	})
}

// request counts a write request. It returns false where the disk is silent.
func (d *disk) request() bool {
	if d.stop > 0 && d.writes+1 >= d.stop {
		if d.writes < d.stop {
			d.writes = d.stop
			close(d.stopped)
		}
		return false
	}
	d.writes++
	return true
}

func (d *disk) write(data []byte, offset int64) (served bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.request() {
		return false, nil
	}
	d.bytes += int64(len(data))
	wrote := map[int64]*block{}
	if d.recorded != nil {
		d.recorded.requests = append(d.recorded.requests, wrote)
	}
	return true, each(data, offset, func(number int64, within int, part []byte) error {
		b, err := d.current(number)
		if err != nil {
			return err
		}
		changed := *b
		copy(changed[within:], part)
		d.cached[number], wrote[number] = &changed, &changed
		return nil
	})
}

func (d *disk) flush() (served bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.request() {
		return false
	}
	d.flushes++
	if d.recorded != nil {
		d.recorded.requests = append(d.recorded.requests, nil)
	}
	d.keep(func(int64) bool { return true })
	return true
}

func (d *disk) keep(which func(number int64) bool) {
	for _, number := range slices.Sorted(maps.Keys(d.cached)) {
		if which(number) {
			d.durable[number] = d.cached[number]
		}
	}
	clear(d.cached)
}

// lose acts as a power cut, and is called when nothing writes any more. What was not flushed is lost. With a source,
// which of these blocks last is random, because disks write in any order. lose returns the number of blocks that were
// not flushed, and how many of them are lost.
func (d *disk) lose(source *rand.Rand) (unflushed, lost int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	unflushed = len(d.cached)
	d.keep(func(int64) bool {
		if source != nil && source.IntN(2) == 0 {
			return true
		}
		lost++
		return false
	})
	d.stop, d.stopped = 0, make(chan struct{})
	return unflushed, lost
}

// silence makes the disk serve no write request from number n on, counted from the disk's first request. The returned
// channel is closed when request n comes.
func (d *disk) silence(n int) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stop = max(n, d.writes+1)
	return d.stopped
}

// Traffic is what a machine has written so far.
type Traffic struct {
	Requests int // writes and flushes
	Flushes  int
	Bytes    int64
}

func (d *disk) traffic() Traffic {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Traffic{d.writes, d.flushes, d.bytes}
}

// contents returns what a flush would have made durable by now. The caller must not change the blocks.
func (d *disk) contents() map[int64]*block {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := maps.Clone(d.durable)
	maps.Copy(out, d.cached)
	return out
}
