// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
)

// Available returns the reason why this machine can't run a control plane, nil if it can.
func Available() error {
	if runtime.GOOS != "linux" {
		return errors.New("checking the cluster lab: it needs Linux")
	}
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("checking the cluster lab: it is built by the go command, which is not there")
	}
	return nil
}

// Need makes sure that this machine can run a control plane. On a machine that can't, the test is skipped with the
// reason; with LAB=require in the environment it fails.
func Need(t testing.TB) {
	t.Helper()
	lab.Sources(t)
	if err := Available(); err != nil {
		if os.Getenv("LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if _, err := box(); err != nil {
		t.Fatal(err)
	}
}

// box returns the Kubebox that the clusters of one process share.
var box = sync.OnceValues(func() (string, error) {
	return Kubebox(context.Background(), os.Stderr)
})

// Kubebox returns the path of the program that contains all parts of the control plane. If the cache has no program of
// the present sources, Kubebox builds one. The first build on a machine takes some minutes. log gets the output of the
// go command, and every few seconds how far the build is.
func Kubebox(ctx context.Context, log io.Writer) (string, error) {
	root, err := lab.Repository()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "test/lab/cluster/kubebox")
	key, version, err := recipe(dir)
	if err != nil {
		return "", fmt.Errorf("reading the sources of kubebox: %w", err)
	}
	cache, err := lab.CacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(cache, "kubebox-"+key)
	lock, err := lab.LockFile(ctx, filepath.Join(cache, "kubebox.lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	fmt.Fprintln(log, "building kubebox, once")
	if err := build(ctx, dir, path, version, log); err != nil {
		return "", fmt.Errorf("building kubebox: %w", err)
	}
	return path, nil
}

// release matches the Kubernetes version in a go.mod.
var release = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)$`)

// recipe returns a key for what the sources in dir make, and the version that the control plane reports.
func recipe(dir string) (key string, version []string, err error) {
	sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", nil, err
	}
	digest := sha256.New()
	fmt.Fprintln(digest, runtime.Version(), runtime.GOARCH, buildFlags)
	for _, path := range slices.Concat(sources, []string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}) {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", nil, err
		}
		fmt.Fprintf(digest, "%s %d\n%s", filepath.Base(path), len(text), text)
		if filepath.Base(path) != "go.mod" {
			continue
		}
		if version = release.FindStringSubmatch(string(text)); version == nil {
			return "", nil, fmt.Errorf("%s requires no release of k8s.io/kubernetes", path)
		}
	}
	return hex.EncodeToString(digest.Sum(nil))[:16], version, nil
}

var buildFlags = []string{"-trimpath", "-buildvcs=false"}

// build puts the program at path, completely or not at all.
func build(ctx context.Context, dir, path string, version []string, log io.Writer) error {
	const variables = "k8s.io/component-base/version."
	ldflags := fmt.Sprintf("-s -w -X %[1]sgitVersion=%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s"+
		" -X %[1]sgitTreeState=clean", variables, version[1], version[2], version[3])
	most, err := packages(ctx, dir, log)
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"-C", dir, "build", "-v"}, buildFlags,
		[]string{"-ldflags", ldflags, "-o", path + ".new", "."})
	cmd := exec.CommandContext(ctx, "go", args...)
	// Without cgo the program runs on any host, with any libraries. The cache of the go command also has the packages
	// built without cgo.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	progress := newCompiling(log, most)
	cmd.Stdout, cmd.Stderr = progress, progress
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
