// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	"github.com/noderefit/noderefit/test/bootc/fault"
)

func say(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }

// switchTo fetches an image and stages it.
func (h *host) switchTo(ctx context.Context, to reference, retain bool) error {
	to = to.canonical()
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	if now := h.document.Spec.Image; now != nil && *now == to {
		say("Image specification is unchanged.")
		return nil
	}
	image, err := pull(ctx, to)
	if err != nil {
		return failf("Pulling: %w", err)
	}
	if refspec := h.booted.Refspec; !retain && refspec != "" {
		if _, err := tool(ctx, "ostree", "refs", "--delete", refspec); err != nil {
			return err
		}
	}
	unlock()
	return h.stage(ctx, to, image)
}

// upgrade looks for another image by the reference that the host has, and stages it.
func (h *host) upgrade(ctx context.Context, check bool) error {
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	s := h.document.Status
	if h.document.Spec.Image == nil {
		if s.Booted.Incompatible || s.Staged != nil && s.Staged.Incompatible {
			return failf("Deployment contains local rpm-ostree modifications; cannot upgrade via bootc. " +
				"You can run `rpm-ostree reset` to undo the modifications.")
		}
		return failf("Missing image in specification")
	}
	to := *h.document.Spec.Image
	image, err := pull(ctx, to)
	if err != nil {
		return failf("Pulling: %w", err)
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
	unlock()
	return h.stage(ctx, to, image)
}

// stage stages an image, with the kernel arguments of the booted deployment and the difference between what the two
// images bring.
func (h *host) stage(ctx context.Context, to reference, image *fetched) error {
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
	if _, err := tool(ctx, append(argv, image.checksum)...); err != nil {
		return failf("Staging: %w", err)
	}
	if err := fault.Pass(fault.Staged); err != nil {
		return err
	}
	after, err := readHost(ctx)
	if err != nil {
		return err
	}
	if err := after.prune(ctx); err != nil {
		return err
	}
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
	list = slices.DeleteFunc(list, func(a string) bool { return slices.Contains(have, a) && !slices.Contains(bring, a) })
	for _, argument := range bring {
		if !slices.Contains(have, argument) {
			list = append(list, argument)
		}
	}
	return list, nil
}

// machine is this architecture as Rust calls it, on the machines that the lab runs on.
var machine = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

func more(list []string, text []byte) ([]string, error) {
	var file struct {
		Arguments     []string `toml:"kargs"`
		Architectures []string `toml:"match-architectures"`
	}
	if err := toml.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	if file.Architectures != nil && !slices.Contains(file.Architectures, machine[runtime.GOARCH]) {
		return list, nil
	}
	return append(list, file.Arguments...), nil
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

// prune lets go of the images that no deployment is of.
func (h *host) prune(ctx context.Context) error {
	var deployed []string
	for _, e := range h.entries {
		if e.Image != nil {
			deployed = append(deployed, e.Image.Image.ref())
		}
	}
	refs, err := tool(ctx, "ostree", "refs", "--list", imageRefs)
	if err != nil {
		return err
	}
	pruned := 0
	for ref := range strings.FieldsSeq(refs) {
		if slices.Contains(deployed, ref) {
			continue
		}
		if _, err := tool(ctx, "ostree", "refs", "--delete", ref); err != nil {
			return err
		}
		pruned++
	}
	if pruned > 0 {
		say("Pruned images: %d (layers: 0, objsize: 0 bytes)", pruned)
	}
	return nil
}
