// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/test/lab/fakeruntime"
)

// A pull that is under way ends when the disk comes below its floor, and images after that are not tried.
func TestAFallingFloorEndsThePullThatIsUnderWay(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "pins") //nolint:usetesting // a socket's path may not be long
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	runtime, err := fakeruntime.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	host, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	const mib = 1 << 20
	var asked atomic.Int32
	host.space = func(place string) (files.Space, error) {
		if place != "/var" {
			t.Errorf("the space of %s is asked for", place)
		}
		switch asked.Add(1) {
		case 1:
			return files.Space{Bytes: 10 * mib}, nil
		case 2:
			return files.Space{}, errors.New("the disk does not say")
		default: // the pull has taken some of the space
			return files.Space{Bytes: 7 * mib}, nil
		}
	}
	a, b := "quay.io/x/a"+digest("a"), "quay.io/x/b"+digest("b")
	runtime.Offer(a, b)
	goOn := runtime.Hold()
	defer goOn()
	s, err := host.Keep(t.Context(), Order{Images: []string{a, b}, Pull: true, MinFree: 8 * mib, Runtime: "containerd"})
	if err != nil {
		t.Fatal(err)
	}
	const why = "pulling it: 8 MiB have to stay free on the file system of /var, and 7 MiB are free"
	if len(s.Missing) != 2 || !strings.HasSuffix(s.Missing[a], why) || s.Missing[b] != why {
		t.Errorf("the host misses %q", s.Missing)
	}
	if got := runtime.Asked("PullImage"); got != 1 || runtime.Labels(a) != nil {
		t.Errorf("%d pulls began, and the host has %v", got, runtime.Labels(a))
	}
	if got := asked.Load(); got != 3 {
		t.Errorf("the disk was asked %d times", got)
	}
}
