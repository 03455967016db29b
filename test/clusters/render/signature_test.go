// SPDX-License-Identifier: Apache-2.0

package render

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/signature"
)

// signs applies what kubectl refit sign prints for a configuration of a pool.
func (w *world) signs(pool, digest string, key ed25519.PrivateKey) {
	w.t.Helper()
	made, err := signature.Sign(key, digest)
	w.must(err)
	document, err := yaml.YAMLToJSON([]byte(signature.Document(pool, []string{signature.Line(digest, made)})))
	w.must(err)
	_, err = w.MachineConfigs.MachineconfigurationV1().MachineConfigs().Patch(w.ctx, "99-"+pool+"-signatures",
		types.ApplyPatchType, document, metav1.PatchOptions{FieldManager: "people", Force: new(true)})
	w.must(err)
}

// digest is what a pool of one MachineConfig of this spec renders to.
func (w *world) digest(pool, path, contents string) string {
	w.t.Helper()
	source := &machineconfig.Document{Object: w.config("50-" + pool).DeepCopy()}
	source.Object.Spec = file(path, contents)
	c, _, err := machineconfig.Merge(pool, []*machineconfig.Document{source}, nil)
	w.must(err)
	return c.Digest
}

func heldUntilSigned(w *world) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	w.must(err)
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	w.must(err)
	der, err := x509.MarshalPKIXPublicKey(public)
	w.must(err)
	w.addPool("signed")
	w.put("50-signed", "signed", file("/etc/a", "1"))
	first := w.moved("signed", "")

	// What the pool has needs no signature; what it would get does.
	trusted := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	w.annotate("machineconfigpools", "signed", map[string]any{api.SignedByKey: trusted})
	w.put("50-signed", "signed", file("/etc/a", "2"))
	said := w.says("signed", pending, yes, api.SignedByKey, "no signature", "kubectl refit sign signed").Message
	second := regexp.MustCompile(`rendered-signed-[0-9a-f]{32}`).FindString(said)
	digest := w.digest("signed", "/etc/a", "2")
	if !machineconfig.NamedBy(second, digest) {
		w.t.Errorf("the pool waits for %q, and the digest is %s", said, digest)
	}
	w.signs("signed", digest, stranger)
	w.says("signed", pending, yes, "none by such a key")
	w.always("the pool stays", time.Second, func() (bool, any) {
		name := w.pool("signed").Spec.Configuration.Name
		return name == first, name
	})
	w.signs("signed", digest, key)
	if got := w.moved("signed", first); got != second {
		w.t.Fatalf("the pool has %s, want %s", got, second)
	}
	w.says("signed", pending, no)
	carried := func(name string) string { return w.config(name).Annotations[api.SignaturesKey] }
	if got := carried(second); !strings.HasPrefix(got, digest+" ") {
		w.t.Errorf("it carries %q", got)
	}

	// The signature of the next one comes first, in the document that had the last one. The last one keeps its own.
	w.signs("signed", w.digest("signed", "/etc/a", "3"), key)
	w.put("50-signed", "signed", file("/etc/a", "3"))
	third := w.moved("signed", second)
	if got := carried(second); !strings.HasPrefix(got, digest+" ") {
		w.t.Errorf("afterwards it carries %q", got)
	}

	// A pool without a key that can be read is held, and says so.
	w.annotate("machineconfigpools", "signed", map[string]any{api.SignedByKey: "release"})
	w.put("50-signed", "signed", file("/etc/a", "4"))
	w.says("signed", pending, yes, api.SignedByKey, "no PUBLIC KEY")
	if name := w.pool("signed").Spec.Configuration.Name; name != third {
		w.t.Errorf("the pool has %s", name)
	}
	w.annotate("machineconfigpools", "signed", map[string]any{api.SignedByKey: nil})
	w.moved("signed", third)
}
