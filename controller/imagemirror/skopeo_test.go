// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/crypto/nacl/secretbox"
	"golang.org/x/crypto/scrypt"

	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/registries"
)

// Signatures are made and checked by the real skopeo, in a real registry, with the files of a MachineConfig that is made
// here: by the right key, by another one, by none, and from a mirror; GPG's by what a MachineConfig brought beneath.
func TestSkopeoAcceptsWhatIsSignedAndNothingElse(t *testing.T) {
	s := newSigning(t)
	right, wrong := s.sigstoreKey("right"), s.sigstoreKey("wrong")
	gpg, other := s.gpgKey("right"), s.gpgKey("wrong")
	at := s.registry
	s.write("/registries.d/gpg.yaml", "docker:\n  "+at+"/gpg:\n    lookaside: file://"+s.dir+"/lookaside\n"+
		"    lookaside-staging: file://"+s.dir+"/lookaside\n    sigstore: file://"+s.dir+"/lookaside\n"+
		"    sigstore-staging: file://"+s.dir+"/lookaside\n")
	s.write("/registries.d/signing.yaml", "docker:\n  "+at+":\n    use-sigstore-attachments: true\n")
	s.push("os/signed:v1", "--sign-by-sigstore-private-key="+right.private, "--sign-passphrase-file="+s.dir+"/passphrase")
	s.push("os/other:v1", "--sign-by-sigstore-private-key="+wrong.private, "--sign-passphrase-file="+s.dir+"/passphrase")
	s.push("os/unsigned:v1")
	s.push("mirror/os:v1", "--sign-by-sigstore-private-key="+right.private, "--sign-passphrase-file="+s.dir+"/passphrase")
	s.push("gpg/signed:v1", "--sign-by="+gpg)
	s.push("gpg/other:v1", "--sign-by="+other)
	s.push("gpg/unsigned:v1")
	s.push("free:v1")

	image := &configv1.Image{ObjectMeta: metav1.ObjectMeta{Name: imageName}}
	image.Spec.RegistrySources = configv1.RegistrySources{InsecureRegistries: []string{at},
		AllowedRegistries: []string{at + "/os", at + "/gpg", "os.invalid", at + "/free"}}
	mirrored := clusterImagePolicy("mirrored", right.public, "os.invalid/os")
	p := mirrored.object.(*configv1.ClusterImagePolicy)
	p.Spec.Policy.SignedIdentity = &configv1.PolicyIdentity{MatchPolicy: configv1.IdentityMatchPolicyRemapIdentity,
		PolicyMatchRemapIdentity: &configv1.PolicyMatchRemapIdentity{
			Prefix: "os.invalid", SignedPrefix: configv1.IdentityRepositoryPrefix(at + "/mirror")}}
	beneath := config(t, "50-policy", "worker", registries.PolicyPath, `{"default":[{"type":"insecureAcceptAnything"}],`+
		`"transports":{"docker":{"`+at+`/gpg":[{"type":"signedBy","keyType":"GPGKeys","keyPath":"`+s.dir+`/right.gpg"}]}}}`)
	out := decide([]*origin{
		settingsOf(image), clusterImagePolicy("os", right.public, configv1.ImageScope(at+"/os")), clusterPolicy(p),
		idms("m", "os.invalid", configv1.NeverContactSource, configv1.ImageMirror(at+"/mirror")),
	}, &source.World{Pools: []*mcfgv1.MachineConfigPool{pool("worker", "worker")}, Configs: []*mcfgv1.MachineConfig{beneath}}, "v1")
	if len(out.write) != 1 {
		t.Fatalf("wrote %s", names(out.write))
	}
	c, err := machineconfig.Parse(out.write[0])
	if err != nil {
		t.Fatal(err)
	}
	s.remove("/registries.d/signing.yaml")
	s.write("/policy.json", string(source.Contents(c, registries.PolicyPath)))
	s.write("/registries.conf", string(source.Contents(c, registries.Path)))
	s.write("/registries.d/sigstore-registries.yaml", string(source.Contents(c, registries.AttachmentsPath)))

	digest := s.digest("mirror/os:v1")
	for image, want := range map[string]string{ // "" where the image is accepted
		at + "/os/signed:v1":      "",
		at + "/os/other:v1":       "cryptographic signature verification failed",
		at + "/os/unsigned:v1":    "A signature was required, but no signature exists",
		"os.invalid/os@" + digest: "",
		at + "/gpg/signed:v1":     "",
		at + "/gpg/other:v1":      "Invalid GPG signature",
		at + "/gpg/unsigned:v1":   "A signature was required, but no signature exists",
		at + "/free:v1":           "",
		at + "/mirror/os:v1":      "is rejected by policy",
	} {
		if got := s.copyHere(image); want == "" && got != "" || want != "" && !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}

type sigstoreKey struct{ private, public string }

type signing struct {
	t        *testing.T
	dir      string
	registry string
	skopeo   string
}

// newSigning starts a registry, and makes an image to sign.
func newSigning(t *testing.T) *signing {
	t.Helper()
	skopeo := os.Getenv("SKOPEO")
	if skopeo == "" {
		t.Skip("SKOPEO is not set: CONTRIBUTING.md says which skopeo checks signatures of sigstore")
	}
	for _, program := range []string{skopeo, "docker-registry", "gpg"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "sign-") //nolint:usetesting // gpg's agent takes no long names of sockets
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := listener.Addr().(*net.TCPAddr)
	_ = listener.Close()
	s := &signing{t: t, dir: dir, registry: fmt.Sprintf("localhost:%d", at.Port), skopeo: skopeo}
	s.write("/passphrase", "secret")
	s.write("/any.json", `{"default":[{"type":"insecureAcceptAnything"}]}`)
	s.write("/registry.yaml", fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s/storage}}\n"+
		"http: {addr: %s}\n", dir, at))
	s.makeImage()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "docker-registry", "serve", dir+"/registry.yaml")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		s.try("gpgconf", "--kill", "all")
		_ = os.RemoveAll(dir)
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", at.String()); err == nil {
			_ = c.Close()
			return s
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func (s *signing) write(name, text string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(s.dir+name), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.dir+name, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *signing) remove(name string) {
	s.t.Helper()
	if err := os.Remove(s.dir + name); err != nil {
		s.t.Fatal(err)
	}
}

// makeImage writes an image without layers, in the OCI layout.
func (s *signing) makeImage() {
	s.t.Helper()
	blob := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		s.write("/image/blobs/sha256/"+hex.EncodeToString(sum[:]), text)
		return fmt.Sprintf(`"digest":"sha256:%x","size":%d`, sum, len(text))
	}
	config := blob(`{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":[]}}`)
	manifest := blob(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",` +
		`"config":{"mediaType":"application/vnd.oci.image.config.v1+json",` + config + `},"layers":[]}`)
	s.write("/image/oci-layout", `{"imageLayoutVersion":"1.0.0"}`)
	s.write("/image/index.json", `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",`+
		manifest+`}]}`)
}

// try runs a program and returns its output, and whether it failed.
func (s *signing) try(program string, args ...string) (string, bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "GNUPGHOME="+s.dir, "HOME="+s.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err != nil
}

func (s *signing) run(program string, args ...string) string {
	s.t.Helper()
	out, failed := s.try(program, args...)
	if failed {
		s.t.Fatalf("%s %s: %s", program, args, out)
	}
	return out
}

func (s *signing) push(name string, args ...string) {
	s.t.Helper()
	s.run(s.skopeo, append([]string{"--policy=" + s.dir + "/any.json", "--registries.d=" + s.dir + "/registries.d", "copy",
		"--dest-tls-verify=false", "oci:" + s.dir + "/image", "docker://" + s.registry + "/" + name}, args...)...)
}

func (s *signing) digest(name string) string {
	s.t.Helper()
	return strings.TrimSpace(s.run(s.skopeo, "inspect", "--tls-verify=false", "--format={{.Digest}}",
		"docker://"+s.registry+"/"+name))
}

// copyHere copies an image as a host does that is to run it. It returns why the image is refused, and "" if it is not.
func (s *signing) copyHere(image string) string {
	out, failed := s.try(s.skopeo, "--policy="+s.dir+"/policy.json", "--registries.d="+s.dir+"/registries.d",
		"--registries-conf="+s.dir+"/registries.conf", "copy", "--remove-signatures", "docker://"+image, "dir:"+s.dir+"/copy")
	if !failed {
		return ""
	}
	return out
}

// gpgKey makes a key of GPG and returns its fingerprint. NAME.gpg is the public one.
func (s *signing) gpgKey(name string) string {
	s.t.Helper()
	s.run("gpg", "--batch", "--passphrase=", "--quick-generate-key", name+"@example.com", "ed25519", "sign", "never")
	s.run("gpg", "--batch", "--output", s.dir+"/"+name+".gpg", "--export", name+"@example.com")
	for line := range strings.Lines(s.run("gpg", "--batch", "--with-colons", "--list-keys", name+"@example.com")) {
		if fields := strings.Split(line, ":"); fields[0] == "fpr" {
			return fields[9]
		}
	}
	s.t.Fatal("there is no fingerprint")
	return ""
}

// sigstoreKey makes a key as cosign does: the private one is encrypted by scrypt and secretbox.
func (s *signing) sigstoreKey(name string) sigstoreKey {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		s.t.Fatal(err)
	}
	salt, nonce := make([]byte, 32), [24]byte{}
	_, _ = rand.Read(salt)
	_, _ = rand.Read(nonce[:])
	const n, r, p = 32768, 8, 1
	derived, err := scrypt.Key([]byte("secret"), salt, n, r, p, 32)
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{
		"kdf":        map[string]any{"name": "scrypt", "params": map[string]int{"N": n, "r": r, "p": p}, "salt": salt},
		"cipher":     map[string]any{"name": "nacl/secretbox", "nonce": nonce[:]},
		"ciphertext": secretbox.Seal(nil, private, &nonce, (*[32]byte)(derived)),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("/"+name+".key", string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED COSIGN PRIVATE KEY", Bytes: body})))
	return sigstoreKey{s.dir + "/" + name + ".key",
		string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))}
}
