// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/noderefit/noderefit/ostree"
)

// argumentsDir is the directory where an image has the kernel arguments that bootc sets for it, a list in each *.toml.
const argumentsDir = "/usr/lib/bootc/kargs.d"

// rustArch has Rust's names of the architectures for which Go has another name. A file uses Rust's names.
var rustArch = map[string]string{
	"amd64": "x86_64", "arm64": "aarch64", "386": "x86", "ppc64le": "powerpc64", "ppc64": "powerpc64",
}

// change returns what the command line gets, and what it loses, on the way from an image that brings the arguments
// before to one that brings after.
func change(before, after, line []string) (added, removed []string) {
	has := func(list []string, argument string) bool {
		return slices.ContainsFunc(list, func(a string) bool { return spelling(a) == spelling(argument) })
	}
	for _, argument := range after {
		if !has(before, argument) && !has(line, argument) && !has(added, argument) {
			added = append(added, argument)
		}
	}
	for _, argument := range line {
		if has(before, argument) && !has(after, argument) {
			removed = append(removed, argument)
		}
	}
	return added, removed
}

// spelling returns an argument as the kernel compares it: in a key, - and _ are one.
func spelling(argument string) string {
	key, value, found := strings.Cut(argument, "=")
	if key = strings.ReplaceAll(key, "-", "_"); found {
		return key + "=" + value
	}
	return key
}

// argumentsOf returns the kernel arguments that the files of a commit bring, and whether it has a directory of such
// files. unread is the class of the error if a file has a fault. Two forks, and two for each file.
func (b *Driver) argumentsOf(ctx context.Context, doing, checksum string, unread ostree.Class) (list []string, has bool,
	err error) {
	dir, err := b.resolve(ctx, doing, checksum, argumentsDir)
	if err != nil || dir == "" {
		return nil, false, err
	}
	output, err := b.run(ctx, "ostree", "ls", "--nul-filenames-only", checksum, dir)
	if err != nil {
		return nil, false, ostree.Failing(doing, output, err)
	}
	for name := range strings.SplitSeq(string(output), "\x00") {
		if path.Ext(name) != ".toml" {
			continue
		}
		text, err := b.read(ctx, doing, checksum, name)
		if err != nil {
			return nil, false, err
		}
		if list, err = appendArguments(list, text, b.plain.Arch); err != nil {
			return nil, false, &ostree.Error{Class: unread, Doing: doing, Err: fmt.Errorf("reading %s: %w", name, err)}
		}
	}
	return list, true, nil
}

// appendArguments appends the kernel arguments of one file, which may be for some architectures only. As to bootc,
// unknown keys are an error.
func appendArguments(list []string, file []byte, arch string) ([]string, error) {
	var config struct {
		Arguments     []string `toml:"kargs"`
		Architectures []string `toml:"match-architectures"`
	}
	if err := toml.NewDecoder(bytes.NewReader(file)).DisallowUnknownFields().Decode(&config); err != nil {
		return nil, err
	}
	if config.Architectures != nil && !slices.Contains(config.Architectures, cmp.Or(rustArch[arch], arch)) {
		return list, nil
	}
	for _, arguments := range config.Arguments {
		for _, argument := range ostree.SplitArguments(arguments) {
			if err := ostree.CheckArgument(argument); err != nil {
				return nil, err
			}
			list = append(list, argument)
		}
	}
	return list, nil
}
