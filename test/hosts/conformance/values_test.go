// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab/snapshot"
)

// The worked example of docs/node-values.md: a host name, a static address, an interface by its MAC.
const connection = `[connection]
id=@{text:annotations/title}
interface-name=@{interface:host/interfaces/52:54:00:12:34:56}
[ipv4]
method=manual
address1=@{prefix:annotations/address}
`

// valuedDocument is the rendered configuration of a pool, as a pipeline makes it.
func valuedDocument(t *testing.T) string {
	t.Helper()
	text := mc("50-address", "worker", config(fmt.Sprintf(`,"storage":{"files":[`+
		`{"path":"/etc/hostname","mode":420,"contents":{"source":%q}},`+
		`{"path":"/etc/NetworkManager/system-connections/static.nmconnection","mode":384,"contents":{"source":%q}}]}`,
		dataURL("@{hostname:name}\n"), dataURL(connection))))
	text = strings.Replace(text, "metadata:\n", "metadata:\n  annotations: {noderefit.dev/placeholders: \"true\"}\n", 1)
	data, err := json.Marshal(render(t, "worker", text))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// values writes a file of values, and returns its path.
func (tr *tree) values(given map[string]string) string {
	tr.Helper()
	data, err := json.Marshal(given)
	tr.must(err)
	return tr.save(string(data))
}

// interfaces makes a network interface with a MAC address, as the kernel shows it.
func (tr *tree) interfaces() {
	tr.Helper()
	device := "sys/devices/pci0/net/ens7"
	for _, dir := range []string{device + "/device", "sys/class/net"} {
		tr.must(os.MkdirAll(tr.path(dir), 0o755))
	}
	tr.put(device+"/address", "52:54:00:12:34:56\n", 0o444)
	tr.symlink("../../devices/pci0/net/ens7", "sys/class/net/ens7")
}

func TestTwoHostsMakeTheirOwnOfOneConfiguration(t *testing.T) {
	t.Parallel()
	document := valuedDocument(t)
	for name, address := range map[string]string{"web-1": "10.0.0.7/24", "web-2": "10.0.0.8/24"} {
		tr := newTree(t)
		tr.interfaces()
		file := tr.values(map[string]string{"name": name, "annotations/title": "the " + name, "annotations/address": address})
		tr.apply(document, "--values", file)
		tr.verified()
		if got := tr.read("etc/hostname"); got != name+"\n" {
			t.Errorf("the host name is %q", got)
		}
		made := tr.read("etc/NetworkManager/system-connections/static.nmconnection")
		for _, want := range []string{"id=the " + name + "\n", "interface-name=ens7\n", "address1=" + address + "\n"} {
			if !strings.Contains(made, want) {
				t.Errorf("%s has no %q", made, want)
			}
		}
		// The same values again write nothing; another value is an update, and the way back knows the values before.
		before := tr.all()
		tr.apply(document, "--values", file)
		tr.same(before, tr.all(), snapshot.Untouched)
		first := tr.status().Config.Committed
		other := tr.values(map[string]string{"name": "other", "annotations/title": "x", "annotations/address": address})
		tr.apply(document, "--values", other)
		second := tr.status().Config.Committed
		pool, _, own := strings.Cut(second, "+")
		if !own || !strings.HasPrefix(first, pool+"+") || first == second || tr.read("etc/hostname") != "other\n" {
			t.Errorf("committed %s, then %s, with host name %q", first, second, tr.read("etc/hostname"))
		}
		tr.run("rollback").ok(t)
		if tr.status().Config.Committed != first || tr.read("etc/hostname") != name+"\n" {
			t.Errorf("back on %s with %q", tr.status().Config.Committed, tr.read("etc/hostname"))
		}
	}
}

func TestValuesThatAreMissingOrHostileTouchNothing(t *testing.T) {
	t.Parallel()
	document := valuedDocument(t)
	good := map[string]string{"name": "web-1", "annotations/title": "x", "annotations/address": "10.0.0.7/24"}
	for key, test := range map[string]struct{ value, says string }{
		"name":                {"", "the node has no value for name"},
		"annotations/address": {"10.0.0.7", "annotations/address is not of the type prefix"},
		"annotations/title":   {"x\n[ipv6]\nmethod=auto", "annotations/title is not of the type text"},
	} {
		tr := newTree(t)
		tr.interfaces()
		given := maps.Clone(good)
		if given[key] = test.value; test.value == "" {
			delete(given, key)
		}
		before := tr.take()
		for _, verb := range []string{"apply", "plan"} {
			flag := map[string]string{"apply": "--config", "plan": "--desired"}[verb]
			tr.run(verb, flag, tr.save(document), "--values", tr.values(given)).fails(t, 1, test.says)
		}
		tr.same(before, tr.take(), snapshot.Untouched)
	}
	tr := newTree(t) // without the interface
	tr.run("apply", "--config", tr.save(document), "--values", tr.values(good)).
		fails(t, 1, "the node has no value for host/interfaces/52:54:00:12:34:56")
}
