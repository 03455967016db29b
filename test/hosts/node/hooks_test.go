// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

// hook puts a file into a directory of hooks on the host, an executable unless it is empty.
func hook(t *testing.T, n *Node, path, text string) {
	t.Helper()
	at := n.HostPath(path)
	mode := os.FileMode(0o755)
	if text == "" {
		mode = 0o644
	}
	if err := errors.Join(os.RemoveAll(at), os.MkdirAll(filepath.Dir(at), 0o755),
		os.WriteFile(at, []byte(text), mode)); err != nil {
		t.Fatal(err)
	}
}

// asked runs before-drain on the host, and returns what it said and its exit code.
func asked(ctx context.Context, t *testing.T, n *Node, flags ...string) (string, int) {
	t.Helper()
	_, stderr, exit, err := n.Agent(ctx, append([]string{"before-drain"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	return stderr, exit
}

const (
	etcBefore = "/etc/noderefit/hooks/before-drain.d/"
	runBefore = "/run/noderefit/hooks/before-drain.d/"
	noHook    = "#!/bin/sh\necho first\necho not today >&2\nexit 3\n"
)

func TestHooksOfAHost(t *testing.T) {
	ctx, n := start(t)
	t.Run("none", func(t *testing.T) {
		if out, exit := asked(ctx, t, n); exit != 0 {
			t.Errorf("exit %d: %s", exit, out)
		}
	})
	t.Run("run in the order of their names and know what it is about", func(t *testing.T) {
		for _, name := range []string{"20-b", "10-a"} {
			hook(t, n, etcBefore+name, "#!/bin/sh\n"+
				"echo $NODEREFIT_HOOK $NODEREFIT_PHASE to $NODEREFIT_TO of $NODEREFIT_NODE >>/var/tmp/asked\n")
		}
		if out, exit := asked(ctx, t, n, "--to", "rendered-x"); exit != 0 {
			t.Fatalf("exit %d: %s", exit, out)
		}
		name, err := n.Output(ctx, "hostname")
		if err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for _, hook := range []string{"10-a", "20-b"} {
			fmt.Fprintf(&want, "%s%s before-drain to rendered-x of %s\n", etcBefore, hook, strings.TrimSpace(name))
		}
		if got := read(t, n, "/var/tmp/asked"); got != want.String() {
			t.Errorf("%s, want %s", got, &want)
		}
	})
	t.Run("a no is an exit code with the hook's last words", func(t *testing.T) {
		hook(t, n, "/var/tmp/no", noHook)
		shell(ctx, t, n, "mkdir -p "+runBefore+" && cp -p /var/tmp/no "+runBefore+"15-no")
		out, exit := asked(ctx, t, n)
		if exit != host.ExitRefused || !strings.Contains(out, "error: before-drain hook "+runBefore+
			"15-no: exit status 3: first | not today") || strings.Contains(out, "20-b") {
			t.Errorf("exit %d: %s", exit, out)
		}
		hook(t, n, etcBefore+"15-no", "") // masked
		if out, exit := asked(ctx, t, n); exit != 0 {
			t.Errorf("exit %d: %s", exit, out)
		}
		hook(t, n, etcBefore+"15-no", "#!/bin/sh\necho overridden\nexit 4\n")
		if out, exit := asked(ctx, t, n); exit != host.ExitRefused || !strings.Contains(out, "exit status 4: overridden") {
			t.Errorf("exit %d: %s", exit, out)
		}
		hook(t, n, etcBefore+"15-no", "")
	})
	t.Run("nothing is left of one at its time limit", func(t *testing.T) {
		// One that ends when it is told to and started others that do not, in a session and a group of their own.
		hook(t, n, etcBefore+"30-slow", "#!/bin/bash\necho working\n"+
			"setsid bash -c 'trap \"\" TERM; exec -a left-behind sleep 3600' &\nsleep 3600\n")
		hook(t, n, etcBefore+"30-slow.timeout", "2")
		began := time.Now()
		out, exit := asked(ctx, t, n)
		if exit != host.ExitRefused || !strings.Contains(out, "30-slow: the hook was stopped at its time limit of 2s: working") {
			t.Errorf("exit %d: %s", exit, out)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("after %s", took)
		}
		if out, _ := shell(ctx, t, n, "pgrep -fa left-behind | grep -v pgrep || true"); out != "" {
			t.Errorf("left: %s", out)
		}
		nothingLeft(ctx, t, n)
	})
	t.Run("whoever is told to stop takes it along", func(t *testing.T) {
		hook(t, n, etcBefore+"30-slow.timeout", "1h")
		shell(ctx, t, n, agent+" before-drain & pid=$!\n"+
			"until systemctl is-active -q machine-config-daemon-hook.service; do sleep 0.05; done\n"+
			"kill -TERM $pid; wait $pid; ! systemctl is-active -q machine-config-daemon-hook.service")
		nothingLeft(ctx, t, n)
		hook(t, n, etcBefore+"30-slow", "")
	})
	t.Run("an apply asks before it touches anything, where it disrupts", func(t *testing.T) {
		hook(t, n, etcBefore+"15-no", noHook)
		deployment, boots := n.BootedDeployment(), n.Boots()
		res, exit, err := n.Apply(ctx, mc("a", configA))
		if exit != host.ExitRefused || res.Status.State != transaction.Done || res.Status.Config.Pending != "" ||
			!strings.Contains(err.Error(), "15-no: exit status 3: first | not today") {
			t.Fatalf("exit %d, %v, %+v", exit, err, res)
		}
		if s, err := n.Status(ctx); err != nil || len(s.Deployments) != 1 || s.Deployments[0].ID != deployment {
			t.Errorf("%+v, %v", s, err)
		}
		live := mc("live", liveConfig("1", "ok"))
		if res, _, err := n.Apply(ctx, live, "--policy", policy(t, n)); err != nil || res.Status.Config.Committed != "live" {
			t.Errorf("a change that disrupts nothing: %+v, %v", res, err)
		}
		hook(t, n, etcBefore+"15-no", "")
		apply(ctx, t, n, mc("a", configA))
		settled(ctx, t, n, "a")
		if n.Boots() != boots+1 {
			t.Errorf("%d boots", n.Boots()-boots)
		}
	})
}

const etcAfter = "/etc/noderefit/hooks/after-boot.d/"

// withHook is configuration b with a file that is a hook.
func withHook(path, text string) string {
	var source strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&source, "%%%02x", b)
	}
	return strings.Replace(configB, `"files":[`, fmt.Sprintf(`"files":[{"path":%q,"mode":493,"contents":{"source":"data:,%s"}},`,
		path, &source), 1)
}

func TestAHookIsAskedAsEverWhateverIsSaidOfAllServices(t *testing.T) {
	long(t)
	ctx, n := onA(t)
	hook(t, n, etcBefore+"10-a", "#!/bin/sh\necho first\nsleep 3\necho not today >&2\nexit 3\n")
	said := func(text string) {
		at := n.HostPath("/etc/systemd/system/service.d/10-a.conf")
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
		shell(ctx, t, n, "systemctl daemon-reload")
	}
	said("[Service]\nStandardOutput=file:/var/tmp/elsewhere\nStandardError=null\nRuntimeMaxSec=1\nSuccessExitStatus=3\n" +
		"TimeoutStopSec=1h\nKillSignal=SIGCONT\nFinalKillSignal=SIGCONT\n")
	if out, exit := asked(ctx, t, n); exit != host.ExitRefused || !strings.Contains(out, "exit status 3: first | not today") {
		t.Errorf("exit %d: %s", exit, out)
	}
	said("[Service]\nRuntimeMaxSec=infinity\nTimeoutStopSec=infinity\n")
	hook(t, n, etcBefore+"10-a", "#!/bin/sh\necho first\ntrap '' TERM\nwhile :; do sleep 1; done\n")
	hook(t, n, etcBefore+"10-a.timeout", "2")
	began := time.Now()
	if out, exit := asked(ctx, t, n); exit != host.ExitRefused || !strings.Contains(out, "at its time limit of 2s: first") {
		t.Errorf("exit %d: %s", exit, out)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	nothingLeft(ctx, t, n)
}

func TestAHookAfterTheBootIsPartOfTheVerdict(t *testing.T) {
	ctx, n := onA(t)
	// What the verdict asks for is there only once the hook has run; and it runs until it says yes once.
	hook(t, n, "/etc/greenboot/check/required.d/10-made.sh", "#!/bin/sh\ntest -e /run/made-by-hook || { echo nothing was made; exit 1; }\n")
	shell(ctx, t, n, "touch /run/made-by-hook") // gone with the boot
	b := withHook(etcAfter+"10-make", `#!/bin/sh
echo "$NODEREFIT_PHASE from $NODEREFIT_FROM to $NODEREFIT_TO" >>/var/tmp/made
test "$(wc -l </var/tmp/made)" -ge 2 || { echo "not the first time"; exit 1; }
touch /run/made-by-hook
`)
	apply(ctx, t, n, mc("b", b))
	settled(ctx, t, n, "b")
	if got := read(t, n, "/var/tmp/made"); got != strings.Repeat("after-boot from a to b\n", 2) {
		t.Errorf("it ran so: %q", got)
	}

	hook(t, n, etcAfter+"20-cluster", "#!/bin/sh\nexit 0\n")
	bad := strings.Replace(withHook(etcAfter+"30-bad", "#!/bin/sh\necho looked around\necho the play has failed\nexit 2\n"), "b=2", "b=3", 1)
	deployment := n.BootedDeployment()
	apply(ctx, t, n, mc("bad", bad))
	s, err := n.WaitState(ctx, transaction.RolledBack)
	if err != nil {
		t.Fatal(err)
	}
	if s.Config.Committed != "b" || n.BootedDeployment() != deployment || len(s.Quarantined) != 1 ||
		!strings.Contains(s.Reason, "after-boot hook "+etcAfter+"30-bad: exit status 2: looked around | the play has failed") {
		t.Errorf("%+v", s)
	}
	nothingLeft(ctx, t, n)
}

// The cluster's hooks are those that it told before the boot, whether or not it can be asked then.
func TestHooksOfTheClusterOutliveTheBootOnTheHost(t *testing.T) {
	ctx, n := onA(t)
	doc := document(t, n, "hooks.json", []byte(`{"node":"worker-7","hooks":[
 {"name":"gate","when":"BeforeDrain","script":"#!/bin/sh\nexit 9\n"},
 {"name":"ready","when":"AfterBoot","script":"#!/bin/sh\necho $NODEREFIT_HOOK $1 on $NODEREFIT_NODE >/var/tmp/ready\n","args":["now"]},
 {"name":"path","when":"AfterBoot","path":"/usr/bin/false","timeoutSeconds":5}]}`))
	out, exit := asked(ctx, t, n, "--hooks", doc)
	if exit != host.ExitRefused || !strings.Contains(out, "before-drain hook NodeHook/gate: exit status 9") {
		t.Fatalf("exit %d: %s", exit, out)
	}
	apply(ctx, t, n, mc("b", configB), "--cluster", "--hooks", doc) // who drains has asked
	s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Done)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != transaction.RolledBack || !strings.Contains(s.Reason, "after-boot hook NodeHook/path: exit status 1") {
		t.Errorf("%+v", s)
	}
	if got := read(t, n, "/var/tmp/ready"); got != "ready now on worker-7\n" {
		t.Errorf("%q", got)
	}
	if out, _ := shell(ctx, t, n, "find /var/lib/machine-config-daemon/hooks /run/machine-config-daemon/hooks 2>/dev/null || true"); out != "" {
		t.Errorf("left: %s", out)
	}
}
