// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDriftPolicyIsWhatPeopleWrite(t *testing.T) {
	for text, want := range map[string]DriftPolicy{
		"":                                       {},
		"report":                                 {Policy: DriftReport},
		" repair ":                               {Policy: DriftRepair},
		`{"policy":"repair","updates":"strict"}`: {Policy: DriftRepair, Updates: driftStrict},
		"updates: strict\nexceptions:\n- {path: /etc/chrony.conf, policy: repair}\n- {unit: crio.service, policy: report}": {
			Updates: driftStrict, Exceptions: []DriftException{{Path: "/etc/chrony.conf", Policy: DriftRepair},
				{Unit: "crio.service", Policy: DriftReport}}},
		"exceptions: [{path: /etc/sysctl.d/, policy: repair}]": {
			Exceptions: []DriftException{{Path: "/etc/sysctl.d/", Policy: DriftRepair}}},
	} {
		got, err := ParseDriftPolicy(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		again, err := ParseDriftPolicy(Encode(got))
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%q as it is carried: %+v, %v", text, again, err)
		}
	}
}

func TestDriftPolicyThatSaysNothingSensibleIsAnErrorWithItsField(t *testing.T) {
	for text, want := range map[string]string{
		"heal":                           `policy: "heal" is not one of report, repair`,
		"updates: refuse":                `updates: "refuse" is not one of overwrite, strict`,
		"update: strict":                 `unknown field "update"`,
		"exceptions: [{path: /etc/x}]":   `exceptions[0].policy: "" is not one of`,
		"exceptions: [{policy: repair}]": "exceptions[0]: needs exactly one of path, unit and user",
		"exceptions: [{path: /a, unit: b.service, policy: repair}]": "exceptions[0]: needs exactly one of",
		"exceptions: [{path: etc/x, policy: repair}]":               "exceptions[0].path:",
		"exceptions: [{path: /etc/../x, policy: repair}]":           "exceptions[0].path:",
		"{": DriftPolicyKey,
	} {
		if _, err := ParseDriftPolicy(text); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), DriftPolicyKey) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestWhichDriftIsWrittenBack(t *testing.T) {
	policy := func(text string) DriftPolicy {
		p, err := ParseDriftPolicy(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	some := policy(`exceptions: [{path: /etc/sysctl.d, policy: repair}, {path: /etc/sysctl.d/10-mine.conf, policy: report},
  {unit: crio.service, policy: repair}, {user: core, policy: repair}]`)
	held := policy("repair")
	held.Paused = true
	for _, c := range []struct {
		policy     DriftPolicy
		kind, name string
		want       bool
	}{
		{DriftPolicy{}, "file", "/etc/x", false},
		{policy("repair"), "file", "/etc/x", true},
		{policy("repair"), "kargs", "", false},
		{policy("repair"), "osImage", "", false},
		{policy("repair"), "extensions", "", false},
		{policy("repair"), "kernelType", "", false},
		{policy("repair"), "deployment", "", false},
		{held, "file", "/etc/x", false},
		{some, "file", "/etc/x", false},
		{some, "file", "/etc/sysctl.d/20-a.conf", true},
		{some, "directory", "/etc/sysctl.d", true},
		{some, "file", "/etc/sysctl.dX", false},
		{some, "file", "/etc/sysctl.d/10-mine.conf", false},
		{some, "unit", "crio.service", true},
		{some, "dropin", "crio.service/10-x.conf", true},
		{some, "unit", "kubelet.service", false},
		{some, "sshkeys", "core", true},
		{some, "password", "core", true},
		{some, "sshkeys", "admin", false},
		{policy("exceptions: [{path: /, policy: repair}]"), "link", "/etc/localtime", true},
		{policy("exceptions: [{path: /, policy: repair}]"), "unit", "a.service", false},
	} {
		if got := c.policy.Repairs(c.kind, c.name); got != c.want {
			t.Errorf("%+v: %s %s: %t", c.policy, c.kind, c.name, got)
		}
	}
}

func TestDriftOfANodeIsBounded(t *testing.T) {
	var items []DriftItem
	for i := range 5000 {
		items = append(items, DriftItem{Kind: "file", Name: fmt.Sprintf("/etc/%d/%s", i, strings.Repeat("x", 4000)),
			What: []string{"contents", "mode", "owner"}, Since: time.Unix(int64(i), 0).UTC(), Failed: strings.Repeat("y", 900)})
	}
	d := NewDrift("rendered-worker-1", items)
	if d.Count() != 5000 || len(d.Items) != driftItems || len(items[0].Name) < 4000 {
		t.Errorf("%d of %d items", len(d.Items), d.Count())
	}
	text, err := json.Marshal(d)
	if err != nil || len(text) > 16<<10 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if !strings.HasSuffix(d.Names(2), "and 4998 more") || !d.Since().Equal(time.Unix(0, 0)) {
		t.Errorf("%s, since %s", d.Names(2), d.Since())
	}
	// Somebody else's hand is believed no further.
	big := Encode(Drift{Config: "a", Items: items})
	read, err := ReadNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{DriftKey: big}}})
	if err != nil || !read.Drift.SameAs(d) {
		t.Errorf("read %d items, %v", len(read.Drift.Items), err)
	}
	if NewDrift("a", nil) != nil || !(*Drift)(nil).SameAs(nil) || d.SameAs(nil) {
		t.Error("no drift is nil")
	}
}
