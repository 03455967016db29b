// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/transaction"
)

// binaryPath is where the host keeps its own copy of this program: on the shared part of the disk, so that whichever
// deployment boots can recover, and whatever installed the program can go away.
const (
	binaryDir  = transaction.StateDir + "/bin"
	binaryPath = binaryDir + "/machine-config-daemon"
	// binaryLabel lets init run it where SELinux is enforcing; the rest of /var/lib may not be executed.
	binaryLabel = "system_u:object_r:bin_t:s0"
)

// The units are plain files of the host rather than transient ones: they must be there on the next boot. Recovery runs
// as early as what it may have to write is mounted, before everything that could read it. ostree, which both may be
// running when they are stopped, freezes /boot for a moment and must not be killed then: only the program itself is
// told to stop.
var hostUnits = map[string]string{
	transaction.RecoverUnit: `[Unit]
Description=Bring the node to one side of an interrupted update
Documentation=https://github.com/noderefit/noderefit
DefaultDependencies=no
RequiresMountsFor=/var/lib/machine-config-daemon /etc
After=local-fs.target systemd-tmpfiles-setup.service
Before=sysinit.target kubelet.service crio.service containerd.service
Conflicts=shutdown.target
Before=shutdown.target

[Service]
Type=oneshot
ExecStart=` + binaryPath + ` recover
TimeoutStartSec=5min
KillMode=mixed

[Install]
WantedBy=sysinit.target
`,
	// Started in every boot, beside everything else: the clock runs however far the rest of the boot gets, and where
	// nothing waits for a verdict it ends at once.
	transaction.ProveUnit: `[Unit]
Description=Prove that the node is healthy on its new configuration
Documentation=https://github.com/noderefit/noderefit
DefaultDependencies=no
ConditionPathExists=/var/lib/machine-config-daemon/boot.json
After=` + transaction.RecoverUnit + `
Conflicts=shutdown.target
Before=shutdown.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=` + binaryPath + ` prove
Restart=on-failure
RestartSec=5
KillMode=mixed

[Install]
WantedBy=sysinit.target
`,
}

// install puts the recovery unit and the program on the host, where they are not there yet. The transaction that
// follows makes them durable before it decides anything.
func (h *Host) install() error {
	if err := h.installBinary(); err != nil {
		return err
	}
	var wants []files.Want
	for name, text := range hostUnits {
		wants = append(wants, files.Want{Path: path.Join(unitDir, name),
			Node: files.Node{Type: files.Regular, Mode: 0o644, Data: []byte(text)}},
			files.Want{Path: path.Join(unitDir, "sysinit.target.wants", name),
				Node: files.Node{Type: files.Symlink, Target: path.Join(unitDir, name)}})
	}
	for _, w := range wants {
		if err := h.put(w); err != nil {
			return err
		}
	}
	return nil
}

// put makes one path of the agent's own as wanted, by a rename, and only where it is not.
func (h *Host) put(w files.Want) error {
	at, err := h.root.Resolve(w.Path)
	if err != nil {
		return err
	}
	if w.Node.Label == "" {
		w.Node.Label = h.labels.Of(at, w.Node.Type)
	}
	if d, err := h.root.Compare(w); err != nil || len(d) == 0 {
		return err
	}
	dir, name := path.Split(w.Path)
	if err := h.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp := files.StagePrefix + name
	if err := h.root.Remove(dir + tmp); err != nil {
		return err
	}
	if err := h.root.Stage(dir, tmp, w.Node); err != nil {
		return err
	}
	return h.root.Replace(dir, tmp, w.Path)
}

// installBinary copies this program to the host. A copy with the same size and time is the same program: reading fifty
// megabytes to be sure would be paid by every update.
func (h *Host) installBinary() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if self == binaryPath {
		return nil
	}
	src, err := os.Open(self)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	defer func() { _ = src.Close() }()
	st, err := src.Stat()
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	size, modified, err := h.root.SizeAndTime(binaryPath)
	if err == nil && size == st.Size() && modified.Equal(st.ModTime().Truncate(time.Second)) {
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	data := make([]byte, st.Size())
	if _, err := io.ReadFull(src, data); err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	label := ""
	if h.labels != nil {
		label = binaryLabel
	}
	tmp := files.StagePrefix + "machine-config-daemon"
	if err := h.root.MkdirAll(binaryDir, 0o755); err != nil {
		return err
	}
	if err := h.root.Remove(path.Join(binaryDir, tmp)); err != nil {
		return err
	}
	n := files.Node{Type: files.Regular, Mode: 0o755, Label: label, Data: data}
	if err := h.root.Stage(binaryDir, tmp, n); err != nil {
		return err
	}
	if err := h.root.Touch(path.Join(binaryDir, tmp), st.ModTime().Truncate(time.Second)); err != nil {
		return err
	}
	return h.root.Replace(binaryDir, tmp, binaryPath)
}
