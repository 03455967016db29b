// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/transaction"
)

// naming is a pool's configuration that names a host's name and address. The kubelet of these hosts fails where its file
// says so.
const naming = `{"kernelArguments":["rd.name=@{hostname:name}"],"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
 {"path":"/etc/hostname","mode":420,"contents":{"source":"data:,@%7Bhostname:name%7D%0A"}},
 {"path":"/etc/systemd/network/50-static.network","mode":420,
  "contents":{"source":"data:,%5BNetwork%5D%0AAddress=@%7Bprefix:annotations/address%7D%0A"}},
 {"path":"/etc/kubernetes/kubelet.conf","mode":420,"contents":{"source":"data:,@%7Bword:annotations/mode%7D%0A"}}]}}}`

func TestTwoHostsMakeTheirOwnAndBadValuesComeBack(t *testing.T) {
	doc := []byte(strings.Replace(string(mc("p", naming)), `"metadata":{`,
		`"metadata":{"annotations":{"noderefit.dev/placeholders":"true"},`, 1))
	for name, address := range map[string]string{"web-1": "10.0.0.7/24", "web-2": "10.0.0.8/24"} {
		t.Run(name, func(t *testing.T) {
			ctx, n := start(t)
			values := func(mode string) string {
				text, err := json.Marshal(map[string]string{"name": name, "annotations/address": address, "annotations/mode": mode})
				if err != nil {
					t.Fatal(err)
				}
				return document(t, n, mode+".json", text)
			}
			boots := n.Boots()
			if _, exit, err := n.Apply(ctx, doc); exit != 1 || !strings.Contains(err.Error(), "no value for annotations/address") ||
				n.Boots() != boots {
				t.Fatalf("without values: exit %d, %v", exit, err)
			}
			apply(ctx, t, n, doc, "--values", values("good"))
			s, err := n.WaitState(ctx, transaction.Done, transaction.RolledBack)
			if err != nil || s.State != transaction.Done || !strings.HasPrefix(s.Config.Committed, "p+") {
				t.Fatalf("%+v, %v", s, err)
			}
			verified(ctx, t, n)
			network := read(t, n, "/etc/systemd/network/50-static.network")
			if got := read(t, n, "/etc/hostname"); got != name+"\n" || network != "[Network]\nAddress="+address+"\n" {
				t.Errorf("the host is %q with %q", got, network)
			}
			if name != "web-1" {
				return
			}
			// A value that breaks the host is taken back. What is quarantined is what the host made with that value.
			good := s.Config.Committed
			apply(ctx, t, n, doc, "--values", values("fail"))
			if s, err = n.WaitState(ctx, transaction.RolledBack); err != nil || s.Config.Committed != good ||
				len(s.Quarantined) != 1 || s.Quarantined[0].Config == good || !strings.HasPrefix(s.Quarantined[0].Config, "p+") {
				t.Fatalf("%+v, %v", s, err)
			}
			if _, err := n.WaitRunning(ctx); err != nil {
				t.Fatal(err)
			}
			verified(ctx, t, n)
			apply(ctx, t, n, doc, "--values", values("better"))
			if s, err = n.WaitState(ctx, transaction.Done, transaction.RolledBack); err != nil ||
				s.State != transaction.Done || read(t, n, "/etc/kubernetes/kubelet.conf") != "better\n" {
				t.Fatalf("%+v, %v", s, err)
			}
			verified(ctx, t, n)
		})
	}
}
