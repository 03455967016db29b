// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhatTheBootLoaderStartsForADeployment(t *testing.T) {
	const newer, older = "testos/" + one + ".0", "testos/" + one + ".1"
	root := hostTree(t, map[string]string{
		"boot/loader.1/entries/x": "",
		"boot/loader.1/entries/ostree-2.conf": "version 2\noptions rw ostree=/ostree/boot.1/testos/7c32/0 a=\"b  c\"\n" +
			"linux /ostree/testos-7c32/vmlinuz\ninitrd /ostree/testos-7c32/initramfs.img\naboot /x\n",
		// With sysroot.bootprefix.
		"boot/loader.1/entries/ostree-1.conf": "version 1\noptions rw ostree=/ostree/boot.1/testos/7c32/1\n" +
			"linux /boot/ostree/testos-7c32/vmlinuz\ninitrd /boot/ostree/testos-7c32/initramfs.img\ndevicetree /d\n",
		"boot/ostree/testos-7c32/vmlinuz": "v", "boot/ostree/testos-7c32/initramfs.img": "i",
	})
	link(t, root, "ostree/boot.1/testos/7c32/0", "../../../deploy/testos/deploy/"+one+".0")
	link(t, root, "ostree/boot.1/testos/7c32/1", "../../../deploy/testos/deploy/"+one+".1")
	p := NewPlain(nil, root)
	same := BootEntry{Kernel: "/boot/ostree/testos-7c32/vmlinuz", Initrds: []string{"/boot/ostree/testos-7c32/initramfs.img"}}
	first, second := same, same
	first.Arguments = `rw ostree=/ostree/boot.1/testos/7c32/0 a="b  c"`
	second.Arguments, second.Others = "rw ostree=/ostree/boot.1/testos/7c32/1", []string{"devicetree"}
	for id, want := range map[string]BootEntry{newer: first, older: second} {
		got, err := p.BootEntry(id)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", id, err, diff)
		}
	}
	if got, err := p.BootEntry("testos/none.0"); err == nil {
		t.Errorf("a deployment without an entry: %+v", got)
	}
}
