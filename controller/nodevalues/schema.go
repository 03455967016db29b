// SPDX-License-Identifier: Apache-2.0

package nodevalues

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"sigs.k8s.io/yaml"
)

// mostWrong is how many faults of an object are named.
const mostWrong = 8

// nowhere refuses to load a schema that another schema refers to. The controller reads no file and asks no server for
// the author of a schema.
type nowhere struct{}

func (nowhere) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s is another document: a schema has all that it needs in itself", url)
}

// schema is a pool's choice of what the values of its nodes have to be.
type schema struct{ is *jsonschema.Schema }

// newSchema reads a JSON Schema, as JSON or YAML. Formats such as ipv4 count.
func newSchema(text string) (*schema, error) {
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if _, is := document.(map[string]any); !is {
		return nil, errors.New("a schema is an object")
	}
	const name = "schema:values"
	c := jsonschema.NewCompiler()
	c.UseLoader(nowhere{})
	c.AssertFormat()
	if err := c.AddResource(name, document); err != nil {
		return nil, err
	}
	is, err := c.Compile(name)
	return &schema{is}, err
}

// refuses says what of the values does not fit, by key and rule; empty: they fit. It says no value.
func (s *schema) refuses(given map[string]string) string {
	document := make(map[string]any, len(given))
	for key, value := range given {
		document[key] = value
	}
	invalid, is := errors.AsType[*jsonschema.ValidationError](s.is.Validate(document))
	if !is {
		return ""
	}
	faults := slices.Compact(slices.Sorted(slices.Values(named(invalid))))
	if more := len(faults) - mostWrong; more > 0 {
		faults = append(faults[:mostWrong], fmt.Sprintf("%d more", more))
	}
	return strings.Join(faults, "; ")
}

// named returns the faults of which an error is made.
func named(e *jsonschema.ValidationError) (out []string) {
	for _, cause := range e.Causes {
		out = append(out, named(cause)...)
	}
	if len(out) > 0 {
		return out
	}
	at := strings.Join(append([]string{"spec.values"}, e.InstanceLocation...), ".")
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return []string{at + " lacks " + strings.Join(k.Missing, ", ")}
	case *kind.AdditionalProperties:
		return []string{at + " may not have " + strings.Join(slices.Sorted(slices.Values(k.Properties)), ", ")}
	default:
		return []string{fmt.Sprintf("%s does not fit %s", at, strings.Join(k.KeywordPath(), "."))}
	}
}
