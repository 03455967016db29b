// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/test/lab"
)

// Where bootc has the refs of images and of their layers, and where others have those of commits whose layers they need.
const (
	imageRefs = "ostree/container/image"
	layerRefs = "ostree/container/blob"
	baseRef   = "ostree/container/baseimage/lab/held"
)

// layers are the refs of all layers.
func (s *scene) layers() []string {
	s.Helper()
	return strings.Fields(s.must("ostree", "refs", "--list", layerRefs))
}

// elsewhere has bootc switch to an image and stage it where nobody else looks. It returns the commit.
func (s *scene) elsewhere(transport, image string) (checksum string) {
	s.Helper()
	s.must("rm", "-rf", "/run/private")
	s.must("mkdir", "/run/private")
	inside := []string{"systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--property=BindPaths=/run/private:/run/ostree"}
	s.must(append(inside, "bootc", "switch", "--quiet", "--transport", transport, "--retain", image)...)
	return s.status(inside...).Status.Staged.OSTree.Checksum
}

// deploy makes a deployment of a commit that says that it is of an image, and not the default.
func (s *scene) deploy(checksum, image string) {
	s.Helper()
	origin := "[origin]\ncontainer-image-reference=ostree-unverified-image:" + image + "\n"
	if err := os.WriteFile(s.host.HostPath("/var/tmp/origin"), []byte(origin), 0o644); err != nil {
		s.Fatal(err)
	}
	s.must("ostree", "admin", "deploy", "--os="+lab.OS, "--not-as-default", "--retain", "--origin-file=/var/tmp/origin", checksum)
}

// undeploy removes the deployment of a commit.
func (s *scene) undeploy(checksum string) {
	s.Helper()
	list, err := s.plain().Status(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	for _, d := range list {
		if d.Checksum == checksum {
			s.must("ostree", "admin", "undeploy", string(rune('0'+d.Index)))
			return
		}
	}
	s.Fatalf("there is no deployment of %s", checksum)
}

func layersGoWithACleanUp(s *scene) {
	s.must("bootc", "internals", "cleanup")
	before := s.layers()
	checksum := s.elsewhere("oci", "/var/lib/images/b")
	if len(s.layers()) <= len(before) {
		s.Errorf("with another image the layers are %q", s.layers())
	}
	s.must("ostree", "refs", "--force", "--create=test/held", checksum)
	s.content(s.must("bootc", "internals", "cleanup"), "Pruned images: 1 (layers: ")
	if after := s.layers(); !slices.Equal(after, before) {
		s.Errorf("after a clean-up the layers are %q, before %q", after, before)
	}

	// From then on bootc does nothing on a host with a deployment of it.
	s.deploy(checksum, "oci:/var/lib/images/b")
	const missing = "Reading deployment metadata: Missing base image ref " + layerRefs + "/sha256_3A_"
	s.content(s.fails("bootc", "status", "--json"), "Computing status: Rollback deployment: "+missing)
	for _, argv := range [][]string{{"switch", "--transport", "oci", "--retain", "/var/lib/images/b"}, {"upgrade"}, {"rollback"}} {
		s.content(s.fails(append([]string{"bootc"}, argv...)...), missing)
	}
	s.undeploy(checksum)
	s.status()
	s.must("ostree", "refs", "--delete", "test/held")
}

func baseImagesKeepLayers(s *scene) {
	checksum := s.elsewhere("oci", "/var/lib/images/b")
	before := s.layers()
	s.must("ostree", "refs", "--force", "--create="+baseRef, checksum)
	s.must("bootc", "internals", "cleanup")
	if after := s.layers(); !slices.Equal(after, before) {
		s.Errorf("after a clean-up the layers are %q, before %q", after, before)
	}
	s.content(s.must("ostree", "refs", "--list", "ostree/container/baseimage"), baseRef)
	s.deploy(checksum, "oci:/var/lib/images/b")
	s.must("ostree", "refs", "--delete", baseRef)
	s.must("bootc", "internals", "cleanup")
	if got := s.status().Status.Rollback; got.OSTree.Checksum != checksum || !strings.HasPrefix(got.of(), "oci:/var/lib/images/b ") {
		s.Errorf("beside the booted one there is %+v", got)
	}
	s.undeploy(checksum)
	s.must("bootc", "internals", "cleanup")
}

// lock takes the lock of the sysroot.
func (s *scene) lock() (release func()) {
	s.Helper()
	file, err := os.OpenFile(filepath.Join(s.host.Sysroot(), "ostree/lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err != nil {
		s.Fatal(err)
	}
	return func() {
		s.Helper()
		if err := file.Close(); err != nil {
			s.Error(err)
		}
	}
}

func statusWaitsForTheLock(s *scene) {
	release := s.lock()
	s.must("timeout", "20", "ostree", "admin", "status")
	began := time.Now()
	stdout, stderr, exit, err := s.host.Exec(s.ctx, nil, "timeout", "5", "bootc", "status", "--json")
	if err != nil || exit != 124 || len(stdout)+len(stderr) > 0 || time.Since(began) < 5*time.Second {
		s.Errorf("with the lock taken, after %s: exit status %d, %q, %q (%v)", time.Since(began), exit, stdout, stderr, err)
	}
	release()
	s.status()
}

func podmanIsAsked(s *scene) {
	if Real() != "" {
		s.Skip("podman is in the host's /usr, from where it can't be taken away")
	}
	s.must("mv", podman, podman+".away")
	defer s.must("mv", podman+".away", podman)
	s.content(s.fails("bootc", "switch", "--transport", "oci", "--retain", "/var/lib/images/b"), "No such file or directory (os error 2)")
	if s.staged() {
		s.Error("something is staged")
	}
}

// inStore reports whether bootc's own storage has an image, as podman says without writing there.
func (s *scene) inStore(image string) bool {
	s.Helper()
	defer s.must("rm", "-rf", "/run/lab-podman")
	_, stderr, exit, err := s.host.Exec(s.ctx, nil, "podman", "--root", "/run/lab-podman/root", "--runroot", "/run/lab-podman/run",
		"--storage-opt", "additionalimagestore=/sysroot/ostree/bootc/storage", "image", "exists", image)
	if err != nil || exit != 0 && exit != 1 {
		s.Fatalf("podman ended with %d: %s (%v)", exit, stderr, err)
	}
	return exit == 0
}

// binding are the files of an image that is bound to another one.
func binding(image string) map[string]string {
	const unit = "/usr/share/containers/systemd/app.container"
	return map[string]string{unit: "[Container]\nImage=" + image + "\n",
		"/usr/lib/bootc/bound-images.d/app.container": linkTo + unit}
}

func boundImagesComeAndGo(s *scene) {
	app := s.repository("app") + ":1"
	s.push("test/bare", "1", app)
	s.commit("test/bound", lab.RefV1, binding(app))
	s.encapsulate("test/bound", "v1", "oci:/var/lib/images/bound")
	if s.inStore(app) {
		s.Error("it is there before")
	}
	s.content(s.must("bootc", "switch", "--transport", "oci", "--retain", "/var/lib/images/bound"), "Bound images stored: 1")
	s.must("bootc", "internals", "cleanup")
	if !s.inStore(app) {
		s.Error("with a deployment bound to it, it is gone")
	}
	s.must("ostree", "admin", "undeploy", "0")
	s.must("bootc", "internals", "cleanup")
	if s.inStore(app) {
		s.Error("without a deployment bound to it, it is there")
	}
}

func unknownKeysAreRefused(s *scene) {
	s.commit("test/unknown", lab.RefV1, map[string]string{argumentsFile: "kargs = [\"lab.c\"]\ncolour = \"red\"\n"})
	s.encapsulate("test/unknown", "v1", "oci:/var/lib/images/unknown")
	s.content(s.fails("bootc", "switch", "--transport", "oci", "--retain", "/var/lib/images/unknown"), "Parsing 10-lab.toml: ")
	if s.staged() {
		s.Error("something is staged")
	}
}

func tagAndDigestAreKept(s *scene) {
	name := s.repository("os/lab")
	image := name + ":both@" + s.push("test/b", "v1", name+":both")
	s.must("bootc", "switch", "--quiet", "--retain", image)
	if got := s.status(); *got.Spec.Image != (reference{image, "registry"}) || got.Status.Staged.Image.Image != *got.Spec.Image {
		s.Errorf("status is %+v", got)
	}
	if refs := s.must("ostree", "refs", "--list", imageRefs); strings.Contains(refs, "os/lab") {
		s.Errorf("its own ref is there: %s", refs)
	}
	s.content(s.fails("bootc", "upgrade"), "both a tag and digest")
	s.must("ostree", "admin", "undeploy", "0")
	s.must("bootc", "internals", "cleanup")
}
