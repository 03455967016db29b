// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

const (
	// imageStore is bootc's own storage of images, with those that deployments are bound to.
	imageStore = "/sysroot/ostree/bootc/storage"
	// boundDir is the directory where an image links the units whose images it is bound to.
	boundDir = "/usr/lib/bootc/bound-images.d"
)

// podman runs podman on bootc's storage.
func podman(ctx context.Context, argv ...string) ([]byte, error) {
	argv = append([]string{"--root", imageStore, "--runroot", "/run/bootc/storage"}, argv...)
	cmd := exec.CommandContext(ctx, "podman", argv...)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		err = failf("No such file or directory (os error 2)")
	}
	return output, err
}

// ensureStore makes bootc's storage, which takes podman.
func ensureStore(ctx context.Context) error {
	if _, err := os.Stat(imageStore); err == nil {
		return nil
	}
	if _, err := podman(ctx, "images"); err != nil {
		return failf("Creating imgstorage: Initializing images: %w", err) //nolint:misspell // bootc's own word
	}
	return nil
}

// inStore reports whether bootc's storage has an image. Every answer of podman but yes is no.
func inStore(ctx context.Context, image string) (bool, error) {
	_, err := podman(ctx, "image", "exists", image)
	if _, ended := errors.AsType[*exec.ExitError](err); ended {
		return false, nil
	}
	return err == nil, err
}

// bound returns the images that a deployment is bound to.
func bound(dir string) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	links, err := os.ReadDir(filepath.Join(dir, boundDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var images []string
	for _, link := range links {
		path := strings.TrimPrefix(filepath.Join(boundDir, link.Name()), "/")
		to, err := root.Readlink(path)
		if err != nil {
			return nil, failf("Querying bound images: Not a symlink: %s", link.Name())
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(boundDir, to)
		}
		text, err := root.ReadFile(strings.TrimPrefix(to, "/"))
		if err != nil {
			return nil, failf("Querying bound images: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if image, ok := strings.CutPrefix(line, "Image="); ok {
				images = append(images, strings.TrimSpace(image))
			}
		}
	}
	return images, nil
}

// pullBound pulls the images that a new deployment is bound to.
func pullBound(ctx context.Context, dir string) error {
	images, err := bound(dir)
	if err != nil || len(images) == 0 {
		return err
	}
	for _, image := range images {
		there, err := inStore(ctx, image)
		if err == nil && !there {
			_, err = podman(ctx, "image", "pull", image)
		}
		if err != nil {
			return failf("Pulling bound images: Pulling bound images: %w", err)
		}
	}
	say("Bound images stored: %d", len(images))
	return nil
}

// pruneStore removes the images that no deployment is bound to.
func (h *host) pruneStore(ctx context.Context) error {
	if err := ensureStore(ctx); err != nil {
		return err
	}
	var keep []string
	for _, d := range h.deployments {
		images, err := bound(d.Dir)
		if err != nil {
			return err
		}
		keep = append(keep, images...)
	}
	output, err := podman(ctx, "image", "list", "--format=json")
	var list []storedImage
	if err == nil {
		err = json.Unmarshal(output, &list)
	}
	for _, image := range list {
		if err == nil && !slices.ContainsFunc(image.Names, func(name string) bool { return slices.Contains(keep, name) }) {
			_, err = podman(ctx, "image", "rm", image.ID)
		}
	}
	return err
}

// errAbsent is the answer that an image is not there, which is not told in words.
var errAbsent = errors.New("it is not there")

// storedImage is an image of a storage. Each is a file of its own there.
type storedImage struct {
	ID    string   `json:"Id"`    //nolint:tagliatelle // podman's own spelling
	Names []string `json:"Names"` //nolint:tagliatelle // podman's own spelling
}

// podmanCommand is podman, as far as bootc and the project use it, with a storage of its own kind.
func podmanCommand() *cobra.Command {
	var root string
	var options []string
	command := &cobra.Command{Use: "podman"}
	command.PersistentFlags().StringVar(&root, "root", "/var/lib/containers/storage", "")
	command.PersistentFlags().String("runroot", "", "")
	command.PersistentFlags().StringArrayVar(&options, "storage-opt", nil, "")
	add := func(to *cobra.Command, use string, args cobra.PositionalArgs, run func(args []string) error) {
		to.AddCommand(&cobra.Command{Use: use, Args: args, RunE: func(_ *cobra.Command, args []string) error {
			// The database of podman is in its storage, which has to be writable.
			if err := os.MkdirAll(filepath.Join(root, "stand-in"), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(root, "database"), nil, 0o644); err != nil {
				return err
			}
			return run(args)
		}})
	}
	file := func(root, image string) string { return filepath.Join(root, "stand-in", digestOf([]byte(image))) }
	add(command, "images", cobra.NoArgs, func([]string) error { return nil })
	image := &cobra.Command{Use: "image"}
	command.AddCommand(image)
	add(image, "exists IMAGE", cobra.ExactArgs(1), func(args []string) error {
		if transport, _, named := strings.Cut(args[0], ":/"); named && !strings.Contains(transport, "/") {
			return fmt.Errorf("unsupported transport %q for looking up local images", transport)
		}
		stores := []string{root}
		for _, option := range options {
			stores = append(stores, strings.TrimPrefix(option, "additionalimagestore="))
		}
		for _, store := range stores {
			if _, err := os.Stat(file(store, args[0])); err == nil {
				return nil
			}
		}
		return errAbsent
	})
	add(image, "pull IMAGE", cobra.ExactArgs(1), func(args []string) error {
		l, err := at(reference{Image: args[0], Transport: "registry"})
		if err == nil {
			_, err = l.find()
		}
		if err != nil {
			return fmt.Errorf("initializing source docker://%s: %w", args[0], err) //nolint:misspell // podman's own word
		}
		return os.WriteFile(file(root, args[0]), []byte(args[0]), 0o644)
	})
	add(image, "rm IMAGE", cobra.ExactArgs(1), func(args []string) error {
		return os.Remove(filepath.Join(root, "stand-in", args[0]))
	})
	list := func([]string) error {
		entries, err := os.ReadDir(filepath.Join(root, "stand-in"))
		images := []storedImage{}
		for _, entry := range entries {
			name, err := os.ReadFile(filepath.Join(root, "stand-in", entry.Name()))
			if err != nil {
				return err
			}
			images = append(images, storedImage{ID: entry.Name(), Names: []string{string(name)}})
		}
		return errors.Join(err, json.NewEncoder(os.Stdout).Encode(images))
	}
	add(image, "list", cobra.NoArgs, list)
	image.PersistentFlags().String("format", "", "")
	return command
}
