// SPDX-License-Identifier: Apache-2.0

package osupdate

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	driver "github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

func TestStagedDeploymentWithArgumentsBootsOnlyWhenReleased(t *testing.T) {
	t.Parallel()
	for name, ofOld := range map[string]bool{"lock in the state": false, "lock in a file": true} {
		t.Run(name, func(t *testing.T) {
			ctx, m := bootWith(t, lab.Options{Name: "rpm"}, ofOld)
			before := m.BootedDeployment()
			deployments, err := m.plain().Status(ctx)
			if err != nil {
				t.Fatal(err)
			}
			booted := deployments[slices.IndexFunc(deployments, func(d ostree.Deployment) bool { return d.Booted })]
			present := booted.KernelArguments
			wanted := append(slices.Clone(present[1:]), "x=1", `q="a $HOME b"`, "y", present[0], "x=1")

			c := m.compose(ctx, osimage.System{Packages: []string{"usbguard"}}, 1)
			d, err := m.rpm().Stage(ctx, c.Checksum, wanted)
			if err != nil {
				t.Fatal(err)
			}
			// What is layered is composed anew with the arguments, and the commit is held.
			if asked := m.transactions(); len(asked) != 1 || !d.Locked || d.Checksum == c.Checksum ||
				!slices.Equal(d.KernelArguments, wanted) {
				t.Fatalf("%+v after %q", d, asked)
			}
			held := func(d ostree.Deployment) {
				t.Helper()
				now := c
				now.Checksum = d.Checksum
				there, err := m.rpm().Present(ctx, osimage.System{Packages: []string{"usbguard"}}, now)
				if err != nil || !there {
					t.Errorf("%s is held: %t, %v", d.ID, there, err)
				}
			}
			held(d)
			// The same again takes nothing, and others are made of what is staged.
			if again, err := m.rpm().Stage(ctx, d.Checksum, wanted); err != nil || again.ID != d.ID || len(m.transactions()) > 0 {
				t.Errorf("%+v, %v", again, err)
			}
			if d, err = m.rpm().Stage(ctx, d.Checksum, present); err != nil {
				t.Error(err)
			}
			if d, err = m.rpm().Stage(ctx, d.Checksum, wanted); err != nil || len(m.transactions()) != 2 {
				t.Fatalf("%+v, %v", d, err)
			}
			held(d)
			// So is what is composed again: it is there.
			c = m.compose(ctx, osimage.System{Packages: []string{"usbguard"}}, 0)
			if c.Checksum != d.Checksum {
				t.Errorf("composed %s, and %s is staged", c.Checksum, d.ID)
			}
			if err := m.Reboot(ctx); err != nil {
				t.Fatal(err)
			}
			if m.BootedDeployment() != before {
				t.Fatalf("%s has booted", m.BootedDeployment())
			}
			// The boot has lost it.
			if _, err := m.rpm().Stage(ctx, d.Checksum, wanted); !errors.Is(err, driver.ErrNotStaged) {
				t.Fatalf("gave %v", err)
			}
			if err := m.plain().Release(ctx, d.ID); err == nil {
				t.Error("what is not staged was released")
			}

			c = m.compose(ctx, osimage.System{Packages: []string{"usbguard"}}, 1)
			m.breaks(fault.Fault{Step: fault.End, Action: fault.Vanish, Times: 1})
			if d, err = m.rpm().Stage(ctx, c.Checksum, wanted); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := m.plain().Release(ctx, d.ID); err != nil {
					t.Fatal(err)
				}
			}
			if err := m.Reboot(ctx); err != nil {
				t.Fatal(err)
			}
			line := ostree.SplitArguments(m.Kargs())
			if line = withoutOSTree(line); m.BootedDeployment() != d.ID || !slices.Equal(line, wanted) {
				t.Fatalf("%s has booted with %s", m.BootedDeployment(), line)
			}
			if what, err := m.rpm().Of(ctx, before); err != nil || len(what.Packages) > 0 {
				t.Errorf("%s was %+v, %v", before, what, err)
			}

			// The way back, there is no other.
			output := m.output(ctx, "rpm-ostree", "kargs", "--append=other=1")
			if err := m.rpm().MakeDefault(ctx, before); err != nil {
				t.Fatalf("%v after %s", err, output)
			}
			if err := m.Reboot(ctx); err != nil {
				t.Fatal(err)
			}
			if m.BootedDeployment() != before {
				t.Fatalf("%s has booted", m.BootedDeployment())
			}
			// Arguments alone, of what runs.
			d, err = m.rpm().Stage(ctx, booted.Checksum, append(slices.Clone(present), "z"))
			if err != nil || d.Checksum != booted.Checksum || !d.Locked {
				t.Fatalf("%+v, %v", d, err)
			}
			if err := m.rpm().Drop(ctx); err != nil {
				t.Fatal(err)
			}
			if m.staged(ctx) != nil {
				t.Errorf("left is %+v", m.staged(ctx))
			}
		})
	}
}

// withoutOSTree are the arguments but for ostree=, which ostree sets.
func withoutOSTree(arguments []string) []string {
	return slices.DeleteFunc(arguments, func(a string) bool { return strings.HasPrefix(a, "ostree=") })
}
