// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/transaction"
)

func fileConfig(t *testing.T, name, contents string) *machineconfig.Config {
	t.Helper()
	cfg, err := machineconfig.Parse(&mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: mcfgv1.MachineConfigSpec{Config: runtime.RawExtension{Raw: []byte(
			`{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/test.conf","mode":420,` +
				`"contents":{"source":"data:,` + contents + `"}}]}}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestNodeThatIsNotHeldIsNotUpdated(t *testing.T) {
	dir := t.TempDir()
	h, err := Open(dir, OSNone, func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.root.MkdirAll(transaction.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Apply(t.Context(), fileConfig(t, "a", "a"), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	before := h.Status(t.Context())
	if err := transaction.ReportNodeHeld(h.root, false, "somebody uncordoned it"); err != nil {
		t.Fatal(err)
	}
	b := fileConfig(t, "b", "b")
	contents := func() string {
		data, err := os.ReadFile(filepath.Join(dir, "etc/test.conf"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	_, err = h.Apply(t.Context(), b, ApplyOptions{Cluster: true})
	if !errors.As(err, new(*Refused)) || !strings.Contains(err.Error(), "somebody uncordoned it") {
		t.Errorf("apply: %v", err)
	}
	if after := h.Status(t.Context()); !reflect.DeepEqual(before, after) || contents() != "a" {
		t.Errorf("left behind: %+v, was %+v; the file has %q", after, before, contents())
	}
	if err := transaction.ReportNodeHeld(h.root, true, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Apply(t.Context(), b, ApplyOptions{Cluster: true}); err != nil || contents() != "b" {
		t.Errorf("apply once it is held again: %v, the file has %q", err, contents())
	}
}

func TestPersonsApplyAsksNoHead(t *testing.T) {
	h, err := Open(t.TempDir(), OSNone, func(string, string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := h.root.MkdirAll(transaction.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := transaction.ReportNodeHeld(h.root, false, "somebody uncordoned it"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Apply(t.Context(), fileConfig(t, "a", "a"), ApplyOptions{}); err != nil {
		t.Error(err)
	}
}
