// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"os"
	"path/filepath"
	"testing"
)

// overlayEtc is what a host with a transient /etc shows of its mounts.
const overlayEtc = `25 1 8:1 / / ro,relatime shared:1 - overlay overlay ro,lowerdir=a,upperdir=b
31 25 0:27 / /etc rw,relatime shared:9 - overlay overlay rw,lowerdir=/sysroot.tmp/usr/etc,upperdir=/run/ostree/transient-etc.x/upper,workdir=w
`

func TestATransientEtcIsSeenByItsMount(t *testing.T) {
	for text, want := range map[string]bool{
		overlayEtc: true,
		"":         false,
		"31 25 8:1 /ostree/deploy/os/deploy/x.0/etc /etc rw,relatime shared:9 - ext4 /dev/sda1 rw\n":      false,
		"31 25 0:27 / /etc rw - overlay overlay rw,lowerdir=/usr/etc,upperdir=/var/etc/upper,workdir=w\n": false,
		"31 25 0:27 / /etc/ssh rw - overlay overlay rw,lowerdir=/usr/etc,upperdir=/run/x,workdir=w\n":     false,
		// systemd-confext lies over both kinds.
		overlayEtc + "40 31 0:30 / /etc ro - overlay confext ro,lowerdir=/run/confexts:/etc\n":                           true,
		"31 25 0:27 / /etc rw - overlay confext rw,lowerdir=/run/c:/etc,upperdir=/run/systemd/confext/upper,workdir=w\n": false,
		"no mounts at all": false,
	} {
		if got := transientEtc(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// A host asks several times in one command, and its mounts may be many.
func TestTheMountsAreReadOnce(t *testing.T) {
	root := hostTree(t, map[string]string{"proc/self/mountinfo": overlayEtc})
	p := NewPlain(nil, root)
	for range 2 {
		if transient, err := p.TransientEtc(); err != nil || !transient {
			t.Errorf("%t, %v", transient, err)
		}
		if err := os.RemoveAll(filepath.Join(root, "proc/self/mountinfo")); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnImageLacksAUnitOrALink(t *testing.T) {
	wakers := []Waker{{Name: "a.service", Command: "/bin/a", WantedBy: []string{"x.target", "y.target"}}}
	const unit, x, y = "/usr/lib/systemd/system/a.service", "/usr/lib/systemd/system/x.target.wants/a.service",
		"/usr/lib/systemd/system/y.target.wants/a.service"
	for _, c := range []struct {
		image map[string]string
		lacks string
	}{
		{map[string]string{unit: "ExecStart=/bin/a\n", x: "", y: ""}, ""},
		{map[string]string{unit: "ExecStart=/bin/a\n", "/usr/etc/systemd/system/x.target.wants/a.service": "", y: ""}, ""},
		{map[string]string{unit: "ExecStart=/bin/a\n", x: ""}, y},
		{map[string]string{unit: "ExecStart=/bin/other\n", x: "", y: ""}, unit},
		{map[string]string{x: "", y: ""}, unit},
	} {
		got, err := lacksWaker(wakers, func(at string) (string, error) { return c.image[at], nil },
			func(at string) (bool, error) { _, is := c.image[at]; return is, nil })
		if err != nil || got != c.lacks {
			t.Errorf("%v lacks %q, %v", c.image, got, err)
		}
	}
}
