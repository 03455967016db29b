// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/systemd"
)

// Means are what the agent needs of a host: to be started in the next boot, to reboot, and to keep a record.
type Means struct {
	// Units are the agent's own units, and those in plan.Needed.
	Units []systemd.Facts
	// Command is the command line of each of the agent's own units, by unit.
	Command map[string][]string
	// Differing are the agent's own files and links that others have changed.
	Differing []string
	// Covered are mount points that the host needs to go back, and over which something else is mounted.
	Covered []string
	// Reload is why systemd can't read its units again. Written is why a directory can't be written to, by path.
	Reload  error
	Written map[string]error
}

// Covered returns the error of a mount point, needed to go back, that something else is mounted over.
func Covered(at string) error {
	return fmt.Errorf("%s is covered: a mount hides the file system that this host boots from", at)
}

// Judge returns an error for each means that is missing, by name. nil means that the host can still go back, and go on.
func (m Means) Judge() error {
	var noes []error
	for _, at := range m.Differing {
		noes = append(noes, fmt.Errorf("%s is not as the agent has left it", at))
	}
	for _, at := range m.Covered {
		noes = append(noes, Covered(at))
	}
	for _, u := range m.Units {
		if why := m.lacks(u); why != "" {
			noes = append(noes, errors.New(why))
		}
	}
	if m.Reload != nil {
		noes = append(noes, m.Reload)
	}
	for _, dir := range slices.Sorted(maps.Keys(m.Written)) {
		if err := m.Written[dir]; err != nil {
			noes = append(noes, fmt.Errorf("writing to %s: %w", dir, err))
		}
	}
	return errors.Join(noes...)
}

// lacks returns what a unit lacks, "" for nothing.
func (m Means) lacks(u systemd.Facts) string {
	argv, own := m.Command[u.Name]
	switch {
	case u.Load != "loaded":
		return u.String()
	case !own:
		return ""
	case u.File != path.Join("/etc/systemd/system", u.Name):
		return fmt.Sprintf("%s is the unit of %s", u.Name, u.File)
	case !slices.Equal(u.Argv, argv):
		return fmt.Sprintf("%s runs %q", u.Name, strings.Join(u.Argv, " "))
	case u.Before > 0:
		return u.Name + " runs other commands first"
	case u.User != "" && u.User != "root":
		return fmt.Sprintf("%s runs as %s", u.Name, u.User)
	case u.Root != "" && u.Root != "/":
		return fmt.Sprintf("%s runs in %s", u.Name, u.Root)
	}
	return ""
}

// Sight is what can be seen of a boot from anywhere on the host.
type Sight struct {
	BootID string
	Booted string // deployment
	Uptime time.Duration
	// Recover and Prove are the agent's units. Maintenance is the target that a boot ended in when it failed, "" where the
	// boot did not fail.
	Recover, Prove systemd.Facts
	Maintenance    string
}

// overdue is how long after the deadline the way back may begin.
const overdue = 30 * time.Second

// Waits reports whether a pending update waits for something that this boot or the next boot does by itself.
func (p *Pending) Waits() bool { return p != nil && (p.Phase == PhaseBoot || p.Phase == PhaseProve) }

// Stuck returns why a pending update does not go on, and what a person can do. It returns "" where the update goes on,
// or where the awaited event is still to come. The record alone can't tell: the program that would write it does not
// run.
func Stuck(p *Pending, s Sight) string {
	if !p.Waits() {
		return ""
	}
	where := p.Config
	if p.deploys() && s.Booted == p.From {
		where = "the configuration before " + p.Config
	}
	switch {
	case p.BootID == s.BootID && p.Phase == PhaseBoot:
		return ""
	case p.Phase == PhaseBoot && sameKernel(p.BootID, s.BootID) && (!p.deploys() || s.Booted == p.From):
		return ""
	case p.BootID != s.BootID && (s.Recover.Moves() || s.Prove.Moves() || s.Prove.Active == "active"):
		return ""
	case p.BootID != s.BootID:
		return s.with(fmt.Sprintf("this host has booted %s, and recovery did not run: %s, %s", where, s.Recover, s.Prove))
	case s.Uptime <= p.Deadline+overdue:
		return ""
	}
	return s.with(fmt.Sprintf("the deadline of %s passed %s ago, and nothing has gone back: %s",
		p.Config, (s.Uptime - p.Deadline).Round(time.Second), s.Prove))
}

// Unheld returns why the deadline of an update was not held by anything, "" where the agent's unit held it. The update
// is given up after its deadline.
func Unheld(s Sight) string {
	if s.Prove.Name == "" || s.Prove.Active == "active" || s.Prove.Active == "activating" {
		return ""
	}
	return s.Prove.String()
}

func (s Sight) with(why string) string {
	if s.Maintenance != "" {
		why += ", and the boot ended in " + s.Maintenance
	}
	return why + "; `machine-config-daemon rollback` on this host goes back, `machine-config-daemon recover` goes on"
}

// Booting returns where an update is that has booted and that recovery has not taken up yet, "" for an update that has
// not booted.
func Booting(p *Pending, s Sight) string {
	if p == nil || p.Phase != PhaseBoot || p.BootID == s.BootID ||
		sameKernel(p.BootID, s.BootID) && (!p.deploys() || s.Booted == p.From) {
		return ""
	}
	return fmt.Sprintf("booted, and recovery has not run yet: %s", s.Recover)
}

// TryWriting does in a directory what an update does there, and leaves nothing. It does not wait for the disk: the boot
// record was waited for in this very boot.
func TryWriting(root *files.Root, dir string) error {
	const name, other = files.StagePrefix + "try", files.StagePrefix + "tried"
	err := root.MkdirAll(dir, 0o755)
	for _, left := range []string{name, other} {
		err = cmp.Or(err, root.Remove(path.Join(dir, left)))
	}
	if err == nil {
		err = root.Stage(dir, name, files.Node{Type: files.Regular, Mode: 0o600, Data: []byte("tried\n")})
	}
	if err == nil {
		err = root.Replace(dir, name, path.Join(dir, other))
	}
	return errors.Join(err, root.Remove(path.Join(dir, name)), root.Remove(path.Join(dir, other)))
}
