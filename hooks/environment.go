// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

// Environment is what a hook is told of an update.
type Environment struct {
	// From and To are the names of the configurations; Node is the node's name, or the host's if empty.
	From, To, Node string
	// FromKernel is the version of the running kernel. Kernel, Release, Image and Commit are of the OS that the host goes
	// to.
	FromKernel, Kernel, Release, Image, Commit string
}

// releaseFiles are the files that say which release of an OS a host has.
var releaseFiles = []string{"/etc/os-release", "/usr/lib/os-release"}

// Running fills in the running kernel and the release of the running OS, which the host stays on until something else
// is known.
func (e *Environment) Running(root *files.Root) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("reading the running kernel: %w", err)
	}
	e.FromKernel = unix.ByteSliceToString(name.Release[:])
	e.Kernel = e.FromKernel
	for _, path := range releaseFiles {
		text, err := root.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading the release of the OS: %w", err)
		}
		e.Release = version(string(text))
		return nil
	}
	return nil
}

// version returns VERSION_ID of an os-release file, "" if the file has none.
func version(text string) string {
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(strings.TrimSpace(line), "VERSION_ID="); is {
			return strings.Trim(value, `"'`)
		}
	}
	return ""
}

// List returns the environment of a hook. It has names only: a hook can ask the host for everything else.
func (e *Environment) List(when When) []string {
	node := e.Node
	if node == "" {
		node, _ = os.Hostname()
	}
	return []string{
		"NODEREFIT_PHASE=" + string(when), "NODEREFIT_FROM=" + e.From, "NODEREFIT_TO=" + e.To, "NODEREFIT_NODE=" + node,
		"NODEREFIT_FROM_KERNEL=" + e.FromKernel, "NODEREFIT_TO_KERNEL=" + e.Kernel, "NODEREFIT_TO_RELEASE=" + e.Release,
		"NODEREFIT_TO_IMAGE=" + e.Image, "NODEREFIT_TO_COMMIT=" + e.Commit,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
}
