// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/noderefit/noderefit/systemd"
)

// TestCommandsRunAsUnits shows what systemd makes of the commands that package systemd gives it.
func TestCommandsRunAsUnits(t *testing.T) {
	ctx, host := boot(t, Options{Name: "node"})
	units := host.Units()
	t.Cleanup(units.Close)
	for _, part := range []struct {
		name string
		play func(context.Context, *testing.T, *Host, *systemd.Units)
	}{
		{"how it ended is told", howItEndedIsTold},
		{"what it writes is where it was asked to be", whatItWritesIsThere},
		{"one that does not outlive its caller is stopped", theCallersOwnIsStopped},
		{"one that outlives its caller is found and waited for", theOtherGoesOn},
		{"one that ends while it is asked for is whole or gone", theEndingIsWholeOrGone},
		{"a bus that starts anew is no loss", aNewBusIsNoLoss},
	} {
		t.Run(part.name, func(t *testing.T) { part.play(ctx, t, host, units) })
		if failed := output(ctx, t, host, "systemctl", "list-units", "--all", "--no-legend", "x.service"); failed != "" {
			t.Errorf("%s: left is %s", part.name, failed)
		}
	}
}

// inRoot is where this machine sees a file of the running host.
func inRoot(host *Host, path string) string {
	return fmt.Sprintf("/proc/%d/root%s", host.Leader(), path)
}

func shell(text string) systemd.Command {
	return systemd.Command{Name: "x.service", Description: text, Argv: []string{"/bin/sh", "-c", text}}
}

func howItEndedIsTold(ctx context.Context, t *testing.T, _ *Host, units *systemd.Units) {
	t.Helper()
	for _, outlives := range []bool{false, true} {
		for text, want := range map[string]string{
			"exit 0":                  "",
			"exit 1":                  "exit status 1",
			"exit 255":                "exit status 255",
			"kill -TERM $$; sleep 60": "killed by signal 15",
			"kill -KILL $$":           "killed by signal 9",
		} {
			c := shell(text)
			c.Outlives = outlives
			ended, err := units.Run(ctx, c)
			if err != nil || fmt.Sprint(ended.Err()) != cmpNil(want) {
				t.Errorf("outlives %t: %s gave %v, %v", outlives, text, ended.Err(), err)
			}
		}
	}
	late := shell("sleep 60")
	late.Limit = 100 * time.Millisecond
	if ended, err := units.Run(ctx, late); err != nil || ended.Result != "timeout" {
		t.Errorf("at its limit: %+v, %v", ended, err)
	}
}

func cmpNil(text string) string {
	if text == "" {
		return "<nil>"
	}
	return text
}

func whatItWritesIsThere(ctx context.Context, t *testing.T, host *Host, units *systemd.Units) {
	t.Helper()
	c := shell("echo one; echo two >&2; echo $FROM; cat /run/x.at/x; echo '$HOME'")
	c.Stdout, c.Stderr, c.Outlives = "/run/x.stdout", "/run/x.stderr", true
	c.EnvironmentFiles = []string{"/run/x.env", "/run/none.env"}
	c.Binds = []systemd.Bind{{Source: "/run/x.dir", At: "/run/x.at"}}
	if err := errors.Join(os.WriteFile(inRoot(host, "/run/x.env"), []byte("FROM=file\n"), 0o600),
		os.Mkdir(inRoot(host, "/run/x.dir"), 0o755), os.Mkdir(inRoot(host, "/run/x.at"), 0o755),
		os.WriteFile(inRoot(host, "/run/x.dir/x"), []byte("bound\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"new", "written anew"} {
		if ended, err := units.Run(ctx, c); err != nil || ended.Err() != nil {
			t.Fatal(ended, err)
		}
		const want = "one\nfile\nbound\n$HOME"
		if got := output(ctx, t, host, "cat", "/run/x.stdout"); got != want {
			t.Errorf("%s: standard output is %q, want %q", what, got, want)
		}
		if got := output(ctx, t, host, "cat", "/run/x.stderr"); got != "two" {
			t.Errorf("%s: standard error is %q", what, got)
		}
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c = shell("echo one; echo two >&2")
	c.Output = in
	ended, err := units.Run(ctx, c)
	_ = in.Close()
	if text, readErr := io.ReadAll(out); err != nil || ended.Err() != nil || readErr != nil || string(text) != "one\ntwo\n" {
		t.Errorf("%q was written, %v, %v, %v", text, ended, err, readErr)
	}
}

func theCallersOwnIsStopped(ctx context.Context, t *testing.T, host *Host, units *systemd.Units) {
	t.Helper()
	bounded, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := units.Run(bounded, shell("trap '' HUP; sleep 601 & sleep 601"))
		done <- err
	}()
	isActive(ctx, t, units, "active")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if left, _, _, _ := host.Exec(ctx, nil, "pgrep", "-f", "^sleep 601"); len(left) > 0 {
		t.Errorf("%s are left", strings.Fields(string(left)))
	}
}

// theEndingIsWholeOrGone shows that an answer comes from one moment: systemd answers for a unit that has gone meanwhile
// as for one without settings.
func theEndingIsWholeOrGone(ctx context.Context, t *testing.T, host *Host, units *systemd.Units) {
	t.Helper()
	const runs = 100
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < runs && err == nil; i++ {
			c := shell("exit 0")
			c.Environment = []string{"A=b"}
			if err = units.Start(ctx, c); err == nil {
				err = systemd.Wait(ctx, units, c.Name)
			}
		}
		done <- err
	}()
	var running atomic.Int64
	bounded, stop := context.WithCancel(ctx)
	defer stop()
	var asking sync.WaitGroup
	for range 8 { // one that is slow between two questions is among them
		asking.Go(func() {
			units := host.Units()
			defer units.Close()
			for bounded.Err() == nil {
				s, err := units.Service(bounded, "x.service")
				if bounded.Err() != nil {
					return
				}
				if err != nil {
					t.Error(err)
				}
				if s.Ended() {
					continue
				}
				running.Add(1)
				if len(s.Environment) == 0 {
					t.Errorf("it has not ended, and has no environment: %+v", s)
				}
			}
		})
	}
	err := <-done
	stop()
	asking.Wait()
	if err != nil || running.Load() == 0 {
		t.Errorf("%d answers were of a running unit: %v", running.Load(), err)
	}
}

// isActive waits for a state of the unit.
func isActive(ctx context.Context, t *testing.T, units *systemd.Units, state string) systemd.Service {
	t.Helper()
	for {
		s, err := units.Service(ctx, "x.service")
		if err != nil {
			t.Fatal(err)
		}
		if s.State == state {
			return s
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it is %+v, not %s", s, state)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func theOtherGoesOn(ctx context.Context, t *testing.T, host *Host, units *systemd.Units) {
	t.Helper()
	pipe := inRoot(host, "/run/x.pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	first := shell("read line </run/x.pipe; exit 3")
	first.Outlives = true
	bounded, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := units.Run(bounded, first)
		done <- err
	}()
	isActive(ctx, t, units, "active")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	next := host.Units() // of another process
	t.Cleanup(next.Close)
	if s := isActive(ctx, t, next, "active"); s.Ended() || s.Description != first.Description {
		t.Errorf("it is %+v", s)
	}
	second := shell("test -e /run/x.ended")
	second.Outlives = true
	ended := make(chan error, 1)
	go func() {
		e, err := next.Run(ctx, second)
		ended <- errors.Join(e.Err(), err)
	}()
	select {
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := errors.Join(os.WriteFile(inRoot(host, "/run/x.ended"), nil, 0o600),
		os.WriteFile(pipe, []byte("on\n"), 0)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the second one: %v", err)
	}

	// One that ended while nothing looked is over, and not failed.
	third := shell("exit 7")
	third.Outlives = true
	gone, stop := context.WithCancel(ctx)
	stop()
	if _, err := units.Run(gone, third); err == nil {
		t.Error("it ran although its caller has ended")
	}
	late := shell("sleep 0.3; exit 7")
	late.Outlives = true
	bounded, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := units.Run(bounded, late); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended with %v", err)
	}
	if err := systemd.Wait(ctx, units, "x.service"); err != nil {
		t.Fatal(err)
	}
	isActive(ctx, t, units, "inactive")
	if got := output(ctx, t, host, "systemctl", "is-system-running"); got != "running" {
		t.Errorf("the host is %s", got)
	}
	if e, err := units.Run(ctx, second); err != nil || e.Err() != nil {
		t.Errorf("after it: %v, %v", e.Err(), err)
	}
	if err := units.Kill(ctx, "x.service", syscall.SIGINT); err != nil {
		t.Errorf("one that is not there is killed: %v", err)
	}
}

func aNewBusIsNoLoss(ctx context.Context, t *testing.T, host *Host, units *systemd.Units) {
	t.Helper()
	done := make(chan error, 1)
	c := shell("until test -e /run/x.on; do sleep 0.05; done; exit 4")
	c.Outlives = true
	go func() {
		e, err := units.Run(ctx, c)
		done <- errors.Join(e.Err(), err)
	}()
	next := host.Units()
	t.Cleanup(next.Close)
	isActive(ctx, t, next, "active")
	next.Close()
	output(ctx, t, host, "sh", "-c", "systemctl restart dbus.service || systemctl restart dbus-broker.service")
	// Who waits for it has come back, and refers to it again.
	for output(ctx, t, host, "sh", "-c", "systemctl show -P Refs x.service || true") == "" && ctx.Err() == nil {
	}
	if err := os.WriteFile(inRoot(host, "/run/x.on"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || err.Error() != "exit status 4" {
		t.Errorf("it ended with %v", err)
	}
}

func TestUnitThatIsNotThereIsStoppedAlready(t *testing.T) {
	ctx, host := boot(t, Options{Name: "node"})
	units := host.Units()
	t.Cleanup(units.Close)
	if err := units.Stop(ctx, "x.service"); err != nil {
		t.Error(err)
	}
	if err := (&systemd.Units{Connect: func(context.Context) (*systemd.Manager, error) {
		return nil, errors.New("no bus")
	}}).Stop(ctx, "x.service"); err == nil {
		t.Error("a failure to stop it is none")
	}
}
