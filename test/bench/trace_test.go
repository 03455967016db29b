// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCallIsCountedForWhatItDoes(t *testing.T) {
	for name, test := range map[string]struct {
		line string
		want counts
	}{
		"sync of a file":   {`fsync(7</var/lib/x>)                    = 0`, counts{Fsyncs: 1}},
		"sync of the data": {`fdatasync(7</var/lib/x>) = 0`, counts{Fsyncs: 1}},
		"sync of a disk":   {`syncfs(7</var>) = 0`, counts{SyncFS: 1}},
		"one that failed":  {`fsync(7</var/lib/x>) = -1 EIO (Input/output error)`, counts{}},
		"rename": {`renameat(8</etc/a b>, ".x", 9</etc/a b>, "y") = 0`,
			counts{Renames: 1, Writes: 1}},
		"rename in /run": {`renameat2(8</run/a>, ".x", 9</run/a>, "y", 0) = 0`, counts{}},
		"open for reading": {`openat(AT_FDCWD</>, "/etc/passwd", O_RDONLY|O_CLOEXEC) = 3</etc/passwd>`,
			counts{}},
		"open for writing": {`openat(3</etc>, "x", O_WRONLY|O_CREAT|O_EXCL, 0600) = 4</etc/x>`, counts{Opens: 1, Writes: 1}},
		"open by openat2": {`openat2(3</>, "var/x", {flags=O_RDWR|O_CLOEXEC, resolve=RESOLVE_IN_ROOT}, 24) = 4</var/x>`,
			counts{Opens: 1, Writes: 1}},
		"open in /run": {`openat(AT_FDCWD</>, "/run/x", O_RDWR|O_CREAT, 0600) = 4</run/x>`, counts{}},
		"open in a directory that only begins like one": {`openat(AT_FDCWD</>, "/runs", O_RDWR|O_CREAT, 0600) = 4</runs>`,
			counts{Opens: 1, Writes: 1}},
		"write to a file":      {`write(4</etc/x>, "abc\"("..., 300)     = 300`, counts{Writes: 1}},
		"write to a pipe":      {`write(1<pipe:[123]>, "abc"..., 300) = 300`, counts{}},
		"write to nowhere":     {`write(1</dev/null>, "abc"..., 300) = 300`, counts{}},
		"mode by handle":       {`fchmodat(AT_FDCWD</>, "/proc/self/fd/7", 0644) = 0`, counts{Writes: 1}},
		"owner by empty path":  {`fchownat(4</etc/x>, "", 0, 0, AT_EMPTY_PATH) = 0`, counts{Writes: 1}},
		"owner in /run":        {`fchownat(4</run/x>, "", 0, 0, AT_EMPTY_PATH) = 0`, counts{}},
		"link to /run":         {`symlinkat("/run/x", 4</etc>, "y") = 0`, counts{Writes: 1}},
		"link in /run":         {`symlinkat("/etc/x", 4</run>, "y") = 0`, counts{}},
		"directory":            {`mkdirat(4</etc>, "y", 0700) = 0`, counts{Writes: 1}},
		"thread":               {`clone(child_stack=0xc000, flags=CLONE_VM|CLONE_FS|CLONE_THREAD) = 12`, counts{}},
		"process":              {`clone(child_stack=NULL, flags=CLONE_VM|CLONE_VFORK|SIGCHLD) = 12`, counts{Forks: 1}},
		"process by clone3":    {`clone3({flags=CLONE_VM|CLONE_VFORK, exit_signal=SIGCHLD}, 88) = 12`, counts{Forks: 1}},
		"program":              {`execve("/usr/bin/rpm", ["rpm", "-qf"], 0x7ff /* 9 vars */) = 0`, counts{Programs: map[string]int{"rpm": 1}}},
		"program not found":    {`execve("/bin/rpm", ["rpm"], 0x7ff /* 9 vars */) = -1 ENOENT (No such file or directory)`, counts{}},
		"what is no call":      {`+++ exited with 0 +++`, counts{}},
		"what never came back": {`exit_group(0)                           = ?`, counts{}},
	} {
		t.Run(name, func(t *testing.T) {
			got := counts{Programs: map[string]int{}}
			got.count(test.line)
			got.Changed = nil
			if len(got.Programs) == 0 {
				got.Programs = nil
			}
			if d := cmp.Diff(test.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestStepThatCostsTooMuchIsMissed(t *testing.T) {
	for name, test := range map[string]struct {
		step string
		c    counts
		ok   bool
	}{
		"as promised":       {"apply.first", counts{Fsyncs: 5, SyncFS: 3, Writes: 900, Renames: 140, Reloads: 1}, true},
		"one sync too many": {"apply.first", counts{Fsyncs: 6, SyncFS: 3, Reloads: 1}, false},
		"no reload":         {"apply.first", counts{}, false},
		"two reloads":       {"apply.first", counts{Reloads: 2}, false},
		"a fork":            {"apply.onefile", counts{Forks: 1}, false},
		"ostree":            {"live.onefile", counts{Forks: 1, Programs: map[string]int{"ostree": 1}}, true},
		"systemctl":         {"live.onefile", counts{Forks: 1, Programs: map[string]int{"systemctl": 1}}, false},
		"a write":           {"apply.same", counts{Writes: 1}, false},
		"nothing":           {"apply.same", counts{}, true},
	} {
		if wrong := missed(test.step, test.c); (len(wrong) == 0) != test.ok {
			t.Errorf("%s: missed %q", name, wrong)
		}
	}
}
