// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

func testDisk(t *testing.T) *disk {
	t.Helper()
	name := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(name, bytes.Repeat([]byte{'.'}, 8*blockSize), 0o600); err != nil {
		t.Fatal(err)
	}
	base, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { base.Close() })
	d, err := newDisk(base, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func wrote(t *testing.T, d *disk, offset int64, text string) {
	t.Helper()
	if served, err := d.write([]byte(text), offset); !served || err != nil {
		t.Fatal(served, err)
	}
}

func contains(t *testing.T, d *disk, offset int64, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if err := d.read(got, offset); err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("at %d: %q, want %q", offset, got, want)
	}
}

func TestDiskLosesWhatNoFlushFollowed(t *testing.T) {
	d := testDisk(t)
	wrote(t, d, 100, "flushed")
	if !d.flush() {
		t.Fatal("no flush")
	}
	before := d.contents()
	wrote(t, d, 103, "over the edge of nothing")
	wrote(t, d, blockSize-2, "edge") // of two blocks
	contains(t, d, 100, "fluover the")
	contains(t, d, blockSize-3, ".edge.")
	if unflushed, lost := d.lose(nil); unflushed != 2 || lost != 2 {
		t.Errorf("%d of %d lost", lost, unflushed)
	}
	contains(t, d, 100, "flushed.")
	contains(t, d, blockSize-3, "......")
	if want := (Traffic{Requests: 4, Flushes: 1, Bytes: 7 + 24 + 4}); d.traffic() != want {
		t.Errorf("%+v, want %+v", d.traffic(), want)
	}
	// What was saved is not changed by what came after.
	again, err := newDisk(d.base, before, nil)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, again, 100, "flushed.")
}

func TestDiskLosesAnyPartOfWhatNoFlushFollowed(t *testing.T) {
	kept := map[string]bool{}
	for seed := range uint64(64) {
		d := testDisk(t)
		wrote(t, d, 0, "1")
		wrote(t, d, blockSize, "2")
		d.lose(rand.New(rand.NewPCG(seed, 0)))
		got := make([]byte, blockSize+1)
		if err := d.read(got, 0); err != nil {
			t.Fatal(err)
		}
		kept[string(got[0])+string(got[blockSize])] = true
	}
	for _, want := range []string{"..", "1.", ".2", "12"} {
		if !kept[want] {
			t.Errorf("%s never came about: %v", want, kept)
		}
	}
}

func TestDiskFallsSilentAtARequest(t *testing.T) {
	d := testDisk(t)
	wrote(t, d, 0, "a")
	silent := d.silence(3)
	wrote(t, d, 0, "b")
	select {
	case <-silent:
		t.Fatal("silent too early")
	default:
	}
	if d.flush() {
		t.Error("request 3 was served")
	}
	<-silent
	if served, _ := d.write([]byte("c"), 0); served {
		t.Error("request 4 was served")
	}
	d.lose(nil)
	contains(t, d, 0, ".")
	wrote(t, d, 0, "d")
}

// A cut of the recording takes and leaves what a cut of the disk itself does.
func TestRecordingHasTheDiskOfACutAtEachRequest(t *testing.T) {
	begin := func() *disk {
		d := testDisk(t)
		wrote(t, d, 0, "aa")
		d.flush()
		wrote(t, d, 2*blockSize, "a")
		return d
	}
	work := func(d *disk) {
		write := func(offset int64, text string) {
			if _, err := d.write([]byte(text), offset); err != nil {
				t.Fatal(err)
			}
		}
		write(0, "b")
		write(blockSize-1, "cc") // of two blocks
		d.flush()
		write(1, "d")
		d.flush()
		write(blockSize, "e")
	}
	left := func(d *disk, source *rand.Rand) (text string) {
		unflushed, lost := d.lose(source)
		got := make([]byte, 3*blockSize)
		if err := d.read(got, 0); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d of %d lost: %s", lost, unflushed, bytes.ReplaceAll(got, []byte("........"), nil))
	}
	whole := begin()
	start := whole.traffic().Requests
	stop := whole.record()
	work(whole)
	end := whole.traffic().Requests - start
	r := stop()
	wrote(t, whole, 0, "after")
	ends := map[string]bool{}
	for n := 1; n <= end+1; n++ {
		for _, seed := range []uint64{0, 1, 2, 3} {
			source := func() *rand.Rand {
				if seed == 0 {
					return nil
				}
				return rand.New(rand.NewPCG(seed, uint64(n)))
			}
			cut := begin()
			cut.silence(start + n)
			work(cut)
			durable, cached := r.before(n)
			again, err := newDisk(whole.base, durable, cached)
			if err != nil {
				t.Fatal(err)
			}
			got, want := left(again, source()), left(cut, source())
			if got != want {
				t.Errorf("request %d: %q, want %q", n, got, want)
			}
			ends[want] = true
		}
	}
	if len(ends) < end {
		t.Errorf("%d requests, and only these ends: %v", end, ends)
	}
}

func TestCutsAreSpreadOverEveryPartOfTheRoad(t *testing.T) {
	r := road{marks: []mark{{"begin", 0}, {"nothing", 5}, {"commit", 5}, {"boot", 90}}, end: 100}
	parts := map[string]int{}
	for _, p := range r.plans(40, true, rand.New(rand.NewPCG(1, 2))) {
		if p.request < 1 || p.request > r.end {
			t.Errorf("request %d", p.request)
		}
		parts[r.in(p.request)]++
	}
	// Where nothing is written, the next request is what is cut.
	if want := map[string]int{"begin": 10, "commit": 20, "boot": 10}; !maps.Equal(parts, want) {
		t.Errorf("cuts by part: %v, not %v", parts, want)
	}
}
