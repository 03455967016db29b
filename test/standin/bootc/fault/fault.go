// SPDX-License-Identifier: Apache-2.0

// Package fault is how a test makes the stand-in for bootc fail: by a file for each step in Dir, which the program
// reads when it comes to that step. The files are on the disk, so they outlive a reboot.
package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is where the faults are, on the host.
const Dir = "/var/lib/bootc-stand-in/faults"

// Step is a point that every switch or upgrade passes.
type Step string

// The steps, in their order.
const (
	Manifest Step = "manifest" // the lock is held and the manifest about to be fetched
	Layers   Step = "layers"   // the manifest is there, and the layers are about to be fetched
	Stage    Step = "stage"    // the commit is there and about to be staged
	Staged   Step = "staged"   // the deployment is staged; the images that it is bound to are about to be fetched
	End      Step = "end"      // all is done but the end of the program
)

// Action is what goes wrong.
type Action string

// The actions.
const (
	Network Action = "network" // the registry can't be reached
	NoSpace Action = "nospace"
	Die     Action = "die"  // SIGKILL
	Hang    Action = "hang" // nothing, until the fault is lifted
)

// texts are the errors, in the words of skopeo, the registries, ostree and bootc.
var texts = map[Action]string{
	Network: `Preparing import: Fetching manifest: failed to invoke method OpenImage: ` +
		`pinging container registry registry.example: Get "https://registry.example/v2/": ` +
		`dial tcp 192.0.2.1:443: connect: connection refused`,
	NoSpace: `Pulling: Importing: Unencapsulating base: Importing objects: Writing content object: ` +
		`min-free-space-percent '3%' would be exceeded, at least 1.2 GB requested`,
}

// Set makes step go wrong on the host whose root is at root: times times, or until Lift if that is 0, as it must be for
// Hang.
func Set(root string, step Step, action Action, times int) error {
	path := filepath.Join(root, Dir, string(step))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, "%s %d\n", action, times), 0o644)
}

// Lift takes back the fault of a step.
func Lift(root string, step Step) error {
	err := os.Remove(filepath.Join(root, Dir, string(step)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// hangs is where a program says that it hangs at a step.
const hangs = "/run/bootc-stand-in-hangs"

// Hangs says whether a program hangs at a step on the host whose root is at root.
func Hangs(root string, step Step) bool {
	text, err := os.ReadFile(filepath.Join(root, hangs))
	return err == nil && string(text) == string(step)
}

// poll is how often a program that hangs looks whether the fault was lifted.
const poll = 20 * time.Millisecond

// Pass lets whatever is set for a step happen to the program that calls it, on its own host.
func Pass(step Step) error {
	path := filepath.Join(Dir, string(step))
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	word, count, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	times, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	switch {
	case times == 1:
		err = os.Remove(path)
	case times > 1:
		err = Set("/", step, Action(word), times-1)
	}
	if err != nil {
		return err
	}
	switch action := Action(word); action {
	case Die:
		return unix.Kill(os.Getpid(), unix.SIGKILL)
	case Hang:
		if err := os.WriteFile(hangs, []byte(step), 0o644); err != nil {
			return err
		}
		for ; err == nil; time.Sleep(poll) {
			_, err = os.Stat(path)
		}
		return os.Remove(hangs)
	default:
		said, known := texts[action]
		if !known {
			return fmt.Errorf("reading %s: there is no fault %q", path, word)
		}
		return errors.New(said)
	}
}
