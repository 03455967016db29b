// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab/snapshot"
)

const trustDir = "/etc/noderefit/trust.d/"

// signer is a key: a file with its private half, and the text of its public one.
type signer struct{ file, public string }

func (tr *tree) signer(name string) signer {
	tr.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	tr.must(err)
	half := func(kind string, der []byte, err error) string {
		tr.must(err)
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	s := signer{filepath.Join(tr.docs, name+".key"), half("PUBLIC KEY", der, err)}
	der, err = x509.MarshalPKCS8PrivateKey(private)
	tr.must(os.WriteFile(s.file, []byte(half("PRIVATE KEY", der, err)), 0o600))
	return s
}

// rendered is the file of what a pool is rendered to from one document, with the signatures of these keys.
func (tr *tree) rendered(keys []signer, parts ...part) string {
	tr.Helper()
	return tr.renderedWith(keys, "{}", parts...)
}

// renderedWith is the same of a document with annotations.
func (tr *tree) renderedWith(keys []signer, annotations string, parts ...part) string {
	tr.Helper()
	source := tr.save(strings.Replace(doc("50-worker", parts...), `"name":"50-worker"`,
		`"name":"50-worker","labels":{"machineconfiguration.openshift.io/role":"worker"},"annotations":`+annotations, 1))
	render := func(files ...string) string {
		return run(tr.T, tr.docs, "machine-config-controller", append([]string{"render", "--pool", "worker"}, files...)...).ok(tr.T).stdout
	}
	text := render(source)
	if len(keys) > 0 {
		args := []string{"sign", "--rendered", tr.yaml(text)}
		for _, key := range keys {
			args = append(args, "--key", key.file)
		}
		unsigned := text
		text = render(source, tr.yaml(run(tr.T, tr.docs, "kubectl-refit", args...).ok(tr.T).stdout))
		if nameIn(unsigned) != nameIn(text) {
			tr.Fatalf("a signature made another name of %s: %s", nameIn(unsigned), nameIn(text))
		}
	}
	return text
}

// yaml writes a document in YAML, and returns its path.
func (tr *tree) yaml(text string) string {
	tr.Helper()
	file := tr.save(text)
	tr.must(os.Rename(file, file+".yaml"))
	return file + ".yaml"
}

// nameIn is the name of a rendered configuration.
func nameIn(text string) string {
	_, rest, _ := strings.Cut(text, "name: rendered-")
	name, _, _ := strings.Cut(rest, "\n")
	return "rendered-" + name
}

// takes applies a configuration in YAML.
func (tr *tree) takes(text string) {
	tr.Helper()
	tr.run("apply", "--os", "none", "--config", tr.yaml(text)).ok(tr.T)
	tr.committed(nameIn(text))
}

// unsigned checks that every verb refuses a document, says why, and touches nothing.
func (tr *tree) unsigned(text string, words ...string) {
	tr.Helper()
	before := tr.all()
	file := tr.yaml(text)
	words = append(words, "annotation noderefit.dev/signatures", strings.TrimSuffix(trustDir, "/"), nameIn(text))
	tr.run("apply", "--os", "none", "--config", file).is(tr.T, 3, words...)
	tr.run("stage", "--os", "none", "--config", file).is(tr.T, 3, words...)
	tr.same(before, tr.all(), snapshot.Untouched)
	r := tr.run("plan", "--desired", file)
	if r.code != 3 {
		tr.Errorf("plan exits with %d: %s", r.code, r.stderr)
	}
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			tr.Errorf("%q is not in what plan says: %s", word, r.stderr)
		}
	}
}

// What a host of trusted keys takes, and what it does not: the right key, a wrong one, none, one that was removed; the
// way back is always open.
func TestAHostTakesOnlyWhatATrustedKeySigned(t *testing.T) {
	tr := newTree(t)
	release, next, stranger := tr.signer("release"), tr.signer("next"), tr.signer("stranger")
	trusts := func(file string, key signer) part { return withFile(trustDir+file, key.public) }
	f := func(contents string) part { return withFile("/etc/f", contents) }

	// A host without the directory asks for nothing, also not of what brings the directory.
	open := tr.rendered(nil, f("open"))
	tr.takes(open)
	first := tr.rendered(nil, f("first"), trusts("release.pem", release))
	tr.takes(first)

	tr.unsigned(tr.rendered(nil, f("2"), trusts("release.pem", release)), "release.pem", "no signature", "kubectl refit sign")
	tr.unsigned(tr.rendered([]signer{stranger}, f("2"), trusts("release.pem", release)), "none by such a key")
	tr.unsigned(tr.rendered(nil, f("without a key")), "no signature")
	tr.unsigned(open, "no signature") // what the host had before, sent again
	tr.takes(first)                   // what it has
	signed := tr.rendered([]signer{stranger, release}, f("2"), trusts("release.pem", release))
	// The signature is of the content, whatever the name.
	tr.unsigned(strings.Replace(signed, "data:;base64,Mg==", "data:;base64,Mw==", 1), "no signature")
	tr.takes(signed)

	// Back to what nobody signed: a person on the host may, and the host itself. Then what was signed once counts again.
	tr.run("rollback").ok(t)
	tr.committed(nameIn(first))
	tr.takes(signed)

	// Another key comes, the old one goes: each by a signed configuration, judged by the keys before it.
	tr.unsigned(tr.rendered([]signer{next}, f("3"), trusts("next.pem", next)), "none by such a key")
	tr.unsigned(tr.rendered([]signer{release}, f("3"), withFile(trustDir+"next.pem", "x")), trustDir+"next.pem", "no PUBLIC KEY")
	turned := tr.rendered([]signer{release}, f("3"), trusts("next.pem", next))
	tr.takes(turned)
	tr.has(map[string]string{"etc/noderefit/trust.d/release.pem": "absent"})
	tr.unsigned(signed, "next.pem", "none by such a key") // the key that signed it is no longer trusted
	tr.takes(turned)                                      // what it has, which the keys that it has did not sign

	// The keys go by a signed configuration alone; after that nothing is asked for.
	tr.takes(tr.rendered([]signer{next}, f("4")))
	tr.takes(open)
}

// One signature is for the pool's configuration, whatever its nodes make of it. What values say, nobody signs: they get
// no further than to their places, and to no key.
func TestASignatureIsOfThePoolsConfigurationAndNotOfValues(t *testing.T) {
	tr := newTree(t)
	key := tr.signer("release")
	tr.put("etc/noderefit/trust.d/release.pem", key.public, 0o644)
	named := func(keys []signer, parts ...part) string {
		return tr.renderedWith(keys, `{"noderefit.dev/placeholders":"true"}`, parts...)
	}
	values := func(name string) string { return tr.values(map[string]string{"name": name, "values/file": "key"}) }
	apply := func(text, name string) result {
		return tr.run("apply", "--os", "none", "--config", tr.yaml(text), "--values", values(name))
	}
	address := withFile("/etc/f", "on @{hostname:name}\n")
	unsigned, signed := named(nil, address), named([]signer{key}, address)
	before := tr.all()
	apply(unsigned, "web-1").is(t, 3, "no signature")
	// The same text without values is another configuration, and so is one whose values stand elsewhere.
	apply(strings.Replace(signed, "noderefit.dev/placeholders:", "noderefit.dev/placed:", 1), "web-1").is(t, 3, "no signature")
	apply(signed, "web-1\nroot::0").is(t, 1, "name is not of the type hostname")
	tr.same(before, tr.all(), snapshot.Untouched)
	for _, name := range []string{"web-1", "web-2"} { // another value is an update, and needs no other signature
		apply(signed, name).ok(t)
		if got := tr.read("etc/f"); got != "on "+name+"\n" {
			t.Errorf("the file has %q", got)
		}
	}
	// Also what the author of a signed configuration left open to values is no key.
	for path, text := range map[string]string{
		trustDir + "next.pem":                "-----BEGIN PUBLIC KEY-----\n@{word:values/file}\n-----END PUBLIC KEY-----\n",
		trustDir + "@{word:values/file}.pem": key.public,
	} {
		apply(named([]signer{key}, address, withFile(path, text)), "web-1").is(t, 3, "a value of the node may not decide which keys")
	}
	// The key goes by a signed configuration, and then values alone get nothing more.
	tr.must(os.Remove(tr.path("etc/noderefit/trust.d/release.pem")))
	apply(signed, "web-3").is(t, 3, "the directory has no key")
	apply(signed, "web-2").ok(t) // what it has
}

// Ignition has written the same configuration before the agent is there, so a first boot is not judged. What comes after
// is.
func TestAFirstBootNeedsNoSignatureAndWhatFollowsDoes(t *testing.T) {
	tr := newTree(t)
	key := tr.signer("release")
	tr.put("etc/noderefit/trust.d/release.pem", key.public, 0o644)
	first := doc("rendered-worker-first", withFile("/etc/f", "1"))
	tr.put("etc/ignition-machine-config-encapsulated.json", first, 0o600)
	tr.run("firstboot", "--os", "none").ok(t)
	tr.committed("rendered-worker-first")
	tr.apply(first)
	tr.unsigned(tr.rendered(nil, withFile("/etc/f", "2")), "no signature")

	// A directory that others can write to trusts nobody.
	tr.must(os.Chmod(tr.path("etc/noderefit/trust.d"), 0o777))
	tr.unsigned(tr.rendered([]signer{key}, withFile("/etc/f", "2")), "users other than root can write")
	tr.must(os.Chmod(tr.path("etc/noderefit/trust.d"), 0o755))
	tr.takes(tr.rendered([]signer{key}, withFile("/etc/f", "2")))
}
