// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestABuildSaysHowFarItIs(t *testing.T) {
	var log strings.Builder
	now := time.Unix(0, 0)
	c := newCompiling(&log, 40)
	c.now, c.began, c.said = func() time.Time { return now }, now, now
	for i := range 12 {
		now = now.Add(time.Second)
		line := fmt.Sprintf("k8s.io/api/part%d\n", i)
		for _, piece := range []string{line[:7], line[7:]} { // a pipe may cut a line anywhere
			if n, err := fmt.Fprint(c, piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	fmt.Fprint(c, "# k8s.io/api/part12\nfile.go:1:1: undefined: x\n")
	want := `kubebox: compiled 5 of at most 40 packages in 5 s, now k8s.io/api/part4
kubebox: compiled 10 of at most 40 packages in 10 s, now k8s.io/api/part9
# k8s.io/api/part12
file.go:1:1: undefined: x
`
	if log.String() != want {
		t.Errorf("got\n%s\nwant\n%s", log.String(), want)
	}
}
