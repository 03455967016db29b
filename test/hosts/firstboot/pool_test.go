// SPDX-License-Identifier: Apache-2.0

package firstboot

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// The tokens of two pools. What is before the point is in names of users, and after it the secret.
const (
	infraToken = "123456.0123456789abcdef"
	gpuToken   = "234567.0123456789abcdef"
	nodeToken  = "system:bootstrappers:kubeadm:default-node-token"
)

// bootstrapRights are the rights that kubeadm init gives to machines that join.
const bootstrapRights = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kubeadm:kubelet-bootstrap}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-bootstrapper}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "` + nodeToken + `"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kubeadm:node-autoapprove-bootstrap}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole,
  name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "` + nodeToken + `"}]
`

// infra is a MachineConfig of the pool infra alone.
const infra = `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"50-infra",
	"labels":{"machineconfiguration.openshift.io/role":"infra"}},"spec":{"config":{"ignition":{"version":"3.5.0"},
	"storage":{"files":[{"path":"/etc/infra","mode":384,"overwrite":true,"contents":{"source":"data:,infra"}}]}}}}`

// A machine is started with the token of a custom pool. It gets that pool's configuration and no other, joins with that
// token, and is in the pool and done, in the one boot that it has had. Its kubelet said nothing of a pool.
func TestAMachineJoinsTheCustomPoolOfItsBootstrapToken(t *testing.T) {
	base, ignition := lab.Need(t), needIgnition(t)
	cluster.Need(t)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 8*time.Minute, errors.New("it takes too long"))
	defer cancel()
	f := newFleet(ctx, t, base, fleet.Options{Labels: map[string]string{}})
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.StartController(ctx)
	must(err, f.Pool(ctx, "worker", "1"), f.Pool(ctx, "infra", "1"), f.Apply(ctx, worker), f.Apply(ctx, infra),
		f.Apply(ctx, bootstrapRights), f.BootstrapToken(ctx, infraToken, nodeToken, api.PoolGroup+"infra"),
		f.BootstrapToken(ctx, gpuToken, nodeToken, api.PoolGroup+"gpu"))
	must(f.WaitPool(ctx, "infra", "it is rendered", func(p *mcfgv1.MachineConfigPool) bool {
		return p.Spec.Configuration.Name != ""
	}), f.WaitPool(ctx, "worker", "it is rendered", func(p *mcfgv1.MachineConfigPool) bool {
		return p.Spec.Configuration.Name != ""
	}))
	config, err := f.Configuration(ctx, "infra")
	must(err)

	everybodys, err := os.ReadFile(f.Kubeconfig) // of the administrator, which no machine must get
	must(err)
	kubeconfig := t.TempDir() + "/kubeconfig"
	writeFile(t, kubeconfig, everybodys)
	s := clusterServer(ctx, t, f, "--bootstrap-kubeconfig="+kubeconfig)
	s.token = infraToken
	if code, text := s.ask(ctx, t, infraToken); code != http.StatusForbidden || !strings.Contains(text, "for the pool infra") {
		t.Errorf("who asks for worker with the token of infra is told %d %s", code, text)
	}
	s.pool = "infra"
	if code, text := s.ask(ctx, t, gpuToken); code != http.StatusForbidden || !strings.Contains(text, "for the pool gpu") {
		t.Errorf("who asks for infra with the token of gpu is told %d %s", code, text)
	}

	var boots int
	n, err := f.Enlist(ctx, base, "new", func(n *fleet.Node) error {
		provisioned(ctx, t, ignition, n.Node, s)
		boots = n.Boots()
		if _, err := n.Output(ctx, "systemctl", "start", api.FirstbootUnit); err != nil {
			return err
		}
		text, err := os.ReadFile(n.HostPath("/etc/kubernetes/kubeconfig"))
		if err != nil {
			return err
		}
		return bootstrap(ctx, text, "new")
	})
	must(err, f.StartAgent(ctx, n), f.WaitAt(ctx, config, "new"),
		f.WaitPool(ctx, "infra", "the node has the configuration", fleet.Updated(1)))
	says, object, err := f.Says(ctx, "new")
	must(err)
	if says.State != api.Done || says.Current != config || n.Boots() != boots {
		t.Errorf("the node says %+v after %d boots", says, n.Boots()-boots)
	}
	if roles := rolesOf(object); roles != "infra" {
		t.Errorf("the node has the roles %q", roles)
	}
	events, err := f.Kubectl(ctx, "get", "events", "-A", "--field-selector=reason=Labelled", "-o=jsonpath={.items[*].message}{.items[*].note}")
	if err != nil || !strings.Contains(events, "bootstrap token for the pool infra") {
		t.Errorf("the events say %q, %v", events, err)
	}

	// A machine with the token of another pool gets a certificate for the name of this node, since kubeadm's rights allow
	// that. It moves the node nowhere, and a label that the administrator takes away stays away.
	stolen, err := clientcmd.Load(everybodys)
	must(err)
	for _, user := range stolen.AuthInfos {
		*user = *stolen.AuthInfos[stolen.Contexts[stolen.CurrentContext].AuthInfo]
		user.ClientCertificateData, user.ClientKeyData, user.Token = nil, nil, gpuToken
	}
	text, err := clientcmd.Write(*stolen)
	must(err, f.Pool(ctx, "gpu", "1"), bootstrap(ctx, text, "new"))
	_, err = f.Client.CoreV1().Nodes().Patch(ctx, "new", types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, api.NodeRole+"infra"), metav1.PatchOptions{})
	must(err, f.WaitPool(ctx, "infra", "the node has left it", func(p *mcfgv1.MachineConfigPool) bool {
		return p.Status.MachineCount == 0
	}))
	_, object, err = f.Says(ctx, "new")
	must(err)
	if roles := rolesOf(object); roles != "" {
		t.Errorf("the node has the roles %q", roles)
	}
}

// rolesOf returns the roles of a node by its labels, separated by commas.
func rolesOf(n *corev1.Node) string {
	var roles []string
	for key := range n.Labels {
		if role, is := strings.CutPrefix(key, api.NodeRole); is {
			roles = append(roles, role)
		}
	}
	return strings.Join(roles, ",")
}

// bootstrap has a kubeconfig's user request the certificate of a node, as a kubelet does that starts for the first time,
// and waits until the certificate is there.
func bootstrap(ctx context.Context, kubeconfig []byte, node string) error {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:node:" + node, Organization: []string{"system:nodes"}, //nolint:misspell // the standard library
	}}, key)
	if err != nil {
		return err
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	made, err := requests.Create(ctx, &certv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-csr-"},
		Spec: certv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return fleet.Until(ctx, "the certificate is issued", func(ctx context.Context) (bool, string, error) {
		found, err := requests.Get(ctx, made.Name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return len(found.Status.Certificate) > 0, fmt.Sprintf("%+v", found.Status.Conditions), nil
	})
}
