// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
)

const ownerPrefix = "x-options-source-"

// owners has the owners in the boot entry of the booted deployment, a line each, in their order.
func owners(t *testing.T, n *Node) string {
	t.Helper()
	var out []string
	for line := range strings.Lines(entry(t, n, nil)) {
		if owner, ok := strings.CutPrefix(line, ownerPrefix); ok {
			out = append(out, strings.TrimSuffix(owner, "\n"))
		}
	}
	return strings.Join(out, "\n")
}

// entry returns the boot entry of the booted deployment, as change leaves it.
func entry(t *testing.T, n *Node, change func(string) string) string {
	t.Helper()
	name, err := n.BootedEntry()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return string(text)
	}
	if err := os.WriteFile(name, []byte(change(string(text))), 0o644); err != nil {
		t.Fatal(err)
	}
	return change(string(text))
}

// addOwners gives what is staged the keys of a fixture, as ostree 2026.1 keeps them there: for TuneD isolcpus=1-3
// nohz=full, for dracut nothing, for the agent a=1.
func addOwners(t *testing.T, n *Node) {
	t.Helper()
	state := fmt.Sprintf("/proc/%d/root/run/ostree/staged-deployment", n.Leader())
	extra, err := os.ReadFile("../../../ostree/testdata/staged-extra")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(state, grown(data, extra[:len(extra)-1]), 0o600); err != nil {
		t.Fatal(err)
	}
}

// grown is a GVariant dictionary of more than 255 bytes with one entry more.
func grown(dictionary, entry []byte) []byte {
	end := int(binary.LittleEndian.Uint16(dictionary[len(dictionary)-2:]))
	places := dictionary[end:]
	out := append([]byte{}, dictionary[:end]...)
	for len(out)%8 != 0 {
		out = append(out, 0)
	}
	out = append(out, entry...)
	until := len(out)
	return binary.LittleEndian.AppendUint16(append(out, places...), uint16(until))
}

func TestWhoseKernelArgumentsAreIsCarriedAlong(t *testing.T) {
	ctx, n := onA(t)
	if got := owners(t, n); got != "noderefit a=1" {
		t.Fatalf("owners: %q", got)
	}
	entry(t, n, func(text string) string {
		return strings.Replace(text, "options ", "options isolcpus=1 ", 1) + ownerPrefix + "tuned isolcpus=1\n" + ownerPrefix + "gone \n"
	})
	if err := n.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t, n, "a")
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
	if got := owners(t, n); got != "gone \nnoderefit a=1 b=2\ntuned isolcpus=1" {
		t.Errorf("owners after an update: %q", got)
	}
	if _, stderr, exit, err := n.Agent(ctx, "rollback"); err != nil || exit != 0 {
		t.Fatal(exit, stderr, err)
	}
	settled(ctx, t, n, "a")
	if got := owners(t, n); got != "gone \nnoderefit a=1\ntuned isolcpus=1" || strings.Count(n.Kargs(), "isolcpus=1") != 1 {
		t.Errorf("owners after going back: %q, %s", got, n.Kargs())
	}

	// TuneD has others staged.
	if out, exit := shell(ctx, t, n, "ostree admin deploy --stage --os=testos --karg-delete=isolcpus=1 "+
		"--karg-append=isolcpus=1-3 --karg-append=nohz=full "+lab.RefV1); exit != 0 {
		t.Fatal(out)
	}
	addOwners(t, n)
	at, err := n.Document("b.json", mc("b", configB))
	if err != nil {
		t.Fatal(err)
	}
	out, text, exit, err := n.Agent(ctx, "plan", "--desired", at)
	if err != nil || exit != 0 || !strings.Contains(out, "kernel arguments of tuned are staged for the next boot") ||
		strings.Contains(out, "Staged by others") {
		t.Errorf("plan: %d %v %s%s", exit, err, out, text)
	}
	apply(ctx, t, n, mc("b", configB))
	settled(ctx, t, n, "b")
	if got := owners(t, n); got != "dracut \nnoderefit a=1 b=2\ntuned isolcpus=1-3 nohz=full" {
		t.Errorf("owners after an update with something staged: %q", got)
	}
	if k := " " + n.Kargs() + " "; strings.Contains(k, " isolcpus=1 ") || !strings.Contains(k, " isolcpus=1-3 nohz=full ") ||
		!strings.Contains(k, " b=2 ") {
		t.Errorf("command line %s", k)
	}
}
