// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	toml "github.com/pelletier/go-toml/v2"

	"github.com/noderefit/noderefit/files"
)

// CRI-O itself can't be had where these tests run: the drop-in is read with a library for its format.
func TestCRIOIsToldOfAllWantedImagesByADropIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	reloads, refused := 0, error(nil)
	c := crio{root: root, told: new(bool), reload: func(context.Context) error {
		reloads++
		return refused
	}}
	at := filepath.Join(dir, crioDropIn)
	a, b := "quay.io/x/a"+digest("a"), "quay.io/x/b"+digest("b")
	for _, step := range []struct {
		want    []string
		reloads int
	}{{nil, 1}, {[]string{b, a}, 2}, {[]string{a, b}, 2}, {[]string{b}, 3}, {nil, 4}, {nil, 4}} {
		if err := c.want(t.Context(), step.want); err != nil {
			t.Fatal(err)
		}
		var got struct {
			CRIO struct {
				Image struct {
					Pinned []string `toml:"pinned_images"`
				} `toml:"image"`
			} `toml:"crio"`
		}
		text, err := os.ReadFile(at)
		if len(step.want) > 0 && err != nil || len(step.want) == 0 && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q: %v", step.want, err)
		}
		if err := toml.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if sorted := slices.Sorted(slices.Values(step.want)); !slices.Equal(got.CRIO.Image.Pinned, sorted) {
			t.Errorf("%q: the drop-in has %q", step.want, got.CRIO.Image.Pinned)
		}
		if reloads != step.reloads {
			t.Errorf("%q: CRI-O was reloaded %d times, want %d", step.want, reloads, step.reloads)
		}
	}
	if refused = errors.New("the unit is masked"); !errors.Is(c.want(t.Context(), []string{a}), refused) {
		t.Error("a reload that fails is no error")
	}
	refused = nil
	for range 2 {
		if err := c.want(t.Context(), []string{a}); err != nil || reloads != 6 {
			t.Errorf("after a reload that failed: %v, %d reloads", err, reloads)
		}
	}
	// The agent before may have ended before its reload.
	c.told = new(bool)
	for range 2 {
		if err := c.want(t.Context(), []string{a}); err != nil || reloads != 7 {
			t.Errorf("another agent: %v, %d reloads", err, reloads)
		}
	}
}
