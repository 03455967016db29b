// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
)

// A delivery is of several files, of which some come, some change and some go. Cut at any point, the host has after the
// recovery of the next boot all of what was there before or all of what is new, and says that nothing has drifted.
func TestADeliveryThatIsCutIsOldOrNew(t *testing.T) {
	f := newFixture(t, everyKindA, everyKindB)
	start, err := copyTree(f.onA)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(start) })
	docs := t.TempDir()
	first := controllerConfig(t, docs, "first", "gone.example", "both.example..5000")
	second := controllerConfig(t, docs, "second", "both.example..5000", "new.example")
	if _, err := must(f.binary, start, "deliver", "--os", "none", "--config", first); err != nil {
		t.Fatal(err)
	}
	command := []string{"deliver", "--os", "none", "--config", second}
	s := &scenario{name: "deliver", start: start, command: command, again: command,
		from: side{config: "a", doc: f.docs["a"]}, to: side{config: "a", doc: f.docs["a"]}}
	points := s.prepare(t, f.binary)
	for _, mode := range []string{"kill", "error"} {
		for _, n := range selected(len(points)) {
			where := mode + " at " + points[n-1]
			root, r, err := s.cut(f.binary, mode, n)
			if err != nil {
				t.Errorf("%s: %v", where, err)
				continue
			}
			if _, err := must(f.binary, root, "recover"); err != nil {
				t.Errorf("%s, after %s: %v", where, r, err)
			}
			if left := f.drifts(t, root); len(left) > 0 {
				t.Errorf("%s: drift after the recovery: %v", where, left)
			}
			report(t, where, s.settled(f.binary, root))
			_ = os.RemoveAll(root)
		}
	}
}

// controllerConfig writes one with a CA of its own in each of its fields, and these registries.
func controllerConfig(t *testing.T, dir, name string, registries ...string) string {
	t.Helper()
	authority := func(of string) []byte {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name + of}}
		der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	bundles := []map[string]any{}
	for _, r := range registries {
		bundles = append(bundles, map[string]any{"file": r, "data": authority(r)})
	}
	data, err := json.Marshal(map[string]any{"kind": "ControllerConfig", "spec": map[string]any{
		"kubeAPIServerServingCAData": authority("kubelet"), "additionalTrustBundle": authority("bundle"),
		"imageRegistryBundleData": bundles}})
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, name+".json")
	if err := os.WriteFile(at, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}
