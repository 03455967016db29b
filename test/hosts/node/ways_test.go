// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

const (
	ownCommand = "/etc/noderefit/reboot-command"
	toFile     = "#!/bin/sh\necho \"$0\" >>/var/lib/rebooted-by\n"
)

// goTo applies a configuration by a reboot method, and returns the host as it is at rest, and how often it booted.
func goTo(ctx context.Context, t *testing.T, n *Node, config, method string) (*host.Status, int) {
	t.Helper()
	boots := n.Boots()
	apply(ctx, t, n, mc(config, bootFile(config)), "--reboot-method="+method)
	settled(ctx, t, n, config)
	s := status(ctx, t, n)
	if s.RebootWay == nil && method != "full" {
		t.Fatalf("%s: no way of the reboot: %+v", method, s)
	}
	return s, n.Boots() - boots
}

func TestAHostRebootsByItsOwnCommand(t *testing.T) {
	ctx, n := startAs(t, plain, packages)
	for i, c := range []struct {
		config, method, command, limit string
		took                           api.RebootMethod
		why                            string
	}{
		{"a", "command", toFile + "exec systemctl reboot\n", "", api.RebootCommand, ""},
		{"b", "command", toFile + "exit 7\n", "", api.RebootFull, "exit status 7"},
		{"c", "command", toFile, "2s", api.RebootFull, "did not take the host down within 2s"},
		{"d", "command", toFile + "exec sleep 1000\n", "2s", api.RebootFull, "reboot-command failed: timeout"},
		{"e", "kexec", toFile, "", api.RebootFull, "only on a host with ostree"},
		{"f", "soft", toFile, "", api.RebootFull, "only a booted ostree host"},
	} {
		hook(t, n, ownCommand, c.command)
		if err := os.RemoveAll(n.HostPath(ownCommand + ".timeout")); err != nil {
			t.Fatal(err)
		}
		if c.limit != "" {
			put(t, n, ownCommand+".timeout", c.limit, 0o644)
		}
		s, boots := goTo(ctx, t, n, c.config, c.method)
		w := s.RebootWay
		if w.Took != c.took || strings.ToLower(string(w.Asked)) != c.method || boots != 1 || !strings.Contains(w.Why, c.why) ||
			(w.Why == "") != (c.why == "") {
			t.Errorf("%s: %+v, %d boots; want %s, %q", c.config, w, boots, c.took, c.why)
		}
		if ran := strings.Count(read(t, n, "/var/lib/rebooted-by"), ownCommand); ran != min(i+1, 4) {
			t.Errorf("%s: the command ran %d times", c.config, ran)
		}
	}

	// An ordered reboot goes the same way, and a full one that was asked for has none to tell of.
	hook(t, n, ownCommand, toFile+"exec systemctl reboot\n")
	run(ctx, t, n, -1, "reboot", "--id=one", "--reboot-method=command")
	if s := ended(ctx, t, n, "one", transaction.Done); s.RebootWay == nil || s.RebootWay.Took != api.RebootCommand {
		t.Errorf("%+v", s.RebootWay)
	}
	if out := run(ctx, t, n, 0, "status"); !strings.Contains(out, "Reboot:    Command\n") {
		t.Errorf("%s", out)
	}
	if s, boots := goTo(ctx, t, n, "g", "full"); s.RebootWay != nil || boots != 1 {
		t.Errorf("%+v, %d boots", s.RebootWay, boots)
	}

	// A user who may write the command may become root: it does not run then.
	put(t, n, ownCommand, toFile, 0o755)
	if out, exit := shell(ctx, t, n, "chmod 0777 "+ownCommand); exit != 0 {
		t.Fatal(out)
	}
	s, _ := goTo(ctx, t, n, "h", "command")
	if !strings.Contains(s.RebootWay.String(), "Full, and not Command: others than root may write "+ownCommand) {
		t.Errorf("%s", s.RebootWay)
	}
}

// The real tools of an ostree host, which runs in a container: no kernel is loaded there.
func TestAHostWithoutAKexecRebootsFully(t *testing.T) {
	ctx, n := start(t)
	boots := n.Boots()
	res := apply(ctx, t, n, mc("a", configA), "--reboot-method=kexec")
	settled(ctx, t, n, "a")
	const why = "the host has no program kexec"
	s := status(ctx, t, n)
	if w := s.RebootWay; w == nil || w.Took != api.RebootFull || !strings.Contains(w.Why, why) || n.Boots() != boots+1 {
		t.Errorf("%+v, %d boots", w, n.Boots()-boots)
	}
	if !strings.Contains(strings.Join(res.Warnings, "\n"), "the reboot is a full one, and not Kexec: "+why) {
		t.Errorf("%q", res.Warnings)
	}

	// What the program says goes to the reason, and the host boots all the same.
	at, err := n.Document("config.json", mc("b", configB))
	if err != nil {
		t.Fatal(err)
	}
	if out, exit := shell(ctx, t, n, `mkdir -p /usr/local/sbin && printf '#!/bin/sh\necho "$*" >/var/lib/kexec\necho no >&2\nexit 1\n' `+
		`>/usr/local/sbin/kexec && chmod 755 /usr/local/sbin/kexec`); exit != 0 {
		t.Fatal(out)
	}
	run(ctx, t, n, -1, "apply", "--config", at, "--reboot-method=kexec")
	settled(ctx, t, n, "b")
	if w := status(ctx, t, n).RebootWay; w.Took != api.RebootFull || !strings.Contains(w.Why, "loading the kernel") {
		t.Errorf("%+v", w)
	}
	argv := read(t, n, "/var/lib/kexec")
	for _, want := range []string{"-s -l /boot/ostree/" + lab.OS, "b=2", transaction.KexecArgument, "ostree=/ostree/boot"} {
		if !strings.Contains(argv, want) {
			t.Errorf("kexec %s: %s is missing", argv, want)
		}
	}
}
