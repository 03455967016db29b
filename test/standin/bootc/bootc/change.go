// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/test/standin/bootc/fault"
)

func say(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }

// switchTo fetches an image and stages it.
func (h *host) switchTo(ctx context.Context, to reference, retain bool) error {
	if now := h.document.Spec.Image; now != nil && *now == to {
		say("Image specification is unchanged.")
		return nil
	}
	if err := ensureStore(ctx); err != nil {
		return err
	}
	if _, err := inStore(ctx, to.podman()); err != nil {
		return err
	}
	image, err := pull(ctx, to.canonical())
	if err != nil {
		return err
	}
	if refspec := h.booted.Refspec; !retain && refspec != "" {
		if _, err := tool(ctx, "ostree", "refs", "--delete", refspec); err != nil {
			return err
		}
	}
	return h.stage(ctx, to, image)
}

// upgrade looks for another image by the reference that the host has, and stages it.
func (h *host) upgrade(ctx context.Context, check bool) error {
	s := h.document.Status
	if h.document.Spec.Image == nil {
		if s.Booted.Incompatible || s.Staged != nil && s.Staged.Incompatible {
			return failf("Deployment contains local rpm-ostree modifications; cannot upgrade via bootc. " +
				"You can run `rpm-ostree reset` to undo the modifications.")
		}
		return failf("No image source specified")
	}
	to := *h.document.Spec.Image
	if err := ensureStore(ctx); err != nil {
		return err
	}
	if _, err := inStore(ctx, to.podman()); err != nil {
		return err
	}
	image, err := pull(ctx, to)
	if err != nil {
		return err
	}
	isThat := func(e *entry) bool { return e != nil && e.Image != nil && e.Image.Digest == image.digest }
	switch {
	case check && isThat(s.Booted):
		say("No changes in: %s", to.shown())
		return nil
	case check:
		say("Update available for: %s\n  Digest: %s", to.shown(), image.digest)
		return nil
	case isThat(s.Staged):
		say("Staged update present, not changed")
		return nil
	case isThat(s.Booted):
		say("No update available.")
		return nil
	}
	return h.stage(ctx, to, image)
}

// stage stages an image, with the kernel arguments of the booted deployment and the difference between what the two
// images bring.
func (h *host) stage(ctx context.Context, to reference, image *fetched) error {
	tell(staging(image.digest, 0))
	if err := fault.Pass(fault.Stage); err != nil {
		return err
	}
	arguments, err := h.arguments(ctx, image.checksum)
	if err != nil {
		return err
	}
	origin, err := os.CreateTemp("/run", "bootc-origin-*")
	if err != nil {
		return err
	}
	defer os.Remove(origin.Name())
	_, err = origin.WriteString("[origin]\ncontainer-image-reference=" + to.String() + "\n")
	if err := errors.Join(err, origin.Close()); err != nil {
		return err
	}
	argv := []string{"ostree", "admin", "deploy", "--stage", "--os=" + h.booted.OS, "--origin-file=" + origin.Name(),
		"--karg-none"}
	for _, argument := range arguments {
		argv = append(argv, "--karg-append="+argument)
	}
	tell(staging(image.digest, 1))
	h.unlock()
	if _, err := tool(ctx, append(argv, image.checksum)...); err != nil {
		return failf("Staging: %w", err)
	}
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := fault.Pass(fault.Staged); err != nil {
		return err
	}
	tell(staging(image.digest, 2))
	after, err := readHost(ctx)
	if err != nil {
		return err
	}
	for _, d := range after.deployments {
		if d.Staged {
			if err := pullBound(ctx, d.Dir); err != nil {
				return failf("Staging: %w", err)
			}
		}
	}
	if err := after.prune(ctx); err != nil {
		return failf("Staging: %w", err)
	}
	tell(staging(image.digest, 3))
	say("Queued for next boot: %s", to.shown())
	if version := image.config.Config.Labels["org.opencontainers.image.version"]; version != "" {
		say("  Version: %s", version)
	}
	say("  Digest: %s", image.digest)
	if err := errors.Join(markReboot(image.digest), touch()); err != nil {
		return err
	}
	return fault.Pass(fault.End)
}

// arguments are the kernel arguments of the new deployment. An image without a directory for them gets those of the
// booted image once more, as from bootc.
func (h *host) arguments(ctx context.Context, checksum string) ([]string, error) {
	const dir = "/usr/lib/bootc/kargs.d"
	list := slices.Clone(h.booted.KernelArguments)
	var have, bring []string
	files, err := filepath.Glob(dir + "/*.toml")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			have, err = more(have, text)
		}
		if err != nil {
			return nil, failf("Parsing %s: %w", filepath.Base(file), err)
		}
	}
	listing, err := tool(ctx, "ostree", "ls", "--nul-filenames-only", checksum, dir)
	if err != nil {
		return append(list, have...), nil
	}
	for file := range strings.SplitSeq(listing, "\x00") {
		if filepath.Ext(file) != ".toml" {
			continue
		}
		text, err := tool(ctx, "ostree", "cat", checksum, file)
		if err == nil {
			bring, err = more(bring, []byte(text))
		}
		if err != nil {
			return nil, failf("Parsing %s: %w", filepath.Base(file), err)
		}
	}
	list = slices.DeleteFunc(list, func(a string) bool { return contains(have, a) && !contains(bring, a) })
	for _, argument := range bring {
		if !contains(have, argument) && !contains(list, argument) {
			list = append(list, argument)
		}
	}
	return list, nil
}

// contains reports whether a list has an argument. In a key - and _ are one.
func contains(list []string, argument string) bool {
	plain := func(a string) string {
		key, value, has := strings.Cut(a, "=")
		if key = strings.ReplaceAll(key, "-", "_"); has {
			return key + "=" + value
		}
		return key
	}
	return slices.ContainsFunc(list, func(a string) bool { return plain(a) == plain(argument) })
}

// machine is this architecture as Rust calls it, on the machines that the lab runs on.
var machine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

func more(list []string, text []byte) ([]string, error) {
	var file struct {
		Arguments     []string `toml:"kargs"`
		Architectures []string `toml:"match-architectures"`
	}
	if err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&file); err != nil {
		return nil, err
	}
	if file.Architectures != nil && !slices.Contains(file.Architectures, machine[runtime.GOARCH]) {
		return list, nil
	}
	return append(list, ostree.SplitArguments(strings.Join(file.Arguments, " "))...), nil
}

// rollback makes the other deployment what boots next, or takes that back.
func (h *host) rollback(ctx context.Context) error {
	s := h.document.Status
	if s.RollbackQueued {
		say("notice: Reverting queued rollback state")
	}
	if s.Rollback == nil {
		return failf("No rollback available")
	}
	if s.Rollback.Image == nil {
		return failf("Rollback is not container image based")
	}
	first := h.booted
	if !s.RollbackQueued {
		isIt := func(d ostree.Deployment) bool { return h.entries[d.ID] == s.Rollback }
		first = h.deployments[slices.IndexFunc(h.deployments, isIt)]
	}
	h.unlock()
	// It drops what is staged, too.
	if _, err := tool(ctx, "ostree", "admin", "set-default", strconv.Itoa(first.Index)); err != nil {
		return err
	}
	if s.RollbackQueued {
		say("Next boot: current deployment")
	} else {
		say("Next boot: rollback deployment")
	}
	return errors.Join(markReboot(s.Rollback.Image.Digest), touch())
}

// prune lets go of the images that no deployment is of, of the layers that neither an image nor a deployment has, and
// of the images that no deployment is bound to. A commit below baseRefs counts as a deployment.
func (h *host) prune(ctx context.Context) error {
	if err := h.pruneStore(ctx); err != nil {
		return err
	}
	var deployed []string
	for _, e := range h.entries {
		if e.Image != nil {
			deployed = append(deployed, e.Image.Image.ref())
		}
	}
	images, err := refs(ctx, imageRefs)
	if err != nil {
		return err
	}
	commits, err := refs(ctx, baseRefs)
	if err != nil {
		return err
	}
	pruned := 0
	for ref := range images {
		if slices.Contains(deployed, ref) {
			commits[ref] = images[ref]
			continue
		}
		if _, err := tool(ctx, "ostree", "refs", "--delete", ref); err != nil {
			return err
		}
		pruned++
	}
	for _, d := range h.deployments {
		commits[d.ID] = d.Checksum
	}
	layers, err := pruneLayers(ctx, commits)
	if err != nil {
		return failf("Pruning images: %w", err)
	}
	if pruned+layers > 0 {
		say("Pruned images: %d (layers: %d, objsize: 0 bytes)", pruned, layers)
	}
	return nil
}

// pruneLayers lets go of the layers that none of the commits is made of, and returns how many.
func pruneLayers(ctx context.Context, commits map[string]string) (pruned int, err error) {
	var keep []string
	for _, checksum := range commits {
		// What is no image has no manifest.
		if m, err := manifestOf(ctx, checksum); err == nil {
			for _, layer := range m.Layers {
				keep = append(keep, layer.ref())
			}
		}
	}
	layers, err := refs(ctx, layerRefs)
	if err != nil {
		return 0, err
	}
	for ref := range layers {
		if slices.Contains(keep, ref) {
			continue
		}
		if _, err := tool(ctx, "ostree", "refs", "--delete", ref); err != nil {
			return 0, err
		}
		pruned++
	}
	return pruned, nil
}

// refs returns the refs below a prefix, and their commits.
func refs(ctx context.Context, prefix string) (map[string]string, error) {
	names, err := tool(ctx, "ostree", "refs", "--list", prefix)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for name := range strings.FieldsSeq(names) {
		if all[name], err = tool(ctx, "ostree", "rev-parse", name); err != nil {
			return nil, err
		}
	}
	return all, nil
}
