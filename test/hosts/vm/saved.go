// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Save stops a running machine. It keeps the machine's memory in the file memory, from which any number of machines can
// resume. The machine is off then.
func (m *Machine) Save(ctx context.Context, memory string) (*Saved, error) {
	fail := func(err error) (*Saved, error) { return nil, fmt.Errorf("saving %s: %w", m.name, err) }
	m.mu.Lock()
	p := m.power
	m.mu.Unlock()
	if p == nil {
		return fail(ErrDown)
	}
	if err := p.monitor.do("stop", nil, nil); err != nil {
		return fail(err)
	}
	if err := p.monitor.do("migrate", map[string]any{"uri": "exec:cat >'" + memory + "'"}, nil); err != nil {
		return fail(err)
	}
	status, err := p.monitor.until(ctx, "query-migrate", "setup", "active", "device", "pre-switchover", "wait-unplug")
	if err == nil && status != "completed" {
		err = fmt.Errorf("QEMU says %s", status)
	}
	if err != nil {
		return fail(err)
	}
	saved := &Saved{memory: memory, disk: m.disk.contents()}
	if _, err := m.Cut(nil); err != nil {
		return fail(err)
	}
	return saved, nil
}

// bootOnce returns a saved machine that has just booted. The saved machine is kept beside the image, under a name for
// the version of QEMU and its arguments: no other QEMU can resume it.
func (i *Image) bootOnce(ctx context.Context) (*Saved, error) {
	version, err := exec.CommandContext(ctx, emulator, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("asking QEMU for its version: %w", err)
	}
	digest := sha256.Sum256([]byte(string(version) + strings.Join(i.accel, " ") + strings.Join(hardware, " ") +
		strings.Join(i.options.firmware(""), " ")))
	base := filepath.Join(i.dir, "booted-"+hex.EncodeToString(digest[:])[:16])
	saved := &Saved{memory: base + ".memory"}
	file, err := os.Open(base + ".disk")
	if err == nil {
		defer file.Close()
		err := gob.NewDecoder(file).Decode(&saved.disk)
		if err != nil {
			return nil, fmt.Errorf("reading the saved machine: %w", err)
		}
		return saved, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	m, err := i.New("booted", nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = m.Close() }() // nothing on that machine is needed any more
	if err := m.Start(ctx); err != nil {
		return nil, err
	}
	if saved, err = m.Save(ctx, saved.memory); err != nil {
		return nil, err
	}
	// The file gets its name when it is complete.
	if file, err = os.Create(base + ".new"); err != nil {
		return nil, err
	}
	if err := errors.Join(gob.NewEncoder(file).Encode(saved.disk), file.Close()); err != nil {
		return nil, err
	}
	return saved, os.Rename(base+".new", base+".disk")
}
