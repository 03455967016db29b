// SPDX-License-Identifier: Apache-2.0

// Package butane translates Butane configs for programs that read people's files:
//
//	documents, warnings, err := machineconfig.Read(butane.Translate, paths...)
//
// It is apart from the other documents because its library is large, and a program that reads no files of people, such
// as the agent in its pod, does without it.
package butane

import (
	"errors"
	"strings"

	"github.com/coreos/butane/config"
	"github.com/coreos/butane/config/common"
)

// Translate returns the Ignition config, or the MachineConfig, that a Butane config stands for, as JSON or YAML. The
// files that the config includes are below dir. The doubts are warnings about it.
func Translate(doc []byte, dir string) (out []byte, doubts []string, err error) {
	out, report, err := config.TranslateBytes(doc, common.TranslateBytesOptions{
		TranslateOptions: common.TranslateOptions{FilesDir: dir},
	})
	var fatal []string
	for _, e := range report.Entries {
		if e.Kind.IsFatal() {
			fatal = append(fatal, e.String())
		} else {
			doubts = append(doubts, e.String())
		}
	}
	if err == nil {
		return out, doubts, nil
	}
	if len(fatal) == 0 {
		fatal = []string{err.Error()}
	}
	if _, unknown := errors.AsType[common.ErrUnknownVersion](err); unknown || errors.Is(err, common.ErrNoVariant) {
		fatal = append(fatal, "variants are "+knownVariants())
	}
	return nil, doubts, errors.New(strings.Join(fatal, "; "))
}

// variants are the variants of Butane, and their versions.
var variants = []struct{ name, versions string }{
	{"fcos", "1.0.0 to 1.7.0"}, {"openshift", "4.8.0 to 4.21.0"}, {"flatcar", "1.0.0 and 1.1.0"},
	{"r4e", "1.0.0 and 1.1.0"}, {"fiot", "1.0.0"},
}

// knownVariants lists the variants of Butane for people.
func knownVariants() string {
	var out []string
	for _, v := range variants {
		out = append(out, v.name+" ("+v.versions+")")
	}
	return strings.Join(out, ", ")
}
