// SPDX-License-Identifier: Apache-2.0

package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

var (
	digest = strings.Repeat("0a", 32)
	other  = strings.Repeat("0b", 32)
)

func pemOf(t *testing.T, kind string, der []byte, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func public(t *testing.T, key crypto.Signer) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	return pemOf(t, "PUBLIC KEY", der, err)
}

func private(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pemOf(t, "PRIVATE KEY", der, err)
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ofECDSA(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func ofRSA(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, rsaBits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func signed(t *testing.T, key crypto.Signer, digest string) string {
	t.Helper()
	made, err := Sign(key, digest)
	if err != nil {
		t.Fatal(err)
	}
	return Line(digest, made)
}

func TestWhatAKeySignedCountsForThatKeyAndThatDigestAlone(t *testing.T) {
	type signer struct {
		key  crypto.Signer
		file string
	}
	ed, ec, rs := newKey(t), ofECDSA(t), ofRSA(t)
	sec1, err := x509.MarshalECPrivateKey(ec)
	files := map[string]signer{
		"Ed25519":        {ed, private(t, ed)},
		"ECDSA":          {ec, private(t, ec)},
		"ECDSA by SEC 1": {ec, pemOf(t, "EC PRIVATE KEY", sec1, err)},
		"RSA":            {rs, private(t, rs)},
		"RSA by PKCS 1":  {rs, pemOf(t, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rs), nil)},
	}
	stranger, err := ParseKeys([]byte(public(t, newKey(t)) + public(t, ofECDSA(t))))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range files {
		t.Run(name, func(t *testing.T) {
			signer, err := ParseSigner([]byte(f.file))
			if err != nil {
				t.Fatal(err)
			}
			keys, err := ParseKeys([]byte("# of the release\n" + public(t, newKey(t)) + public(t, f.key)))
			if err != nil || len(keys) != 2 {
				t.Fatalf("%d keys, %v", len(keys), err)
			}
			line := signed(t, signer, digest)
			raw := strings.Fields(line)[1]
			for what, c := range map[string]struct {
				keys   []Key
				digest string
				texts  []string
				want   string // words of the answer, "" for a signature that counts
			}{
				"it counts":               {keys, digest, []string{line}, ""},
				"among others":            {keys, digest, []string{"what is this", other + " AAAA\n" + line + "\n"}, ""},
				"another key":             {stranger, digest, []string{line}, "1 signature(s), and none by such a key"},
				"no key":                  {nil, digest, []string{line}, "none by such a key"},
				"none":                    {keys, digest, nil, "it has no signature"},
				"of another digest":       {keys, other, []string{line}, "it has no signature"},
				"with another's digest":   {keys, other, []string{other + " " + raw}, "none by such a key"},
				"without its digest":      {keys, digest, []string{raw}, "1 words"},
				"not in base64":           {keys, digest, []string{digest + " !"}, "not in base64"},
				"with a digest cut short": {keys, digest, []string{digest[:32] + " " + raw}, "no digest of 64 hex digits"},
			} {
				why := Missing(c.keys, c.digest, c.texts...)
				if c.want == "" && why != "" || !strings.Contains(why, c.want) || c.want != "" && why == "" {
					t.Errorf("%s: %q, want %q", what, why, c.want)
				}
			}
		})
	}
}

func TestKeysThatCanNotCountAreRefused(t *testing.T) {
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, want string }{
		"nothing":          {"", "no PUBLIC KEY in PEM"},
		"a private key":    {private(t, newKey(t)), "has a PRIVATE KEY where a PUBLIC KEY is needed"},
		"a short RSA key":  {public(t, short), "RSA key of 1024 bits"},
		"not a key":        {pemOf(t, "PUBLIC KEY", []byte("x"), nil), "asn1"},
		"one of two wrong": {public(t, newKey(t)) + pemOf(t, "CERTIFICATE", []byte("x"), nil), "has a CERTIFICATE"},
	} {
		if keys, err := ParseKeys([]byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) || keys != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct{ file, want string }{
		"nothing":       {"", "no private key in PEM"},
		"a public key":  {public(t, newKey(t)), "has a PUBLIC KEY where a PRIVATE KEY is needed"},
		"an encrypted":  {pemOf(t, "ENCRYPTED SIGSTORE PRIVATE KEY", []byte("x"), nil), "--payload"},
		"a short RSA":   {private(t, short), "RSA key of 1024 bits"},
		"not a key":     {pemOf(t, "PRIVATE KEY", []byte("x"), nil), "asn1"},
		"a broken SEC1": {pemOf(t, "EC PRIVATE KEY", []byte("x"), nil), "x509"},
	} {
		if _, err := ParseSigner([]byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARenderedConfigurationCarriesItsOwnSignaturesAndKeepsThem(t *testing.T) {
	name := "rendered-worker-" + digest[:32]
	one, two, alien := Line(digest, []byte("one")), Line(digest, []byte("two")), Line(other, []byte("x"))
	for what, c := range map[string]struct {
		has         string
		annotations []string
		want        string
	}{
		"none":                     {"", []string{alien, "garbage"}, ""},
		"new ones":                 {"", []string{alien + "\n" + one, " " + two + "\n\n"}, one + "\n" + two},
		"those that it had stay":   {one, []string{two}, one + "\n" + two},
		"also when nobody has any": {one, nil, one},
		"each once":                {one, []string{one, one}, one},
	} {
		if got := Carried(name, c.has, c.annotations); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	var many []string
	for i := range 100 {
		many = append(many, Line(digest, []byte{byte(i)}))
	}
	if got := Carried(name, "", many); strings.Count(got, "\n")+1 != most {
		t.Errorf("an annotation has %d lines", strings.Count(got, "\n")+1)
	}
}

func TestADocumentOfSignaturesIsOneMachineConfigWithoutContent(t *testing.T) {
	content := &machineconfig.Document{Object: &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: "50-a"}, Spec: mcfgv1.MachineConfigSpec{KernelArguments: []string{"a=1"}}}}
	before, _, err := machineconfig.Merge("worker", []*machineconfig.Document{content}, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{Line(before.Digest, []byte("one")), Line(before.Digest, []byte("two"))}
	docs, warnings, err := machineconfig.Read(nil, write(t, Document("worker", lines)))
	if err != nil || len(warnings) > 0 || len(docs.Configs) != 1 {
		t.Fatalf("%v %v %+v", err, warnings, docs)
	}
	docs.Configs = append(docs.Configs, content)
	after, _, err := machineconfig.Merge("worker", docs.Configs, nil)
	if err != nil || after.Name != before.Name {
		t.Fatalf("%v: %s became %s", err, before.Name, after.Name)
	}
	Carry(after.Object, docs)
	if got := after.Object.Annotations[api.SignaturesKey]; got != strings.Join(lines, "\n") {
		t.Errorf("it carries %q", got)
	}
}

// host is a trust directory.
type host struct {
	files   map[string]string // nil: there is no directory
	fails   error
	exposed string
}

func (h host) ReadDir(string) (names []string, err error) {
	if h.files == nil && h.fails == nil {
		return nil, &fs.PathError{Op: "open", Path: Dir, Err: fs.ErrNotExist}
	}
	for name := range h.files {
		names = append(names, name)
	}
	return names, h.fails
}

func (h host) ReadFile(name string) ([]byte, error) {
	return []byte(h.files[strings.TrimPrefix(name, Dir+"/")]), nil
}

func (h host) Exposed(name string) string {
	if strings.HasPrefix(name, h.exposed) {
		return h.exposed
	}
	return ""
}

func TestWhatAHostRefuses(t *testing.T) {
	key, strange := newKey(t), newKey(t)
	line := signed(t, key, digest)
	release := map[string]string{"release.pem": public(t, key)}
	brings := func(f machineconfig.File) []machineconfig.File { return []machineconfig.File{f} }
	const none = "nothing"
	for name, c := range map[string]struct {
		host   host
		text   string
		former bool
		files  []machineconfig.File
		want   string
	}{
		"no directory":            {want: none},
		"signed":                  {host: host{files: release, exposed: none}, text: line, want: none},
		"signed by one of two":    {host: host{files: map[string]string{"old.pub": public(t, strange), "release.pem": public(t, key)}, exposed: none}, text: line, want: none},
		"unsigned":                {host: host{files: release, exposed: none}, want: "by a key in " + Dir + " (release.pem): it has no signature; sign it with kubectl refit sign"},
		"signed by a stranger":    {host: host{files: release, exposed: none}, text: signed(t, strange, digest), want: "none by such a key"},
		"the key is gone":         {host: host{files: map[string]string{"next.pem": public(t, strange)}, exposed: none}, text: line, want: "none by such a key"},
		"no key":                  {host: host{files: map[string]string{}, exposed: none}, text: line, want: "the directory has no key"},
		"no file of a key's name": {host: host{files: map[string]string{"README": public(t, key), ".release.pem": public(t, key), "release.pem~": public(t, key)}, exposed: none}, text: line, want: "the directory has no key"},
		"a key that is none":      {host: host{files: map[string]string{"release.pem": "x"}, exposed: none}, text: line, want: "not used: release.pem: has no PUBLIC KEY"},
		"one key that is none":    {host: host{files: map[string]string{"a.pem": "x", "release.pem": public(t, key)}, exposed: none}, text: line, want: none},
		"others write the file":   {host: host{files: release, exposed: Dir + "/release.pem"}, text: line, want: "release.pem: users other than root can write"},
		"others write above":      {host: host{files: release, exposed: "/etc/noderefit"}, text: line, want: "users other than root can write to /etc/noderefit"},
		"it can't be read":        {host: host{fails: fs.ErrPermission, exposed: none}, text: line, want: "can't read the keys"},
		"an older digest":         {host: host{files: release, exposed: none}, text: line, former: true, want: "render it again"},
		"keys that it brings":     {files: brings(machineconfig.File{Path: Dir + "/new.pem", Mode: 0o644, Contents: []byte(public(t, key))}), want: none},
		"other files there":       {files: brings(machineconfig.File{Path: Dir + "/README", Mode: 0o644, Contents: []byte("x")}), want: none},
		"a file that is no key":   {files: brings(machineconfig.File{Path: Dir + "/new.pem", Mode: 0o644, Contents: []byte("x")}), want: Dir + "/new.pem: has no PUBLIC KEY in PEM: the host would accept no later configuration"},
		"a key by reference":      {files: brings(machineconfig.File{Path: Dir + "/new.pem", Mode: 0o644, Reference: &machineconfig.Reference{}}), want: "has to have its contents"},
		"a key that all write":    {files: brings(machineconfig.File{Path: Dir + "/new.pem", Mode: 0o666, Contents: []byte(public(t, key))}), want: "other than root could write"},
	} {
		cfg := &machineconfig.Config{Name: "rendered-worker-" + digest[:32], Digest: digest, Files: c.files,
			Object: &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{api.SignaturesKey: c.text}}}}
		if c.former {
			cfg.Former = digest
		}
		if why := Refusal(c.host, cfg); (why == "") != (c.want == none) || c.want != none && !strings.Contains(why, c.want) {
			t.Errorf("%s: %q, want %q", name, why, c.want)
		}
	}
}

// What a key signs is the pool's configuration. The digest of what a node made of it is nobody's, and the values that a
// node has may not choose the keys.
func TestOfAConfigurationWithValuesThePoolsIsSigned(t *testing.T) {
	key := newKey(t)
	trusting := host{files: map[string]string{"release.pem": public(t, key)}, exposed: ""}
	made := strings.Repeat("0c", 32)
	filled := func(f machineconfig.File) []machineconfig.File {
		f.Path, f.Mode, f.FromValues = Dir+"/new.pem", 0o644, true
		return []machineconfig.File{f}
	}
	for name, c := range map[string]struct {
		host     host
		template string
		text     string
		files    []machineconfig.File
		want     string
	}{
		"the pool's is signed":    {host: trusting, template: digest, text: signed(t, key, digest), want: ""},
		"the node's own is":       {host: trusting, template: digest, text: signed(t, key, made), want: "it has no signature"},
		"without values":          {host: trusting, text: signed(t, key, made), want: ""},
		"a key by a value":        {host: host{fails: fs.ErrNotExist, exposed: ""}, template: digest, files: filled(machineconfig.File{Contents: []byte(public(t, key))}), want: "a value of the node"},
		"a signed key by a value": {host: trusting, template: digest, text: signed(t, key, digest), files: filled(machineconfig.File{Contents: []byte(public(t, key))}), want: "a value of the node"},
	} {
		cfg := &machineconfig.Config{Name: "rendered-worker-" + digest[:32] + "+0a0b0c0d", Digest: made, Template: c.template, Files: c.files,
			Object: &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{api.SignaturesKey: c.text}}}}
		if why := Refusal(c.host, cfg); (why == "") != (c.want == "") || c.want != "" && !strings.Contains(why, c.want) {
			t.Errorf("%s: %q, want %q", name, why, c.want)
		}
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "signatures.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
