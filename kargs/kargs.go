// SPDX-License-Identifier: Apache-2.0

// Package kargs compares kernel arguments as ordered multisets. It returns which arguments to delete and which to
// append. After that the command line has all arguments of a configuration, and has lost none that is not ours.
//
// An argument is text, compared as written. Its key is the text before the first '='. The order among arguments of one
// key matters (the last console= is /dev/console). The order among different keys does not matter, except for
// hugepagesz, hugepages and default_hugepagesz. These form one group and are only replaced together.
//
// Appended arguments go to the end of the command line, and of equal arguments the last one is deleted. So arguments
// that we added come after equal ones of the base image, and deleting ours never removes those of the base.
package kargs

import (
	"slices"
	"strings"
)

// Split cuts a command line into arguments at white space outside of double quotes, as the kernel does. Quotes stay
// part of the argument. A quote that is never closed extends to the end of the line.
func Split(line string) []string {
	quoted := false
	return strings.FieldsFunc(line, func(r rune) bool {
		switch r {
		case '"':
			quoted = !quoted
		case ' ', '\t', '\n', '\v', '\f', '\r':
			return !quoted
		}
		return false
	})
}

// Join returns the command line of args: the inverse of Split.
func Join(args []string) string { return strings.Join(args, " ") }

// Apply deletes, for each element of del, the last equal argument of the command line, then appends app. Deleting an
// absent argument changes nothing.
func Apply(cmdline, del, app []string) []string {
	out := slices.Clone(cmdline)
	for _, arg := range del {
		for i, have := range slices.Backward(out) {
			if have == arg {
				out = slices.Delete(out, i, i+1)
				break
			}
		}
	}
	return append(out, app...)
}

// Diff returns the changes from the arguments of an old configuration, in their order, to those of a new one. After
// Apply the arguments of each group are the new ones in the new order. Arguments that can keep their place are not
// touched.
func Diff(old, desired []string) (del, app []string) {
	del, app, _ = Own(old, old, desired)
	return del, app
}

// Own returns the changes after which a host's command line satisfies the desired arguments, given the arguments that
// we added earlier. now are the arguments that are ours afterwards, in their order on the command line.
//
// An existing argument that is not ours satisfies a desired one without being added and without becoming ours. It is
// never deleted. Where the order of such arguments can't satisfy the desired order within a group, ours are appended.
// After Apply, Missing finds nothing, each argument of ours is desired, and a second Own with the result is empty.
func Own(cmdline, owned, desired []string) (del, app, now []string) {
	ours := mark(cmdline, owned)
	have, want := byGroup(cmdline), byGroup(desired)
	drop := make([]bool, len(cmdline))
	add := make([]bool, len(desired))
	for name, at := range have {
		line := make([]argument, len(at))
		for i, pos := range at {
			line[i] = argument{text: cmdline[pos], ours: ours[pos]}
		}
		wanted := pick(desired, want[name])
		var keep int
		if name == hugepages {
			keep = settleWhole(line, wanted)
		} else {
			keep = settle(line, wanted)
		}
		for i, pos := range at {
			drop[pos] = line[i].drop
		}
		for _, pos := range want[name][keep:] {
			add[pos] = true
		}
	}
	for name, at := range want {
		if _, ok := have[name]; !ok {
			for _, pos := range at {
				add[pos] = true
			}
		}
	}
	for i, arg := range cmdline {
		switch {
		case drop[i]:
			del = append(del, arg)
		case ours[i]:
			now = append(now, arg)
		}
	}
	for i, arg := range desired {
		if add[i] {
			app = append(app, arg)
		}
	}
	return del, app, append(now, app...)
}

// Missing returns the wanted arguments that the command line does not have in the wanted order within their group.
// Duplicates count. The result is in the order of want.
func Missing(cmdline, want []string) []string {
	have := byGroup(cmdline)
	absent := make([]bool, len(want))
	for name, at := range byGroup(want) {
		line, wanted := pick(cmdline, have[name]), pick(want, at)
		if name == hugepages {
			if run(line, wanted) < 0 {
				for _, pos := range at {
					absent[pos] = true
				}
			}
			continue
		}
		for i, found := range common(line, wanted) {
			absent[at[i]] = !found
		}
	}
	var out []string
	for i, arg := range want {
		if absent[i] {
			out = append(out, arg)
		}
	}
	return out
}

// hugepages is the name of the group in which the order matters across keys.
const hugepages = "hugepages"

func group(arg string) string {
	// The kernel also accepts a quote around the whole argument: "key=value with spaces".
	key, _, _ := strings.Cut(strings.TrimPrefix(arg, `"`), "=")
	switch key {
	case "hugepagesz", "default_hugepagesz":
		return hugepages
	}
	return key
}

func byGroup(args []string) map[string][]int {
	groups := make(map[string][]int, len(args))
	for i, arg := range args {
		name := group(arg)
		groups[name] = append(groups[name], i)
	}
	return groups
}

func pick(args []string, at []int) []string {
	out := make([]string, len(at))
	for i, pos := range at {
		out[i] = args[pos]
	}
	return out
}

// mark returns which arguments of the command line are ours: of equal arguments the last, as many as we added.
func mark(cmdline, owned []string) []bool {
	left := make(map[string]int, len(owned))
	for _, arg := range owned {
		left[arg]++
	}
	ours := make([]bool, len(cmdline))
	for i, arg := range slices.Backward(cmdline) {
		if left[arg] > 0 {
			left[arg]--
			ours[i] = true
		}
	}
	return ours
}

type argument struct {
	text       string
	ours, drop bool
}

// settle marks the arguments of ours to drop in one group of a command line. It returns how many of the wanted
// arguments, from the first, the rest provides; the others are to be appended. Appended arguments come last, so the
// rest can provide only a prefix of the wanted arguments. The longest such prefix costs the fewest changes.
func settle(line []argument, wanted []string) int {
	best, bestCost := 0, len(wanted)
	for i := range line {
		line[i].drop = line[i].ours
		if line[i].ours {
			bestCost++
		}
	}
	bestLine := slices.Clone(line)
	for prefix := len(wanted); prefix > 0 && len(wanted)-prefix < bestCost; prefix-- {
		// Ours can provide all wanted arguments, or only those that the others don't provide.
		for _, othersFirst := range []bool{false, true} {
			cost := len(wanted) - prefix + retain(line, wanted[:prefix], othersFirst)
			if cost < bestCost && provides(line, wanted[:prefix]) {
				best, bestCost = prefix, cost
				copy(bestLine, line)
			}
		}
	}
	copy(line, bestLine)
	return best
}

// retain marks all arguments of ours to be dropped except for the wanted ones, of equal arguments the first. It returns
// how many it marked.
func retain(line []argument, wanted []string, othersFirst bool) (dropped int) {
	room := make(map[string]int, len(wanted))
	for _, arg := range wanted {
		room[arg]++
	}
	if othersFirst {
		for _, arg := range line {
			if !arg.ours {
				room[arg.text]--
			}
		}
	}
	for i := range line {
		if !line[i].ours {
			continue
		}
		line[i].drop = room[line[i].text] <= 0
		room[line[i].text]--
		if line[i].drop {
			dropped++
		}
	}
	return dropped
}

// provides reports whether the arguments that are not dropped contain the wanted ones in this order. Every argument of
// ours that is not dropped must be one of the wanted.
func provides(line []argument, wanted []string) bool {
	// reach[n]: the arguments seen so far can provide the first n wanted ones.
	reach := make([]bool, len(wanted)+1)
	reach[0] = true
	for _, arg := range line {
		if arg.drop {
			continue
		}
		for n := len(wanted); n >= 0; n-- {
			match := n > 0 && reach[n-1] && wanted[n-1] == arg.text
			reach[n] = match || reach[n] && !arg.ours
		}
	}
	return reach[len(wanted)]
}

// settleWhole does the work of settle for a group that is kept, or dropped and appended, as a whole.
func settleWhole(line []argument, wanted []string) int {
	all := make([]string, len(line))
	for i, arg := range line {
		all[i] = arg.text
	}
	if start := run(all, wanted); start >= 0 {
		stray := func(a argument) bool { return a.ours }
		if !slices.ContainsFunc(line[:start], stray) && !slices.ContainsFunc(line[start+len(wanted):], stray) {
			return len(wanted)
		}
	}
	var others []string
	for i := range line {
		line[i].drop = line[i].ours
		if !line[i].ours {
			others = append(others, line[i].text)
		}
	}
	if run(others, wanted) >= 0 {
		return len(wanted)
	}
	return 0
}

// run returns the last place where the wanted arguments follow directly one after the other on the line, or -1. Ours
// are at the last place.
func run(line, wanted []string) int {
	for start := len(line) - len(wanted); start >= 0; start-- {
		if slices.Equal(line[start:start+len(wanted)], wanted) {
			return start
		}
	}
	return -1
}

// common returns which of the wanted arguments belong to a longest common subsequence with the line.
func common(line, wanted []string) []bool {
	// length[i][j] is the length for line[i:] and wanted[j:].
	length := make([][]int, len(line)+1)
	for i := range length {
		length[i] = make([]int, len(wanted)+1)
	}
	for i, have := range slices.Backward(line) {
		for j, arg := range slices.Backward(wanted) {
			if have == arg {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	found := make([]bool, len(wanted))
	for i, j := 0, 0; i < len(line) && j < len(wanted); {
		switch {
		case line[i] == wanted[j]:
			found[j] = true
			i, j = i+1, j+1
		case length[i+1][j] >= length[i][j+1]:
			i++
		default:
			j++
		}
	}
	return found
}

// Running returns the command line with which the kernel was booted. In a container that is the command line of the
// container's init: systemd itself reads it there. read reads a file of the host.
func Running(read func(path string) ([]byte, error)) ([]string, error) {
	if _, err := read("/run/systemd/container"); err == nil {
		data, err := read("/proc/1/cmdline")
		if err != nil {
			return nil, err
		}
		args := strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
		return Split(strings.Join(args[1:], " ")), nil
	}
	data, err := read("/proc/cmdline")
	return Split(strings.TrimSpace(string(data))), err
}
