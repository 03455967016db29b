// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Sources reads the state of every source file once, within a test. Go's test cache keeps a result until something that
// the test has read changes. It does not know what goes into a program that the test builds.
func Sources(t testing.TB) {
	t.Helper()
	if err := sources(); err != nil {
		t.Fatal(err)
	}
}

// Repository returns the directory of this project's sources: the working directory, or the nearest one above it, that
// has the project's go.mod.
func Repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/noderefit/noderefit\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("finding the sources of Noderefit: the working directory is not below them")
		}
	}
}

var sources = sync.OnceValue(func() error {
	root, err := Repository()
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root:
			return fs.SkipDir
		case filepath.Ext(path) != ".go" && filepath.Ext(path) != ".mod":
			return nil
		}
		_, err = os.Stat(path)
		return err
	})
})
