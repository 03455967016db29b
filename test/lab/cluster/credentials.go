// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// certificateConfig returns the configuration of a user with a certificate.
func (c *Cluster) certificateConfig(user string, groups ...string) (*rest.Config, error) {
	who, err := c.authority.client(user, groups...)
	if err != nil {
		return nil, fmt.Errorf("making credentials of %s: %w", user, err)
	}
	config := c.anonymous()
	config.CertData, config.KeyData = who.cert, who.key
	return config, nil
}

func (c *Cluster) anonymous() *rest.Config {
	return &rest.Config{
		Host:            "https://" + address(c.port(portAPI)),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.pem},
	}
}

// kubeconfig returns a configuration with a certificate or a token in the form of a file.
func kubeconfig(config *rest.Config) []byte {
	file := clientcmdapi.NewConfig()
	file.Clusters["lab"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["lab"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
	}
	file.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "lab"}
	file.CurrentContext = "lab"
	text, err := clientcmd.Write(*file)
	if err != nil {
		panic(err) // clientcmd's own types can always be written
	}
	return text
}

// tokenSeconds is how long a token is valid: longer than any test.
const tokenSeconds = int64(24 * time.Hour / time.Second)

// ServiceAccountConfig returns the configuration of a service account, and its file. It makes the account and its
// namespace if necessary. With the name of a node, the token is bound to that node, like the token of a DaemonSet's
// pod. Admission sees the node as userInfo.extra["authentication.kubernetes.io/node-name"]. Such a token is valid as
// long as the Node exists.
func (c *Cluster) ServiceAccountConfig(
	ctx context.Context, namespace, name, node string,
) (*rest.Config, string, error) {
	failed := func(err error) (*rest.Config, string, error) {
		return nil, "", fmt.Errorf("making a token of %s/%s: %w", namespace, name, err)
	}
	_, err := c.Client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return failed(err)
	}
	accounts := c.Client.CoreV1().ServiceAccounts(namespace)
	_, err = accounts.Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return failed(err)
	}
	seconds := tokenSeconds
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if node != "" {
		at, err := c.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return failed(err)
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Node", Name: node, UID: at.UID,
		}
	}
	token, err := accounts.CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return failed(err)
	}
	config := c.anonymous()
	config.BearerToken = token.Status.Token
	path := c.path(fmt.Sprintf("%s-%s-%s.kubeconfig", namespace, name, node))
	if err := os.WriteFile(path, kubeconfig(config), 0o600); err != nil {
		return failed(err)
	}
	return config, path, nil
}

// BootstrapToken makes a token, ID.SECRET, with which machines join, as kubeadm token create does. Groups are further
// groups of the token.
func (c *Cluster) BootstrapToken(ctx context.Context, token string, groups ...string) error {
	id, secret, _ := strings.Cut(token, ".")
	data := map[string]string{"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true"}
	if len(groups) > 0 {
		data["auth-extra-groups"] = strings.Join(groups, ",")
	}
	_, err := c.Client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: data,
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making bootstrap token %s: %w", id, err)
	}
	return nil
}
