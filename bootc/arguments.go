// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"cmp"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"github.com/noderefit/noderefit/ostree"
)

// argumentsDir is the directory where an image has the kernel arguments that bootc sets for it, a list in each *.toml.
const argumentsDir = "/usr/lib/bootc/kargs.d"

// rustArch has Rust's names of the architectures for which Go has another name. A file uses Rust's names.
var rustArch = map[string]string{
	"amd64": "x86_64", "arm64": "aarch64", "386": "x86", "ppc64le": "powerpc64", "ppc64": "powerpc64",
}

// appendArguments appends the kernel arguments of one file, which may be for some architectures only.
func appendArguments(list []string, file []byte, arch string) ([]string, error) {
	var config struct {
		Arguments     []string `toml:"kargs"`
		Architectures []string `toml:"match-architectures"`
	}
	if err := toml.Unmarshal(file, &config); err != nil {
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
