// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/test/lab"
)

// argumentsFile is where an image has kernel arguments.
const argumentsFile = "/usr/lib/bootc/kargs.d/10-lab.toml"

// arguments are those of the present boot, without ostree=.
func (s *scene) arguments() []string {
	return slices.DeleteFunc(strings.Fields(s.host.Kargs()), func(a string) bool { return strings.HasPrefix(a, "ostree=") })
}

// staged says whether something is staged for everybody on the host.
func (s *scene) staged() bool {
	_, err := os.Stat(s.root() + "/run/ostree/staged-deployment")
	return err == nil
}

// What the project depends on. The order is that of a host's life, and each part begins where the last one ended.
func TestContract(t *testing.T) {
	s := newScene(t)
	first := s.host.BootedDeployment()
	const a, b, bare = "oci:/var/lib/images/a", "oci:/var/lib/images/b", "oci:/var/lib/images/bare"
	s.commit("test/a", lab.RefV2, map[string]string{argumentsFile: `kargs = ["lab.a=1", "lab.both", "lab_x.y=1"]`})
	s.commit("test/b", lab.RefV1, map[string]string{
		argumentsFile:                         fmt.Sprintf("kargs = [\"lab.both\", \"lab.b=2\", \"lab-x.y=1\", %q]\n", lab.KernelArguments[2]),
		"/usr/lib/bootc/kargs.d/20-none.toml": "kargs = [\"lab.none\"]\nmatch-architectures = [\"none\"]\n"})
	s.commitOf("test/bare", lab.RefV1, nil)
	// A label of its own is not needed: bootable commits give theirs to the image.
	s.encapsulate("test/a", "v2", a)
	s.encapsulate("test/b", "v1", b)
	s.encapsulate("test/bare", "v1", bare)

	t.Run("host of a plain ref", func(t *testing.T) {
		s := s.in(t)
		got := s.status()
		if got.Status.Booted.Image != nil || got.Status.Booted.Incompatible || got.Status.Staged != nil ||
			got.Status.Rollback != nil || got.Status.Type != nil || got.Spec.Image != nil || got.Spec.BootOrder != "default" {
			t.Errorf("status is %+v", got)
		}
		s.content(s.fails("bootc", "rollback"), "No rollback available")
		s.content(s.fails("bootc", "upgrade"), "No image source specified")
		text := s.must("bootc", "status", "--json", "--format-version=1")
		for _, field := range []string{"softRebootCapable", "downloadOnly", "usrOverlay"} {
			s.content(text, `"`+field+`":`)
		}
	})

	t.Run("what no image is", func(t *testing.T) {
		s := s.in(t)
		s.content(s.fails("bootc", "switch", "--transport", "oci", "--retain", "/var/lib/images/bare"),
			"Target image does not have ostree.bootable label")
		text := s.fails("bootc", "switch", "--transport", "oci", "--retain", "/var/lib/images/none")
		s.content(text, "no such file or directory")
		s.content(text, "error: Switching: Switching (ostree): Preparing import: Fetching manifest: failed to invoke method OpenImage: ")
		// podman, which is asked first, knows no such images.
		s.content(text, `Error: unsupported transport "oci" for looking up local images`)
		s.content(s.fails("bootc", "switch", "--transport", "oci", "--retain", "--enforce-container-sigpolicy",
			"/var/lib/images/a"), "refusing usage")
		if s.staged() {
			t.Error("something is staged")
		}
	})

	t.Run("switch", func(t *testing.T) {
		s := s.in(t)
		said := s.must("bootc", "switch", "--quiet", "--transport", "oci", "--retain", "/var/lib/images/a")
		s.content(said, "Queued for next boot: ")
		got := s.status()
		staged := got.Status.Staged
		if staged == nil || staged.Image == nil || staged.Image.Image != (reference{"/var/lib/images/a", "oci"}) ||
			staged.Image.Version != "v2" || staged.Store != "ostreeContainer" || staged.OSTree.Stateroot != lab.OS ||
			*got.Spec.Image != staged.Image.Image {
			t.Fatalf("status is %+v, staged %+v", got, staged)
		}
		s.content(said, "Digest: "+staged.Image.Digest)
		s.content(s.must("cat", "/run/reboot-required"), staged.Image.Digest)
		s.content(s.must("cat", strings.Replace("/ostree/deploy/"+staged.id()+".origin", "/"+staged.OSTree.Checksum,
			"/deploy/"+staged.OSTree.Checksum, 1)), "container-image-reference=ostree-unverified-image:"+a)
		if next, err := lab.DefaultEntry(s.host.Sysroot()); err != nil || next.Deployment != first {
			t.Errorf("next boots %s (%v)", next.Deployment, err)
		}
		s.content(s.must("ostree", "refs"), lab.RefV1)
		s.content(s.must("bootc", "switch", "--transport", "oci", "--retain", "/var/lib/images/a"), "Image specification is unchanged.")

		s.reboot()
		now := s.status()
		if now.Status.Booted.of() != staged.of() || now.Status.Booted.OSTree != staged.OSTree || now.Status.Staged != nil ||
			now.Status.Type == nil || *now.Status.Type != "bootcHost" || now.Status.Rollback.id() != first || now.Status.RollbackQueued {
			t.Errorf("after the boot status is %+v", now)
		}
		if want := append(slices.Clone(lab.KernelArguments), "lab.a=1", "lab.both", "lab_x.y=1"); !slices.Equal(s.arguments(), want) {
			t.Errorf("booted with %q", s.arguments())
		}
		if refs := s.must("ostree", "refs", "--list", imageRefs); refs != imageRefs+"/oci_3A__2F_var/lib/images/a" {
			t.Errorf("the refs of images are %q", refs)
		}
		if len(s.layers()) == 0 {
			t.Error("there are no refs of layers")
		}
		s.content(s.must("bootc", "switch", "--transport", "oci", "--retain", "/var/lib/images/a"), "Image specification is unchanged.")
		s.content(s.fails("bootc", "rollback"), "Rollback is not container image based")
		if s.staged() {
			t.Error("something is staged")
		}
	})

	t.Run("switch with a state of its own", func(t *testing.T) {
		s := s.in(t)
		inside := []string{"systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--property=BindPaths=/run/private:/run/ostree"}
		s.must("mkdir", "/run/private")
		s.must(append(inside, "bootc", "switch", "--quiet", "--transport", "oci", "--retain", "/var/lib/images/b")...)
		if s.staged() || s.status().Status.Staged != nil {
			t.Error("it is staged for everybody")
		}
		if got := s.status(inside...).Status.Staged.of(); !strings.HasPrefix(got, b+" ") {
			t.Errorf("inside %q is staged", got)
		}
	})

	t.Run("layers go with a clean-up", func(t *testing.T) { layersGoWithACleanUp(s.in(t)) })
	t.Run("commits below baseimage keep their layers", func(t *testing.T) { baseImagesKeepLayers(s.in(t)) })
	t.Run("status waits for the lock", func(t *testing.T) { statusWaitsForTheLock(s.in(t)) })
	t.Run("podman is asked in every switch", func(t *testing.T) { podmanIsAsked(s.in(t)) })
	t.Run("bound images come with the staging and go with a clean-up", func(t *testing.T) { boundImagesComeAndGo(s.in(t)) })
	t.Run("unknown keys beside arguments", func(t *testing.T) { unknownKeysAreRefused(s.in(t)) })
	t.Run("progress", func(t *testing.T) { progressIsTold(s.in(t)) })
	t.Run("tag and digest", func(t *testing.T) { tagAndDigestAreKept(s.in(t)) })

	second := s.host.BootedDeployment()
	t.Run("switch from image to image", func(t *testing.T) {
		s := s.in(t)
		s.must("bootc", "switch", "--quiet", "--transport", "oci", "--retain", "/var/lib/images/b")
		s.reboot()
		got := s.status()
		if !strings.HasPrefix(got.Status.Booted.of(), b+" ") || got.Status.Rollback.id() != second {
			t.Fatalf("status is %+v", got)
		}
		// In a key - and _ are one, and what is on the command line is not added to it.
		if want := append(slices.Clone(lab.KernelArguments), "lab.both", "lab_x.y=1", "lab.b=2"); !slices.Equal(s.arguments(), want) {
			t.Errorf("booted with %q", s.arguments())
		}
	})

	third := s.host.BootedDeployment()
	t.Run("upgrade, and rollback with something staged", func(t *testing.T) {
		s := s.in(t)
		s.content(s.must("bootc", "upgrade"), "No update available.")
		s.must("rm", "-r", "/var/lib/images/b")
		s.encapsulate("test/a", "v3", b)
		s.content(s.must("bootc", "upgrade", "--check"), "Update available for: ")
		s.must("bootc", "upgrade", "--quiet")
		if got := s.status(); got.Status.Staged.of() == got.Status.Booted.of() || !strings.HasPrefix(got.Status.Staged.of(), b+" ") {
			t.Errorf("staged is %+v", got.Status.Staged)
		}
		s.content(s.must("bootc", "rollback"), "Next boot: rollback deployment")
		got := s.status()
		if got.Status.Staged != nil || !got.Status.RollbackQueued || got.Spec.BootOrder != "rollback" || got.Status.Rollback.id() != second {
			t.Errorf("after rollback status is %+v", got)
		}
		if next, err := lab.DefaultEntry(s.host.Sysroot()); err != nil || next.Deployment != second {
			t.Errorf("next boots %s (%v)", next.Deployment, err)
		}
		s.content(s.must("bootc", "rollback"), "Next boot: current deployment")
		if next, err := lab.DefaultEntry(s.host.Sysroot()); err != nil || next.Deployment != third {
			t.Errorf("next boots %s (%v)", next.Deployment, err)
		}
	})

	t.Run("rpm-ostree has changed it", func(t *testing.T) {
		s := s.in(t)
		origin := "[origin]\ncontainer-image-reference=ostree-unverified-image:" + b + "\n[packages]\nrequested=usbguard;\n"
		if err := os.WriteFile(s.host.HostPath("/var/tmp/origin"), []byte(origin), 0o644); err != nil {
			t.Fatal(err)
		}
		s.must("ostree", "admin", "deploy", "--os="+lab.OS, "--origin-file=/var/tmp/origin", s.status().Status.Booted.OSTree.Checksum)
		s.reboot()
		got := s.status()
		if booted := got.Status.Booted; !booted.Incompatible || booted.Image != nil || got.Status.Type != nil || got.Status.Rollback.id() != third {
			t.Errorf("status is %+v", got)
		}
		s.content(s.fails("bootc", "upgrade"), "Deployment contains local rpm-ostree modifications; cannot upgrade via bootc. "+
			"You can run `rpm-ostree reset` to undo the modifications.")

		system, err := s.driver().Current(s.ctx)
		if err != nil || system.Image != "ostree-unverified-image:"+b || !slices.Equal(system.Packages, []string{"usbguard"}) {
			t.Errorf("to the driver it is %+v (%v)", system, err)
		}
		_, err = s.driver().Compose(s.ctx, osimage.System{Image: "ostree-unverified-image:" + a})
		if ostree.ClassOf(err) != ostree.NeedsAdmin || !strings.Contains(err.Error(), "rpm-ostree reset") {
			t.Errorf("the driver says, with class %s: %v", ostree.ClassOf(err), err)
		}
	})
}

// in is the scene for a part of the test.
func (s *scene) in(t *testing.T) *scene {
	t.Helper()
	return &scene{T: t, ctx: s.ctx, host: s.host, registry: s.registry}
}
