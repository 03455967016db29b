// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
)

// pulling is a line of bootc's progress, as bootc writes it.
const pulling = `{"type":"ProgressBytes","task":"pulling","description":"Pulling Image: sha256:1","id":"sha256:1",` +
	`"bytesCached":7,"bytes":%d,"bytesTotal":%d,"stepsCached":4,"steps":1,"stepsTotal":3,"subtasks":[]}`

const staging = `{"type":"ProgressSteps","task":"staging","description":"Deploying Image","id":"x","stepsCached":0,"steps":1,` +
	`"stepsTotal":3,"subtasks":[{"subtask":"merging","description":"Merging Image","id":"fetching","completed":true},` +
	`{"subtask":"deploying","description":"Deploying Image","id":"deploying","completed":false}]}`

func TestProgressIsPassedOnFromTimeToTime(t *testing.T) {
	const first, second, third = "pulling: 1.0 of 8.5 MiB, 1 of 3 layers", "pulling: 2.0 of 8.5 MiB, 1 of 3 layers",
		"pulling: 3.0 of 8.5 MiB, 1 of 3 layers"
	at := func(mebi int) string { return fmt.Sprintf(pulling, mebi<<20, 17<<19) }
	for _, c := range []struct {
		name  string
		lines map[time.Duration]string
		says  []string
	}{
		{"bytes", map[time.Duration]string{0: at(1), time.Second: at(2), 6 * time.Second: at(3)}, []string{first, third}},
		{"the last ones", map[time.Duration]string{0: at(1), time.Second: at(2), 2 * time.Second: at(3)}, []string{first, third}},
		{"a step", map[time.Duration]string{0: at(1), 1: at(2), 2: staging, 3: at(3)},
			[]string{first, second, "staging: Deploying Image, 1 of 3 steps", third}},
		{"unknown totals", map[time.Duration]string{0: `{"type":"ProgressBytes","task":"pulling","bytes":3145728}`},
			[]string{"pulling: 3.0 MiB"}},
		{"of an older bootc", map[time.Duration]string{0: strings.Replace(at(1), `"type"`, `"apiVersion":"x/v1","type"`, 1)},
			[]string{first}},
		{"no progress", map[time.Duration]string{0: `{"type":"Start","version":"0.1.0"}`, 1: `{"type":"Later"}`, 2: "", 3: "[]",
			4: `{"type":"ProgressBytes","bytes":-1}`, 5: "\xff\xfe", 6: at(1)[:40]}, nil},
	} {
		var said []string
		p := &pace{say: func(text string) { said = append(said, text) }}
		start := time.Now()
		for _, after := range slices.Sorted(maps.Keys(c.lines)) {
			p.hear([]byte(c.lines[after]), start.Add(after))
		}
		p.end()
		if !slices.Equal(said, c.says) {
			t.Errorf("%s: says %q, want %q", c.name, said, c.says)
		}
	}
}

// telling is a systemd whose bootc writes progress, and ends as told.
type telling struct {
	ostree.Units

	root     string
	progress string
	ends     func(asked int) (stderr string, ended systemd.Ended, err error)
	asked    [][]string
	held     int // a copy of the pipe, as of a bootc that outlives its caller
}

func (u *telling) Run(_ context.Context, c systemd.Command) (systemd.Ended, error) {
	u.asked = append(u.asked, c.Argv[1:])
	if c.Passed != nil {
		if _, err := c.Passed.WriteString(u.progress); err != nil {
			return systemd.Ended{}, err
		}
		var err error
		if u.held, err = syscall.Dup(int(c.Passed.Fd())); err != nil {
			return systemd.Ended{}, err
		}
	}
	stderr, ended, err := u.ends(len(u.asked))
	return ended, errors.Join(err, os.WriteFile(filepath.Join(u.root, c.Stderr), []byte(stderr), 0o600),
		os.WriteFile(filepath.Join(u.root, c.Stdout), []byte("done"), 0o600))
}

func TestSwitchDoesNotDependOnItsProgress(t *testing.T) {
	succeeds, fails := systemd.Ended{Result: "success"}, systemd.Ended{Result: "exit-code", Status: 2}
	fine := func(int) (string, systemd.Ended, error) { return "", succeeds, nil }
	failing := func(text string) func(int) (string, systemd.Ended, error) {
		return func(asked int) (string, systemd.Ended, error) {
			if asked == 1 {
				return text, fails, nil
			}
			return "", succeeds, nil
		}
	}
	line := fmt.Sprintf(pulling, 1<<20, 2<<20) + "\n"
	const said = "pulling: 1.0 of 2.0 MiB, 1 of 3 layers"
	for _, c := range []struct {
		name     string
		progress string
		ends     func(int) (string, systemd.Ended, error)
		says     string
		runs     []bool // with the option, without
		fails    bool
	}{
		{"it tells", line, fine, said, []bool{true}, false},
		{"nothing", "", fine, "", []bool{true}, false},
		{"garbage", "{\n\x00\x01\n\n" + line + "}", fine, said, []bool{true}, false},
		{"a line without an end", line + `{"type":"Prog`, fine, said, []bool{true}, false},
		{"systemd is too old", "", func(asked int) (string, systemd.Ended, error) {
			if asked == 1 {
				return "", systemd.Ended{}, fmt.Errorf("starting: %w", systemd.ErrCannotPass)
			}
			return "", succeeds, nil
		}, "", []bool{true, false}, false},
		{"bootc is too old", "", failing("error: unexpected argument '--progress-fd' found\n"), "", []bool{true, false}, false},
		{"bootc gets no pipe", "", failing("error: Switching: not a pipe\n"), "", []bool{true, false}, false},
		{"there is no such image", line, failing("error: Switching: manifest unknown\n"), said, []bool{true}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, run := newHost(t, "[origin]\n")
			u := &telling{root: root, progress: c.progress, ends: c.ends, held: -1}
			b := New(run, &ostree.Tools{Units: u, Root: root}, ostree.NewPlain(run, root))
			var says []string
			b.Progress = func(text string) { says = append(says, text) }
			argv := []string{"bootc", "switch", "--retain", "quay.io/os:9"}
			output, err := b.runSwitch(t.Context(), systemd.Command{}, argv)
			if (err != nil) != c.fails || string(output) != "done" || strings.Join(says, " ") != c.says {
				t.Errorf("gives %q, %v, says %q", output, err, says)
			}
			var with []bool
			for _, asked := range u.asked {
				option := slices.Equal(asked, []string{"switch", "--progress-fd", "3", "--retain", "quay.io/os:9"})
				if with = append(with, option); !option && !slices.Equal(asked, argv[1:]) {
					t.Errorf("%q was run", asked)
				}
			}
			if !slices.Equal(with, c.runs) {
				t.Errorf("%q was run", u.asked)
			}
			// What can't be had is not asked for again.
			if _, err := b.runSwitch(t.Context(), systemd.Command{}, argv); err != nil || len(u.asked) != len(c.runs)+1 {
				t.Errorf("the next time %v, and %q was run", err, u.asked)
			}
		})
	}
}

func TestBootcThatOutlivesItsListenerFindsNobody(t *testing.T) {
	root, run := newHost(t, "[origin]\n")
	u := &telling{root: root, ends: func(int) (string, systemd.Ended, error) { return "", systemd.Ended{}, context.Canceled }}
	b := New(run, &ostree.Tools{Units: u, Root: root}, ostree.NewPlain(run, root))
	b.Progress = func(string) {}
	if _, err := b.runSwitch(t.Context(), systemd.Command{}, []string{"bootc", "switch"}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	// A pipe that is full would stop bootc; this one fails, and bootc writes no more.
	if _, err := syscall.Write(u.held, []byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("writing gives %v", err)
	}
}

func TestLongLineOfProgressIsPassedOver(t *testing.T) {
	var said []string
	in, stop, err := listen(func(text string) { said = append(said, text) })
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{strings.Repeat("x", 3*longestLine), "\n", fmt.Sprintf(pulling, 0, 0), "\n"} {
		if _, err := in.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if !slices.Equal(said, []string{"pulling: 0.0 MiB, 1 of 3 layers"}) {
		t.Errorf("says %q", said)
	}
}
