// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/test/lab"
)

// image is what an OCI image says of itself.
type image struct {
	Architecture, OS string
	Config           struct {
		User       string
		Env        []string
		Entrypoint []string
		WorkingDir string
		Labels     map[string]string
	}
	layers []string // paths of the layers' archives
}

// buildImages builds images for this architecture and returns the folder that they are in.
func buildImages(t *testing.T, names string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), root+"/packaging/images/build.sh")
	cmd.Env = append(os.Environ(), "VERSION=v0.0.0-test", "REVISION=test", "OUT="+out, "ARCHES="+runtime.GOARCH,
		"IMAGES="+names)
	if _, err := run(cmd); err != nil {
		t.Fatal(err)
	}
	return out
}

// readImage follows an OCI layout from its index to the one image in it.
func readImage(t *testing.T, layout string) image {
	t.Helper()
	type descriptor struct {
		MediaType, Digest string
		Platform          struct{ Architecture, OS string }
	}
	type manifest struct {
		Config            descriptor
		Manifests, Layers []descriptor
	}
	blob := func(d descriptor) string {
		return filepath.Join(layout, "blobs", strings.Replace(d.Digest, ":", "/", 1))
	}
	decode := func(path string, into any) {
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var top, index, one manifest
	decode(filepath.Join(layout, "index.json"), &top)
	if len(top.Manifests) != 1 || top.Manifests[0].MediaType != "application/vnd.oci.image.index.v1+json" {
		t.Fatalf("the layout holds %+v, want one index", top.Manifests)
	}
	decode(blob(top.Manifests[0]), &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("the index has %+v, want one image for %s", index.Manifests, runtime.GOARCH)
	}
	decode(blob(index.Manifests[0]), &one)
	var found image
	decode(blob(one.Config), &found)
	for _, layer := range one.Layers {
		found.layers = append(found.layers, blob(layer))
	}
	return found
}

// unpack makes the file system of an image in dir and lists what is in it, with what links point to.
func (i image) unpack(t *testing.T, dir string) map[string]string {
	t.Helper()
	listed := map[string]string{}
	for _, layer := range i.layers {
		file, err := os.Open(layer)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		packed, err := gzip.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		for archive := tar.NewReader(packed); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if header.Uid != 0 || header.Gid != 0 || header.ModTime.Unix() != 0 {
				t.Errorf("%s belongs to %d:%d and is of %v", header.Name, header.Uid, header.Gid, header.ModTime)
			}
			name := filepath.Clean(header.Name)
			listed[name] = header.FileInfo().Mode().String() + " " + header.Linkname
			if err := place(filepath.Join(dir, name), header, archive); err != nil {
				t.Fatal(err)
			}
		}
	}
	return listed
}

func place(path string, header *tar.Header, content io.Reader) error {
	switch header.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(path, header.FileInfo().Mode())
	case tar.TypeSymlink:
		return os.Symlink(header.Linkname, path)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, header.FileInfo().Mode())
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

func TestAnImageHasItsProgramAndNothingElse(t *testing.T) {
	lab.Sources(t)
	inputs(t)
	out := buildImages(t, "machine-config-daemon machine-config-controller machine-config-server")
	for _, test := range []struct {
		name, user, says string
		files            map[string]string
		version          []string
	}{
		{
			name: "machine-config-daemon", user: "0:0", version: []string{"--version"}, says: "v0.0.0-test",
			files: map[string]string{
				".": "drwxr-xr-x ", "rootfs": "drwxr-xr-x ", "machine-config-daemon": "-rwxr-xr-x ",
				"machine-config-daemon-run": "-rwxr-xr-x ",
				"usr":                       "Lrwxrwxrwx rootfs/usr", "bin": "Lrwxrwxrwx rootfs/usr/bin", "sbin": "Lrwxrwxrwx rootfs/usr/sbin",
				"lib": "Lrwxrwxrwx rootfs/usr/lib", "lib64": "Lrwxrwxrwx rootfs/usr/lib64",
			},
		},
		{
			name: "machine-config-controller", user: "65532:65532",
			version: []string{"version"}, says: "machine-config-controller v0.0.0-test",
			files: map[string]string{".": "drwxr-xr-x ", "machine-config-controller": "-rwxr-xr-x "},
		},
		{
			name: "machine-config-server", user: "65532:65532", version: []string{"--version"}, says: "v0.0.0-test",
			files: map[string]string{".": "drwxr-xr-x ", "machine-config-server": "-rwxr-xr-x "},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			found, dir := readImage(t, filepath.Join(out, test.name)), t.TempDir()
			if diff := cmp.Diff(test.files, found.unpack(t, dir)); diff != "" {
				t.Error(diff)
			}
			if found.OS != "linux" || found.Architecture != runtime.GOARCH || found.Config.User != test.user {
				t.Errorf("is for %s/%s and runs as %s", found.OS, found.Architecture, found.Config.User)
			}
			if diff := cmp.Diff([]string{"/" + test.name}, found.Config.Entrypoint); diff != "" {
				t.Error(diff)
			}
			for key, want := range map[string]string{"title": test.name, "version": "v0.0.0-test", "licenses": "Apache-2.0"} {
				if got := found.Config.Labels["org.opencontainers.image."+key]; got != want {
					t.Errorf("label %s is %q, want %q", key, got, want)
				}
			}
			if os.Geteuid() != 0 {
				t.Log("running it takes root")
				return
			}
			cmd := exec.CommandContext(t.Context(), found.Config.Entrypoint[0], test.version...)
			cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", found.Config.Env, &syscall.SysProcAttr{Chroot: dir}
			said, err := run(cmd)
			if err != nil || !strings.Contains(said, test.says) {
				t.Errorf("it says %q, %v; want %q", said, err, test.says)
			}
		})
	}
}

// People type: oc rsh machine-config-daemon-xxxxx chroot /rootfs cat /etc/os-release.
func TestTheHostsCommandsCanBeTypedInTheDaemonsContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting takes root")
	}
	lab.Sources(t)
	inputs(t)
	dir := t.TempDir()
	readImage(t, filepath.Join(buildImages(t, "machine-config-daemon"), "machine-config-daemon")).unpack(t, dir)
	want, err := os.ReadFile("/etc/os-release")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"/sbin/chroot", "/rootfs", "cat", "/etc/os-release"},
		{"/bin/sh", "-c", "cat /rootfs/etc/os-release"},
	} {
		// This machine's root is mounted for the command alone: the directory is removed at the end.
		cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--propagation=private", "sh", "-c",
			`mount --bind / "$0/rootfs" && exec chroot "$0" "$@"`, dir}, command...)...)
		cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		got, err := run(cmd)
		if err != nil || got != string(want) {
			t.Errorf("%s says %q, %v", strings.Join(command, " "), got, err)
		}
	}
}

func TestTheSameSourcesMakeTheSameImage(t *testing.T) {
	lab.Sources(t)
	inputs(t)
	first, second := buildImages(t, "machine-config-controller"), buildImages(t, "machine-config-controller")
	a, errA := os.ReadFile(filepath.Join(first, "machine-config-controller/index.json"))
	b, errB := os.ReadFile(filepath.Join(second, "machine-config-controller/index.json"))
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(a), string(b)); diff != "" {
		t.Error(diff)
	}
}
