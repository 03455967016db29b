// SPDX-License-Identifier: Apache-2.0

package server

import "testing"

func TestTheVersionIsNegotiatedAsOpenShiftsServerDoes(t *testing.T) {
	const kind = "application/vnd.coreos.ignition+json"
	for _, test := range []struct {
		accept, want string
		newest       bool
	}{
		{"", "2.2.0", false},
		{"*/*", "2.2.0", false},
		{"text/html;;;", "2.2.0", false},
		{kind, "2.2.0", false},
		{kind + ";version=nonsense", "2.2.0", false},
		{kind + ";version=2.2.0", "2.2.0", false},
		{kind + ";version=2.4.0, */*;q=0.1", "2.2.0", false},
		{kind + ";version=3.0.0", "3.0.0", false},
		{kind + ";version=3.1.0, */*;q=0.1", "3.1.0", false},
		{kind + ";version=3.2.0", "3.2.0", false},
		{kind + ";version=3.3.0, */*;q=0.1", "3.3.0", false},
		{kind + ";version=3.5.0", "3.5.0", false},
		{kind + ";version=3.6.0", "3.5.0", true},
		{kind + ";version=3.99.0", "3.5.0", true},
		{kind + "; version=2.4.0; q=0.5, " + kind + "; version=3.2.0", "3.2.0", false},
		{kind + ";version=3.2.0;q=0.1," + kind + ";version=2.2.0;q=0.9", "2.2.0", false},
		{kind + ";version=4.0.0," + kind + ";version=3.4.0;q=0.2", "3.4.0", false},
		{kind + ";version=3.2.0;q=0", "2.2.0", false},
		{kind + ";version=4.0.0", "", false},
		{kind + ";version=1.0.0, */*;q=0.1", "", false},
		{kind + ";version=2.1.0", "", false},
	} {
		got, err := negotiate(test.accept)
		if test.want == "" {
			if err == nil {
				t.Errorf("%q: got %s, want a refusal", test.accept, got.version)
			}
			continue
		}
		if err != nil || got.version.String() != test.want || got.newest != test.newest {
			t.Errorf("%q: got %s (later ones too: %v), %v; want %s, %v", test.accept, got.version, got.newest, err,
				test.want, test.newest)
		}
	}
}
