// SPDX-License-Identifier: Apache-2.0

// Package programs builds what tests run. A program is linked once for all packages that ask for it with the same
// flags: the go command leaves a program alone that is up to date, if the program is at the place that is asked for.
// Linking all of cmd/ takes 25 s of a processor; finding a program up to date takes half a second.
package programs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/test/lab"
)

const module = "github.com/noderefit/noderefit"

// Build builds the program of a folder of this module, such as cmd/kubectl-refit, as a static binary, and returns the
// path of a copy in dir. Flags are further ones of go build.
func Build(ctx context.Context, dir, folder string, flags ...string) (string, error) {
	flags = slices.Concat([]string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w"}, flags)
	root, err := lab.Repository()
	if err != nil {
		return "", err
	}
	// Outside of the module: go test would take a file in there for an input of the test, and each build for a change.
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(root + "\n" + strings.Join(flags, "\n")))
	shared := filepath.Join(cache, "noderefit-programs", hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(shared, 0o755); err != nil {
		return "", err
	}
	name := path.Base(folder)
	lock, err := lab.LockFile(ctx, filepath.Join(shared, name+".lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	built := filepath.Join(shared, name)
	args := slices.Concat([]string{"build"}, flags, []string{"-o", built, module + "/" + folder})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	if !slices.Contains(flags, "-race") {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w: %s", folder, err, text)
	}
	to := filepath.Join(dir, name)
	return to, install(ctx, built, to)
}

// All builds all programs of cmd/ into dir.
func All(ctx context.Context, dir string) error {
	root, err := lab.Repository()
	if err != nil {
		return err
	}
	folders, err := os.ReadDir(filepath.Join(root, "cmd"))
	if err != nil {
		return err
	}
	for _, f := range folders {
		if _, err := Build(ctx, dir, "cmd/"+f.Name()); err != nil {
			return err
		}
	}
	return nil
}

// install copies a program: a test may run the copy for an hour, while another build replaces the shared one. A child
// does the copying, because no process can run a program that this process has open for writing.
func install(ctx context.Context, from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if text, err := exec.CommandContext(ctx, "cp", "--remove-destination", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s: %w: %s", from, err, text)
	}
	return nil
}
