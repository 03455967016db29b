// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	names "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	syaml "sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
)

// Admit returns what the API server would refuse in an object by the schema of its kind, by field. It returns nil for a
// valid object. It sets the schema's defaults. plural is the name of the kind's definition, such as rolloutpolicies.
func Admit(plural string, object map[string]any) error {
	text, err := api.CRDs.ReadFile("crds/" + plural + ".yaml")
	if err != nil {
		return fmt.Errorf("reading the definition of %s: %w", plural, err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := syaml.Unmarshal(text, crd); err != nil {
		return fmt.Errorf("reading the definition of %s: %w", plural, err)
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
	defaulting.PruneNonNullableNullsWithoutDefaults(object, structural)
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
