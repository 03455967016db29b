// SPDX-License-Identifier: Apache-2.0

package support

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/machineconfig"
)

// maskObject masks an object of the cluster in place: the contents of files by their size, and every text that may hold
// a secret by the reason. Names, labels, states and times stay.
func maskObject(o map[string]any) map[string]any {
	if meta, ok := o["metadata"].(map[string]any); ok {
		delete(meta, "managedFields") // who wrote which field: long, and of no use to a reader
		if a, ok := meta["annotations"].(map[string]any); ok {
			delete(a, corev1.LastAppliedConfigAnnotation) // the whole document once more
		}
	}
	maskMap(o)
	return o
}

// maskJSON masks an object in JSON, and reports whether the text is one.
func maskJSON(text []byte) ([]byte, bool) {
	var o map[string]any
	if json.Unmarshal(text, &o) != nil {
		return nil, false
	}
	masked, err := json.MarshalIndent(maskObject(o), "", "  ")
	return masked, err == nil
}

// covered are fields that are masked whatever they hold. A hash of a short secret tells the secret to somebody who can
// try all short ones.
var covered = map[string]bool{
	"hash": true, "httpHeaders": true, "inline": true, "passwordHash": true, "sshAuthorizedKeys": true,
}

func maskMap(m map[string]any) {
	// A variable of a container, a header, a key with its value: the name says what the value is.
	name, _ := m["name"].(string)
	if value, ok := m["value"].(string); ok && name != "" && value != "" {
		m["value"] = maskNamed(name, value)
	}
	for key, value := range m {
		switch {
		case covered[key]:
			m[key] = why("contents are left out")
		case strings.HasSuffix(key, "kernelArguments"), key == "kargs":
			m[key] = maskArguments(value)
		default:
			m[key] = maskValue(key, value)
		}
	}
}

func maskValue(key string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		maskMap(v)
	case []any:
		for i := range v {
			v[i] = maskValue(key, v[i])
		}
	case string:
		return maskNamed(key, v)
	}
	return value
}

// maskNamed masks a text with a name in front of it. The contents of a file are a URL of its data.
func maskNamed(name, text string) string {
	if strings.HasPrefix(text, "data:") {
		return why(fmt.Sprintf("contents of %d bytes are left out", len(text)))
	}
	// A document in a text, or a unit file, has names of its own.
	if reason := machineconfig.WithheldText(text); reason != "" {
		return why(reason)
	}
	if reason := machineconfig.WithheldText(name + ": " + text); reason != "" && text != "" {
		return why(reason)
	}
	return text
}

func maskArguments(value any) any {
	list, ok := value.([]any)
	if !ok {
		return maskValue("kernelArguments", value)
	}
	for i := range list {
		if text, ok := list[i].(string); ok {
			list[i] = machineconfig.MaskArgument(text)
		} else {
			list[i] = maskValue("kernelArguments", list[i])
		}
	}
	return list
}

func why(reason string) string { return "(masked: " + reason + ")" }

// maskText masks the lines of a log that may hold a secret, and lines that only together do.
func maskText(text string) string {
	if machineconfig.WithheldText(text) == "" {
		return text // nearly always; the rest is for the others
	}
	lines := strings.SplitAfter(text, "\n")
	for i, reason := range machineconfig.WithheldLines(lines) {
		lines[i] = why(reason) + "\n"
	}
	maskLines(lines)
	return strings.Join(lines, "")
}

// maskLines halves a text that may hold a secret until single lines are left. maskText has masked lines before that are
// withheld even alone: these are most of the lines, and halving takes long.
func maskLines(lines []string) {
	reason := machineconfig.WithheldText(strings.Join(lines, ""))
	if reason == "" {
		return
	}
	if len(lines) == 1 {
		lines[0] = why(reason) + "\n"
		return
	}
	middle := len(lines) / 2
	maskLines(lines[:middle])
	maskLines(lines[middle:])
	// A name at the end of one half, and its value at the beginning of the other one.
	if reason = machineconfig.WithheldText(strings.Join(lines, "")); reason == "" {
		return
	}
	lines[middle-1], lines[middle] = why(reason)+"\n", why(reason)+"\n"
	if machineconfig.WithheldText(strings.Join(lines, "")) != "" {
		for i := range lines {
			lines[i] = ""
		}
		lines[0] = why(reason) + "\n"
	}
}
