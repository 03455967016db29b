// SPDX-License-Identifier: Apache-2.0

// Package output prints documents for programs in the formats that people know from kubectl.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/progress"
)

// Formats of a command's output besides cli.Text and cli.JSON, as of kubectl.
const (
	YAML     = "yaml"
	JSONPath = "jsonpath=TEMPLATE"
	Wide     = "wide"
	Name     = "name"
)

// Check refuses an output format that is not allowed, and a template that cannot be read.
func Check(format string, allowed []string) error {
	if strings.HasPrefix(format, "jsonpath") && slices.Contains(allowed, JSONPath) {
		if _, err := jsonPath(format); err != nil {
			return cli.Usagef("output format %q: %w", format, err)
		}
		return nil
	}
	if format == JSONPath || !slices.Contains(allowed, format) {
		return cli.Usagef("unknown output format %q: use %s", format, Either(allowed))
	}
	return nil
}

// Either joins words: "a, b or c".
func Either(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// jsonPath returns the printer of the formats jsonpath=, jsonpath-file= and jsonpath-as-json=.
func jsonPath(format string) (printers.ResourcePrinter, error) {
	return genericclioptions.NewJSONPathPrintFlags("", true).ToPrinter(format)
}

// named is a document that names objects of the cluster.
type named interface{ Names() []progress.Object }

// Print writes a document for programs, and reports whether the format is one for programs.
func Print(w io.Writer, format string, v any) (bool, error) {
	switch {
	case format == cli.JSON:
		return true, cli.WriteJSON(w, v)
	case format == Name:
		return true, printNames(w, v)
	case format == YAML, strings.HasPrefix(format, "jsonpath"):
		var printer printers.ResourcePrinter = &printers.YAMLPrinter{}
		if format != YAML {
			var err error
			if printer, err = jsonPath(format); err != nil {
				return true, err
			}
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return true, err
		}
		err = printer.PrintObj(&runtime.Unknown{Raw: raw, ContentType: runtime.ContentTypeJSON}, w)
		if err == nil {
			return true, nil
		}
		// The rest of the library's text is the whole document.
		text, _, _ := strings.Cut(err.Error(), ". Printing more information")
		return true, fmt.Errorf("%s", text)
	}
	return false, nil
}

// groups are the API groups of kinds that are not of the core.
var groups = map[string]string{
	"MachineConfigPool": mcfgv1.GroupName, "MachineConfig": mcfgv1.GroupName, "OSStream": api.GroupVersion.Group,
}

// printNames writes one line for each object, in the form that kubectl takes as an argument.
func printNames(w io.Writer, v any) error {
	document, ok := v.(named)
	if !ok {
		return fmt.Errorf("printing names: %T names no objects", v)
	}
	for _, o := range document.Names() {
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
		object.SetGroupVersionKind(schema.GroupVersionKind{Group: groups[o.Kind], Version: "v1", Kind: o.Kind})
		if err := (&printers.NamePrinter{}).PrintObj(object, w); err != nil {
			return err
		}
	}
	return nil
}
