// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/machineconfig"
)

// file is a file of a KubeadmConfig. All of its fields are here, since a patch has whole files.
type file struct {
	Path        string          `json:"path,omitempty"`
	Owner       string          `json:"owner,omitempty"`
	Permissions string          `json:"permissions,omitempty"`
	Encoding    string          `json:"encoding,omitempty"`
	Append      *bool           `json:"append,omitempty"`
	Content     string          `json:"content,omitempty"`
	ContentFrom json.RawMessage `json:"contentFrom,omitempty"`
}

// held is a file as a MachineConfig has it. One that is released has no contents: the bytes of each host stay.
type held struct {
	path     string
	mode     uint32
	contents []byte
	released bool
}

func (h held) equal(other held) bool {
	return h.path == other.path && h.mode == other.mode && h.released == other.released &&
		bytes.Equal(h.contents, other.contents)
}

// secret returns why not every reader of MachineConfigs may see a file; empty if each may.
func (h held) secret() string {
	config, _ := ignition([]held{h})
	mc := &mcfgv1.MachineConfig{}
	mc.Spec.Config.Raw = config
	served, err := machineconfig.Serve(mc)
	if err != nil {
		return "" // place says what is wrong
	}
	return strings.Join(served.Secrets(), "; ")
}

// express returns a file as a MachineConfig has it. The error is about a file that cloud-init makes otherwise.
func (f file) express() (held, error) {
	h := held{path: f.Path, mode: 0o644}
	switch {
	case len(f.ContentFrom) > 0:
		return h, errors.New("its contents are in a Secret")
	case f.Append != nil && *f.Append:
		return h, errors.New("it is appended to")
	case f.Owner != "" && f.Owner != "root" && f.Owner != "root:root":
		return h, fmt.Errorf("its owner is %s, and not root", f.Owner)
	case strings.Contains(f.Content, "{{") || strings.Contains(f.Content, "{%"):
		return h, errors.New("it is a template of cloud-init")
	}
	if f.Permissions != "" {
		mode, err := strconv.ParseUint(f.Permissions, 8, 32)
		if err != nil || mode > 0o7777 {
			return h, fmt.Errorf("its permissions %q are none", f.Permissions)
		}
		h.mode = uint32(mode)
	}
	switch f.Encoding {
	case "":
		var err error
		if h.contents, err = written(f.Content); err != nil {
			return h, err
		}
	case "base64":
		data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(f.Content), ""))
		if err != nil {
			return h, errors.New("its content is not base64")
		}
		h.contents = data
	default:
		return h, fmt.Errorf("its encoding is %s", f.Encoding)
	}
	return h, nil
}

// written returns what cloud-init writes of a content. Cluster API hands the content to cloud-init as a block of YAML,
// so the file ends with one newline.
func written(content string) ([]byte, error) {
	const indent = "      "
	var block struct {
		Content string `json:"content"`
	}
	text := "content: |\n" + indent + strings.ReplaceAll(content, "\n", "\n"+indent) + "\n"
	if err := yaml.UnmarshalStrict([]byte(text), &block); err != nil {
		return nil, fmt.Errorf("its content is no block of YAML, as which Cluster API hands it to cloud-init: %w", err)
	}
	return []byte(block.Content), nil
}

// changes returns the paths of the files that have changed. The error is about a change that can't be made in place.
func changes(current, desired []file) ([]string, error) {
	before, err := byPath(current)
	if err != nil {
		return nil, err
	}
	after, err := byPath(desired)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if _, stays := after[path]; !stays {
			return nil, fmt.Errorf("file %s goes, and its content from before is not known", path)
		}
	}
	var changed []string
	for _, path := range slices.Sorted(maps.Keys(after)) {
		was, there := before[path]
		if there && reflect.DeepEqual(was, after[path]) {
			continue
		}
		changed = append(changed, path)
		if there {
			if _, err := was.express(); err != nil {
				return nil, fmt.Errorf("file %s as it is: %w", path, err)
			}
		}
		h, err := after[path].express()
		if err != nil {
			return nil, fmt.Errorf("file %s: %w", path, err)
		}
		if why := h.secret(); why != "" {
			return nil, fmt.Errorf("file %s is a secret, and all agents may read MachineConfigs: %s", path, why)
		}
	}
	return changed, nil
}

func byPath(files []file) (map[string]file, error) {
	if len(files) > filesAtMost {
		return nil, fmt.Errorf("there are %d files, and %d at most are taken", len(files), filesAtMost)
	}
	out := map[string]file{}
	for _, f := range files {
		if _, twice := out[f.Path]; twice {
			return nil, fmt.Errorf("file %s is there twice", f.Path)
		}
		out[f.Path] = f
	}
	return out, nil
}

// expressed returns the files that a MachineConfig may have, by path. Others have not changed: see changes.
func expressed(files []file) []held {
	var out []held
	for _, f := range files {
		if h, err := f.express(); err == nil && h.secret() == "" {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(a, b held) int { return cmp.Compare(a.path, b.path) })
	return out
}

// ignition returns files as a config of Ignition, and the config's digest.
func ignition(files []held) (config []byte, digest string) {
	type object = map[string]any
	list := make([]object, 0, len(files))
	for _, f := range files {
		one := object{"path": f.path, "mode": f.mode}
		if !f.released {
			one["overwrite"] = true
			one["contents"] = object{"source": "data:;base64," + base64.StdEncoding.EncodeToString(f.contents)}
		}
		list = append(list, one)
	}
	config, err := json.Marshal(object{"ignition": object{"version": "3.4.0"}, "storage": object{"files": list}})
	if err != nil {
		panic(err) // texts and numbers only
	}
	sum := sha256.Sum256(config)
	return config, hex.EncodeToString(sum[:])
}

// lacks returns the path of a file that a configuration has not, or has otherwise; empty if it has all of them.
func lacks(c *machineconfig.Config, files []held) string {
	has := map[string]held{}
	for _, f := range c.Files {
		has[f.Path] = held{f.Path, f.Mode, f.Contents, f.NoContents}
	}
	for _, f := range files {
		if !has[f.path].equal(f) {
			return f.path
		}
	}
	return ""
}
