// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	syaml "sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/bootstrap"
	"github.com/noderefit/noderefit/rollout"
)

// policyFile reads the single RolloutPolicy of a file. It refuses a policy that the API server or the controller would
// refuse.
func policyFile(path string) (*api.RolloutPolicy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the RolloutPolicy: %w", err)
	}
	object, err := oneDocument(text)
	if err != nil {
		return nil, fmt.Errorf("reading the RolloutPolicy in %s: %w", path, err)
	}
	if object["kind"] != rollout.Kind || object["apiVersion"] != api.GroupVersion.String() {
		return nil, fmt.Errorf("%s: there has to be a %s of %s", path, rollout.Kind, api.GroupVersion)
	}
	admitErr := bootstrap.Admit("rolloutpolicies", object)
	p := &api.RolloutPolicy{}
	unknown, err := strictly(text, p)
	if err != nil && admitErr == nil || len(unknown) > 0 { // of a wrong type, the schema names the field
		return nil, fmt.Errorf("reading the RolloutPolicy in %s: %w", path, errors.Join(append(unknown, err, admitErr)...))
	}
	if err := errors.Join(admitErr, rollout.Check(p)); err != nil {
		return nil, fmt.Errorf("RolloutPolicy/%s: %w", p.Name, err)
	}
	return p, nil
}

// strictly decodes a document. It returns an error for each field that its kind does not have.
func strictly(text []byte, into any) (unknown []error, err error) {
	asJSON, err := syaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	return kjson.UnmarshalStrict(asJSON, into)
}

// oneDocument returns the only document of a text that is not empty.
func oneDocument(text []byte) (map[string]any, error) {
	var found map[string]any
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		asJSON, err := syaml.YAMLToJSONStrict(document)
		if err != nil {
			return nil, err
		}
		var object map[string]any
		if err := json.Unmarshal(asJSON, &object); err != nil {
			return nil, err
		}
		if object == nil {
			continue // a comment, or an empty document
		}
		if found != nil {
			return nil, errors.New("the file has more than one document, and a simulation takes one policy")
		}
		found = object
	}
}
