// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
)

// ScriptsDir holds the program of a hook that the cluster brings, while the hook runs.
const ScriptsDir = "/var/lib/machine-config-daemon/hooks"

// keptPath keeps the cluster's hooks for the update under way, so that the verdict needs no API server.
const keptPath = "/var/lib/machine-config-daemon/hooks.json"

// Document is a cluster's document about hooks for the host: the hooks of the pool, and the node's name.
type Document struct {
	Node  string     `json:"node"`
	Hooks []api.Hook `json:"hooks,omitempty"`
}

// List is the output of the command hooks.
type List struct {
	Hooks    []listed `json:"hooks"`
	Warnings []string `json:"warnings,omitempty"`
}

// listed is one of the host's own hooks.
type listed struct {
	When  When   `json:"when"`
	Path  string `json:"path"`
	Limit string `json:"limit"`
}

// WriteText lists the hooks for people.
func (l *List) WriteText(w io.Writer) error {
	for _, hook := range l.Hooks {
		if _, err := fmt.Fprintf(w, "%-12s  %-8s  %s\n", hook.When, hook.Limit, hook.Path); err != nil {
			return err
		}
	}
	return nil
}

// All lists a host's own hooks.
func All(root *files.Root) (*List, error) {
	list := &List{Hooks: []listed{}}
	for _, when := range []When{BeforeDrain, AfterBoot, RebootWanted} {
		found, warnings, err := Find(root, when)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			list.Hooks = append(list.Hooks, listed{When: when, Path: f.Path, Limit: f.Limit.String()})
		}
		list.Warnings = append(list.Warnings, warnings...)
	}
	return list, nil
}

// OfCluster returns those of a pool's hooks that are for this point.
func OfCluster(when When, carried []api.Hook) []Hook {
	var out []Hook
	point := api.HookBeforeDrain
	if when == AfterBoot {
		point = api.HookAfterBoot
	}
	for _, c := range carried {
		if c.When != point || c.Problem != "" {
			continue
		}
		hook := Hook{Name: api.NodeHookPrefix + c.Name, Path: c.Path, Script: c.Script, Args: c.Args,
			Limit: time.Duration(c.TimeoutSeconds) * time.Second}
		if hook.Limit == 0 {
			hook.Limit = defaultLimit
		}
		if hook.Script != "" {
			hook.Path = path.Join(ScriptsDir, c.Name)
		}
		out = append(out, hook)
	}
	return out
}

// kept is a Document that waits for the boot of a configuration.
type kept struct {
	Document

	Digest string `json:"digest"`
}

// Keep stores the cluster's hooks beside the record, for the boot of a configuration. They are durable before anything
// is decided.
func Keep(root *files.Root, digest string, doc Document) error {
	if doc.Node == "" && len(doc.Hooks) == 0 {
		return root.Remove(keptPath)
	}
	data, err := json.Marshal(kept{Document: doc, Digest: digest})
	if err != nil {
		return err
	}
	if err := root.WriteRecord(keptPath, data, 0o600); err != nil {
		return fmt.Errorf("keeping the hooks of the cluster: %w", err)
	}
	return nil
}

// Kept returns the hooks that were kept for a configuration, the zero value where none were kept.
func Kept(root *files.Root, digest string) (Document, error) {
	data, err := root.ReadFile(keptPath)
	if errors.Is(err, fs.ErrNotExist) {
		return Document{}, nil
	}
	var found kept
	if err == nil {
		err = json.Unmarshal(data, &found)
	}
	if err != nil {
		return Document{}, fmt.Errorf("reading the hooks of the cluster: %s: %w", keptPath, err)
	}
	if found.Digest != digest {
		return Document{}, nil
	}
	return found.Document, nil
}
