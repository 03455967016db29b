// SPDX-License-Identifier: Apache-2.0

package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// unpacked are the files of an archive by name.
func unpacked(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for files := tar.NewReader(zipped); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(files)
		if err != nil || h.Mode != 0o600 {
			t.Fatalf("%s: mode %#o, %v", h.Name, h.Mode, err)
		}
		out[strings.TrimPrefix(h.Name, folder)] = string(text)
	}
}

func says(name string, text bool, contents string, err error) Part {
	return Part{Name: name, Text: text, Read: func(context.Context) ([]byte, error) { return []byte(contents), err }}
}

func TestAPartThatCanNotBeHadIsNamedAndTheOthersAreThere(t *testing.T) {
	var b bytes.Buffer
	_, err := archive(t.Context(), &b, 100, time.Unix(0, 0), []Part{
		says("a", false, "1234567890", nil),
		says("b", false, "", errors.New("no\nanswer")),
		says("c", true, "half", errors.New("reset")),
		says("d", false, strings.Repeat("x", 100), nil),
		says("e.log", true, strings.Repeat("old line\n", 20)+"the last line\n", nil),
		says("f.log", true, "more\n", nil),
		says("g", false, "", nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	files := unpacked(t, &b)
	want := `Collected at 1970-01-01T00:00:00Z. Contents of files and texts that may hold secrets are masked.

a      10
b      -   no; answer
c      4   not whole: reset
d      -   100 bytes are over the limit; --limit allows more
e.log  77  the last of 194 bytes, because of the limit; --limit allows more
f.log  5
g      0
`
	if diff := cmp.Diff(want, files[contentsName]); diff != "" {
		t.Errorf("-want +is:\n%s", diff)
	}
	if e := files["e.log"]; !strings.HasPrefix(e, "old line\n") || !strings.HasSuffix(e, "the last line\n") {
		t.Errorf("e.log is %q", e)
	}
	if _, ok := files["d"]; ok || files["a"] != "1234567890" {
		t.Errorf("%v", files)
	}
}

func TestAnArchiveThatIsInterruptedIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	if _, err := archive(ctx, io.Discard, 100, time.Now(), []Part{says("a", false, "a", nil)}); err == nil ||
		!strings.Contains(err.Error(), "interrupted") {
		t.Error(err)
	}
}

func TestNodesWithTroubleComeFirst(t *testing.T) {
	node := func(name, state string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{api.StateKey: state}}}
	}
	nodes := []corev1.Node{node("a", string(api.Done)), node("c", string(api.Done)), node("b", string(api.Degraded))}
	got, err := order(nodes, nil)
	if diff := cmp.Diff([]string{"b", "a", "c"}, got); diff != "" || err != nil {
		t.Errorf("%v, -want +is:\n%s", err, diff)
	}
	if got, err = order(nodes, []string{"c"}); len(got) != 1 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if _, err = order(nodes, []string{"d"}); err == nil || !strings.Contains(err.Error(), "no Node d") {
		t.Error(err)
	}
}

func TestTheEndOfAStreamIsKept(t *testing.T) {
	for _, n := range []int{0, 1, 9, 10, 11, 25, 1 << 20} {
		text := strings.Repeat("x", n) + "end"
		got, err := tail(strings.NewReader(text), 10)
		if err != nil || len(got) > 10 || !strings.HasSuffix(text, got) || !strings.HasSuffix(got, "end") {
			t.Errorf("of %d bytes: %q, %v", n, got, err)
		}
	}
}
