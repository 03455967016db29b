// SPDX-License-Identifier: Apache-2.0

// Package provision is about the disks, file systems and arrays that a machine was made with. Only Ignition makes
// these. A later configuration may ask for others where a policy lets it, and nothing is done on the machine then. So
// the host keeps what it was made with, before the first configuration that differs, and says what a configuration has
// else:
//
//	err := provision.KeepBefore(root, path, committed, next)
//	differing, err := provision.Differing(root, path, next)
package provision

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// installed is where OpenShift's daemon keeps the MachineConfig that a machine was made from. A host that comes from
// there still has it.
const installed = "/etc/mcs-machine-config-content.json"

// section begins the names of the fields that are kept and compared.
const section = "storage."

// The limits of a Difference are those of MachineConfigNode.status.irreconcilableChanges, in bytes.
const (
	maxDiff   = 4096
	maxLine   = 1024
	notShown  = `"(not shown)"`
	keyOfLUKS = "keyFile"
)

// Difference is a field of a configuration that is not what the machine was made with.
type Difference struct {
	// Field is the field of the configuration, such as storage.disks.
	Field string `json:"field"`
	// Diff has a line for each entry of the field: "- " begins what the machine was made with, and "+ " what the
	// configuration has.
	Diff string `json:"diff"`
}

// Host is the file system of a host.
type Host interface {
	ReadFile(name string) ([]byte, error)
	MkdirAll(name string, mode uint32) error
	WriteRecord(name string, data []byte, mode uint32) error
}

type fields = map[string]json.RawMessage

// Keep writes down, in the file with that name, what a new machine is made with, which is what cfg has.
func Keep(host Host, at string, cfg *machineconfig.Config) error {
	kept := fields{}
	for field, value := range cfg.Provision {
		if strings.HasPrefix(field, section) {
			kept[field] = value
		}
	}
	data, err := json.Marshal(kept)
	if err == nil {
		err = host.MkdirAll(path.Dir(at), 0o700) // a new machine has none
	}
	if err == nil {
		err = host.WriteRecord(at, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keeping what the machine was made with: %w", err)
	}
	return nil
}

// KeepBefore keeps what the machine was made with before next is committed, where next has something else than old, the
// committed configuration. A file that is there stays. nil stands for a host without a configuration. Most updates
// write nothing.
func KeepBefore(host Host, at string, old, next *machineconfig.Config) error {
	if old == nil || len(Compare(old.Provision, next.Provision)) == 0 {
		return nil
	}
	if _, err := host.ReadFile(at); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return Keep(host, at, left(host, old))
}

// left returns what OpenShift's daemon left of the machine. A file that can't be read says nothing of the machine: then
// left returns the committed configuration.
func left(host Host, committed *machineconfig.Config) *machineconfig.Config {
	if from, _, err := MadeFrom(host, installed); err == nil {
		return from
	}
	return committed
}

// MadeFrom reads the whole MachineConfig that a new machine is being made from, in the file at from, and its kernel
// arguments that the first Ignition was not told of. An annotation lists these arguments. The annotation is about this
// machine only, so the configuration loses it.
func MadeFrom(host Host, from string) (cfg *machineconfig.Config, arguments []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("reading %s: %w", from, err)
		}
	}()
	data, err := host.ReadFile(from)
	if err != nil {
		return nil, nil, err
	}
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(data, mc); err != nil {
		return nil, nil, err
	}
	if mc.Name == "" {
		return nil, nil, errors.New("metadata.name: is required")
	}
	if arguments, err = api.Decode[[]string](mc.Annotations, api.LeftArguments); err != nil {
		return nil, nil, err
	}
	delete(mc.Annotations, api.LeftArguments)
	cfg, err = machineconfig.Parse(machineconfig.WithoutValues(mc))
	return cfg, arguments, err
}

// Differing returns what cfg, the committed configuration, has else than the machine was made with. As long as nothing
// was kept, that is what OpenShift's daemon left of the machine, or cfg itself.
func Differing(host Host, at string, cfg *machineconfig.Config) ([]Difference, error) {
	if cfg == nil {
		return nil, nil
	}
	data, err := host.ReadFile(at)
	if errors.Is(err, fs.ErrNotExist) {
		return Compare(left(host, cfg).Provision, cfg.Provision), nil
	}
	var made fields
	if err == nil {
		err = json.Unmarshal(data, &made)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s, which has what the machine was made with: %w", at, err)
	}
	return Compare(made, cfg.Provision), nil
}

// Compare returns the fields of the section storage that differ, by name.
func Compare(made, wanted map[string]json.RawMessage) (out []Difference) {
	names := map[string]bool{}
	for _, side := range []fields{made, wanted} {
		for name := range side {
			names[name] = strings.HasPrefix(name, section)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if text := diff(entries(made[name]), entries(wanted[name])); names[name] && text != "" {
			out = append(out, Difference{name, text})
		}
	}
	return out
}

// entries returns the entries of a list.
func entries(list json.RawMessage) (out []json.RawMessage) {
	if len(list) == 0 || json.Unmarshal(list, &out) == nil {
		return out
	}
	return []json.RawMessage{list}
}

func diff(made, wanted []json.RawMessage) string {
	var lines []string
	add := func(sign string, side, other []json.RawMessage) {
		for _, entry := range side {
			if !slices.ContainsFunc(other, func(o json.RawMessage) bool { return bytes.Equal(o, entry) }) {
				lines = append(lines, sign+line(entry))
			}
		}
	}
	add("- ", made, wanted)
	add("+ ", wanted, made)
	text := ""
	for i, l := range lines {
		left := fmt.Sprintf("and %d more", len(lines)-i)
		if len(text)+len(l)+len("\n")+len(left) > maxDiff {
			return text + left
		}
		text += l + "\n"
	}
	return strings.TrimSuffix(text, "\n")
}

// line shows an entry, without the key of an encrypted device.
func line(entry json.RawMessage) string {
	var object fields
	if json.Unmarshal(entry, &object) == nil && object[keyOfLUKS] != nil {
		object[keyOfLUKS] = json.RawMessage(notShown)
		if shown, err := json.Marshal(object); err == nil {
			entry = shown
		}
	}
	if len(entry) > maxLine {
		return strings.ToValidUTF8(string(entry[:maxLine]), "") + "…"
	}
	return string(entry)
}
