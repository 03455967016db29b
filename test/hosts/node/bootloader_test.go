// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// withLoader are hosts of packages, by the boot loader that gives them their kernel arguments.
var withLoader = []lab.Loader{lab.GRUB, lab.Entries}

// startPackages makes a host of packages with that boot loader.
func startPackages(t *testing.T, build func() (string, error), loader lab.Loader) (context.Context, *Node) {
	t.Helper()
	return startOn(t, lab.NeedPackages, build, lab.Options{WithoutOSTree: true, Loader: loader})
}

// argued returns a configuration of kernel arguments, and of a file that needs a boot. The kubelet is as it says.
func argued(kubelet, file string, arguments ...string) string {
	list := ""
	for i, a := range arguments {
		list += []string{"", ","}[min(i, 1)] + strconv.Quote(a)
	}
	return fmt.Sprintf(`{"kernelArguments":[%s],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/testos/booted.conf","contents":{"source":"data:,%s"}},
 {"path":"/etc/kubernetes/kubelet.conf","contents":{"source":"data:,%s"}}]}}}`, list, file, kubelet)
}

// bootFiles are the files of a host's boot loader, by their paths.
func bootFiles(t *testing.T, n *Node) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{"/boot/grub", "/boot/loader", "/etc/default", "/etc/kernel"} {
		_ = filepath.WalkDir(n.HostPath(dir), func(name string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				rel, _ := filepath.Rel(n.HostPath(dir), name)
				out[filepath.Join(dir, rel)] = string(text)
			}
			return nil
		})
	}
	return out
}

// hasLine waits for nothing: it holds the command line of the running boot to arguments at its end.
func hasLine(t *testing.T, n *Node, arguments ...string) {
	t.Helper()
	line := slices.DeleteFunc(strings.Fields(n.Kargs()), func(a string) bool {
		return strings.HasPrefix(a, "systemd.machine_id=") // kernel-install puts it into its entries
	})
	if at := len(line) - len(arguments); at < 0 || !slices.Equal(line[at:], arguments) {
		t.Errorf("the command line ends with other arguments than %v: %s", arguments, n.Kargs())
	}
}

func TestAHostWithoutOSTreeGetsKernelArguments(t *testing.T) {
	for _, loader := range withLoader {
		t.Run(string(loader), func(t *testing.T) {
			ctx, n := startPackages(t, plain, loader)
			before := bootFiles(t, n)
			hasLine(t, n, "admin=1")
			boots := n.Boots()
			res := apply(ctx, t, n, mc("a", argued("ok", "a", "a=1", "both=1", "admin=1")))
			if !slices.ContainsFunc(res.Plan.Changes, func(c plan.Change) bool { return c.Kind == plan.Kargs }) {
				t.Errorf("%+v", res.Plan.Changes)
			}
			s, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack)
			if err != nil || s.Config.Committed != "a" || n.Boots() != boots+1 {
				t.Fatalf("%d boots, %+v %v", n.Boots()-boots, s, err)
			}
			hasLine(t, n, "admin=1", "a=1", "both=1")
			verified(ctx, t, n)
			laterKernel(ctx, t, n, loader, "6.13.0-lab", "admin=1 a=1 both=1")
			apply(ctx, t, n, mc("b", argued("ok", "b", "both=1", "b=2")))
			if s, err = n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil || s.Config.Committed != "b" {
				t.Fatalf("%+v %v", s, err)
			}
			hasLine(t, n, "admin=1", "both=1", "b=2")
			// A bad configuration comes back with arguments and files.
			good := bootFiles(t, n)
			apply(ctx, t, n, mc("bad", argued("fail", "bad", "bad=1")))
			if s, err = n.WaitState(ctx, transaction.RolledBack); err != nil || s.Config.Committed != "b" || len(s.Quarantined) != 1 {
				t.Fatalf("%+v %v", s, err)
			}
			if _, err := n.WaitRunning(ctx); err != nil {
				t.Fatal(err)
			}
			hasLine(t, n, "admin=1", "both=1", "b=2")
			alike(t, good, bootFiles(t, n))
			verified(ctx, t, n)
			// Withdrawn before the boot, the loader's files are the old ones at once.
			apply(ctx, t, n, mc("c", argued("ok", "c", "c=1")), "--no-reboot")
			if text := strings.Join(values(bootFiles(t, n)), ""); !strings.Contains(text, "c=1") {
				t.Error("the next boot would not have the arguments of c")
			}
			if out, errs, exit, err := n.Agent(ctx, "rollback"); err != nil || exit != 0 {
				t.Fatalf("%d %v %s %s", exit, err, out, errs)
			}
			alike(t, good, bootFiles(t, n))
			// Only ours go.
			apply(ctx, t, n, mc("none", argued("ok", "none")))
			if s, err = n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil || s.Config.Committed != "none" {
				t.Fatalf("%+v %v", s, err)
			}
			hasLine(t, n, "admin=1")
			after := bootFiles(t, n)
			if loader == lab.Entries {
				delete(after, entryOf(t, n, "6.13.0-lab"))
				alike(t, before, after)
			} else if _, there := after["/etc/default/grub.d/90-noderefit.cfg"]; there || strings.Contains(after["/boot/grub/grub.cfg"], "both=1") {
				t.Errorf("ours are left: %v", after)
			}
			verified(ctx, t, n)
		})
	}
}

func values(m map[string]string) (out []string) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

func alike(t *testing.T, want, got map[string]string) {
	t.Helper()
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s was\n%s\nand is\n%s", name, want[name], got[name])
		}
	}
	for name := range got {
		if _, known := want[name]; !known {
			t.Errorf("%s is new:\n%s", name, got[name])
		}
	}
}

func entryOf(t *testing.T, n *Node, release string) string {
	t.Helper()
	return "/boot/loader/entries/" + strings.TrimSpace(read(t, n, "/etc/machine-id")) + "-" + release + ".conf"
}

// laterKernel installs a kernel as the host's packages would, and holds it to having those arguments at the end.
func laterKernel(ctx context.Context, t *testing.T, n *Node, loader lab.Loader, release, arguments string) {
	t.Helper()
	command, at := "echo new >/boot/vmlinuz-"+release+" && echo new >/boot/initrd.img-"+release+" && update-grub", "/boot/grub/grub.cfg"
	if loader == lab.Entries {
		command = "echo new >/run/vmlinuz && kernel-install add " + release + " /run/vmlinuz"
		at = entryOf(t, n, release)
	}
	if out, exit := shell(ctx, t, n, command); exit != 0 {
		t.Fatalf("%d %s", exit, out)
	}
	text, found := read(t, n, at), false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		found = found || strings.Contains(line+" ", " "+arguments+" ") &&
			(loader == lab.Entries && strings.HasPrefix(line, "options ") || strings.HasPrefix(line, "linux") && strings.Contains(line, release))
	}
	if !found {
		t.Errorf("the new kernel has not %s:\n%s", arguments, text)
	}
}

// A kernel that is installed between the decision and the boot is in the boot loader's files afterwards, on both sides.
func TestAKernelThatComesBeforeTheBootKeepsItsEntry(t *testing.T) {
	for _, loader := range withLoader {
		t.Run(string(loader), func(t *testing.T) {
			ctx, n := startPackages(t, plain, loader)
			apply(ctx, t, n, mc("a", argued("ok", "a", "a=1")), "--no-reboot")
			laterKernel(ctx, t, n, loader, "6.13.0-lab", "admin=1 a=1")
			apply(ctx, t, n, mc("a", argued("ok", "a", "a=1")))
			s, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack)
			if err != nil || s.Config.Committed != "a" {
				t.Fatalf("%+v %v", s, err)
			}
			apply(ctx, t, n, mc("bad", argued("fail", "bad", "bad=1")), "--no-reboot")
			laterKernel(ctx, t, n, loader, "6.14.0-lab", "admin=1 bad=1")
			apply(ctx, t, n, mc("bad", argued("fail", "bad", "bad=1")))
			if s, err = n.WaitState(ctx, transaction.RolledBack); err != nil || s.Config.Committed != "a" {
				t.Fatalf("%+v %v", s, err)
			}
			if _, err := n.WaitRunning(ctx); err != nil {
				t.Fatal(err)
			}
			hasLine(t, n, "admin=1", "a=1")
			text := strings.Join(values(bootFiles(t, n)), "\n")
			if strings.Contains(text, "bad=1") || !strings.Contains(text, "6.14.0-lab") || !strings.Contains(text, "6.13.0-lab") {
				t.Errorf("after the way back: %s", text)
			}
			verified(ctx, t, n)
		})
	}
}

// A boot loader that does not take the arguments is no healthy host.
func TestABootLoaderThatDoesNotTakeTheArgumentsIsToldByName(t *testing.T) {
	ctx, n := startPackages(t, plain, "")
	if out, exit := shell(ctx, t, n, "cp -r /usr/lib/testos/boot/. /boot/"); exit != 0 {
		t.Fatal(out)
	}
	apply(ctx, t, n, mc("a", argued("ok", "a", "a=1")))
	s, err := n.WaitState(ctx, transaction.RolledBack)
	if err != nil || !strings.Contains(s.Reason, "kargs") || s.Config.Committed != "" {
		t.Errorf("%+v %v", s, err)
	}
}

func TestAHostWithoutOSTreeRefusesWhatItCantDoByName(t *testing.T) {
	ctx, n := startAs(t, plain, packages)
	for _, field := range []string{`"kernelArguments":["a=1"]`, `"osImageURL":"quay.example/os:1"`, `"kernelType":"realtime"`,
		`"extensions":["usbguard"]`} {
		at, err := n.Document("os.json", mc("os", `{`+field+`,"config":{"ignition":{"version":"3.2.0"}}}`))
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(field, `"`), `"`)
		_, text, exit, err := n.Agent(ctx, "apply", "--config", at)
		if err != nil || exit != host.ExitUnreconcilable || !strings.Contains(text, name+": ") ||
			!strings.Contains(text, "leave the field out") {
			t.Errorf("%s: %d %v %s", name, exit, err, text)
		}
		out, _, exit, err := n.Agent(ctx, "plan", "--desired", at, "-o", "json")
		var p plan.Plan
		if err != nil || exit != host.ExitUnreconcilable || json.Unmarshal([]byte(out), &p) != nil || len(p.Unreconcilable) != 1 ||
			p.Unreconcilable[0].Field != name {
			t.Errorf("plan, %s: %d %v %s", name, exit, err, out)
		}
	}
	if s, err := n.Status(ctx); err != nil || s.Config.Pending != "" {
		t.Errorf("%+v %v", s, err)
	}
}
