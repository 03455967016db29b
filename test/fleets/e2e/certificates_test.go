// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// authority is the certificate of a CA of that name, in PEM.
func authority(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// emptyControllerConfig is the smallest that its definition takes: what is nothing has to be null, and an empty line where
// it may not be. kubectl apply would leave out what is null.
const emptyControllerConfig = `{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "ControllerConfig",
"metadata": {"name": "machine-config-controller"}, "spec": {"additionalTrustBundle": null, "baseOSContainerImage": "",
"cloudProviderCAData": null, "cloudProviderConfig": "", "clusterDNSIP": "10.0.0.10", "images": {}, "ipFamilies": "IPv4",
"kubeAPIServerServingCAData": "Cg==", "osImageURL": "", "releaseImage": "", "rootCAData": "Cg==", "proxy": null,
"network": null, "dns": null, "infra": null, "internalRegistryPullSecret": null}}`

// certify puts the CA of the kubelet's clients and that of a registry into the ControllerConfig; "" for none.
func certify(ctx context.Context, t *testing.T, f *fleet.Fleet, kubelet, registry string) {
	t.Helper()
	registries := []map[string]any{}
	if registry != "" {
		registries = append(registries, map[string]any{"file": "registry.example..5000", "data": []byte(registry)})
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"kubeAPIServerServingCAData": []byte(kubelet), "imageRegistryBundleData": registries}})
	must(t, err)
	_, err = f.Kubectl(ctx, "patch", "controllerconfig", api.ControllerConfig, "--type=merge", "-p", string(patch))
	must(t, err)
}

// A CA that is renewed reaches the hosts of a paused pool, and a cordoned node, without a drain, a reboot or a new
// configuration; nothing brings the old one back; and garbage reaches nobody.
func TestCertificatesAreRenewedWhileThePoolIsPaused(t *testing.T) {
	ctx, f := start(t, fleet.Options{Hosts: []string{"w0"}})
	ctx, cancel := context.WithTimeoutCause(ctx, 3*patience, errors.New("the scenario takes too long"))
	defer cancel()
	w0 := f.Node("w0")
	const kubelet, registry = "/etc/kubernetes/kubelet-ca.crt", "/etc/docker/certs.d/registry.example:5000/ca.crt"
	read := func(name string) string {
		text, err := w0.Output(ctx, "bash", "-c", "cat "+name+" 2>/dev/null || true")
		must(t, err)
		return text
	}
	has := func(name, want string) {
		t.Helper()
		began := time.Now()
		must(t, fleet.Until(ctx, name+" is renewed", func(context.Context) (bool, string, error) {
			got := read(name)
			return strings.TrimSpace(got) == strings.TrimSpace(want), got, nil
		}))
		t.Logf("%s was there after %s", name, time.Since(began).Round(100*time.Millisecond))
	}
	clean := func() {
		t.Helper()
		out, err := w0.Output(ctx, "/var/lib/machine-config-daemon/bin/machine-config-daemon", "verify")
		if err != nil {
			t.Errorf("verify: %v: %s", err, out)
		}
	}
	says := func() (api.Node, *corev1.Node) {
		t.Helper()
		s, n, err := f.Says(ctx, "w0")
		must(t, err)
		return s, n
	}
	inConfig, first, second := authority(t, "in a configuration"), authority(t, "first"), authority(t, "second")

	// A MachineConfig has the file as well, as OpenShift's templates do.
	_, at := change(ctx, t, f, strings.Replace(fleet.WorkerFile("10-kubelet-ca", "x"), "/etc/10-kubelet-ca.conf", kubelet, 1))
	must(t, f.WaitAt(ctx, at, "w0"))
	_, err := f.Kubectl(ctx, "patch", "mcp", "worker", "--type=merge", "-p", `{"spec":{"paused":true}}`)
	must(t, err)
	_, held := change(ctx, t, f, strings.ReplaceAll(fleet.WorkerFile("10-kubelet-ca", "PEM"), "/etc/10-kubelet-ca.conf", kubelet))
	boots := w0.Boots()
	before, object := says()

	must(t, f.MachineConfigs.MachineconfigurationV1().RESTClient().Post().Resource("controllerconfigs").
		SetHeader("Content-Type", "application/json").Body([]byte(emptyControllerConfig)).Do(ctx).Error())
	certify(ctx, t, f, first, second)
	has(kubelet, first)
	has(registry, second)
	must(t, f.WaitNodeSays(ctx, "w0", "it has the certificates", func(s api.Node, _ *corev1.Node) bool {
		return s.Synced != "" && s.Undelivered == nil
	}))
	told(ctx, t, f, "w0", "CertificatesDelivered", kubelet)
	clean()
	after, now := says()
	if after.Current != before.Current || after.Desired != before.Desired || after.State != api.Done || after.Drift != nil ||
		now.Spec.Unschedulable || object.Spec.Unschedulable || w0.Boots() != boots {
		t.Errorf("something else changed: %+v, was %+v; %d boots", after, before, w0.Boots()-boots)
	}

	// On a cordoned node too, and at once.
	_, err = f.Kubectl(ctx, "cordon", "w0")
	must(t, err)
	certify(ctx, t, f, second, "")
	has(kubelet, second)
	has(registry, "")
	_, err = f.Kubectl(ctx, "uncordon", "w0")
	must(t, err)

	// Garbage is refused where people look, and the old file stays.
	certify(ctx, t, f, "garbage", second)
	explains(ctx, t, f, "w0", progress.Undelivered, "spec.kubeAPIServerServingCAData")
	told(ctx, t, f, "w0", "CertificatesNotDelivered", "spec.kubeAPIServerServingCAData")
	has(registry, second)
	has(kubelet, second)
	if s, _ := says(); s.State != api.Done {
		t.Errorf("the node is %s: %s", s.State, s.Reason)
	}
	certify(ctx, t, f, second, second)
	explains(ctx, t, f, "w0", progress.Paused, "")

	// Neither the update that was held back, nor going back from it, brings older contents.
	_, err = f.Kubectl(ctx, "patch", "mcp", "worker", "--type=merge", "-p", `{"spec":{"paused":false}}`)
	must(t, err)
	must(t, f.WaitAt(ctx, held, "w0"))
	has(kubelet, second)
	clean()
	if w0.Boots() != boots {
		t.Error("it rebooted for a file whose contents are delivered")
	}
	_, at = change(ctx, t, f, fleet.WorkerFile("20-beside", "beside"))
	must(t, f.WaitAt(ctx, at, "w0"))
	has(kubelet, second)
	certify(ctx, t, f, inConfig, second)
	has(kubelet, inConfig)
	remove(ctx, t, f, "20-beside")
	back, err := f.Render(ctx, "worker", at)
	must(t, err)
	must(t, f.WaitAt(ctx, back, "w0"))
	has(kubelet, inConfig)
	clean()
	must(t, f.WaitNodeSays(ctx, "w0", "no drift", func(s api.Node, _ *corev1.Node) bool { return s.Drift == nil }))
}
