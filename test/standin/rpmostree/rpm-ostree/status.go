// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"
)

// nevra is a package as status has it: NEVRA, name, epoch, version, release, architecture.
type nevra struct {
	NEVRA, Name            string
	Epoch                  uint64
	Version, Release, Arch string
}

// nevraOf reads one from a commit's metadata.
func nevraOf(value any) nevra {
	members, ok := value.([]any)
	if !ok || len(members) != 6 {
		return nevra{}
	}
	text := func(i int) string { s, _ := members[i].(string); return s }
	epoch, _ := members[2].(uint64)
	return nevra{text(0), text(1), epoch, text(3), text(4), text(5)}
}

// orEmpty is the list itself, and never nil: an empty list is shown as one.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// inOrder is the list in the order in which status has requests, which is not that of asking.
func inOrder(list []string) []string {
	return append([]string{}, slices.Sorted(slices.Values(list))...)
}

// withoutDigests are the NEVRAs of DIGEST:NEVRA.
func withoutDigests(list []string) []string {
	var all []string
	for _, name := range list {
		_, nevra, _ := strings.Cut(name, ":")
		all = append(all, nevra)
	}
	return all
}

// describe is a deployment as the property Deployments and status --json have it.
func describe(ctx context.Context, d *deployment) (map[string]dbus.Variant, error) {
	c, err := readCommit(d.checksum)
	if err != nil {
		return nil, err
	}
	m := map[string]dbus.Variant{}
	set := func(key string, value any) { m[key] = dbus.MakeVariant(value) }
	set("id", d.id())
	set("osname", d.os)
	set("checksum", d.checksum)
	set("serial", int32(d.serial))
	set("booted", d.booted)
	set("staged", d.staged)
	set("pinned", d.pinned)
	set("unlocked", d.unlocked)
	// Only the old lock file counts, and only ostree of old has that alone. Whoever locks otherwise is not seen: the
	// deployments are not read anew for it.
	if d.staged && ofOld() && exists(lockedFile) {
		set(lockedKey, true)
	}
	base := c
	if c.layered() {
		if base, err = readCommit(c.parent); err != nil {
			return nil, err
		}
		set("base-checksum", base.checksum)
		if version := base.text("version"); version != "" {
			set("base-version", version)
		}
		set("base-timestamp", base.timestamp)
		set("layered-commit-meta", plain(c.metadata))
	}
	set("base-commit-meta", plain(base.metadata))
	set("timestamp", c.timestamp)
	if version := c.text("version"); version != "" {
		set("version", version)
	}
	if text := base.text("ostree.endoflife"); text != "" {
		set("endoflife", text)
	}
	describeOrigin(ctx, d.origin, base, set)
	active, _ := c.metadata[metaPackages].([]string)
	set("packages", inOrder(active))
	removed, replaced := []nevra{}, [][]nevra{}
	list, _ := c.metadata[metaRemoved].([]any)
	for _, value := range list {
		removed = append(removed, nevraOf(value))
	}
	list, _ = c.metadata[metaReplaced].([]any)
	for _, value := range list {
		if pair, ok := value.([]any); ok && len(pair) == 2 {
			replaced = append(replaced, []nevra{nevraOf(pair[0]), nevraOf(pair[1])})
		}
	}
	set("base-removals", removed)
	set("base-local-replacements", replaced)
	set("base-remote-replacements", map[string]dbus.Variant{})
	return m, nil
}

// describeOrigin is what the origin adds.
func describeOrigin(ctx context.Context, o *origin, base *commit, set func(string, any)) {
	set("requested-packages", inOrder(o.Requested))
	set("requested-local-packages", inOrder(withoutDigests(o.Local)))
	set("requested-local-fileoverride-packages", []string{})
	set("requested-base-removals", inOrder(o.Removed))
	set("requested-base-local-replacements", inOrder(withoutDigests(o.Replaced)))
	set("regenerate-initramfs", o.RegenerateRAM)
	if o.URL != "" || o.Description != "" {
		set("custom-origin", []string{o.URL, o.Description})
	}
	if o.Container != "" {
		set("container-image-reference", o.Container)
		if digest := base.text("ostree.manifest-digest"); digest != "" {
			set("container-image-reference-digest", digest)
		}
		return
	}
	set("origin", o.Refspec)
	if !checksumPattern.MatchString(o.Refspec) {
		verify := "false"
		if remote, _, ok := strings.Cut(o.Refspec, ":"); ok {
			// Nothing here is signed, as in the lab's remotes.
			verify, _ = tool(ctx, "config", "--repo="+repository, "get", "--group=remote \""+remote+"\"", "gpg-verify")
		}
		set("gpg-enabled", verify != "false")
	}
	if checksumPattern.MatchString(o.Refspec) || o.Override != "" {
		return
	}
	now, err := tool(ctx, "rev-parse", "--repo="+repository, o.Refspec)
	if err != nil || now == base.checksum {
		return
	}
	if pending, err := readCommit(now); err == nil {
		set("pending-base-checksum", pending.checksum)
		set("pending-base-timestamp", pending.timestamp)
		if version := pending.text("version"); version != "" {
			set("pending-base-version", version)
		}
	}
}

// plain is a commit's metadata without what lists packages, as far as D-Bus has types for it here.
func plain(metadata map[string]any) map[string]dbus.Variant {
	m := map[string]dbus.Variant{}
	for key, value := range metadata {
		switch value.(type) {
		case string, bool, byte, int16, uint16, int32, uint32, int64, uint64, []string:
			m[key] = dbus.MakeVariant(value)
		}
	}
	return m
}
