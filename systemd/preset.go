// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/systemd/syntax"
)

// presetDirs are searched for *.preset. Of files with the same name, the first directory's file counts.
var presetDirs = []string{
	"/etc/systemd/system-preset", "/run/systemd/system-preset",
	"/usr/local/lib/systemd/system-preset", "/usr/lib/systemd/system-preset",
}

type presetAction int

const (
	presetEnable presetAction = iota
	presetDisable
	presetIgnore
)

type presetRule struct {
	action    presetAction
	pattern   string
	instances []string // of a template to enable
}

// presets returns the host's preset rules in the order in which they are tried.
func (t *tree) presets() ([]presetRule, error) {
	if t.presetsRead {
		return t.presetRules, nil
	}
	paths, err := t.confFiles(presetDirs, ".preset")
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		data, err := t.read(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		t.presetRules = append(t.presetRules, parsePresets(string(data))...)
	}
	t.presetsRead = true
	return t.presetRules, nil
}

// parsePresets skips lines that it can't parse, as systemd does.
func parsePresets(contents string) []presetRule {
	var rules []presetRule
	for line := range strings.Lines(contents) {
		line = strings.Trim(line, syntax.Whitespace)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		verb, rest, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		rest = strings.Trim(rest, syntax.Whitespace)
		if rest == "" {
			continue
		}
		switch verb {
		case "enable":
			w := strings.Fields(rest)
			if len(w) > 1 && splitName(w[0]).kind != template {
				continue
			}
			rules = append(rules, presetRule{presetEnable, w[0], w[1:]})
		case "disable":
			rules = append(rules, presetRule{action: presetDisable, pattern: rest})
		case "ignore":
			rules = append(rules, presetRule{action: presetIgnore, pattern: rest})
		}
	}
	return rules
}

// decide returns the action of the first rule that matches a unit, and the instances to enable in its place where the
// rule names some. Without a rule a unit is enabled.
func decide(rules []presetRule, unit string) (presetAction, []string) {
	n := splitName(unit)
	for _, r := range rules {
		if len(r.instances) > 0 && r.pattern == n.template() {
			if n.kind == instance && slices.Contains(r.instances, n.instance) {
				return r.action, nil
			}
			if n.kind == template {
				var units []string
				for _, i := range r.instances {
					if u := n.with(i); u != "" {
						units = append(units, u)
					}
				}
				return r.action, units
			}
		}
		if globMatch(r.pattern, unit) {
			return r.action, nil
		}
	}
	return presetEnable, nil
}

// globMatch reports whether s matches as by fnmatch with FNM_NOESCAPE, for names without slashes.
func globMatch(pattern, s string) bool {
	p := strings.NewReplacer(`\`, `\\`, "[!", "[^").Replace(pattern)
	ok, err := path.Match(p, s)
	if err != nil {
		return pattern == s
	}
	return ok
}

// confFiles lists the files with that suffix in several directories in the order in which systemd reads them: by name.
// Of files with the same name the first directory's file counts. Where that file is empty or a link to /dev/null, the
// name counts as masked.
func (t *tree) confFiles(dirs []string, suffix string) ([]string, error) {
	winner := map[string]string{}
	for _, d := range dirs {
		names, err := t.list(d)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			if _, taken := winner[n]; !taken && strings.HasSuffix(n, suffix) {
				winner[n] = d + "/" + n
			}
		}
	}
	var paths []string
	for _, n := range sortedKeys(winner) {
		real, node, err := t.follow(winner[n])
		if err != nil {
			return nil, err
		}
		if node.Type != files.Regular {
			continue
		}
		null, err := t.isNull(real, node)
		if err != nil {
			return nil, err
		}
		if !null {
			paths = append(paths, real)
		}
	}
	return paths, nil
}
