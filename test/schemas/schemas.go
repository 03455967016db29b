// SPDX-License-Identifier: Apache-2.0

// Package schemas holds what commands print for programs to the schemas in docs/schemas.
package schemas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab"
)

// Dir is where the schemas are, below the repository.
const Dir = "docs/schemas"

// compiled are the schemas of documents by kind. They are stricter than the files: a field that the file does not have
// is an error.
var compiled sync.Map

// Check returns an error where the output of a command is not one document, or one list of documents, that its schema
// allows. The document's kind names the schema.
func Check(output []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(output))
	if err != nil {
		return fmt.Errorf("reading the output as JSON: %w: %.200s", err, output)
	}
	documents, is := v.([]any)
	if !is {
		documents = []any{v}
	}
	for _, d := range documents {
		if err := check(d); err != nil {
			return err
		}
	}
	return nil
}

// CheckPrinted is Check for a command with its arguments, if they ask for JSON and the command has printed any.
func CheckPrinted(stdout string, args ...string) error {
	i := slices.Index(args, "-o")
	if i < 0 || i+1 == len(args) || args[i+1] != "json" || stdout == "" {
		return nil
	}
	if err := Check([]byte(stdout)); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return nil
}

func check(document any) error {
	fields, _ := document.(map[string]any)
	kind, _ := fields["kind"].(string)
	if kind == "" || fields["apiVersion"] != api.DocumentVersion {
		return fmt.Errorf("a document has kind %q and apiVersion %v, and not %q", kind, fields["apiVersion"],
			api.DocumentVersion)
	}
	s, err := strict(kind)
	if err != nil {
		return fmt.Errorf("reading the schema of %s: %w", kind, err)
	}
	if err := s.Validate(document); err != nil {
		return fmt.Errorf("%s differs from its schema: %w", kind, err)
	}
	return nil
}

// strict returns the schema of a kind of documents, without room for further fields.
func strict(kind string) (*jsonschema.Schema, error) {
	if s, has := compiled.Load(kind); has {
		return s.(*jsonschema.Schema), nil
	}
	root, err := lab.Repository()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, Dir, File(kind)))
	if err != nil {
		return nil, err
	}
	var schema any
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, err
	}
	shut(schema)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(File(kind), schema); err != nil {
		return nil, err
	}
	s, err := c.Compile(File(kind))
	if err != nil {
		return nil, err
	}
	compiled.Store(kind, s)
	return s, nil
}

// File returns the name of the schema of a kind of documents.
func File(kind string) string { return kind + ".schema.json" }

// shut lets no object of a schema have fields besides its properties.
func shut(schema any) {
	switch s := schema.(type) {
	case []any:
		for _, e := range s {
			shut(e)
		}
	case map[string]any:
		for _, e := range s {
			shut(e)
		}
		if _, is := s["properties"].(map[string]any); is && s["type"] == "object" {
			s["additionalProperties"] = false
		}
	}
}
