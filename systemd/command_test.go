// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	godbus "github.com/godbus/dbus/v5"
)

func TestWhatACommandIsToSystemd(t *testing.T) {
	texts := func(c Command) (all []string) {
		for _, p := range c.remaining() {
			all = append(all, p.Name+" "+p.Value.Signature().String()+" "+p.Value.String())
		}
		return all
	}
	plain := texts(Command{Description: "d", Argv: []string{"/bin/x"}})
	for _, c := range []struct {
		command Command
		adds    []string
	}{
		{Command{Nice: 5}, []string{"Nice i 5"}},
		{Command{Weights: Weights{CPU: 20, IO: 10}}, []string{"CPUWeight t @t 20", "IOWeight t @t 10"}},
		{Command{Limit: time.Second, Grace: time.Minute}, []string{"RuntimeMaxUSec t @t 1000000", "TimeoutStopUSec t @t 60000000"}},
		{Command{Stdout: "/run/a", Stderr: "/run/b"},
			[]string{`StandardOutputFileToTruncate s "/run/a"`, `StandardErrorFileToTruncate s "/run/b"`}},
		{Command{EnvironmentFiles: []string{"/etc/e"}}, []string{`EnvironmentFiles a(sb) [("/etc/e", true,)]`}},
		{Command{Binds: []Bind{{"/run/a", "/run/b"}}}, []string{`BindPaths a(ssbt) @a(ssbt) [("/run/a", "/run/b", false, 16384,)]`}},
	} {
		c.command.Description, c.command.Argv = "d", []string{"/bin/x"}
		got := slices.DeleteFunc(texts(c.command), func(p string) bool { return slices.Contains(plain, p) })
		if !slices.Equal(got, c.adds) {
			t.Errorf("%+v adds %q, want %q", c.command, got, c.adds)
		}
	}
	passed := texts(Command{Description: "d", Argv: []string{"/bin/x"}, Passed: os.Stdout})
	if !slices.Contains(passed, `ExtraFileDescriptors a(hs) @a(hs) [(1, "passed",)]`) {
		t.Errorf("an open file is %q", passed)
	}
	if got := texts(Command{Argv: []string{"/bin/x", "a$b", "${C}"}}); !slices.ContainsFunc(got, func(p string) bool {
		return strings.HasPrefix(p, "ExecStart ") && strings.Contains(p, `["/bin/x", "a$$b", "$${C}"]`)
	}) {
		t.Errorf("systemd would expand %q", got)
	}
}

func TestErrorsOfAStartAreTold(t *testing.T) {
	for _, c := range []struct {
		name, text string
		is         error
	}{
		{"org.freedesktop.systemd1.UnitExists", "Unit x.service already exists.", ErrUnitExists},
		{"org.freedesktop.systemd1.TransactionIsDestructive", "Transaction is destructive.", ErrGoingDown},
		{"org.freedesktop.DBus.Error.PropertyReadOnly", "Cannot set property ExtraFileDescriptors, or unknown property.", ErrCannotPass},
		{"org.freedesktop.DBus.Error.PropertyReadOnly", "Cannot set property Nice, or unknown property.", nil},
	} {
		said := godbus.Error{Name: c.name, Body: []any{c.text}}
		err := startError(fmt.Errorf("starting x.service: %w", said))
		for _, is := range []error{ErrUnitExists, ErrGoingDown, ErrCannotPass} {
			if errors.Is(err, is) != errors.Is(c.is, is) {
				t.Errorf("%s is %v", c.text, err)
			}
		}
		if !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s is lost in %v", c.text, err)
		}
	}
}
