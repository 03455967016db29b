// SPDX-License-Identifier: Apache-2.0

package conformance

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
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/lab/snapshot"
)

const (
	kubeletCA   = "etc/kubernetes/kubelet-ca.crt"
	trustBundle = "etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt"
	registryCA  = "etc/docker/certs.d/registry.example:5000/ca.crt"
)

// authority is the certificate of a CA of that name, in PEM.
func authority(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// certificates is a ControllerConfig with these fields.
func (tr *tree) certificates(version string, spec obj) string {
	tr.Helper()
	out, err := json.Marshal(obj{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "ControllerConfig",
		"metadata": obj{"name": "machine-config-controller", "resourceVersion": version}, "spec": spec})
	tr.must(err)
	return tr.save(string(out))
}

func (tr *tree) deliver(version string, spec obj) result {
	tr.Helper()
	return tr.run("deliver", "--os", "none", "-o", "json", "--config", tr.certificates(version, spec))
}

// bytesOf is how a []byte stands in JSON.
func bytesOf(text string) any { return []byte(text) }

// What came by its own way is what counts: no plan sees the configuration's older contents as a change, no update and no
// rollback brings them back, and nothing of it is drift.
func TestCertificatesThatWereDeliveredOutlastConfigurations(t *testing.T) {
	tr := newTree(t)
	older, newer := authority(t, "older"), authority(t, "newer")
	a := doc("a", withFile("/"+kubeletCA, older), withFile("/etc/f", "1"))
	b := doc("b", withFile("/"+kubeletCA, authority(t, "another")), withFile("/etc/f", "2"))
	tr.deliver("1", obj{"kubeAPIServerServingCAData": bytesOf(newer)}).is(t, 5, "no committed configuration")
	tr.apply(a)
	record := tr.read("var/lib/machine-config-daemon/boot.json")

	r := tr.deliver("1", obj{"kubeAPIServerServingCAData": bytesOf(newer)}).ok(t)
	if !strings.Contains(r.stdout, "/"+kubeletCA) || strings.Contains(r.stdout+r.stderr, "BEGIN") {
		t.Errorf("it should name the path and show nothing of it: %s", r.stdout)
	}
	newest := "file 0644 0:0 " + newer
	tr.has(map[string]string{kubeletCA: newest})
	tr.verified()
	tr.committed("a")
	if tr.read("var/lib/machine-config-daemon/boot.json") != record {
		t.Error("the record was touched: the host had the configuration all along")
	}
	state := tr.all()
	tr.deliver("2", obj{"kubeAPIServerServingCAData": bytesOf(newer)}).ok(t)
	tr.apply(a, "--strict")
	tr.same(state, tr.all(), snapshot.Untouched)

	if p := tr.run("plan", "--desired", tr.save(b), "-o", "json").ok(t); strings.Contains(p.stdout, kubeletCA) {
		t.Errorf("the plan has what a MachineConfig says of it: %s", p.stdout)
	}
	for _, next := range []string{b, a, doc("c", withFile("/etc/f", "3"))} {
		tr.apply(next)
		tr.has(map[string]string{kubeletCA: newest})
		tr.verified()
	}
	tr.run("rollback", "--os", "none").ok(t)
	tr.has(map[string]string{kubeletCA: newest, "etc/f": "file 0644 0:0 1"})
	tr.verified()

	// What a boot brings back of before is replaced before anything reads it.
	tr.put(kubeletCA, older, 0o644)
	tr.run("verify").is(t, 4, kubeletCA)
	tr.run("recover").ok(t)
	tr.has(map[string]string{kubeletCA: newest})
	tr.verified()
	// So does a repair, and neither asks what the MachineConfig says.
	tr.put(kubeletCA, "mine", 0o644)
	tr.run("repair", "--os", "none").ok(t)
	tr.has(map[string]string{kubeletCA: newest})
}

// A field that is wrong keeps the file that was there, and everything else is delivered.
func TestCertificatesThatAreGarbageAreRefusedByTheirField(t *testing.T) {
	tr := newTree(t)
	tr.apply(doc("a", withFile("/etc/f", "1")))
	first, second := authority(t, "first"), authority(t, "second")
	tr.deliver("1", obj{"kubeAPIServerServingCAData": bytesOf(first), "additionalTrustBundle": bytesOf(first),
		"imageRegistryBundleData": []obj{{"file": "registry.example..5000", "data": bytesOf(first)}}}).ok(t)
	for name, spec := range map[string]obj{
		"spec.kubeAPIServerServingCAData: after 0 certificates": {"kubeAPIServerServingCAData": bytesOf("SECRET garbage")},
		"spec.kubeAPIServerServingCAData: block 2": {"kubeAPIServerServingCAData": bytesOf(
			second + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")},
		"spec.internalRegistryPullSecret: is no JSON": {"internalRegistryPullSecret": bytesOf("SECRET")},
		`spec.imageRegistryBundleUserData[0].file: "../../tmp"`: {"imageRegistryBundleUserData": []obj{
			{"file": "../../tmp", "data": bytesOf(second)}}},
	} {
		spec["cloudProviderCAData"] = bytesOf(second)
		spec["additionalTrustBundle"] = bytesOf(first)
		spec["imageRegistryBundleData"] = []obj{{"file": "registry.example..5000", "data": bytesOf(first)}}
		r := tr.deliver("2", spec)
		r.is(t, 1, "ControllerConfig machine-config-controller: "+name)
		if strings.Contains(r.stderr+r.stdout, "SECRET") {
			t.Errorf("contents are shown: %s%s", r.stdout, r.stderr)
		}
		tr.has(map[string]string{kubeletCA: "file 0644 0:0 " + first, trustBundle: "file 0644 0:0 " + first,
			registryCA: "file 0644 0:0 " + first,
			"etc/kubernetes/static-pod-resources/configmaps/cloud-config/ca-bundle.pem": "file 0644 0:0 " + second})
		tr.verified()
	}
	tr.deliver("3", obj{"additionalTrustBundle": bytesOf("garbage")}).is(t, 1, "spec.additionalTrustBundle")
	tr.has(map[string]string{trustBundle: "file 0644 0:0 " + first})
}

// What is no longer trusted goes; what only nobody says any more does not.
func TestCertificatesGoWithTheirEntry(t *testing.T) {
	tr := newTree(t)
	tr.put("etc/docker/certs.d/mine.example/ca.crt", "mine", 0o644)
	tr.put("etc/docker/certs.d/both.example/ca.crt", "an admin's", 0o600)
	config := authority(t, "in the configuration")
	tr.apply(doc("a", withFile("/"+trustBundle, config)))
	ca := authority(t, "ca")
	before := tr.take()
	tr.deliver("1", obj{"kubeAPIServerServingCAData": bytesOf(ca), "additionalTrustBundle": bytesOf(ca),
		"internalRegistryPullSecret": bytesOf(`{"auths":{}}`),
		"imageRegistryBundleData":    []obj{{"file": "registry.example..5000", "data": bytesOf(authority(t, "data"))}},
		"imageRegistryBundleUserData": []obj{{"file": "registry.example..5000", "data": bytesOf(ca)},
			{"file": "both.example", "data": bytesOf(ca)}},
	}).ok(t)
	secret := "etc/mco/internal-registry-pull-secret.json"
	tr.has(map[string]string{kubeletCA: "file 0644 0:0 " + ca, trustBundle: "file 0644 0:0 " + ca,
		registryCA: "file 0644 0:0 " + ca, secret: `file 0600 0:0 {"auths":{}}`})
	r := tr.deliver("2", obj{}).ok(t)
	if !strings.Contains(r.stdout, `"/`+registryCA+`"`) {
		t.Errorf("it does not name what went: %s", r.stdout)
	}
	tr.has(map[string]string{kubeletCA: "file 0644 0:0 " + ca, secret: `file 0600 0:0 {"auths":{}}`,
		trustBundle: "file 0644 0:0 " + config})
	for _, name := range []string{kubeletCA, secret} {
		tr.must(os.Remove(tr.path(name)))
	}
	tr.must(os.Remove(tr.path("etc/kubernetes")))
	tr.must(os.Remove(tr.path("etc/mco")))
	tr.same(before, tr.take(), snapshot.Content)
}
