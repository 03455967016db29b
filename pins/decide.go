// SPDX-License-Identifier: Apache-2.0

// Package pins keeps images on a host: it has the host's container runtime pull them ahead and pin them, so that the
// kubelet does not remove them. The package speaks the interface of container runtimes (CRI) at their sockets. decide
// is pure, and finds what is left to be done.
package pins

import (
	"slices"
	"strings"
)

// stored is an image that a runtime has.
type stored struct {
	// Names are its tags and its digests.
	Names  []string
	Pinned bool
}

// todo has the images that need something, by their normal names.
type todo struct {
	// Pull has images that the runtime lacks. Pin has images that the runtime has and that no program has pinned. Both
	// are in the wanted order.
	Pull, Pin []string
}

// decide returns which wanted images need something, where a runtime has the images of has. An image that another
// program has pinned needs nothing of us.
func decide(wanted []string, has []stored) todo {
	pinned := map[string]bool{}
	for _, image := range has {
		for _, name := range image.Names {
			pinned[Normal(name)] = pinned[Normal(name)] || image.Pinned
		}
	}
	var out todo
	want := map[string]bool{}
	for _, name := range wanted {
		name = Normal(name)
		if want[name] {
			continue
		}
		want[name] = true
		switch is, there := pinned[name]; {
		case !there:
			out.Pull = append(out.Pull, name)
		case !is:
			out.Pin = append(out.Pin, name)
		}
	}
	return out
}

// unwanted returns the images that we pinned and that are not wanted any more, sorted. wanted has normal names.
func unwanted(wanted, ours []string) []string {
	want := map[string]bool{}
	for _, name := range wanted {
		want[name] = true
	}
	return slices.DeleteFunc(slices.Sorted(slices.Values(ours)), func(name string) bool { return want[Normal(name)] })
}

// Normal returns the name of an image as runtimes have it: Docker's registry has a second name, and a namespace that
// need not be said.
func Normal(name string) string {
	const docker = "docker.io/"
	if rest, is := strings.CutPrefix(name, "index."+docker); is {
		name = docker + rest
	}
	if rest, is := strings.CutPrefix(name, docker); is && !strings.Contains(rest, "/") {
		return docker + "library/" + rest
	}
	return name
}
