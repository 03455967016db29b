// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

// generator makes the documents that the upstream agent was measured with.
type generator struct{ *rand.Rand }

func newGenerator() generator { return generator{rand.New(rand.NewPCG(20261120, 1))} }

func (g generator) text(n int) string {
	words := strings.Fields("node config value kubelet crio timeout limit registry mirror option true false enable path size memory cpu network policy")
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%s_%d = %s%d\n", words[g.IntN(len(words))], g.IntN(1000), words[g.IntN(len(words))], g.IntN(100000))
	}
	return b.String()[:n-1] + "\n"
}

func (g generator) file(path string, size int, compress bool) map[string]any {
	data, contents := []byte(g.text(size)), map[string]any{}
	if compress {
		data = gzipped(data)
		contents["compression"] = "gzip"
	}
	contents["source"] = "data:text/plain;charset=utf-8;base64," + base64.StdEncoding.EncodeToString(data)
	return map[string]any{"path": path, "mode": 0o644, "overwrite": true, "contents": contents}
}

func (g generator) unit(name string, variables int) map[string]any {
	var b strings.Builder
	b.WriteString("[Unit]\nDescription=a unit\nAfter=network.target\n[Service]\nType=oneshot\nExecStart=/bin/true\n")
	for i := range variables {
		fmt.Fprintf(&b, "Environment=V%d=%d\n", i, g.IntN(1e9))
	}
	b.WriteString("[Install]\nWantedBy=multi-user.target\n")
	return map[string]any{"name": name, "enabled": true, "contents": b.String()}
}

func machineConfig(name string, config map[string]any) *mcfgv1.MachineConfig {
	raw, err := json.Marshal(config)
	if err != nil {
		panic(err)
	}
	mc := newObject(name)
	mc.Labels = map[string]string{roleLabel: roleWorker}
	mc.Spec.Config.Raw = raw
	return mc
}

// large is one configuration of about 589 KB: 100 files of 1 to 8 KiB, 30 of them compressed, 25 units, 15 drop-ins.
func (g generator) large() *mcfgv1.MachineConfig {
	var files, units []any
	for i := range 100 {
		files = append(files, g.file(fmt.Sprintf("/etc/bench.d/%d/file%03d.conf", i%10, i), 1024+g.IntN(7169), i%10 == 2 || i%10 == 5 || i%10 == 8))
	}
	for i := range 25 {
		u := g.unit(fmt.Sprintf("bench%02d.service", i), 20)
		if i < 15 {
			u["dropins"] = []any{map[string]any{"name": "10-bench.conf", "contents": fmt.Sprintf("[Service]\nEnvironment=D=%d\n", g.IntN(1e9))}}
		}
		units = append(units, u)
	}
	return machineConfig("rendered-worker-c1", map[string]any{
		"ignition": map[string]any{"version": "3.2.0"}, "storage": map[string]any{"files": files}, "systemd": map[string]any{"units": units},
	})
}

// many is n documents of two files and one unit each, about 4.5 KB; one file in ten lies at the path of an earlier one.
func (g generator) many(n int) (docs []*Document) {
	for i := range n {
		var files []any
		for j := range 2 {
			at := 2*i + j
			if at > 10 && g.IntN(10) == 0 {
				at = (at - 10) - at%2 + 1 - j
			}
			files = append(files, g.file(fmt.Sprintf("/etc/bench.d/file%04d.conf", at), 1024+g.IntN(768), false))
		}
		docs = append(docs, &Document{Object: machineConfig(fmt.Sprintf("50-bench-%03d", i), map[string]any{
			"ignition": map[string]any{"version": "3.2.0"},
			"storage":  map[string]any{"files": files},
			"systemd":  map[string]any{"units": []any{g.unit(fmt.Sprintf("bench%03d.service", i), 15)}},
		})})
	}
	return docs
}

func BenchmarkParse(b *testing.B) {
	mc := newGenerator().large()
	b.SetBytes(int64(len(mc.Spec.Config.Raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(mc); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMerge50(b *testing.B)  { benchmarkMerge(b, 50) }
func BenchmarkMerge200(b *testing.B) { benchmarkMerge(b, 200) }

func benchmarkMerge(b *testing.B, n int) {
	docs := newGenerator().many(n)
	var in, out int
	for _, d := range docs {
		in += len(d.Object.Spec.Config.Raw)
	}
	b.ReportAllocs()
	for b.Loop() {
		c, _, err := Merge("worker", docs, nil)
		if err != nil {
			b.Fatal(err)
		}
		out = len(c.Object.Spec.Config.Raw)
	}
	b.ReportMetric(float64(in)/1e3, "KB-in")
	b.ReportMetric(float64(out)/1e3, "KB-out")
}
