// SPDX-License-Identifier: Apache-2.0

// Package pods makes what is needed to have the agent, the controllers and the server as pods: the images that are
// installed, and a registry on this machine that has them.
package pods

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// Images is a registry on this machine with images.
type Images struct {
	// Address is the registry's, an address and a port.
	Address string

	repository, dir, crane string
	server                 *cluster.Child
}

// Pod is the image of test/fleets/pods/pod, which is what sandboxes run too.
const Pod = "pod"

// Serve starts a registry and puts the image Pod into it. dir is the directory for all files, and repository that of
// the project.
func Serve(ctx context.Context, repository, dir string) (images *Images, err error) {
	i := &Images{repository: repository, dir: dir, crane: filepath.Join(dir, "crane")}
	defer func() {
		if err != nil {
			i.Close()
			err = fmt.Errorf("serving images: %w", err)
		}
	}()
	build := exec.CommandContext(ctx, "go", "-C", filepath.Join(repository, "tools/packaging"), "build", "-trimpath",
		"-buildvcs=false", "-o", i.crane, "github.com/google/go-containerregistry/cmd/crane")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building crane: %w: %s", err, text)
	}
	if err := i.serve("127.0.0.1:0"); err != nil {
		return nil, err
	}
	return i, i.addPod(ctx)
}

// served matches what the registry says first.
var served = regexp.MustCompile(`port (\d+)`)

// serve starts the registry at an address and waits until it has a port.
func (i *Images) serve(address string) error {
	said, saying, err := os.Pipe()
	if err != nil {
		return err
	}
	defer saying.Close()
	cmd := exec.Command(i.crane, "registry", "serve", "--address="+address)
	cmd.Stdout, cmd.Stderr = saying, saying
	if i.server, err = cluster.StartChild(cmd); err != nil {
		said.Close()
		return err
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if port := served.FindStringSubmatch(lines.Text()); port != nil {
			i.Address = net.JoinHostPort("127.0.0.1", port[1])
			// The registry goes on to say what it is asked for.
			go func() {
				defer said.Close()
				for lines.Scan() {
				}
			}()
			return nil
		}
	}
	return errors.Join(errors.New("the registry does not say where it is"), said.Close())
}

// Close ends the registry. Its images are gone.
func (i *Images) Close() {
	if i.server != nil {
		i.server.Kill()
	}
}

// Ref returns the name of an image, for pods.
func (i *Images) Ref(name, version string) string { return i.Address + "/" + name + ":" + version }

// Build builds the project's images as make images does, for this machine, and puts them into the registry. The version
// is what the programs say and the tag of the images. Without names all images are built.
func (i *Images) Build(ctx context.Context, version string, names ...string) error {
	out := filepath.Join(i.dir, version)
	defer func() { _ = lab.RemoveTree(out) }()
	cmd := exec.CommandContext(ctx, filepath.Join(i.repository, "packaging/images/build.sh"))
	cmd.Env = append(os.Environ(), "VERSION="+version, "REVISION=test", "OUT="+out, "ARCHES="+runtime.GOARCH,
		"IMAGES="+strings.Join(names, " "))
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building images: %w: %s", err, text)
	}
	layouts, err := filepath.Glob(filepath.Join(out, "*.tar"))
	if err != nil {
		return err
	}
	for _, layout := range layouts {
		layout = strings.TrimSuffix(layout, ".tar")
		if err := i.run(ctx, "push", layout, i.Ref(filepath.Base(layout), version)); err != nil {
			return err
		}
	}
	return nil
}

// Release builds what of a release this machine can use, and publishes it in the registry. It returns the folder with
// the archives. The manual pages are left out: they take a minute, and no program needs them.
func (i *Images) Release(ctx context.Context, version string) (string, error) {
	out, manuals := filepath.Join(i.dir, "dist-"+version), filepath.Join(i.dir, "manuals")
	for _, dir := range []string{"man", "completions"} {
		if err := os.MkdirAll(filepath.Join(manuals, dir), 0o755); err != nil {
			return "", err
		}
	}
	platform := "linux/" + runtime.GOARCH
	for _, argv := range [][]string{
		{"packaging/release.sh", "programs", "chart", "images"},
		{"packaging/publish.sh", out},
	} {
		cmd := exec.CommandContext(ctx, filepath.Join(i.repository, argv[0]), argv[1:]...)
		cmd.Env = append(os.Environ(), "VERSION="+version, "OUT="+out, "REGISTRY="+i.Address+"/noderefit",
			"PLATFORMS="+platform, "PLUGIN_PLATFORMS="+platform, "MANUALS="+manuals)
		if text, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("running %s for %s: %w: %s", argv[0], version, err, text)
		}
	}
	return out, nil
}

// Carry carries releases from the registry to an empty one at the same address. Each release's own plugin saves a
// bundle from the first registry and loads the bundle into the second. The first registry ends before the second one
// starts.
func (i *Images) Carry(ctx context.Context, plugins ...string) error {
	dirs := make([]string, len(plugins))
	for n, plugin := range plugins {
		dirs[n] = filepath.Join(i.dir, fmt.Sprintf("bundle-%d", n))
		if text, err := exec.CommandContext(ctx, plugin, "bundle", "save", dirs[n]).CombinedOutput(); err != nil {
			return fmt.Errorf("saving a bundle: %w: %s", err, text)
		}
	}
	i.server.Kill()
	if err := i.serve(i.Address); err != nil {
		return err
	}
	for n, plugin := range plugins {
		load := exec.CommandContext(ctx, plugin, "bundle", "load", dirs[n], "--registry", i.Address)
		if text, err := load.CombinedOutput(); err != nil {
			return fmt.Errorf("loading a bundle: %w: %s", err, text)
		}
	}
	return i.addPod(ctx)
}

// addPod puts the image Pod into the registry.
func (i *Images) addPod(ctx context.Context) error {
	program, err := programs.Build(ctx, i.dir, "test/fleets/pods/pod")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	err = archive.WriteHeader(&tar.Header{Name: Pod, Mode: 0o755, Size: int64(len(data))})
	if err == nil {
		_, err = archive.Write(data)
	}
	path := filepath.Join(i.dir, "pod.tar")
	if err := errors.Join(err, archive.Close(), os.WriteFile(path, layer.Bytes(), 0o600)); err != nil {
		return err
	}
	ref := i.Ref(Pod, "latest")
	return errors.Join(
		i.run(ctx, "append", "--oci-empty-base", "--new_layer", path, "--new_tag", ref),
		i.run(ctx, "mutate", ref, "--set-platform", "linux/"+runtime.GOARCH, "--entrypoint", "/"+Pod, "--tag", ref),
	)
}

func (i *Images) run(ctx context.Context, args ...string) error {
	if text, err := exec.CommandContext(ctx, i.crane, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("running crane %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return nil
}
