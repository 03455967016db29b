// SPDX-License-Identifier: Apache-2.0

// Package hostile is what the agent has to stand that nobody would do on purpose, but for those who do.
//
// TestHostileConfigurations goes from a harmless configuration A to well-formed ones that break the host: units of the
// agent and of systemd masked, replaced and given drop-ins, types of units hardened as a whole, links and directories at
// odd places, files that early boot reads, and kernel arguments. A configuration has one to three such pieces. It must
//
//   - be refused, with exit code 1 or 3, and nothing is changed then, or all taken back; or
//   - prove itself, and going back to A works then; or
//   - be given up: the host is back on A by itself, says RolledBack, and a harmless configuration works then.
//
// All else is stuck. A host has a limit for each boot: its deadline and a margin. What the lab does to a host is what its
// surroundings would do to a machine. One that is off or whose PID 1 has ended is switched on again, as by a hardware
// watchdog or a person, and no more often than a configuration has attempts. Where no boot of a configuration gets as far
// as the agent, which would count it (systemd freezes, or reboots, before it starts anything), the boot loader is what
// counts: after the attempts it boots the entry before, as one with a boot counter does. How often that was needed is
// counted beside the rest, since a machine without such a boot loader would not come back.
//
// TestFileThatCannotBeReadIsNamedAndNoObstacleLater has the reads of one file after the other fail, as on a disk that has
// lost a sector.
//
// The suite ends with a line for each of its parts:
//
//	hostile: <n> stuck: <n>
//
// HOSTILE is how many configurations, HOSTILE_SEED repeats an earlier run, HOSTILE_JOBS is how many hosts there are at a
// time, and HOSTILE_ONLY names the pieces of configurations, a line each, separated by " + ".
package hostile

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
)

// scratch has the programs, which the tests share.
var scratch string

// ending is what the suite ends with: each of its parts adds a line when it begins, and what the tests share is given
// back.
var ending struct {
	sync.Mutex
	lines []func() (line string, bad bool)
	close []func() error
}

// endWith has the suite end with a line, and fail where that is bad.
func endWith(line func() (string, bool)) {
	ending.Lock()
	defer ending.Unlock()
	ending.lines = append(ending.lines, line)
}

// shared has the suite give something back at its end.
func shared(end func() error) {
	ending.Lock()
	defer ending.Unlock()
	ending.close = append(ending.close, end)
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp("", "noderefit-hostile-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		for _, line := range ending.lines {
			text, bad := line()
			fmt.Fprintln(os.Stdout, text)
			if bad {
				code = max(code, 1)
			}
		}
		shared(func() error { return lab.RemoveTree(scratch) })
		for _, give := range ending.close {
			if err := give(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = max(code, 1)
			}
		}
		return code
	}())
}

// agent is the program as it is released.
var agent = sync.OnceValues(func() (string, error) { return node.Build(context.Background(), scratch) })
