// SPDX-License-Identifier: Apache-2.0

package template

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"
)

// functions are upstream's functions that are not specific to OpenShift; most are sprig's. Their errors show no values.
var functions = template.FuncMap{
	"b64enc":     func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
	"contains":   func(part, s string) bool { return strings.Contains(s, part) },
	"default":    func(otherwise, s string) string { return orElse(s, otherwise) },
	"hasPrefix":  func(part, s string) bool { return strings.HasPrefix(s, part) },
	"hasSuffix":  func(part, s string) bool { return strings.HasSuffix(s, part) },
	"indent":     indent,
	"join":       func(with string, all []string) string { return strings.Join(all, with) },
	"lower":      strings.ToLower,
	"nindent":    func(by int, s string) string { return "\n" + indent(by, s) },
	"quote":      func(s string) string { return fmt.Sprintf("%q", s) },
	"replace":    func(old, by, s string) string { return strings.ReplaceAll(s, old, by) },
	"splitList":  func(at, s string) []string { return strings.Split(s, at) },
	"toString":   func(v any) string { return fmt.Sprint(v) },
	"toYaml":     toYAML,
	"trim":       strings.TrimSpace,
	"trimPrefix": func(part, s string) string { return strings.TrimPrefix(s, part) },
	"trimSuffix": func(part, s string) string { return strings.TrimSuffix(s, part) },
	"upper":      strings.ToUpper,
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func indent(by int, s string) string {
	pad := strings.Repeat(" ", max(by, 0))
	return pad + strings.ReplaceAll(s, "\n", "\n"+pad)
}

func toYAML(v any) (string, error) {
	out, err := yaml.Marshal(v)
	if err != nil {
		return "", errors.New("the value can't be written as YAML")
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}
