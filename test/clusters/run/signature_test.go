// SPDX-License-Identifier: Apache-2.0

package run

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/signature"
	"github.com/noderefit/noderefit/test/lab/fakehost"
)

// trusts makes the host demand signatures by a new key, which it returns.
func (n *node) trusts() ed25519.PrivateKey {
	n.t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	n.must(err)
	der, err := x509.MarshalPKIXPublicKey(public)
	n.must(err)
	dir := n.t.TempDir()
	n.must(os.MkdirAll(filepath.Join(dir, signature.Dir), 0o755))
	n.must(os.WriteFile(filepath.Join(dir, signature.Dir, "release.pem"),
		pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644))
	root, err := files.Open(dir)
	n.must(err)
	n.t.Cleanup(func() { n.must(root.Close()) })
	n.host.Change(func(s *fakehost.Script) { s.Trust = root })
	return private
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// sign does what the render controller does once somebody has signed a configuration.
func (n *node) sign(config string, key ed25519.PrivateKey) {
	n.t.Helper()
	mcs := n.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	mc, err := mcs.Get(n.ctx(), config, metav1.GetOptions{})
	n.must(err)
	cfg, err := machineconfig.Parse(machineconfig.Unfilled(mc))
	n.must(err)
	made, err := signature.Sign(key, cfg.Digest)
	n.must(err)
	patch := `{"metadata":{"annotations":{"` + api.SignaturesKey + `":"` + signature.Line(cfg.Digest, made) + `"}}}`
	_, err = mcs.Patch(n.ctx(), config, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	n.must(err)
}

func TestANodeServesUntilItsConfigurationIsSigned(t *testing.T) {
	n := newNode(t)
	key := n.trusts()
	b := n.render([]string{"b=1"}, "b")
	n.desire(b)
	refused := func(words ...string) {
		t.Helper()
		o := n.wait("refused", func(_ *corev1.Node, a api.Node) bool {
			for _, word := range words {
				if !strings.Contains(a.Reason, word) {
					return false
				}
			}
			return a.State == api.Unreconcilable
		})
		if o.Spec.Unschedulable {
			t.Error("the node was cordoned for it")
		}
	}
	refused(b, signature.Dir, "release.pem", "no signature", "kubectl refit sign")
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	n.must(err)
	n.sign(b, stranger)
	refused("none by such a key")
	if c := n.host.Counts(); c[fakehost.Stage]+c[fakehost.Apply] != 0 || n.host.Boots() != 0 {
		t.Errorf("%v, %d boots", c, n.host.Boots())
	}
	n.sign(b, key)
	n.waitState(api.Done, b)

	// Another one is refused again, and the way back to what the node has is open.
	c := n.render([]string{"c=1"}, "c")
	n.desire(c)
	refused(c, "no signature")
	n.desire(b)
	n.waitState(api.Done, b)
}
