// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// on is a machine that has just booted, for the length of a test.
func on(ctx context.Context, t *testing.T) *Machine {
	t.Helper()
	image := Need(t, Options{})
	t.Parallel() // as many run as there are processors
	m, err := image.Booted(ctx, strings.ToLower(t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeMachine(t, m) })
	return m
}

// lately is what there is to know of what a machine has done.
func (m *Machine) lately() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	journal, err := m.Output(ctx, "journalctl", "--no-pager", "--output=short-precise", "--lines=200",
		"--identifier=machine-config-daemon", "--identifier=systemd", "--identifier=ostree", "--identifier=systemd-logind")
	if err != nil {
		journal += err.Error()
	}
	return fmt.Sprintf("the console of %s ends: %s\nand its journal: %s", m.name, m.consoleEnd(), journal)
}

// closeMachine removes a machine, which tells about itself first if the test failed.
func closeMachine(t *testing.T, m *Machine) {
	t.Helper()
	if t.Failed() {
		t.Log(m.lately())
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func mustOutput(ctx context.Context, t *testing.T, m *Machine, argv ...string) string {
	t.Helper()
	text, err := m.Output(ctx, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(text)
}

func TestMachineBootsThroughItsBootLoader(t *testing.T) {
	ctx := t.Context()
	m := on(ctx, t)
	line := mustOutput(ctx, t, m, "cat", "/proc/cmdline")
	for _, want := range []string{"root=LABEL=root", "ostree=/ostree/boot.", "BOOT_IMAGE=/boot/ostree/"} {
		if !strings.Contains(line, want) {
			t.Errorf("no %s on the command line %q", want, line)
		}
	}
	if got := mustOutput(ctx, t, m, "cat", "/run/testos/initramfs", "/usr/lib/testos/version"); got != "v1\nv1" {
		t.Errorf("initramfs and version: %q", got)
	}
	if got := mustOutput(ctx, t, m, "ostree", "admin", "status"); !strings.HasPrefix(got, "* testos ") {
		t.Errorf("ostree admin status: %s", got)
	}
	// 8 MiB that nobody flushes but the shutdown.
	large := strings.Repeat("0123456789abcde\n", 1<<19)
	if err := m.Put(ctx, "/var/lib/large", []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := m.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("a reboot takes %v", time.Since(began).Round(time.Second))
	if m.Boots() != 2 {
		t.Errorf("%d boots", m.Boots())
	}
	if got, err := m.Read(ctx, "/var/lib/large"); err != nil || got != large {
		t.Errorf("%d bytes of %d are there, or others, %v", len(got), len(large), err)
	}
	exit, err := m.Run(ctx, strings.NewReader("text"), os.Stderr, os.Stderr, "sh", "-c", "exit $(wc -c)")
	if exit != 4 || err != nil {
		t.Errorf("exit %d, %v", exit, err)
	}
}

// TestPowerCutTakesWhatWasNotFlushed holds the disk to what it is there for. The page cache goes with the machine; so
// what was not flushed is written out first, and is then in the disk's cache.
func TestPowerCutTakesWhatWasNotFlushed(t *testing.T) {
	ctx := t.Context()
	m := on(ctx, t)
	// A block that ext4 has allocated and made durable is overwritten in place: nothing but the file's own bytes changes.
	mustOutput(ctx, t, m, "sh", "-c", `cd /var/lib
for name in kept flushed cached paged; do yes old | head -c 4096 >$name; done; sync
overwrite() { yes new | head -c 4096 | dd of=$1 bs=4096 conv=notrunc$2 status=none; }
overwrite kept ,fsync`)
	before := m.Traffic()
	mustOutput(ctx, t, m, "sh", "-c", `cd /var/lib
overwrite() { yes new | head -c 4096 | dd of=$1 bs=4096 conv=notrunc oflag=$2 status=none; }
overwrite flushed direct,dsync; overwrite cached direct
yes new | head -c 4096 | dd of=paged bs=4096 conv=notrunc status=none`)
	after := m.Traffic()
	if after.Bytes == before.Bytes || after.Flushes == before.Flushes {
		t.Fatalf("nothing reached the disk: %+v, then %+v", before, after)
	}
	cut, err := m.Cut(nil)
	if err != nil {
		t.Fatal(err)
	}
	if cut.Lost == 0 || cut.Lost != cut.Unflushed {
		t.Errorf("the cut took %d blocks of %d", cut.Lost, cut.Unflushed)
	}
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	got := mustOutput(ctx, t, m, "sh", "-c", "cd /var/lib; head -qn 1 kept flushed cached paged")
	if want := "new\nnew\nold\nold"; got != want {
		t.Errorf("kept, flushed, cached, paged: %q, want %q", got, want)
	}
}
