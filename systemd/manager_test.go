// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	godbus "github.com/godbus/dbus/v5"
)

func TestConnectHonoursTheDeadlineOfABusThatNeverAnswers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", socket)
	must(t, err)
	defer func() { _ = l.Close() }()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	m, err := Connect(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestConnectSaysThatThereIsNoBus(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	if m, err := Connect(t.Context()); err == nil {
		t.Errorf("got %v without a bus", m)
	}
}

func TestOnlyBlocksOfAShutdownStopAReboot(t *testing.T) {
	for _, tt := range []struct {
		what, mode string
		want       bool
	}{
		{"shutdown", "block", true},
		{"sleep:shutdown:idle", "block", true},
		{"shutdown", "block-weak", true},
		{"shutdown", "delay", false},
		{"sleep:idle", "block", false},
		{"handle-power-key", "block", false},
	} {
		if got := (Inhibitor{What: tt.what, Mode: tt.mode}).blocksShutdown(); got != tt.want {
			t.Errorf("%s %s: %v", tt.mode, tt.what, got)
		}
	}
	err := &InhibitedError{By: []Inhibitor{{Who: "dnf", Why: "upgrading", PID: 12}, {Who: "kured", Why: "soak", PID: 13}}}
	if want := "a reboot is inhibited by dnf (pid 12): upgrading; kured (pid 13): soak"; err.Error() != want {
		t.Errorf("got %q", err)
	}
}

func TestAConditionSaysWhyAUnitIsAsItIs(t *testing.T) {
	for want, c := range map[string]condition{
		"its unit file is not-found": {load: "not-found", active: "inactive", sub: "dead"},
		"it is active (running)":     {load: "loaded", active: "active", sub: "running", result: "success"},
		"it is failed (failed), result exit-code, main process exited with 3": {load: "loaded", active: "failed", sub: "failed",
			result: "exit-code", exitStatus: 3},
		"it is failed (failed), result timeout": {load: "loaded", active: "failed", sub: "failed", result: "timeout"},
	} {
		if got := c.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestOnlyAMissingUnitFallsBackToTheCommand(t *testing.T) {
	missing := godbus.Error{Name: "org.freedesktop.systemd1.NoSuchUnit", Body: []any{"Unit x not found."}}
	if !noSuchUnit(fmt.Errorf("restarting x: %w", missing)) {
		t.Error("a missing unit is not recognised")
	}
	for _, err := range []error{nil, errors.New("x"), godbus.Error{Name: "org.freedesktop.systemd1.UnitMasked"}} {
		if noSuchUnit(err) {
			t.Errorf("%v is taken for a missing unit", err)
		}
	}
}

func TestOnlyCRIOMayBeMissed(t *testing.T) {
	missing := godbus.Error{Name: "org.freedesktop.systemd1.NoSuchUnit"}
	masked := godbus.Error{Name: "org.freedesktop.systemd1.UnitMasked"}
	for _, err := range []error{missing, fmt.Errorf("reloading: %w", masked)} {
		if !needless("crio.service", err) || needless("kubelet.service", err) {
			t.Errorf("%v: crio.service %v, kubelet.service %v", err, needless("crio.service", err), needless("kubelet.service", err))
		}
	}
	if needless("crio.service", errors.New("the job ended as failed")) || needless("crio.service", nil) {
		t.Error("what fails is taken for what is not there")
	}
}

func TestAnAnswerThatIsLostInTheShutdownIsNoFailure(t *testing.T) {
	lost := godbus.Error{Name: "org.freedesktop.DBus.Error.NoReply",
		Body: []any{"Message recipient disconnected from message bus without replying"}}
	for _, err := range []error{fmt.Errorf("x: %w", lost), io.EOF, godbus.ErrClosed} {
		if !wentDown(err) {
			t.Errorf("%v is taken for a refusal", err)
		}
	}
	for _, err := range []error{godbus.Error{Name: "org.freedesktop.DBus.Error.AccessDenied"}, context.DeadlineExceeded} {
		if wentDown(err) {
			t.Errorf("%v is taken for a shutdown", err)
		}
	}
}
