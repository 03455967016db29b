// SPDX-License-Identifier: Apache-2.0

package registries

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// AttachmentsDir has the files that say where signatures are, containers-registries.d(5). AttachmentsPath is the one
// among them for the signatures that policies demand, by OpenShift's name.
const (
	AttachmentsDir  = "/etc/containers/registries.d"
	AttachmentsPath = AttachmentsDir + "/sigstore-registries.yaml"
)

// Attachments returns the file with which signatures are looked for beside the images of scopes, and of their mirrors:
// a tool reads the signature from where it pulls the image. The result is nil if there is no scope.
func (c *Conf) Attachments(scopes []string) ([]byte, error) {
	if len(scopes) == 0 {
		return nil, nil
	}
	attached := map[string]bool{"use-sigstore-attachments": true}
	places := map[string]map[string]bool{}
	for _, scope := range scopes {
		places[scope] = attached
		for _, place := range c.places(Repository(scope)) {
			places[place] = attached
		}
	}
	return yaml.Marshal(map[string]any{docker: places})
}

// places returns the places other than a scope itself from which its images may be pulled.
func (c *Conf) places(scope string) []string {
	found := map[string]bool{}
	of := func(e *registry, rest string) {
		for _, m := range e.mirrors {
			found[m.location+rest] = true
		}
		if e.location != "" && e.location != e.scope() {
			found[e.location+rest] = true
		}
	}
	if e := closest(c.entries, scope); e != nil {
		of(e, scope[covers(e.scope(), scope):])
	}
	for _, e := range c.entries {
		if e.scope() != scope && within(e.scope(), scope) {
			of(e, "")
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// Attached returns the registries and parts of registries that a file of AttachmentsDir is about. The tools refuse all
// files if two of them are about the same one.
func Attached(data []byte) ([]string, error) {
	var file struct {
		Docker map[string]any `json:"docker"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("is not YAML: %s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return slices.Sorted(maps.Keys(file.Docker)), nil
}
