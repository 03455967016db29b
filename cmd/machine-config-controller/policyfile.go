// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	names "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	kjson "sigs.k8s.io/json"
	syaml "sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
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
	admitErr := admit(object)
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

// admit returns what the API server would refuse in a RolloutPolicy by the kind's schema, by field. It returns nil for
// a valid policy. It sets the schema's defaults.
func admit(object map[string]any) error {
	text, err := api.CRDs.ReadFile("crds/rolloutpolicies.yaml")
	if err != nil {
		return err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := syaml.Unmarshal(text, crd); err != nil {
		return err
	}
	props := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema, props, nil); err != nil {
		return err
	}
	structural, err := schema.NewStructural(props)
	if err != nil {
		return err
	}
	validator, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		return err
	}
	errs := checkName(object)
	defaulting.Default(object, structural)
	errs = append(errs, validation.ValidateCustomResource(nil, object, validator)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, structural, object)...)
	if len(errs) == 0 { // as in the API server, the rules are checked only on an object of the right form
		broken, _ := cel.NewValidator(structural, true, celconfig.PerCallLimit).
			Validate(context.Background(), nil, structural, object, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, broken...)
	}
	return errs.ToAggregate()
}

// checkName checks the rules of the API server for the name of every object.
func checkName(object map[string]any) field.ErrorList {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if name == "" {
		return field.ErrorList{field.Required(field.NewPath("metadata", "name"), "")}
	}
	var errs field.ErrorList
	for _, why := range names.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), name, why))
	}
	return errs
}
