// SPDX-License-Identifier: Apache-2.0

package template

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	butane "github.com/coreos/butane/config"
	"github.com/coreos/butane/config/common"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"sigs.k8s.io/yaml"
)

// fragment is the result of rendering one template.
type fragment struct {
	path string
	text []byte
}

// ignition is the part of an Ignition config that templates make. The elements stay as Butane wrote them.
type ignition struct {
	Ignition struct {
		Version string `json:"version"`
	} `json:"ignition"`
	Storage struct {
		Files []json.RawMessage `json:"files,omitempty"`
		Links []json.RawMessage `json:"links,omitempty"`
	} `json:"storage,omitzero"`
	Systemd struct {
		Units []json.RawMessage `json:"units,omitempty"`
	} `json:"systemd,omitzero"`
}

// kind is a folder of templates, and what is made of its content.
type kind struct {
	name string
	add  func(fragment, *ignition, *mcfgv1.MachineConfig) error
}

// kinds are all kinds. A fragment is one element of a Butane config, or a list of names.
var kinds = []kind{
	{"files", element("storage", "files")},
	{"links", element("storage", "links")},
	{"units", element("systemd", "units")},
	{"extensions", func(f fragment, _ *ignition, mc *mcfgv1.MachineConfig) error {
		return add(f, &mc.Spec.Extensions)
	}},
	{"kargs", func(f fragment, _ *ignition, mc *mcfgv1.MachineConfig) error {
		return add(f, &mc.Spec.KernelArguments)
	}},
}

func add(f fragment, to *[]string) error {
	var more []string
	if err := yaml.UnmarshalStrict(f.text, &more); err != nil {
		return fmt.Errorf("%s: has to be a list of strings as rendered", f.path)
	}
	*to = append(*to, more...)
	return nil
}

// above is the number of lines before the fragment in the Butane config that is made of it.
const above = 5

// element has Butane translate a fragment by itself, so that every error has a line.
func element(section, list string) func(fragment, *ignition, *mcfgv1.MachineConfig) error {
	return func(f fragment, to *ignition, _ *mcfgv1.MachineConfig) error {
		var doc bytes.Buffer
		fmt.Fprintf(&doc, "variant: fcos\nversion: 1.5.0\n%s:\n  %s:\n  -\n", section, list)
		for line := range bytes.Lines(f.text) {
			if len(bytes.TrimSpace(line)) > 0 {
				doc.WriteString("    ")
			}
			doc.Write(line)
		}
		// The contents are not compressed, so that people can read them, and another compiler gives the same result.
		options := common.TranslateBytesOptions{Raw: true}
		options.NoResourceAutoCompression = true
		out, report, err := butane.TranslateBytes(doc.Bytes(), options)
		var wrong []error
		for _, e := range report.Entries {
			at := f.path
			if line := e.Marker.StartP; line != nil && line.Line > above {
				at = fmt.Sprintf("%s: line %d as rendered", f.path, line.Line-above)
			}
			field := strings.TrimPrefix(e.Context.String(), "$."+section+"."+list+".0.")
			wrong = append(wrong, fmt.Errorf("%s: %s: %s", at, field, hidden(e.Message)))
		}
		if len(wrong) > 0 {
			return errors.Join(wrong...)
		}
		if err != nil {
			return fmt.Errorf("%s: %s", f.path, hidden(lowered(err.Error())))
		}
		var one ignition
		if err := json.Unmarshal(out, &one); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		if n := len(one.Storage.Files) + len(one.Storage.Links) + len(one.Systemd.Units); n != 1 {
			return fmt.Errorf("%s: has to be one of %s as rendered", f.path, list)
		}
		to.Ignition.Version = cmp.Or(to.Ignition.Version, one.Ignition.Version)
		to.Storage.Files = slices.Concat(to.Storage.Files, one.Storage.Files)
		to.Storage.Links = slices.Concat(to.Storage.Links, one.Storage.Links)
		to.Systemd.Units = slices.Concat(to.Systemd.Units, one.Systemd.Units)
		return nil
	}
}

var (
	lineNumber = regexp.MustCompile(`\bline (\d+)`)
	quoted     = regexp.MustCompile("`[^`]*`|\"[^\"]*\"|'[^']*'")
)

// lowered makes the line numbers in a parser's message count from where the fragment begins.
func lowered(message string) string {
	message = lineNumber.ReplaceAllStringFunc(message, func(s string) string {
		n, err := strconv.Atoi(strings.TrimPrefix(s, "line "))
		if err != nil || n <= above {
			return s
		}
		return fmt.Sprintf("line %d as rendered", n-above)
	})
	return strings.Join(strings.Fields(message), " ")
}

// hidden removes quoted text from a message: parsers quote what was rendered.
func hidden(message string) string { return quoted.ReplaceAllString(message, "…") }
