// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// sentinelPath is the file that says on Debian and Ubuntu that packages want a reboot; the other one has their names.
const (
	sentinelPath = "/run/reboot-required"
	packagesPath = sentinelPath + ".pkgs"
)

// Paths are those whose change may mean that the host wants a reboot, or does not want one any more. The last one has
// the answers of programs: a person or a package manager may ask them, too.
var Paths = []string{sentinelPath, packagesPath, keptPath}

// Watched are the places that a status about reboots depends on, besides the deployments.
var Watched = append(slices.Clone(Paths), bootDir, modulesDir)

const (
	bootDir, modulesDir = "/boot", "/lib/modules"
	releasePath         = "/proc/sys/kernel/osrelease"
	// keptPath keeps what programs have said, and since when. No boot inherits it.
	keptPath = transaction.RunDir + "/reboot-wanted.json"
)

// LockName is the name of the lock of the process that asks programs.
const LockName = "wants-reboot.lock"

// kept is the file at keptPath.
type kept struct {
	// Boot is the boot in which programs were asked: /run outlives a soft reboot.
	Boot    string            `json:"boot"`
	Answers Answers           `json:"answers"`
	Wanted  *api.RebootWanted `json:"wanted,omitempty"`
}

// Read reads what costs nothing. packages is false on a host with ostree, whose deployments tell of kernels.
func Read(root *files.Root, packages bool) (Seen, error) {
	var s Seen
	text, err := root.ReadFile(sentinelPath)
	switch {
	case err == nil:
		s.Required = &Required{Text: strings.Trim(strings.TrimSpace(string(text)), "* ")}
		_, s.Required.Since, _ = root.SizeAndTime(sentinelPath)
		if names, err := root.ReadFile(packagesPath); err == nil {
			s.Required.Packages = strings.Fields(string(names))
		}
	case !errors.Is(err, fs.ErrNotExist):
		return s, fmt.Errorf("looking for what wants a reboot: %w", err)
	}
	if !packages {
		return s, nil
	}
	release, err := root.ReadFile(releasePath)
	if err != nil {
		return s, nil //nolint:nilerr // a tree runs no kernel
	}
	s.Running = strings.TrimSpace(string(release))
	s.Kernels = kernels(root)
	return s, nil
}

// kernels returns the kernels that have modules and an image. A folder that can't be read has none.
func kernels(root *files.Root) []Kernel {
	names, _ := root.ReadDir(modulesDir)
	var out []Kernel
	for _, release := range names {
		for _, image := range []string{path.Join(bootDir, "vmlinuz-"+release), path.Join(modulesDir, release, "vmlinuz")} {
			if _, since, err := root.SizeAndTime(image); err == nil {
				out = append(out, Kernel{Release: release, Since: since})
				break
			}
		}
	}
	return out
}

// Recall returns what programs said in this boot, and the reasons that were kept with it. Before programs were asked in
// this boot, the reasons are those from before the ordered reboot that ended in this boot: a program that no boot
// satisfies would have the host rebooted without end.
func Recall(root *files.Root, boot string, last *transaction.Rebooted) (Answers, *api.RebootWanted) {
	var k kept
	data, err := root.ReadFile(keptPath)
	if err == nil && json.Unmarshal(data, &k) == nil && k.Boot == boot {
		return k.Answers, k.Wanted
	}
	if last == nil || last.Boot != "" && last.Boot != boot {
		return Answers{}, nil
	}
	before := &api.RebootWanted{}
	for kind, since := range last.Wanted {
		before.Reasons = append(before.Reasons, api.RebootReason{Kind: api.RebootKind(kind), Since: since})
	}
	return Answers{}, before
}

// Keep keeps both, where they differ from what was kept.
func Keep(root *files.Root, boot string, said Answers, wanted *api.RebootWanted) error {
	data, err := json.Marshal(kept{Boot: boot, Answers: said, Wanted: wanted})
	if err != nil {
		return err
	}
	if was, err := root.ReadFile(keptPath); err == nil && string(was) == string(data) {
		return nil
	}
	if err := root.MkdirAll(transaction.RunDir, 0o755); err != nil {
		return err
	}
	if err := root.WriteRecord(keptPath, data, 0o600); err != nil {
		return fmt.Errorf("keeping what wants a reboot: %w", err)
	}
	return nil
}

// Runner is systemd.
type Runner interface {
	Run(ctx context.Context, c systemd.Command) (systemd.Ended, error)
}

const (
	needsProgram = "/usr/bin/needs-restarting"
	// dnf has a command of that name where it has this plugin, in the folder of a Python's packages. Most hosts of dnf
	// have the plugin, and not the program.
	dnfProgram  = "/usr/bin/dnf"
	dnfPlugin   = "dnf-plugins/needs_restarting.py"
	needsUnit   = "machine-config-daemon-needs-restarting.service"
	needsOutput = transaction.RunDir + "/needs-restarting"
	// needsLimit is a hundred times what it takes.
	needsLimit = 2 * time.Minute
)

// needsCommand returns the command that asks whether a reboot is needed, nil where the host has none.
func needsCommand(root *files.Root) ([]string, error) {
	const lib = "/usr/lib"
	if there, err := exists(root, needsProgram); err != nil || there {
		return []string{needsProgram, "-r"}, err
	}
	if there, err := exists(root, dnfProgram); err != nil || !there {
		return nil, err
	}
	names, _ := root.ReadDir(lib)
	for _, name := range names {
		for _, packages := range []string{"site-packages", "dist-packages"} {
			there, err := exists(root, path.Join(lib, name, packages, dnfPlugin))
			if err != nil || there {
				return []string{dnfProgram, "needs-restarting", "-r"}, err
			}
		}
	}
	return nil, nil
}

func exists(root *files.Root, name string) (bool, error) {
	n, err := root.Inspect(name)
	return err == nil && n.Type != files.Absent, err
}

// AskNeeds asks needs-restarting, where the host has it, as a unit. With an error the answer stays the former one: a
// program that could not be asked takes nothing back.
func (a *Answers) AskNeeds(ctx context.Context, root *files.Root, units Runner) error {
	command, err := needsCommand(root)
	if err != nil {
		return fmt.Errorf("looking for needs-restarting: %w", err)
	}
	var packages []string
	wants := false
	if command != nil {
		packages, wants, err = runNeeds(ctx, root, units, command)
	}
	if err != nil {
		return fmt.Errorf("asking needs-restarting: %w", err)
	}
	a.Needs, a.NeedsReboot = packages, wants
	return nil
}

func runNeeds(ctx context.Context, root *files.Root, units Runner, command []string) (packages []string, wants bool,
	err error) {
	defer func() { _ = errors.Join(root.Remove(needsOutput), root.Remove(needsOutput+".errors")) }()
	ended, err := units.Run(ctx, systemd.Command{Name: needsUnit, Description: "Noderefit: needs-restarting -r",
		Argv: command, Environment: []string{"LC_ALL=C.UTF-8", "HOME=/root"},
		Stdout: needsOutput, Stderr: needsOutput + ".errors", Limit: needsLimit, Grace: 5 * time.Second})
	if err != nil {
		return nil, false, err
	}
	if ended.Err() == nil {
		return nil, false, nil
	}
	output, err := root.ReadFile(needsOutput)
	if err != nil {
		return nil, false, err
	}
	packages, wants = parseNeeds(string(output))
	if !wants {
		return nil, false, fmt.Errorf("%w, and the program does not say that a reboot is required", ended)
	}
	return packages, true, nil
}

// Describe returns what is told of a deployment that boots next, nil for nil.
func Describe(root *files.Root, d *ostree.Deployment) *Deployment {
	if d == nil {
		return nil
	}
	out := &Deployment{ID: d.ID, Checksum: d.Checksum, Version: d.Version, Staged: d.Staged}
	at := d.Dir + ".origin"
	if d.Staged {
		at = "/run/ostree/staged-deployment"
	}
	_, out.Since, _ = root.SizeAndTime(at) // where that can't be read, the time at which it was first seen counts
	return out
}

// Newest returns the release of the newest installed kernel that is newer than the running one, "" where none is.
func Newest(root *files.Root) string {
	if s, err := Read(root, true); err == nil {
		if k := newest(s.Running, s.Kernels); k != nil {
			return k.Release
		}
	}
	return ""
}
