// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestARefusalNamesTheRightAndNothingElseIsTouched(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "",
		errors.New(`User "a" cannot list resource "nodes"`))
	for want, err := range map[string]error{
		`not allowed: User "a" cannot list resource "nodes"`: fmt.Errorf("listing Nodes: %w", forbidden),
		"reading: broken": errors.New("reading: broken"),
	} {
		if got := Describe(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestConfigurationsAreShortenedToWhatTellsThemApart(t *testing.T) {
	const a, b = "rendered-infra-792f1ed3c005f6a004d0190df0c81f65", "rendered-infra-9326d5578077829d10d369f6b6890dcf"
	for _, test := range []struct{ current, desired, want string }{
		{a, a, "792f1ed3"}, {a, "", "792f1ed3"}, {a, b, "792f1ed3 -> 9326d557"}, {"", b, "- -> 9326d557"}, {"", "", "-"},
	} {
		if got := way(nodeRow{Current: test.current, Desired: test.desired}, short); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
