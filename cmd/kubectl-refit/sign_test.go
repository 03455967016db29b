// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/signature"
)

// signs is a folder with a rendered configuration, one that was changed, a document, and a key.
func signs(t *testing.T) (digest string, key ed25519.PrivateKey) {
	t.Helper()
	t.Chdir(t.TempDir())
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("release.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	put("empty", nil)
	put("source.yaml", []byte(`{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": {"name": "50-a"}, "spec": {"kernelArguments": ["a=1"]}}`))
	docs, _, err := machineconfig.Read(nil, "source.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := machineconfig.Merge("worker", docs.Configs, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(c.Object)
	if err != nil {
		t.Fatal(err)
	}
	put("rendered.yaml", text)
	put("changed.yaml", bytes.ReplaceAll(text, []byte("a=1"), []byte("a=2")))
	return c.Digest, key
}

func TestWhatIsSignedIsTheContentAndNotTheName(t *testing.T) {
	digest, key := signs(t)
	made := ed25519.Sign(key, signature.Payload(digest))
	for name, data := range map[string][]byte{"raw.sig": made, "base64.sig": []byte(base64.StdEncoding.EncodeToString(made) + "\n")} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := signature.Document("worker", []string{signature.Line(digest, made)})
	for _, c := range []struct {
		args string
		code int
		out  string
		err  string
	}{
		{"--rendered rendered.yaml --key release.key", 0, want, "signed rendered-worker-" + digest[:32]},
		{"--rendered rendered.yaml --signature raw.sig", 0, want, "signed"},
		{"--rendered rendered.yaml --signature base64.sig", 0, want, "signed"},
		{"--rendered rendered.yaml --payload", 0, string(signature.Payload(digest)), ""},
		{"--rendered changed.yaml --key release.key", 1, "", "has another content than its name says"},
		{"--rendered source.yaml --key release.key", 1, "", `MachineConfig "50-a" is no rendered configuration`},
		{"--rendered rendered.yaml --key empty", 1, "", "empty: has no private key in PEM"},
		{"--rendered rendered.yaml --key gone", 1, "", "reading the key: open gone"},
		{"--rendered rendered.yaml --signature empty", 1, "", "empty is empty"},
		{"--rendered rendered.yaml", 2, "", "a private key is needed"},
		{"--rendered rendered.yaml worker --key release.key", 2, "", "leave out POOL"},
		{"--rendered rendered.yaml --payload --key release.key", 2, "", "leave out --key"},
		{"--key release.key", 2, "", "POOL, or --rendered FILE, is needed"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"sign"}, strings.Fields(c.args)...), &stdout, &stderr)
		if code != c.code || stdout.String() != c.out || !strings.Contains(stderr.String(), c.err) {
			t.Errorf("sign %s: %d\n%s%s", c.args, code, stdout.String(), stderr.String())
		}
	}
	if files, err := filepath.Glob("*"); err != nil || len(files) != 7 {
		t.Errorf("%v %v", files, err)
	}
}
