// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

func sampleRecord() *Record {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &Record{
		Version:   recordFormat,
		Committed: &Revision{Config: "a", Digest: "aa", Deployment: "os/1.0", OwnedKargs: []string{`x="<1 2>"`}, Since: at},
		Pending: &Pending{Revision: Revision{Config: "b", Digest: "bb", Since: at}, Phase: PhaseProve, Road: RoadSwitch,
			From: "os/1.0", Deadline: time.Hour, Timeout: time.Minute, Baseline: Baseline{FailedUnits: []string{"x.service"}}},
		Quarantined: []Quarantined{{Config: "c", Digest: "cc", Reason: "said & done", Since: at}},
		Standing:    Standing{State: Working, Since: at},
	}
}

func encoded(t testing.TB, r *Record) []byte {
	t.Helper()
	data, err := encodeRecord(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRecordComesBackAsItWas(t *testing.T) {
	got, err := decodeRecord(encoded(t, sampleRecord()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sampleRecord(), got); diff != "" {
		t.Error(diff)
	}
}

func TestEveryTornRecordIsRefused(t *testing.T) {
	data := encoded(t, sampleRecord())
	for n := range len(bytes.TrimSpace(data)) {
		if _, err := decodeRecord(data[:n]); !errors.Is(err, errDamaged) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	for i := range data {
		bad := bytes.Clone(data)
		bad[i] ^= 0x20
		if r, err := decodeRecord(bad); err == nil && !cmp.Equal(r, sampleRecord()) {
			t.Fatalf("with byte %d changed it reads as %+v", i, r)
		}
	}
	if _, err := decodeRecord(append(bytes.Clone(data), data...)); !errors.Is(err, errDamaged) {
		t.Errorf("two records in one file: %v", err)
	}
}

func TestNewerRecordIsRefusedAsSuch(t *testing.T) {
	data := []byte(`{"sha256":"whatever a newer version puts here","record":{"version":2,"something":"new"}}`)
	if _, err := decodeRecord(data); !errors.Is(err, errNewer) {
		t.Errorf("%v", err)
	}
}

// The sum is right, so a program of ours wrote it: people are told to use that one, not to put the record aside.
func TestARecordWithAFieldOfANewerVersionIsRefusedAsSuch(t *testing.T) {
	for text, want := range map[string]error{`{"version":1,"pending":{"new":1}}`: errNewer, `{"version":"1"}`: errDamaged,
		`{"version":0}`: errDamaged} {
		data := fmt.Appendf(nil, `{"sha256":"%x","record":%s}`, sha256.Sum256([]byte(text)), text)
		if _, err := decodeRecord(data); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
}

func TestDamagedRecordIsNotActedOn(t *testing.T) {
	dir := t.TempDir()
	root, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, RecordPath)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := NewStore(root).Load(); !errors.Is(err, errDamaged) || r != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(encoded(f, sampleRecord()))
	f.Add([]byte(`{"sha256":"","record":{}}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord(data)
		if err != nil {
			if r != nil || !errors.Is(err, errDamaged) && !errors.Is(err, errNewer) {
				t.Fatalf("%+v, %v", r, err)
			}
			return
		}
		again, err := decodeRecord(encoded(t, r))
		if err != nil || !cmp.Equal(r, again) {
			t.Fatalf("%v\n%s", err, cmp.Diff(r, again))
		}
	})
}

func FuzzJournal(f *testing.F) {
	good, err := json.Marshal(&journal{ID: "x", Steps: []step{{Op: opPut, Path: "/etc/a", Dir: "/etc", Stage: files.StagePrefix + "x-0"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(`{"steps":[{"op":"put","path":"etc","stage":"../x"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		j, err := decodeJournal(data)
		if err != nil || j == nil {
			return
		}
		// What is accepted can be run against a tree without leaving it, whatever it says.
		dir := t.TempDir()
		root, err := files.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		j.root, j.ID = root, "fuzz"
		_ = j.roll()
		_ = j.undo()
	})
}

func TestReasonStaysOnOneLine(t *testing.T) {
	r := &Record{}
	(&Engine{Now: time.Now}).setState(r, Degraded, errors.Join(errors.New("one"), errors.New("two")).Error())
	r.quarantine(Revision{Digest: "d"}, "one\ntwo", time.Unix(0, 0))
	if r.Reason != "one; two" || r.Quarantined[0].Reason != "one; two" {
		t.Errorf("%q and %q", r.Reason, r.Quarantined[0].Reason)
	}
}

// What is taken back is not in the record any more when that is written down.
func TestDiskThatIsFullKeepsNobodyFromTakingBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to mount a file system takes root")
	}
	root := host(t, map[string]string{StateDir: "/"})
	at := filepath.Join(root.Path(), StateDir)
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	store := NewStore(root)
	r := sampleRecord()
	r.Pending.Transaction = "pending"
	if err := errors.Join((&journal{ID: "pending", root: root}).write(), store.save(r)); err != nil {
		t.Fatal(err)
	}
	filler, err := os.Create(filepath.Join(at, "filler"))
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	r.Pending = nil
	if err := errors.Join(store.save(r), filler.Close()); err != nil {
		t.Fatal(err)
	}
	if r, err = store.Load(); err != nil || r.Pending != nil {
		t.Errorf("%v %+v", err, r)
	}
}
