// SPDX-License-Identifier: Apache-2.0

package lab

import (
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

var sources = sync.OnceValue(func() error {
	root := ".."
	for {
		if _, err := os.Stat(filepath.Join(root, "LICENSE")); err == nil {
			break
		}
		if abs, err := filepath.Abs(root); err != nil || abs == "/" {
			return fs.ErrNotExist
		}
		root = filepath.Join("..", root)
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
