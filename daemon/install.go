// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/transaction"
)

// binaryPath is where the host keeps its own copy of this program: on the shared part of the disk, so that whichever
// deployment boots can recover, and whatever installed the program can go away.
const (
	binaryDir  = transaction.StateDir + "/bin"
	binaryPath = binaryDir + "/machine-config-daemon"
	// launcher is what init runs instead, with the program as its argument. Where SELinux is enforcing, init may not run
	// what is labelled as the rest of /var/lib is, and another label would be gone with the first restorecon. It may run
	// this, in a domain that may run anything.
	launcher = "/usr/bin/env"
)

// The units are plain files of the host rather than transient ones: they must be there on the next boot. Recovery runs
// as early as what it may have to write is mounted, before everything that could read it, and before greenboot, which
// would swap the deployments of a machine that the boot loader has brought back. ostree, which both may be
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
Before=greenboot-rpm-ostree-grub2-check-fallback.service greenboot-healthcheck.service
Conflicts=shutdown.target
Before=shutdown.target

[Service]
Type=oneshot
ExecStart=` + launcher + ` ` + binaryPath + ` recover
SyslogIdentifier=machine-config-daemon
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
ExecStart=` + launcher + ` ` + binaryPath + ` prove
SyslogIdentifier=machine-config-daemon
Restart=on-failure
RestartSec=5
KillMode=mixed

[Install]
WantedBy=sysinit.target
`,
}

// installer puts what is the agent's own onto a host.
type installer struct {
	root   *files.Root
	labels *files.Labels
}

// install puts the recovery unit and the program on the host, where they are not there yet. The transaction that
// follows makes them durable before it decides anything.
func (h *Host) install() error {
	i := installer{root: h.root, labels: h.labels}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if self != binaryPath {
		if err := i.copyProgram(self); err != nil {
			return err
		}
	}
	return i.units()
}

func (i installer) units() error {
	var wants []files.Want
	for name, text := range hostUnits {
		wants = append(wants, files.Want{Path: path.Join(unitDir, name),
			Node: files.Node{Type: files.Regular, Mode: 0o644, Data: []byte(text)}},
			files.Want{Path: path.Join(unitDir, "sysinit.target.wants", name),
				Node: files.Node{Type: files.Symlink, Target: path.Join(unitDir, name)}})
	}
	for _, w := range wants {
		if err := i.put(w); err != nil {
			return err
		}
	}
	return nil
}

// put makes one path of the agent's own as wanted, by a rename, and only where it is not.
func (i installer) put(w files.Want) error {
	at, err := i.root.Resolve(w.Path)
	if err != nil {
		return err
	}
	w.Node.Label = i.labels.Of(at, w.Node.Type)
	if d, err := i.root.Compare(w); err != nil || len(d) == 0 {
		return err
	}
	dir, name := path.Split(w.Path)
	if err := i.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp := files.StagePrefix + name
	if err := i.root.Remove(dir + tmp); err != nil {
		return err
	}
	if err := i.root.Stage(dir, tmp, w.Node); err != nil {
		return err
	}
	// What a unit runs at the next boot must not be an empty file then, whatever happens until the next sync.
	if w.Node.Type == files.Regular && w.Path == binaryPath {
		if err := i.root.Fsync(dir + tmp); err != nil {
			return err
		}
	}
	return i.root.Replace(dir, tmp, w.Path)
}

// copyProgram copies the program at self to the host. A copy with the same size and time is the same program: reading
// fifty megabytes to be sure would be paid by every update.
func (i installer) copyProgram(self string) error {
	st, err := os.Stat(self)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	size, modified, err := i.root.SizeAndTime(binaryPath)
	if err == nil && size == st.Size() && modified.Equal(st.ModTime().Truncate(time.Second)) {
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := i.program(self); err != nil {
		return err
	}
	return i.root.Touch(binaryPath, st.ModTime().Truncate(time.Second))
}

// program makes the host's copy of the program the one at self, unless it has the same bytes already. Units that run
// the old one keep it until they end. Images give every program the same time, so that nothing but the bytes tells one
// version from the next.
func (i installer) program(self string) (err error) {
	src, err := os.Open(self)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	defer func() { _ = src.Close() }()
	st, err := src.Stat()
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	// Mapped and not read: it must not make the head larger by its own size.
	data, err := unix.Mmap(int(src.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("reading this program: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(data)) }()
	return i.put(files.Want{Path: binaryPath, Node: files.Node{Type: files.Regular, Mode: 0o755, Data: data}})
}
