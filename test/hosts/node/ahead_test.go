// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

const (
	stageUnit = "machine-config-daemon-stage"
	keptStage = "/var/lib/machine-config-daemon/staged.json"
)

// stall begins to stage, by an order, from a server that never answers.
func stall(ctx context.Context, t *testing.T, n *Node, o api.StageOrder) *running {
	t.Helper()
	shell(ctx, t, n, "ip link set lo up; cp "+headPath+" /run/stall; systemd-run -q --unit stall /run/stall stall 127.0.0.1:8080; "+
		"ostree remote add --if-not-exists --no-gpg-verify stall http://127.0.0.1:8080")
	doc := document(t, n, "stall.json", mc("os", `{"osImageURL":"stall:some/ref","config":{"ignition":{"version":"3.2.0"}}}`))
	r := begin(ctx, t, n, "stage", "--config", doc, "--name", "os", "--order", api.Encode(o))
	shell(ctx, t, n, "for i in $(seq 600); do journalctl -u stall -o cat | grep -q '^1$' && break; sleep 0.05; done")
	return r
}

func TestTheUnitThatStagesHasTheWeightsOfItsOrder(t *testing.T) {
	ctx, n := startHead(t)
	r := stall(ctx, t, n, api.StageOrder{Config: "os", IOWeight: 10, CPUWeight: 20, Bandwidth: 1 << 20})
	out, _ := shell(ctx, t, n, "systemctl show -p CPUWeight,IOWeight "+stageUnit)
	if !strings.Contains(out, "CPUWeight=20\n") || !strings.Contains(out, "IOWeight=10\n") {
		t.Errorf("%s", out)
	}
	if cgroup, _ := shell(ctx, t, n, "systemctl status --no-pager -n 0 "+stageUnit); !strings.Contains(cgroup, "ostree") {
		t.Errorf("what pulls is somewhere else:\n%s", cgroup)
	}
	// The server hears of it by the proxy of the unit alone.
	if out, exit := shell(ctx, t, n, "tr '\\0' '\\n' </proc/$(pgrep -xo ostree)/environ | grep ^http_proxy=http://noderefit:.*@127.0.0.1:"); exit != 0 {
		t.Errorf("what pulls keeps no bandwidth: %s", out)
	}
	shell(ctx, t, n, "systemctl stop "+stageUnit+" stall")
	r.end(ctx, t, n, "TERM")
}

func TestTheUnitThatStagesKeepsTheBandwidthOfItsOrder(t *testing.T) {
	ctx, n := startHead(t)
	s := newShelf(t, n)
	tool := bytes.Repeat([]byte("tool\n"), 3<<18) // 3.75 MiB
	s.put("tool", tool)
	doc := document(t, n, "paced.json", mc("paced", referring(map[string]string{"/etc/testos/tool": s.at("tool", tool)})))
	began := time.Now()
	a := head(ctx, t, n, "stage", "--config", doc, "--name", "paced", "--order",
		api.Encode(api.StageOrder{Config: "paced", Bandwidth: 1 << 20}))
	took := time.Since(began)
	t.Logf("%d bytes came in %s", len(tool), took)
	if least := 3500 * time.Millisecond; a.Error != "" || took < least {
		t.Errorf("%+v after %s, which takes at least %s", a, took, least)
	}
	// So few that no registry waits for it.
	a = head(ctx, t, n, "stage", "--config", doc, "--name", "paced", "--order",
		api.Encode(api.StageOrder{Config: "paced", Bandwidth: 1}))
	if !strings.Contains(a.Error, "flag --bandwidth: 1 bytes a second is less than 16384") {
		t.Errorf("%+v", a)
	}
}

func TestStagingLeavesTheDiskItsFloor(t *testing.T) {
	ctx, n := startHead(t)
	image := mc("os", `{"osImageURL":"`+lab.Remote+":"+lab.RefV3+`","config":{"ignition":{"version":"3.2.0"}}}`)
	order := api.StageOrder{Config: "os", MinFreeMebibytes: 1 << 24}
	a := head(ctx, t, n, "stage", "--config", document(t, n, "os.json", image), "--name", "os", "--order", api.Encode(order))
	if !strings.Contains(a.Error, "16777216 MiB have to stay free") || a.Kind != "" {
		t.Errorf("%+v", a)
	}
	if out, exit := shell(ctx, t, n, "ostree rev-parse "+lab.Remote+":"+lab.RefV3+"; test ! -e "+keptStage); exit != 0 {
		t.Errorf("something was pulled: %s", out)
	}

	// The disk gets full on the way.
	const state = "/var/lib/machine-config-daemon"
	if out, exit := shell(ctx, t, n, "cp -a "+state+" /run/state && mount -t tmpfs -o size=96m state "+state+
		" && cp -a /run/state/. "+state); exit != 0 {
		t.Fatal(out)
	}
	r := stall(ctx, t, n, api.StageOrder{Config: "os", MinFreeMebibytes: 64})
	shell(ctx, t, n, "/usr/bin/head -c 48M /dev/zero >"+state+"/full")
	if a := r.answer(t); !strings.Contains(a.Error, "MiB have to stay free") {
		t.Errorf("%+v", a)
	}
	shell(ctx, t, n, "rm "+state+"/full; systemctl stop stall")
	if out, exit := shell(ctx, t, n, "test ! -e "+keptStage+" && ! pgrep -x ostree"); exit != 0 {
		t.Errorf("it is kept: %s", out)
	}
	if s, err := n.Status(ctx); err != nil || s.State != transaction.Done {
		t.Errorf("%+v %v", s, err)
	}
}

func TestWhatIsStagedAheadDoesNotBootByAccidentAndIsThereAfterIt(t *testing.T) {
	ctx, n := startHead(t)
	os := mc("os", `{"osImageURL":"`+lab.Remote+":"+lab.RefV3+`","config":{"ignition":{"version":"3.2.0"}}}`)
	order := api.Encode(api.StageOrder{Config: "os", MinFreeMebibytes: 1})
	stage := func() {
		t.Helper()
		if a := head(ctx, t, n, "stage", "--config", document(t, n, "os.json", os), "--name", "os", "--order", order); a.Error != "" {
			t.Fatalf("%+v", a)
		}
	}
	before, booted := deployments(ctx, t, n), n.BootedDeployment()
	refused := func() {
		t.Helper()
		other := api.Encode(api.StageOrder{Config: "os", Digest: strings.Repeat("0", 64)})
		a := head(ctx, t, n, "apply", "--config", document(t, n, "os.json", os), "--name", "os", "--order", other)
		if a.Kind != "refused" || !strings.Contains(a.Error, strings.Repeat("0", 64)+" was approved") {
			t.Errorf("another OS than was approved: %+v", a)
		}
		if s, err := n.Status(ctx); err != nil || s.Config.Pending != "" || s.Config.Committed == "os" || s.StagedOS == "" ||
			fmt.Sprint(deployments(ctx, t, n)) != fmt.Sprint(before) {
			t.Errorf("%+v %v", s, err)
		}
	}
	refused() // it pulls it, to know what it is
	stage()
	refused()
	a := head(ctx, t, n, "status")
	if a.Status == nil || a.Status.Staged == "" || len(a.Status.StagedOS) != 64 {
		t.Fatalf("%+v", a.Status)
	}
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if n.BootedDeployment() != booted || fmt.Sprint(deployments(ctx, t, n)) != fmt.Sprint(before) {
		t.Errorf("%s booted, of %v; before %s of %v", n.BootedDeployment(), deployments(ctx, t, n), booted, before)
	}
	if s, err := n.Status(ctx); err != nil || s.State != transaction.Done || s.Config.Pending != "" ||
		s.Staged != a.Status.Staged || s.StagedOS != a.Status.StagedOS {
		t.Errorf("%+v %v", s, err)
	}
	// Nothing is asked of the remote again.
	if out, exit := shell(ctx, t, n, "mount -o remount,rw /sysroot && sed -i 's,file:///run/lab/remote,file:///nowhere,' /ostree/repo/config"); exit != 0 {
		t.Fatal(out)
	}
	stage()
	if res := apply(ctx, t, n, os, "--approved", a.Status.StagedOS); res.Reboot == "" {
		t.Errorf("%+v", res)
	}
	settled(ctx, t, n, "os")
	if v := read(t, n, "/usr/lib/testos/version"); strings.TrimSpace(v) != "v3" {
		t.Errorf("version %q", v)
	}
}
