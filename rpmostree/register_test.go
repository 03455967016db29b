// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/systemd"
)

// registration is the file that rpm-ostree 2025.1 writes for a driver of that name and unit.
func registration(name, unit string) string {
	entry := func(key, value string) string {
		at := len(key) + 1
		return key + "\x00" + strings.Repeat("\x00", (8-at%8)%8) + value + "\x00\x00s" + string(byte(at))
	}
	first := entry("driver-name", name)
	first += strings.Repeat("\x00", (8-len(first)%8)%8)
	second := entry("driver-sd-unit", unit)
	// The end of an entry is without the padding behind it.
	end := len(strings.TrimRight(first, "\x00"))
	return first + second + string(byte(end)) + string(byte(len(first)+len(second)))
}

// played are units of which one is in a state.
type played struct {
	state string
	kept  []systemd.Command
}

func (p *played) ActiveState(context.Context, string) (string, error) { return p.state, nil }

func (p *played) Keep(_ context.Context, c systemd.Command) error {
	p.kept = append(p.kept, c)
	return nil
}

func TestTheAgentRegistersWhereNobodyElseIsInCharge(t *testing.T) {
	for _, c := range []struct {
		what, state, active string
		want                bool
	}{
		{what: "no driver", want: true},
		{what: "the agent", state: registration("Noderefit", driverUnit), active: "active"},
		{what: "the agent, whose unit was stopped", state: registration("Noderefit", driverUnit), active: "inactive", want: true},
		{what: "the agent, whose unit has failed", state: registration("Noderefit", driverUnit), active: "failed", want: true},
		{what: "another driver", state: registration("Zincati", "zincati.service"), active: "active"},
		{what: "another driver that has crashed", state: registration("Zincati", "zincati.service"), active: "failed"},
		{what: "another driver that is off", state: registration("Zincati", "zincati.service"), active: "inactive", want: true},
	} {
		units := &played{state: c.active}
		err := Register(t.Context(), func(path string) ([]byte, error) {
			if c.state == "" || path != driverState {
				return nil, fs.ErrNotExist
			}
			return []byte(c.state), nil
		}, units)
		if err != nil || (len(units.kept) == 1) != c.want {
			t.Errorf("%s: registers %v, %v", c.what, units.kept, err)
		}
	}
	if err := Register(t.Context(), func(string) ([]byte, error) { return []byte("{}"), nil }, &played{}); err == nil ||
		!strings.Contains(err.Error(), driverState) {
		t.Errorf("a state that can't be read: %v", err)
	}
}

func TestOnlyTheAgentsOwnRegistrationIsBypassed(t *testing.T) {
	root := t.TempDir()
	r := &Driver{root: root}
	rebase := []string{"rpm-ostree", "rebase", "os/v2", "--lock-finalization"} //nolint:misspell // rpm-ostree's own word
	write := func(text string) {
		if err := os.MkdirAll(filepath.Dir(r.host(driverState)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.host(driverState), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runs := func(step []string) string {
		argv, err := r.bypassing(step)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(argv, " ")
	}
	if got := runs(rebase); strings.Contains(got, bypass) {
		t.Errorf("without a driver: %s", got)
	}
	write(registration("Zincati", "zincati.service"))
	if got := runs(rebase); strings.Contains(got, bypass) {
		t.Errorf("beside another driver: %s", got)
	}
	write(registration("Noderefit", driverUnit))
	got := runs(rebase)
	if want := strings.Join(rebase, " "); got != want+" "+bypass || withoutBypass(got) != want {
		t.Errorf("beside itself: %s", got)
	}
	if got := runs(cleanupPending); strings.Contains(got, bypass) {
		t.Errorf("a command that does not know the flag: %s", got)
	}
}
