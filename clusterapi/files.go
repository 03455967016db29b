// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"bytes"
	"cmp"
	"encoding/base64"
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

func heldOf(f machineconfig.File) held { return held{f.Path, f.Mode, f.Contents, f.NoContents} }

func (h held) equal(other held) bool {
	return h.path == other.path && h.mode == other.mode && h.released == other.released &&
		bytes.Equal(h.contents, other.contents)
}

// secret returns why not every reader of MachineConfigs may see a file; empty if each may.
func (h held) secret() string {
	mc := &mcfgv1.MachineConfig{}
	mc.Spec.Config.Raw = ignition([]held{h})
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
	case template(f.Path) || template(f.Content):
		return h, errors.New("it is a template of cloud-init")
	case strings.Contains(f.Path, "\t"):
		return h, errors.New("its path has a tab, which cloud-init's parser of YAML refuses")
	}
	if f.Permissions != "" {
		mode, err := strconv.ParseUint(f.Permissions, 8, 32)
		if err != nil || mode > 0o7777 {
			return h, fmt.Errorf("its permissions %q are none", f.Permissions)
		}
		h.mode = uint32(mode)
	}
	content, err := f.read()
	if err != nil {
		return h, err
	}
	switch f.Encoding {
	case "":
		h.contents = []byte(content)
	case "base64":
		// cloud-init's decoder takes these blanks, and no others.
		bare := strings.FieldsFunc(content, func(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r", r) })
		if h.contents, err = base64.StdEncoding.DecodeString(strings.Join(bare, "")); err != nil {
			return h, errors.New("its content is not base64")
		}
	default:
		return h, fmt.Errorf("its encoding is %s", f.Encoding)
	}
	return h, nil
}

// template reports whether cloud-init would make another text of this one. All that Cluster API hands over is marked as
// a template of Jinja, and these begin what Jinja replaces.
func template(text string) bool {
	return slices.ContainsFunc([]string{"{{", "{%", "{#"}, func(mark string) bool {
		return strings.Contains(text, mark)
	})
}

// read returns the content that cloud-init reads. Cluster API hands a file over as this piece of YAML, with another
// file behind. So the content ends with one newline, and a content that hides the other file is refused.
func (f file) read() (string, error) {
	const indent = "      "
	text := "-   path: " + f.Path + "\n    content: |" + indicator(f.Content, len(indent)-4) + "\n" + indent +
		strings.ReplaceAll(f.Content, "\n", "\n"+indent) + "\n-   path: next\n"
	var list []struct {
		Path    string `json:"path"`
		Content string `json:"content"`
	}
	if err := yaml.UnmarshalStrict([]byte(text), &list); err != nil {
		return "", fmt.Errorf("its path and content are no YAML, as which Cluster API hands them to cloud-init: %w", err)
	}
	if len(list) != 2 || list[0].Path != f.Path || list[1].Path != "next" {
		return "", errors.New("its path and content are others in YAML, as which Cluster API hands them to cloud-init")
	}
	return list[0].Content, nil
}

// indicator returns how far a block of YAML is indented, where the content begins with a tab. cloud-init's parser of
// YAML takes that, and the one here only where the indentation is said. It is that of the longest line up to the tab.
// YAML has no indicator above 9, so a content that needs one is refused, and takes a new machine.
func indicator(content string, least int) string {
	rest := strings.TrimLeft(content, " \r\n")
	if !strings.HasPrefix(rest, "\t") {
		return ""
	}
	spaces := 0
	for line := range strings.SplitSeq(content[:len(content)-len(rest)], "\n") {
		spaces = max(spaces, strings.Count(line, " "))
	}
	return strconv.Itoa(least + spaces)
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

func byItsPath(a, b held) int { return cmp.Compare(a.path, b.path) }

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

// expressed returns the files that a MachineConfig may have, by path, and the paths of the others. The digest is of the
// former as the template says them, and not of their bytes, which another version may make otherwise. A secret is in no
// digest, by which a short one could be guessed.
func expressed(files []file) (can []held, cannot []string, digest string) {
	said := map[string]file{}
	for _, f := range files {
		h, err := f.express()
		if err != nil || h.secret() != "" {
			cannot = append(cannot, f.Path)
			continue
		}
		can = append(can, h)
		said[f.Path] = file{Permissions: f.Permissions, Encoding: f.Encoding, Content: f.Content}
	}
	slices.SortFunc(can, byItsPath)
	text, err := json.Marshal(said) // by path
	if err != nil {
		panic(err) // texts only
	}
	return can, cannot, digestOf(text)
}

// ignition returns files as a config of Ignition.
func ignition(files []held) []byte {
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
	return config
}

// lacks returns the path of a file that a configuration has not, or has otherwise; empty if it has all of them.
func lacks(c *machineconfig.Config, files []held) string {
	has := map[string]held{}
	for _, f := range c.Files {
		has[f.Path] = heldOf(f)
	}
	for _, f := range files {
		if !has[f.path].equal(f) {
			return f.path
		}
	}
	return ""
}
