// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Extra are the keys of a boot entry that no boot loader reads: programs keep notes of their own there. ostree keeps
// them when it rewrites an entry, and gives them to deployments that it stages, but not to those that it makes at once.
type Extra map[string]string

const (
	// extraPrefix begins each such key.
	extraPrefix = "x-"
	// ownerPrefix begins the key of an owner of kernel arguments, who follows. bootc writes these keys, for TuneD and
	// others. The value has the arguments. An owner that has none any more has an empty value.
	ownerPrefix = "x-options-source-"
	// ownKey is the agent's own.
	ownKey = ownerPrefix + "noderefit"
)

// With returns the keys that a deployment gets that is made beside the one with e: others keep theirs, and the agent
// owns these arguments.
func (e Extra) With(arguments []string) Extra {
	out := Extra{}
	for key, value := range e {
		if key != ownKey {
			out[key] = value
		}
	}
	if len(arguments) > 0 {
		out[ownKey] = strings.Join(arguments, " ")
	}
	return out
}

// owners returns whose arguments e has, and which, but for the agent's own.
func (e Extra) owners() map[string][]string {
	out := map[string][]string{}
	for key, value := range e {
		if owner, ok := strings.CutPrefix(key, ownerPrefix); ok && key != ownKey && value != "" {
			out[owner] = SplitArguments(value)
		}
	}
	return out
}

// Changed returns the other owners whose arguments in e are not those that they have in before.
func (e Extra) Changed(before Extra) (names []string) {
	was, is := before.owners(), e.owners()
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !slices.Equal(was[name], is[name]) {
			names = append(names, name)
		}
	}
	return names
}

// CommandLine is kernel arguments, and whose they are.
type CommandLine struct {
	Arguments []string `json:"arguments"`
	Extra     Extra    `json:"extra"`
}

// NextCommandLine returns what the arguments of a new deployment are made of: the booted deployment's, or those of a
// staged one by which other owners of kernel arguments have theirs changed. wishing are these owners. Such a deployment
// differs from the booted one in the arguments that are owned by others alone.
func NextCommandLine(all []Deployment) (line CommandLine, wishing []string) {
	booted := slices.IndexFunc(all, func(d Deployment) bool { return d.Booted })
	staged := slices.IndexFunc(all, func(d Deployment) bool { return d.Staged && !d.Locked })
	if booted < 0 {
		return line, nil
	}
	line = CommandLine{all[booted].KernelArguments, all[booted].Extra}
	if staged < 0 || all[booted].Checksum != all[staged].Checksum || all[booted].OS != all[staged].OS {
		return line, nil
	}
	wishing = all[staged].Extra.Changed(all[booted].Extra)
	if len(wishing) == 0 || !slices.Equal(all[booted].others(), all[staged].others()) {
		return line, nil
	}
	return CommandLine{all[staged].KernelArguments, all[staged].Extra}, wishing
}

// others returns the kernel arguments that no other owner has, sorted.
func (d *Deployment) others() []string {
	rest := slices.Clone(d.KernelArguments)
	for _, owned := range d.Extra.owners() {
		for _, argument := range owned {
			if at := slices.Index(rest, argument); at >= 0 {
				rest = slices.Delete(rest, at, at+1)
			}
		}
	}
	slices.Sort(rest)
	return rest
}

// noteTries is how often Note looks for an entry, while other programs rewrite the entries.
const noteTries = 3

// Note writes keys into the boot entry of a deployment that does not boot next, and verifies that they are there. write
// replaces a file on the disk by one rename, and makes that durable. So the entry has all of the keys or none, whatever
// happens. No fork.
func (p *Plain) Note(ctx context.Context, id string, extra Extra, write func(path string, text []byte) error) error {
	doing := "noting whose the kernel arguments of " + id + " are"
	for range noteTries {
		entries, err := readEntries(p.root)
		if err != nil {
			return &Error{Class: Failed, Doing: doing, Err: err}
		}
		e, ok := entries[id]
		if !ok {
			return &Error{Class: Invalid, Doing: doing, Err: errors.New("it has no boot entry")}
		}
		if maps.Equal(e.extra, extra) {
			return nil
		}
		newest := func(other entry) bool { return other.version > e.version }
		if !slices.ContainsFunc(slices.Collect(maps.Values(entries)), newest) {
			return &Error{Class: Invalid, Doing: doing, Err: errors.New("it boots next already")}
		}
		// A link leads to the directory, and ostree replaces the link.
		at, err := filepath.EvalSymlinks(e.file)
		if err == nil {
			var text []byte
			if text, err = os.ReadFile(at); err == nil {
				err = write(strings.TrimPrefix(at, strings.TrimSuffix(p.root, "/")), noted(string(text), extra))
			}
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return &Error{Class: Failed, Doing: doing, Err: err}
		}
	}
	return &Error{Class: Retryable, Doing: doing, Err: errors.New("another program keeps changing the boot entries")}
}

// noted returns the text of an entry with these keys and no others of their kind.
func noted(text string, extra Extra) []byte {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, extraPrefix) {
			out.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		out.WriteString(key + " " + extra[key] + "\n") // without the space an empty value would be no key for ostree
	}
	return []byte(out.String())
}

// readPairs reads a dictionary of strings. An entry is a key and a value, each of which a zero byte ends, and the place
// where the key ends. After the entries follow the places where each ends.
func readPairs(v variant) (Extra, error) {
	if v.kind == "" || len(v.value) == 0 {
		return nil, nil
	}
	width := placeWidth(len(v.value))
	end := place(v.value, len(v.value)-width, width)
	if v.kind != "a{ss}" || end < 0 || end > len(v.value)-width || (len(v.value)-end)%width != 0 {
		return nil, errNoPairs
	}
	all, start := Extra{}, 0
	for at := end; at < len(v.value); at += width {
		until := place(v.value, at, width)
		if until < start || until > end {
			return nil, errNoPairs
		}
		entry := v.value[start:until]
		own := placeWidth(len(entry))
		key, last := place(entry, len(entry)-own, own), len(entry)-own
		if key < 1 || key >= last || entry[key-1] != 0 || entry[last-1] != 0 {
			return nil, errNoPairs
		}
		all[string(entry[:key-1])] = string(entry[key : last-1])
		start = until
	}
	return all, nil
}

var errNoPairs = errors.New("its keys of the boot entry are no strings")
