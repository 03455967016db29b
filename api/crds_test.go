// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// taken are short names of Kubernetes, OpenShift's machines and operators that many clusters have.
var taken = []string{
	"cm", "cs", "csr", "crd", "crds", "deploy", "ds", "ep", "ev", "hpa", "ing", "limits", "netpol", "no", "ns", "pc",
	"pdb", "po", "pv", "pvc", "quota", "rc", "rs", "sa", "sc", "sts", "svc", "vac", "co", "mc", "mcp", "mcn", "np",
}

func TestOurKindsHaveShortNamesOfTheirOwn(t *testing.T) {
	entries, err := CRDs.ReadDir("crds")
	if err != nil {
		t.Fatal(err)
	}
	has, ours := map[string]string{}, 0
	for _, e := range entries {
		text, err := CRDs.ReadFile("crds/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		names := crd.Spec.Names
		for _, short := range names.ShortNames {
			if has[short] != "" {
				t.Errorf("%s and %s share the short name %s", has[short], names.Plural, short)
			}
			has[short] = names.Plural
		}
		if crd.Spec.Group != GroupVersion.Group {
			continue
		}
		ours++
		if len(names.ShortNames) == 0 || slices.Contains(taken, names.ShortNames[0]) {
			t.Errorf("%s has the short names %v, should have one that is free", names.Plural, names.ShortNames)
		}
		if !slices.Contains(names.Categories, "noderefit") {
			t.Errorf("%s is in the categories %v, not in noderefit", names.Plural, names.Categories)
		}
	}
	if ours != 4 {
		t.Errorf("%d definitions are ours, should be 4", ours)
	}
}
