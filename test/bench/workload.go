// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/machineconfig"
)

// The shape of the workload: 100 files of 1 to 8 KiB in ten directories, three in ten of them compressed; 25 units, of
// which 10 are enabled, 5 left to the presets and 10 disabled, two of these masked; 15 drop-ins. Upstream's agent was
// measured with documents of this shape and size.
const (
	workFiles   = 100
	workUnits   = 25
	workDropins = 15
	workEnabled = 10
	manyFiles   = 300 // to see what the size of a configuration costs when one file of it changes

	changedFile = 57
	changedUnit = 3
)

var workDirs = []string{
	"/etc/bench.d", "/etc/bench.d/kubelet", "/etc/bench.d/crio/conf", "/etc/bench.d/net/a", "/etc/bench.d/net/b",
	"/etc/bench.d/sysctl", "/etc/bench.d/tuned", "/usr/local/benchbin", "/var/lib/bench", "/etc/bench.d/certs/x",
}

// documents are configurations of one shape: the first one, and what differs from it in one thing.
type documents struct {
	c1 []byte
	c2 []byte // one file has other contents
	u2 []byte // one unit has other contents
}

// workload is everything that is measured with.
type workload struct {
	hundred documents
	many    documents // manyFiles files, no units
	// owned is the first one of hundred with what upstream's verification never looks at: owners that are not root,
	// links, directories and the keys of a user.
	owned []byte
}

func newWorkload() *workload {
	w := &workload{hundred: documentsOf(workFiles, workUnits), many: documentsOf(manyFiles, 0)}
	c := newGenerator().config(workFiles, workUnits)
	storage := c["storage"].(map[string]any)
	files := storage["files"].([]map[string]any)
	for i := 0; i < len(files); i += 10 {
		files[i]["user"], files[i]["group"] = map[string]any{"name": "_chrony"}, map[string]any{"id": 991}
	}
	storage["directories"] = []map[string]any{{"path": "/var/lib/bench/empty", "mode": 0o750}}
	storage["links"] = []map[string]any{{"path": "/etc/bench.d/link.conf", "target": "/etc/bench.d/file000.conf"}}
	keys := []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBenchBenchBenchBenchBenchBenchBenchBenchBen0 one@example.com",
		"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBenchBenchBenchBenchBenchBenchBenchBenchBen1 two@example.com"}
	c["passwd"] = map[string]any{"users": []map[string]any{{"name": "core", "sshAuthorizedKeys": keys}}}
	w.owned = document("rendered-worker-owned", c)
	return w
}

func documentsOf(files, units int) documents {
	var d documents
	make1 := func() (generator, map[string]any) {
		g := newGenerator()
		return g, g.config(files, units)
	}
	_, c := make1()
	d.c1 = document("rendered-worker-c1", c)
	g, c := make1()
	file := c["storage"].(map[string]any)["files"].([]map[string]any)[changedFile]
	file["contents"] = source([]byte(g.text(4000)), false)
	d.c2 = document("rendered-worker-c2", c)
	if units > 0 {
		_, c = make1()
		unit := c["systemd"].(map[string]any)["units"].([]map[string]any)[changedUnit]
		unit["contents"] = unit["contents"].(string) + "# changed\n"
		d.u2 = document("rendered-worker-u2", c)
	}
	return d
}

// generator makes the same documents each time.
type generator struct{ *rand.Rand }

func newGenerator() generator { return generator{rand.New(rand.NewPCG(20261120, 1))} }

var words = strings.Fields(
	"node config value kubelet crio timeout limit registry mirror option true false enable path size memory cpu network " +
		"policy")

func (g generator) text(size int) string {
	var b strings.Builder
	for b.Len() < size {
		fmt.Fprintf(&b, "%s_%d = %s%d\n", words[g.IntN(len(words))], g.IntN(1000), words[g.IntN(len(words))], g.IntN(100000))
	}
	return b.String()[:size-1] + "\n"
}

func source(data []byte, compress bool) map[string]any {
	if !compress {
		return map[string]any{"source": "data:text/plain;charset=utf-8;base64," + base64.StdEncoding.EncodeToString(data)}
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write(data)
	w.Close()
	return map[string]any{
		"source": "data:;base64," + base64.StdEncoding.EncodeToString(packed.Bytes()), "compression": "gzip",
	}
}

func (g generator) config(files, units int) map[string]any {
	var fs []map[string]any
	for i := range files {
		size := 1024 + g.IntN(7169)
		fs = append(fs, map[string]any{
			"path":      fmt.Sprintf("%s/file%03d.conf", workDirs[i%len(workDirs)], i),
			"mode":      []int{0o644, 0o644, 0o600, 0o755}[i%4],
			"overwrite": true,
			"contents":  source([]byte(g.text(size)), slices.Contains([]int{2, 5, 8}, i%10)),
		})
	}
	c := map[string]any{"ignition": map[string]any{"version": "3.2.0"}, "storage": map[string]any{"files": fs}}
	var us []map[string]any
	for i := range units {
		us = append(us, g.unit(i))
	}
	if us != nil {
		c["systemd"] = map[string]any{"units": us}
	}
	return c
}

func unitName(i int) string { return fmt.Sprintf("bench%02d.service", i) }

func (g generator) unit(i int) map[string]any {
	var b strings.Builder
	fmt.Fprintf(&b, "[Unit]\nDescription=bench unit %d\nAfter=network.target\n"+
		"[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n", i)
	for k := range 20 {
		fmt.Fprintf(&b, "Environment=V%d=%d\n", k, g.IntN(1e9))
	}
	b.WriteString("[Install]\nWantedBy=multi-user.target\n")
	u := map[string]any{"name": unitName(i), "contents": b.String()}
	switch {
	case i < workEnabled:
		u["enabled"] = true
	case i >= workDropins:
		u["enabled"] = false
	}
	if i >= workUnits-2 {
		u["mask"] = true
	}
	if i < workDropins {
		text := fmt.Sprintf("[Service]\nEnvironment=D=%d\n", g.IntN(1e9))
		u["dropins"] = []map[string]any{{"name": "10-bench.conf", "contents": text}}
	}
	return u
}

// fragments are n small documents of two files and one unit each, about 4.5 KB; one file in ten lies where an earlier
// document has one.
func (g generator) fragments(n int) []*machineconfig.Document {
	var docs []*machineconfig.Document
	for i := range n {
		var fs []map[string]any
		for j := range 2 {
			at := 2*i + j
			if at > 10 && g.IntN(10) == 0 {
				at -= 10
			}
			fs = append(fs, map[string]any{"path": fmt.Sprintf("/etc/bench.d/file%04d.conf", at), "mode": 0o644,
				"overwrite": true, "contents": source([]byte(g.text(1024+g.IntN(768))), false)})
		}
		u := g.unit(i)
		u["enabled"] = true
		delete(u, "mask")
		docs = append(docs, &machineconfig.Document{Object: object(document(fmt.Sprintf("50-bench-%03d", i), map[string]any{
			"ignition": map[string]any{"version": "3.2.0"},
			"storage":  map[string]any{"files": fs},
			"systemd":  map[string]any{"units": []map[string]any{u}},
		}))})
	}
	return docs
}

// document wraps an Ignition config in a MachineConfig.
func document(name string, config map[string]any) []byte {
	labels := map[string]any{"machineconfiguration.openshift.io/role": "worker"}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
		"metadata": map[string]any{"name": name, "labels": labels},
		"spec":     map[string]any{"config": config},
	})
	if err != nil {
		panic(err) // nothing in it can fail to encode
	}
	return data
}

func object(data []byte) *mcfgv1.MachineConfig {
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(data, mc); err != nil {
		panic(err) // document made it
	}
	return mc
}

// policy lets the whole workload be applied to the running system.
func policy() []byte {
	var b strings.Builder
	b.WriteString("apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata: {name: cluster}\n" +
		"spec:\n  nodeDisruptionPolicy:\n    files:\n")
	for _, dir := range []string{"/etc/bench.d", "/usr/local/benchbin", "/var/lib/bench"} {
		fmt.Fprintf(&b, "    - path: %s\n      actions: [{type: None}]\n", dir)
	}
	b.WriteString("    units:\n")
	for i := range workUnits {
		fmt.Fprintf(&b, "    - name: %s\n      actions: [{type: DaemonReload}]\n", unitName(i))
	}
	return []byte(b.String())
}
