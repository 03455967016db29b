// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

// notHeld tells the host what its head says when somebody uncordons the node after the drain.
func notHeld(ctx context.Context, t *testing.T, n *Node) {
	t.Helper()
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		t.Fatal(err)
	}
	word := fmt.Sprintf(`{"held":false,"why":"somebody uncordoned it","uptimeNanoseconds":%d}`, up.Nano())
	if out, exit := shell(ctx, t, n, "echo '"+word+"' >"+transaction.RunDir+"/node-held"); exit != 0 {
		t.Fatal(out)
	}
}

func TestNodeThatIsNotHeldIsNotRebooted(t *testing.T) {
	ctx, n := onA(t)
	before, err := n.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	boots := n.Boots()
	refused := func(what string) {
		t.Helper()
		res, exit, err := n.Apply(ctx, mc("b", configB), "--cluster")
		if exit != host.ExitRefused || err == nil || !strings.Contains(err.Error(), "somebody uncordoned it") {
			t.Errorf("%s: exit %d: %v", what, exit, err)
		}
		if res == nil || res.Reboot == host.RebootStarted || n.Boots() != boots {
			t.Fatalf("%s: it reboots: %+v", what, res)
		}
		after, err := n.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(after.Deployments, before.Deployments) || after.Transaction != nil ||
			after.Config != before.Config || after.State != transaction.Done {
			t.Errorf("%s: left behind: %+v, was %+v", what, after, before)
		}
		verified(ctx, t, n)
	}
	notHeld(ctx, t, n)
	refused("before the commit")
	if after, err := n.Status(ctx); err != nil || after.Since != before.Since || after.Reason != before.Reason {
		t.Errorf("the host's state has changed: %+v, was %+v; %v", after, before, err)
	}

	apply(ctx, t, n, mc("b", configB), "--no-reboot")
	notHeld(ctx, t, n)
	refused("before the reboot")

	if out, exit := shell(ctx, t, n, "rm "+transaction.RunDir+"/node-held"); exit != 0 {
		t.Fatal(out)
	}
	apply(ctx, t, n, mc("b", configB), "--cluster", "--verdict-timeout", "20s")
	settled(ctx, t, n, "b")
}
