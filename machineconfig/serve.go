// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	cjson "github.com/clarketm/json"
	"github.com/coreos/go-semver/semver"
	"github.com/coreos/ign-converter/translate/v31tov22"
	types3_1 "github.com/coreos/ignition/v2/config/v3_1/types"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/vincent-petithory/dataurl"
	kjson "sigs.k8s.io/json"

	"github.com/noderefit/noderefit/message"
)

// Ignition2 is the version for clients with an Ignition older than 2.0.
var Ignition2 = semver.Version{Major: 2, Minor: 2}

// InexpressibleError is the error of a configuration that a version of Ignition cannot express.
type InexpressibleError struct {
	Version semver.Version
	Err     error
}

func (e *InexpressibleError) Error() string {
	return fmt.Sprintf("ignition %s can't say it: %v", e.Version, e.Err)
}

func (e *InexpressibleError) Unwrap() error { return e.Err }

// Extra is what a new machine gets besides its configuration.
type Extra struct {
	// Files replace the configuration's files at their paths, and come in this order behind all others. A file with Yield
	// is left out where the configuration has a file at its path.
	Files []ExtraFile
	// Units are left out where the configuration has a unit of the same name.
	Units []Unit
}

// ExtraFile is a file that root owns.
type ExtraFile struct {
	Path     string
	Mode     int
	Contents []byte
	Yield    bool
}

// Served is a MachineConfig from which new machines are made. The object is read only.
type Served struct{ p *parsed }

// Serve reads a configuration for new machines. Its errors are those of Parse. What names values of a node is left out:
// the node gets it when it has joined.
func Serve(mc *mcfgv1.MachineConfig) (*Served, error) {
	p, _, err := (&Document{Object: mc}).parse(existing)
	if err != nil {
		return nil, err
	}
	p.leaveOut() // nobody knows the values of a node that has not joined
	return &Served{p}, nil
}

// argumentsMinor is the first minor version of Ignition 3 with kernelArguments.
const argumentsMinor = 3

// Arguments returns the kernel arguments of the Ignition part that a version of Ignition cannot express, in their
// order. Document leaves them out, and another program has to set them. The list is empty where arguments have to be
// removed too: Document refuses such a configuration.
func (s *Served) Arguments(version semver.Version) []string {
	k := s.p.cfg.KernelArguments
	if version.Major >= 3 && version.Minor >= argumentsMinor || len(k.ShouldNotExist) > 0 {
		return nil
	}
	var out []string
	for _, a := range k.ShouldExist {
		out = append(out, string(a))
	}
	return out
}

// Document returns the document from which Ignition makes a new machine: the Ignition part with extra, in a version.
// The version is Ignition2 or 3.N. Where the configuration needs a newer version the error is an InexpressibleError,
// except for Arguments. A client that asks for 3.5 or later gets 3.6 where the document needs 3.6 and newest is set.
// newest means that the client also reads 3.6.
func (s *Served) Document(extra Extra, version semver.Version, newest bool) ([]byte, error) {
	p := s.p
	cfg := p.cfg
	// Ignition can't fetch from a registry: the agent brings such files when it completes the machine.
	cfg.Storage.Files = slices.DeleteFunc(slices.Clone(cfg.Storage.Files), func(f types.File) bool {
		return f.Contents.Source != nil && strings.HasPrefix(*f.Contents.Source, ociScheme)
	})
	if err := extra.add(&cfg); err != nil {
		return nil, fmt.Errorf("%s: %w", p.doc, err)
	}
	if len(s.Arguments(version)) > 0 {
		cfg.KernelArguments = types.KernelArguments{}
	}
	if newest && p.minor == newestMinor && version.Minor == newestMinor-1 {
		version.Minor = newestMinor
	}
	out, err := write(cfg, version)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.doc, err)
	}
	return out, nil
}

func (x Extra) add(cfg *types.Config) error {
	at := func(path string) bool {
		return slices.ContainsFunc(cfg.Storage.Files, func(f types.File) bool { return f.Path == path })
	}
	list := slices.Clone(cfg.Storage.Files)
	for _, f := range x.Files {
		if f.Yield && at(f.Path) {
			continue
		}
		same := func(n types.Node) bool { return n.Path == f.Path }
		if slices.ContainsFunc(cfg.Storage.Directories, func(d types.Directory) bool { return same(d.Node) }) ||
			slices.ContainsFunc(cfg.Storage.Links, func(l types.Link) bool { return same(l.Node) }) {
			return fmt.Errorf("%s: the server must write this file, but the configuration has a directory or link at this path",
				f.Path)
		}
		list = slices.DeleteFunc(list, func(o types.File) bool { return same(o.Node) })
		source := dataurl.EncodeBytes(f.Contents)
		list = append(list, types.File{
			Node: types.Node{Path: f.Path, Overwrite: new(true)},
			FileEmbedded1: types.FileEmbedded1{
				Mode: &f.Mode, Contents: types.Resource{Source: &source, Compression: new("")},
			},
		})
	}
	cfg.Storage.Files = list
	units := slices.Clone(cfg.Systemd.Units)
	for _, u := range x.Units {
		if slices.ContainsFunc(units, func(o types.Unit) bool { return o.Name == u.Name }) {
			continue
		}
		units = append(units, types.Unit{Name: u.Name, Contents: &u.Contents, Enabled: u.Enabled})
	}
	cfg.Systemd.Units = units
	return nil
}

// write returns a config in a version. All later versions have what 3.x has, with the same spelling and meaning, except
// modes (specialBits). So the only obstacles are the fields that a version does not know.
func write(cfg types.Config, version semver.Version) ([]byte, error) {
	cannot := func(err error) error { return &InexpressibleError{Version: version, Err: err} }
	minor := version.Minor
	if version.Major == 2 {
		minor = 1
	}
	if version.Major != 2 && version.Major != 3 || minor >= int64(len(ignitionTypes)) {
		return nil, fmt.Errorf("ignition %s is not a version that can be written", version)
	}
	if minor < newestMinor {
		if err := plainModes(&cfg); err != nil {
			return nil, cannot(err)
		}
	}
	cfg.Ignition.Version = fmt.Sprintf("3.%d.0", minor)
	raw, err := cjson.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	older := ignitionTypes[minor]()
	unknown, err := kjson.UnmarshalStrict(raw, older)
	if err := errors.Join(append(unknown, err)...); err != nil {
		return nil, cannot(errors.New(message.OneLine(err.Error())))
	}
	// Values can be newer than a version too, such as a kind of digest.
	if ign, err := decodeIgnition(raw); err != nil {
		return nil, cannot(err)
	} else if _, _, _, err := ign.parse(existing); err != nil {
		return nil, cannot(errors.New(message.OneLine(err.Error())))
	}
	if version.Major == 3 {
		return raw, nil
	}
	one, ok := older.(*types3_1.Config)
	if !ok {
		return nil, fmt.Errorf("ignition 3.%d is read as a %T", minor, older)
	}
	sayEmpty(one)
	two, err := v31tov22.Translate(*one)
	if err != nil {
		return nil, cannot(errors.New(message.OneLine(err.Error())))
	}
	return json.Marshal(two)
}

// sayEmpty makes files without contents explicitly empty. Version 2 cannot express a file without contents, and the
// translation to version 2 leaves such a file out. Such an entry does not overwrite: an Ignition of version 2 stops at
// an existing file instead of emptying it.
func sayEmpty(cfg *types3_1.Config) {
	empty := "data:,"
	for i := range cfg.Storage.Files {
		if f := &cfg.Storage.Files[i]; f.Contents.Source == nil && len(f.Append) == 0 {
			f.Contents.Source = &empty
		}
	}
}

func plainModes(cfg *types.Config) error {
	check := func(list string, i int, path string, mode *int) error {
		if mode == nil || *mode&specialBits == 0 {
			return nil
		}
		return fmt.Errorf("storage.%s[%d].mode (%s): setuid, setgid and sticky bits (%#o)", list, i, path, *mode)
	}
	for i, f := range cfg.Storage.Files {
		if err := check("files", i, f.Path, f.Mode); err != nil {
			return err
		}
	}
	for i, d := range cfg.Storage.Directories {
		if err := check("directories", i, d.Path, d.Mode); err != nil {
			return err
		}
	}
	return nil
}
