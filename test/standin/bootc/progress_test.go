// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/systemd"
)

// switchTold has bootc switch to the image b, stage it elsewhere, and write its progress into a file that systemd
// passes on. It returns what was written.
func (s *scene) switchTold(passed *os.File, fd string) (ended systemd.Ended, stderr string) {
	s.Helper()
	s.must("rm", "-rf", "/run/private")
	s.must("mkdir", "/run/private")
	units := s.host.Units()
	defer units.Close()
	const said = "/run/told.stderr"
	ended, err := units.Run(s.ctx, systemd.Command{Name: "told.service", Description: "told", Passed: passed,
		Argv:  []string{program, "switch", "--progress-fd", fd, "--transport", "oci", "--retain", "/var/lib/images/b"},
		Binds: []systemd.Bind{{Source: "/run/private", At: "/run/ostree"}}, Stderr: said, Outlives: true,
		Environment: []string{"PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}})
	if err != nil {
		s.Fatal(err)
	}
	return ended, s.must("cat", said)
}

func progressIsTold(s *scene) {
	out, in, err := os.Pipe()
	if err != nil {
		s.Fatal(err)
	}
	// The pipe holds all of it.
	ended, stderr := s.switchTold(in, "3")
	if ended.Err() != nil {
		s.Fatalf("%v: %s", ended, stderr)
	}
	if _, err := in.WriteString("end\n"); err != nil {
		s.Fatal(err)
	}
	var kinds []string
	for decoder := json.NewDecoder(out); ; {
		var event struct {
			Type, Task, Version string
			Bytes, BytesTotal   *uint64
			Steps, StepsTotal   *uint64
		}
		if decoder.Decode(&event) != nil {
			break
		}
		kinds = append(kinds, strings.TrimSpace(event.Type+" "+event.Task))
		if event.Type == "Start" && event.Version == "" || event.Type != "Start" && (event.Steps == nil || event.StepsTotal == nil) ||
			event.Type == "ProgressBytes" && (event.Bytes == nil || event.BytesTotal == nil) {
			s.Errorf("told %+v", event)
		}
	}
	if all := slices.Compact(kinds); !slices.Equal(all, []string{"Start", "ProgressBytes pulling", "ProgressSteps importing", "ProgressSteps staging"}) {
		s.Errorf("told %q", kinds)
	}

	// A bootc that nobody listens to goes on.
	s.must("bootc", "internals", "cleanup")
	if err := out.Close(); err != nil {
		s.Fatal(err)
	}
	ended, stderr = s.switchTold(in, "3")
	if ended.Err() != nil {
		s.Errorf("unheard: %v: %s", ended, stderr)
	}
	s.content(stderr, "Failed to write to jsonl")
	if err := in.Close(); err != nil {
		s.Fatal(err)
	}

	// What can't be told is an error at once.
	file, err := os.Create(s.TempDir() + "/file")
	if err != nil {
		s.Fatal(err)
	}
	defer file.Close()
	ended, stderr = s.switchTold(file, "3")
	if ended.Err() == nil {
		s.Error("a file is taken for a pipe")
	}
	s.content(stderr, "not a pipe")
	s.must("bootc", "internals", "cleanup")
}

func progressOfComposeIsPassedOn(s *act) {
	first := s.host.BootedDeployment()
	var lock sync.Mutex
	var said []string
	d := s.driver()
	d.Progress = func(text string) {
		lock.Lock()
		defer lock.Unlock()
		said = append(said, text)
	}
	if _, err := d.Compose(s.ctx, osimage.System{Image: s.digested + s.b}); err != nil {
		s.Fatal(err)
	}
	if err := d.Drop(s.ctx); err != nil {
		s.Fatal(err)
	}
	lock.Lock()
	defer lock.Unlock()
	for _, want := range []string{"pulling: ", "importing: Importing Image, ", "staging: Deploying Image, "} {
		if !slices.ContainsFunc(said, func(text string) bool { return strings.HasPrefix(text, want) }) {
			s.Errorf("%q is not told, but %q", want, said)
		}
	}
	s.untouched(first)
}
