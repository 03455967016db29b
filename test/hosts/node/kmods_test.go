// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// builder stands in for podman with an image that builds a module: no registry and no compiler is there. It fails when
// it is told to.
const builder = `#!/bin/bash
echo "$*" >>/var/tmp/podman
test ! -e /var/tmp/fail-build || { echo 'example.c:1: error: too old for this kernel' >&2; exit 2; }
for word; do case "$word" in *:/out:Z) out=${word%%:*} ;; esac; done
echo "a module" >"$out/example.ko"
`

// inserter and lister stand in for insmod and lsmod: these hosts have the kernel of the machine, and no right to give it a
// module.
const (
	inserter = `#!/bin/sh
test ! -e /var/tmp/fail-insert || { echo 'insmod: ERROR: could not insert module: Invalid module format'; exit 1; }
echo "$(basename "$1" .ko) 16384 0" >>/run/modules
echo "$1" >>/var/tmp/insmod
`
	lister = "#!/bin/sh\necho 'Module Size Used by'\ncat /run/modules 2>/dev/null || true\n"
)

// nextKernel is a commit of v2 with a kernel of another version, and of another release.
const nextKernel = `set -e
cd /var/tmp
ostree checkout --repo=/ostree/repo -U ` + lab.RefV2 + ` tree
mv tree/usr/lib/modules/* tree/usr/lib/modules/9.9.9-next
printf 'ID=testos\nPRETTY_NAME=next\nVERSION_ID="99"\n' >tree/usr/lib/os-release.new
mv tree/usr/lib/os-release.new tree/usr/lib/os-release
ostree commit --repo=/ostree/repo --branch=testos/next --tree=dir=tree >/dev/null
rm -rf tree`

func TestAKernelModuleIsBuiltForTheKernelToComeAndLoadedAfterTheBoot(t *testing.T) {
	ctx, n := onA(t)
	hook(t, n, "/var/usrlocal/sbin/podman", builder)
	hook(t, n, "/var/usrlocal/sbin/insmod", inserter)
	hook(t, n, "/var/usrlocal/sbin/lsmod", lister)
	shell(ctx, t, n, nextKernel)
	example, err := filepath.Abs("../../../docs/examples/kernel-modules/60-worker-kmods.bu")
	if err != nil {
		t.Fatal(err)
	}
	config, _, err := machineconfig.ReadConfig(butane.Translate, example)
	if err != nil {
		t.Fatal(err)
	}
	// with is the example with an OS image and one more argument, under the name that it would have in a cluster.
	with := func(image, argument string) []byte {
		t.Helper()
		mc := &mcfgv1.MachineConfig{TypeMeta: config.Object.TypeMeta, Spec: *config.Object.Spec.DeepCopy()}
		mc.APIVersion, mc.Kind = mcfgv1.GroupVersion.String(), "MachineConfig"
		mc.Spec.OSImageURL, mc.Spec.KernelArguments = image, []string{argument}
		c, err := machineconfig.Parse(mc)
		if err != nil {
			t.Fatal(err)
		}
		mc.Name = "rendered-worker-" + c.Digest[:32]
		text, err := json.Marshal(mc)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	name := func(text []byte) string {
		mc := &mcfgv1.MachineConfig{}
		if err := json.Unmarshal(text, mc); err != nil {
			t.Fatal(err)
		}
		return mc.Name
	}
	first := with("", "first=1")
	apply(ctx, t, n, first)
	settled(ctx, t, n, name(first))
	kernels, _ := shell(ctx, t, n, "ls /usr/lib/modules")
	now := strings.TrimSpace(kernels)
	const store = "/var/lib/kmods/"
	if got := read(t, n, "/var/tmp/insmod"); got != store+now+"/example.ko\n" {
		t.Fatalf("loaded: %s", got)
	}

	// The kernel to come is known as soon as the OS is staged: without a module for it the node serves on.
	next := with("testos/next", "first=1")
	hook(t, n, etcBefore+"10-says", "#!/bin/sh\nenv | grep ^NODEREFIT_ | sort >/var/tmp/told\n")
	shell(ctx, t, n, "touch /var/tmp/fail-build")
	boots, at := n.Boots(), document(t, n, "next.json", next)
	if _, said, exit, err := n.Agent(ctx, "stage", "--config", at); err != nil || exit != 0 {
		t.Fatalf("exit %d: %s, %v", exit, said, err)
	}
	const no = "there is no module example for the kernel 9.9.9-next: registry.example.com/kmods/example:99 does not build it"
	if out, exit := asked(ctx, t, n, "--to", name(next)); exit != host.ExitRefused || !strings.Contains(out, no) {
		t.Errorf("exit %d: %s", exit, out)
	}
	told := read(t, n, "/var/tmp/told")
	for _, want := range []string{"NODEREFIT_TO_KERNEL=9.9.9-next\n", "NODEREFIT_TO_RELEASE=99\n",
		"NODEREFIT_TO_IMAGE=testos/next\n", "NODEREFIT_FROM_KERNEL=" + machineKernel(t), "NODEREFIT_TO=" + name(next)} {
		if !strings.Contains(told, want) {
			t.Errorf("%s is not told: %s", want, told)
		}
	}
	if out, exit := asked(ctx, t, n, "--to", "rendered-worker-other"); exit != 0 || !strings.Contains(read(t, n, "/var/tmp/told"), "NODEREFIT_TO_KERNEL="+now+"\n") {
		t.Errorf("of another configuration: exit %d: %s", exit, out)
	}
	if _, exit, err := n.Apply(ctx, next); exit != host.ExitRefused || !strings.Contains(err.Error(), no) || n.Boots() != boots {
		t.Errorf("exit %d, %v", exit, err)
	}

	// With a module the node goes, and the module of its kernel is loaded.
	shell(ctx, t, n, "rm /var/tmp/fail-build")
	apply(ctx, t, n, next)
	settled(ctx, t, n, name(next))
	if got := read(t, n, "/var/tmp/insmod"); !strings.HasSuffix(got, "\n"+store+"9.9.9-next/example.ko\n") {
		t.Errorf("loaded: %s", got)
	}
	if got := read(t, n, "/var/tmp/podman"); !strings.Contains(got, "kmods/example:99 build 9.9.9-next /out\n") {
		t.Errorf("built: %s", got)
	}

	// A module that the kernel does not take fails the verdict.
	shell(ctx, t, n, "touch /var/tmp/fail-insert")
	apply(ctx, t, n, with("testos/next", "second=1"))
	s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Done)
	if err != nil || s.State != transaction.RolledBack ||
		!strings.Contains(s.Reason, "after-boot hook "+etcAfter+"40-kmods: exit status 1: insmod: ERROR: could not insert module") {
		t.Errorf("%+v, %v", s, err)
	}
}

// machineKernel is the kernel of this machine, which all hosts have.
func machineKernel(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
