// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// compressed is a file that has so many bytes once it is decompressed, all of them the same.
func compressed(path string, size int) map[string]any {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	chunk := make([]byte, 1<<20)
	for left := size; left > 0; left -= len(chunk) {
		if _, err := z.Write(chunk[:min(left, len(chunk))]); err != nil {
			panic(err)
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	source := "data:;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
	return map[string]any{"path": path, "mode": 0o644, "contents": map[string]any{"source": source, "compression": "gzip"}}
}

func documentOf(name string, files ...map[string]any) *Document {
	return &Document{Object: machineConfig(name, map[string]any{"ignition": map[string]any{"version": "3.4.0"},
		"storage": map[string]any{"files": files}})}
}

// allocated is how many bytes do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A document that an API object holds may grow a thousandfold. What is read of it is bounded, however many files it has.
func TestCompressedContentsAreBoundedTogether(t *testing.T) {
	const each = 60 << 20
	var files []map[string]any
	body := compressed("", each)["contents"]
	for i := range 18 {
		files = append(files, map[string]any{"path": fmt.Sprintf("/etc/%02d", i), "contents": body})
	}
	doc := documentOf("bomb", files...)
	if size := len(doc.Object.Spec.Config.Raw); size > maxObjectSize {
		t.Fatalf("%d bytes are no object", size)
	}
	var err error
	got := allocated(func() { _, err = Parse(doc.Object) })
	t.Logf("%d bytes of JSON allocate %d MiB", len(doc.Object.Spec.Config.Raw), got>>20)
	if err == nil {
		t.Fatal("1 GB of contents are taken")
	}
	for _, says := range []string{"MachineConfig/bomb", "spec.config.storage.files[1].contents.compression (/etc/01)", "64 MiB"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("does not say %q: %v", says, err)
		}
	}
	if got > 4*maxExpanded {
		t.Errorf("%d MiB are allocated for it", got>>20)
	}
}

// Documents of a pool are held at the same time.
func TestCompressedContentsOfAPoolAreBoundedTogether(t *testing.T) {
	var docs []*Document
	body := compressed("", 40<<20)["contents"]
	for i := range 10 {
		docs = append(docs, documentOf(fmt.Sprintf("part-%d", i), map[string]any{"path": fmt.Sprintf("/etc/%d", i),
			"contents": body}))
	}
	var err error
	got := allocated(func() { _, _, err = Merge("worker", docs, nil) })
	t.Logf("%d MiB allocated", got>>20)
	if err == nil || !strings.Contains(err.Error(), "MachineConfig/part-1") || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("400 MiB in ten documents: %v", err)
	}
	if got > 4*maxExpanded {
		t.Errorf("%d MiB are allocated for them", got>>20)
	}
}

func TestCompressedContentsUpToTheBoundAreTaken(t *testing.T) {
	doc := documentOf("large", compressed("/etc/a", maxExpanded-1), compressed("/etc/b", 1))
	c, err := Parse(doc.Object)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Files[0].Contents) != maxExpanded-1 || len(c.Files[1].Contents) != 1 {
		t.Errorf("sizes are %d and %d", len(c.Files[0].Contents), len(c.Files[1].Contents))
	}
	if _, err := Parse(documentOf("larger", compressed("/etc/a", maxExpanded), compressed("/etc/b", 1)).Object); err == nil {
		t.Error("one byte more is taken")
	}
}

// The size at the end of a gzip stream is what its maker wrote there.
func TestASizeThatIsClaimedAllocatesNothing(t *testing.T) {
	var files []map[string]any
	for i := range 500 {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte("x"))
		_ = z.Close()
		data := b.Bytes()
		copy(data[len(data)-4:], []byte{0xff, 0xff, 0xff, 0x03})
		files = append(files, map[string]any{"path": fmt.Sprintf("/etc/%03d", i), "contents": map[string]any{
			"source": "data:;base64," + base64.StdEncoding.EncodeToString(data), "compression": "gzip"}})
	}
	doc := documentOf("liar", files...)
	got := allocated(func() { _, _ = Parse(doc.Object) })
	if got > 64<<20 {
		t.Errorf("%d MiB are allocated for 500 bytes", got>>20)
	}
}
