// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/output"
)

func TestADocumentIsPrintedAsKubectlPrintsObjects(t *testing.T) {
	t.Parallel()
	doc := statusOf(t, twelve(), StatusQuestion{Pools: []string{"infra"}})
	for format, want := range map[string]string{
		"jsonpath={.pools[*].name}":                    "infra",
		`jsonpath={range .nodes[*]}{.name}{"\n"}{end}`: "infra-1\n",
		"jsonpath={.pools[0].nothing}":                 "",
		"jsonpath-as-json={.nodes[0].name}":            "[\n    \"infra-1\"\n]\n",
		output.Name:                                    "machineconfigpool.machineconfiguration.openshift.io/infra\nnode/infra-1\n",
	} {
		var out strings.Builder
		if done, err := output.Print(&out, format, doc); err != nil || !done || out.String() != want {
			t.Errorf("%s: %q, %v", format, out.String(), err)
		}
	}
	var out strings.Builder
	if _, err := output.Print(&out, output.YAML, doc); err != nil || !strings.HasPrefix(out.String(), "apiVersion: cli.noderefit.dev/v1\nkind: Status\n") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if done, err := output.Print(&out, cli.Text, doc); done || err != nil {
		t.Errorf("text is not for programs: %t, %v", done, err)
	}
	rows := Quarantines{{Pool: "a"}, {Pool: "b"}}
	out.Reset()
	if _, err := output.Print(&out, "jsonpath={[*].pool}", rows); err != nil || out.String() != "a b" {
		t.Errorf("of a list: %q, %v", out.String(), err)
	}
	if _, err := output.Print(&out, "jsonpath={.pools[9].name}", doc); err == nil || strings.Contains(err.Error(), "apiVersion") {
		t.Errorf("an error that is the whole document: %v", err)
	}
}

func TestAnUnknownFormatIsNamedWithThoseThatThereAre(t *testing.T) {
	t.Parallel()
	allowed := []string{cli.Text, cli.JSON, output.YAML, output.Name, output.JSONPath}
	for format, want := range map[string]string{
		"yml":               `unknown output format "yml": use text, json, yaml, name or jsonpath=TEMPLATE`,
		"":                  `unknown output format "": use text, json, yaml, name or jsonpath=TEMPLATE`,
		output.JSONPath:     "",
		"jsonpath":          `output format "jsonpath": template format specified but no template given`,
		"jsonpath={.x":      `output format "jsonpath={.x": error parsing jsonpath {.x, unclosed action`,
		"jsonpath={.x}":     "",
		"wide":              `unknown output format "wide": use text, json, yaml, name or jsonpath=TEMPLATE`,
		"jsonpathology={x}": `output format "jsonpathology={x}": unable to match a printer`,
	} {
		err := output.Check(format, allowed)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%q: %v, want %s", format, err, want)
		case err != nil && cli.ExitCode(err) != cli.ExitUsage:
			t.Errorf("%q: exit code %d", format, cli.ExitCode(err))
		}
	}
}
