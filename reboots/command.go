// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/hooks"
)

const (
	// commandPath is the host's own command that reboots it. The file beside it has its time limit.
	commandPath  = "/etc/noderefit/reboot-command"
	commandLimit = commandPath + ".timeout"
	// usualLimit is how long the command has to take the host down, where the host sets no limit.
	usualLimit   = 5 * time.Minute
	commandUnit  = "machine-config-daemon-reboot-command.service"
	commandGrace = 5 * time.Second
	// launcher is agent.Launcher: init may run it on a host with SELinux.
	launcher = "/usr/bin/env"
)

// command is the host's own command.
type command struct {
	path  string
	limit time.Duration
}

// ownCommand returns the host's own command, or why the host has none that may run. A user who can change the
// command can become root: so the command belongs to root, and no other user can write it or the directory.
func ownCommand(root *files.Root) (own command, why string) {
	own = command{path: commandPath, limit: usualLimit}
	for _, name := range []string{path.Dir(commandPath), commandPath} {
		n, err := root.Inspect(name)
		switch {
		case err != nil:
			return own, err.Error()
		case n.Type == files.Absent:
			return own, "the host has no " + commandPath
		case name == commandPath && n.Type != files.Regular:
			return own, commandPath + " is no file"
		case n.UID != os.Geteuid():
			return own, fmt.Sprintf("%s belongs to user %d, and not to root", name, n.UID)
		case n.Mode&0o022 != 0:
			return own, fmt.Sprintf("others than root may write %s (mode %04o)", name, n.Mode)
		case name == commandPath && n.Mode&0o100 == 0:
			return own, commandPath + " is not executable"
		}
	}
	text, err := root.ReadFile(commandLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return own, ""
	}
	if err == nil {
		own.limit, err = hooks.ParseLimit(string(text))
	}
	if err != nil {
		return own, fmt.Sprintf("%s: %v", commandLimit, err)
	}
	return own, ""
}
