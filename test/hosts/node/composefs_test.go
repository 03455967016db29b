// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// TestAHostOfBootcsComposefsBackEndIsCalledByItsName is about a host that shows what bootc's composefs back end shows of
// itself, and nothing of ostree.
func TestAHostOfBootcsComposefsBackEndIsCalledByItsName(t *testing.T) {
	ctx, n := start(t)
	digest := strings.Repeat("5e", 64)
	if out, exit := shell(ctx, t, n, "umount /run/ostree-booted && rm /run/ostree-booted && mkdir /run/composefs && "+
		"echo 'rw composefs="+digest+"' >/run/cmdline && mount --bind /run/cmdline /proc/cmdline"); exit != 0 {
		t.Fatal(out)
	}
	state := filepath.Join(n.Sysroot(), "state/deploy", digest)
	if err := errors.Join(os.MkdirAll(state, 0o755),
		os.WriteFile(filepath.Join(state, digest+".origin"), []byte("[boot]\nboot_type=uki\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	s, err := n.Status(ctx)
	if err != nil || s.OS != "bootc (composefs, uki)" || s.Road != string(transaction.RoadInPlace) {
		t.Errorf("%v %+v", err, s)
	}
	if text, _, exit, err := n.Agent(ctx, "status"); err != nil || exit != 0 || !strings.Contains(text, "OS:        bootc (composefs, uki), road: in-place") {
		t.Errorf("%d %v %s", exit, err, text)
	}
	for field, want := range map[string]string{
		`"osImageURL":"quay.example/os@sha256:` + digest[:64] + `"`: "osImageURL: ",
		`"kernelArguments":["a=1"]`:                                 "kernelArguments: ",
		`"kernelType":"realtime"`:                                   "kernelType: ",
		`"extensions":["usbguard"]`:                                 "extensions: ",
	} {
		at, err := n.Document("os.json", mc("os", `{`+field+`,"config":{"ignition":{"version":"3.2.0"}}}`))
		if err != nil {
			t.Fatal(err)
		}
		for _, backend := range []string{"auto", "bootc"} {
			_, text, exit, err := n.Agent(ctx, "apply", "--os", backend, "--config", at)
			if err != nil || exit != 3 || !strings.Contains(text, want) || !strings.Contains(text, "composefs back end") && !strings.Contains(text, "sealed") {
				t.Errorf("%s: %d %v %s", want, exit, err, text)
			}
		}
		out, _, exit, err := n.Agent(ctx, "plan", "--desired", at, "-o", "json")
		var p plan.Plan
		if err != nil || exit != 3 || json.Unmarshal([]byte(out), &p) != nil || len(p.Unreconcilable) != 1 || p.Unreconcilable[0].Field != strings.TrimSuffix(want, ": ") {
			t.Errorf("plan, %s: %d %v %s", want, exit, err, out)
		}
	}
	boots := n.Boots()
	res := apply(ctx, t, n, mc("files", `{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/nodisrupt","contents":{"source":"data:,x"}}]},"systemd":{"units":[{"name":"new.service","enabled":true,
 "contents":"[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"}]}}}`), "--no-reboot")
	if n.Boots() != boots || res.Reboot != host.RebootNeeded || res.Status.Config.Pending != "files" ||
		res.Status.OS != host.OS("bootc (composefs, uki)") {
		t.Errorf("%+v", res.Status)
	}
	res = apply(ctx, t, n, mc("one", liveConfig("1", "ok")), "--policy", policy(t, n))
	if n.Boots() != boots || res.Reboot != host.RebootNone || res.Status.Config.Committed != "one" {
		t.Errorf("%+v", res.Status)
	}
	verified(ctx, t, n)
}
