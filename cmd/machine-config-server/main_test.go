// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/cli"
)

const token = "abcdef.0123456789abcdef"

// authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a authority) issue(t *testing.T, name string, usage x509.ExtKeyUsage) (cert, keyText []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{usage},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func (a authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func put(t *testing.T, path string, text []byte) {
	t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".new", text, 0o600),
		os.Rename(path+".new", path))
	if err != nil {
		t.Fatal(err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start runs the program's command on a directory until the test ends, and returns its address.
func start(t *testing.T, dir string, args ...string) string {
	t.Helper()
	put(t, dir+"/s/machine-pools/worker.yaml", []byte(`{"apiVersion":"machineconfiguration.openshift.io/v1",
		"kind":"MachineConfigPool","metadata":{"name":"worker"},"spec":{"configuration":{"name":"a"}}}`))
	put(t, dir+"/s/machine-pools/secret.yaml", []byte(`{"apiVersion":"machineconfiguration.openshift.io/v1",
		"kind":"MachineConfigPool","metadata":{"name":"secret"},"spec":{"configuration":{"name":"b"}}}`))
	put(t, dir+"/s/machine-configs/b.yaml", []byte(`{"apiVersion":"machineconfiguration.openshift.io/v1",
		"kind":"MachineConfig","metadata":{"name":"b"},"spec":{"config":{"ignition":{"version":"3.5.0"},"storage":{"files":[
		{"path":"/etc/key","mode":384,"contents":{"source":"data:,hush"}}]}}}}`))
	put(t, dir+"/s/machine-configs/a.yaml", []byte(`{"apiVersion":"machineconfiguration.openshift.io/v1",
		"kind":"MachineConfig","metadata":{"name":"a"},"spec":{"config":{"ignition":{"version":"3.5.0"}}}}`))
	port := freePort(t)
	cmd := command()
	cmd.SetArgs(append([]string{"--dir=" + dir + "/s", "--cert=" + dir + "/tls.crt", "--key=" + dir + "/tls.key",
		fmt.Sprintf("--secure-port=%d", port)}, args...))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// reply is what counts of an answer.
type reply struct {
	StatusCode, ProtoMajor int
	TLS                    *tls.ConnectionState
	challenge, body        string
}

// ask waits for a server, and returns its answer; the client forgets the connection.
func ask(t *testing.T, url string, config *tls.Config, token string) (*reply, error) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	for deadline := time.Now().Add(time.Minute); ; {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := client.Do(r)
		if err == nil {
			text, err := io.ReadAll(answer.Body)
			return &reply{answer.StatusCode, answer.ProtoMajor, answer.TLS, answer.Header.Get("WWW-Authenticate"),
				string(text)}, errors.Join(err, answer.Body.Close())
		}
		if !strings.Contains(err.Error(), "connection refused") || time.Now().After(deadline) {
			return nil, err
		}
	}
}

func TestATokenOrACertificateIsRequiredAndCertificatesAreReadAgain(t *testing.T) {
	dir, own, clients := t.TempDir(), newAuthority(t), newAuthority(t)
	cert, key := own.issue(t, "first", x509.ExtKeyUsageServerAuth)
	put(t, dir+"/tls.crt", cert)
	put(t, dir+"/tls.key", key)
	put(t, dir+"/ca.crt", clients.pem)
	put(t, dir+"/tokens", []byte(token+"\n"))
	at := start(t, dir, "--address=127.0.0.1", "--metrics-bind-address=0", "--token-file="+dir+"/tokens", "--client-ca="+dir+"/ca.crt")
	url := "https://" + at + "/config/secret"
	trusting := func() *tls.Config { return &tls.Config{RootCAs: own.pool(), MinVersion: tls.VersionTLS12} }

	code := func(what string, config *tls.Config, token string, want int) *reply {
		t.Helper()
		answer, err := ask(t, url, config, token)
		if err != nil || answer.StatusCode != want {
			t.Fatalf("%s: %v, %v; want %d", what, answer, err, want)
		}
		return answer
	}
	code("nothing is shown", trusting(), "", 401)
	answer := code("a token", trusting(), token, 200)
	if answer.ProtoMajor != 1 || answer.TLS.Version < tls.VersionTLS12 {
		t.Errorf("HTTP/%d over TLS %x", answer.ProtoMajor, answer.TLS.Version)
	}
	shown := func(a authority, usage x509.ExtKeyUsage) *tls.Config {
		cert, key := a.issue(t, "node", usage)
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		c := trusting()
		// Shown whether the server asks for its authority or not.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		return c
	}
	code("a client certificate", shown(clients, x509.ExtKeyUsageClientAuth), "", 200)
	for what, config := range map[string]*tls.Config{
		"one of another authority": shown(own, x509.ExtKeyUsageClientAuth),
		"one for servers":          shown(clients, x509.ExtKeyUsageServerAuth),
	} {
		if answer, err := ask(t, url, config, ""); err == nil {
			t.Errorf("%s: %d", what, answer.StatusCode)
		}
	}
	old := trusting()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if answer, err := ask(t, url, old, token); err == nil {
		t.Errorf("TLS 1.1 was spoken: %d", answer.StatusCode)
	}

	cert, key = own.issue(t, "second", x509.ExtKeyUsageServerAuth)
	put(t, dir+"/tls.key", key)
	put(t, dir+"/tls.crt", cert)
	for deadline := time.Now().Add(time.Minute); ; {
		answer := code("after the change", trusting(), token, 200)
		if answer.TLS.PeerCertificates[0].Subject.CommonName == "second" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the new certificate is not shown")
		}
	}
	// While the file is broken or half-written, all clients are served as before.
	put(t, dir+"/ca.crt", []byte("-----BEGIN CERTIFICATE-----\n"))
	code("a token beside a broken file", trusting(), token, 200)
	code("a client certificate beside a broken file", shown(clients, x509.ExtKeyUsageClientAuth), "", 200)
	put(t, dir+"/ca.crt", newAuthority(t).pem)
	if answer, err := ask(t, url, shown(clients, x509.ExtKeyUsageClientAuth), ""); err == nil {
		t.Errorf("an authority that is taken away: %d", answer.StatusCode)
	}
}

// Machines that trust both authorities are served all the while; those that were started with one of them, as long as the
// server shows a certificate of it.
func TestTheAuthorityIsReplacedWithoutAMachineThatIsTurnedAway(t *testing.T) {
	dir, old, next := t.TempDir(), newAuthority(t), newAuthority(t)
	show := func(by authority, name string) {
		cert, key := by.issue(t, name, x509.ExtKeyUsageServerAuth)
		put(t, dir+"/tls.key", key)
		put(t, dir+"/tls.crt", cert)
	}
	show(old, "first")
	at := start(t, dir, "--address=127.0.0.1", "--metrics-bind-address=0")
	asked := func(trusted ...authority) (string, error) {
		pool := x509.NewCertPool()
		for _, a := range trusted {
			pool.AppendCertsFromPEM(a.pem)
		}
		answer, err := ask(t, "https://"+at+"/config/plain", &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, "")
		if err != nil {
			return "", err
		}
		return answer.TLS.PeerCertificates[0].Subject.CommonName, nil
	}
	if name, err := asked(old, next); name != "first" || err != nil {
		t.Fatalf("before: %s, %v", name, err)
	}
	if name, err := asked(next); err == nil {
		t.Fatalf("before, by the next authority alone: %s", name)
	}
	show(next, "second")
	for deadline := time.Now().Add(time.Minute); ; {
		name, err := asked(old, next)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("in between: %s, %v", name, err)
		}
		if name == "second" {
			break
		}
	}
	if name, err := asked(next); name != "second" || err != nil {
		t.Errorf("after, by the next authority alone: %s, %v", name, err)
	}
	if name, err := asked(old); err == nil {
		t.Errorf("after, by the old authority alone: %s", name)
	}
}

func TestTheCertificateThatEndsFirstCounts(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.issue(t, "leaf", x509.ExtKeyUsageServerAuth)
	pair, err := tls.X509KeyPair(append(cert, a.pem...), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	above, err := x509.ParseCertificate(pair.Certificate[1])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ends(&pair), float64(min(leaf.NotAfter.Unix(), above.NotAfter.Unix())); got != want {
		t.Errorf("got %f, want %f", got, want)
	}
}

func TestTheShortestCommandLineServesWhatHoldsNoSecret(t *testing.T) {
	dir, own := t.TempDir(), newAuthority(t)
	cert, key := own.issue(t, "x", x509.ExtKeyUsageServerAuth)
	put(t, dir+"/tls.crt", cert)
	put(t, dir+"/tls.key", key)
	trusting := &tls.Config{RootCAs: own.pool(), MinVersion: tls.VersionTLS12}
	start(t, dir)
	at := start(t, dir) // the port of the metrics is taken, and nobody asked for it
	for path, want := range map[string]struct {
		code int
		says string
	}{
		"/healthz": {200, ""}, "/config/worker": {200, "/etc/machine-config-daemon/node-annotations.json"},
		"/config/nobody": {404, "nobody"}, "/config/secret": {401, "(/etc/key): its mode 0600"},
	} {
		answer, err := ask(t, "https://"+at+path, trusting, "")
		if err != nil || answer.StatusCode != want.code || !strings.Contains(answer.body, want.says) ||
			strings.Contains(answer.body, "hush") {
			t.Errorf("%s: %+v, %v; want %d with %s", path, answer, err, want.code, want.says)
		}
		if err == nil && (answer.challenge != "") != (want.code == 401) {
			t.Errorf("%s: the challenge is %q", path, answer.challenge)
		}
	}
}

func TestEverybodyIsToldSecretsWhenThatIsAskedFor(t *testing.T) {
	dir, own := t.TempDir(), newAuthority(t)
	cert, key := own.issue(t, "x", x509.ExtKeyUsageServerAuth)
	put(t, dir+"/tls.crt", cert)
	put(t, dir+"/tls.key", key)
	put(t, dir+"/kubeconfig", []byte("apiVersion: v1\n"))
	at := start(t, dir, "--metrics-bind-address=0", "--allow-unauthenticated", "--bootstrap-kubeconfig="+dir+"/kubeconfig")
	answer, err := ask(t, "https://"+at+"/config/secret", &tls.Config{RootCAs: own.pool(), MinVersion: tls.VersionTLS12}, "")
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(answer.body, "/etc/kubernetes/kubeconfig") ||
		!strings.Contains(answer.body, "/etc/key") {
		t.Errorf("%+v, %v", answer, err)
	}
}

func TestPlainHTTPIsServedOnlyWhenAskedForAndAsksForATokenToo(t *testing.T) {
	dir, own := t.TempDir(), newAuthority(t)
	cert, key := own.issue(t, "x", x509.ExtKeyUsageServerAuth)
	put(t, dir+"/tls.crt", cert)
	put(t, dir+"/tls.key", key)
	put(t, dir+"/tokens", []byte(token+"\n"))
	plain := freePort(t)
	at := start(t, dir, "--address=127.0.0.1", "--metrics-bind-address=0", "--token-file="+dir+"/tokens", fmt.Sprintf("--insecure-port=%d", plain))
	for what, want := range map[string]int{"": 401, token: 200} {
		answer, err := ask(t, fmt.Sprintf("http://127.0.0.1:%d/config/secret", plain), nil, what)
		if err != nil || answer.StatusCode != want {
			t.Errorf("%q: %v, %v; want %d", what, answer, err, want)
		}
	}
	if answer, err := ask(t, "http://"+at+"/config/worker", nil, token); err == nil && answer.StatusCode == http.StatusOK {
		t.Error("the secure port speaks plain HTTP")
	}
}

func TestCommandLinesThatSayNothingSensibleAreUsageErrors(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--dir=x", "--kubeconfig=y"}, "exclude"},
		{[]string{"--secure-port=0"}, "--secure-port"},
		{[]string{"--insecure-port=70000"}, "--insecure-port"},
		{[]string{"--tls-min-version=VersionTLS11"}, "--tls-min-version"},
		{[]string{"--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA"}, "--tls-cipher-suites"},
		{[]string{"--daemon-image=x y"}, "--daemon-image"},
		{[]string{"--bootstrap-kubeconfig-path=x"}, "--bootstrap-kubeconfig-path"},
		{[]string{"--nonsense"}, "nonsense"},
		{[]string{"nonsense"}, "nonsense"},
	} {
		cmd := command()
		cmd.SetArgs(test.args)
		cmd.SetOut(new(bytes.Buffer))
		err := cmd.ExecuteContext(t.Context())
		if _, ok := errors.AsType[cli.UsageError](err); !ok || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want a usage error with %s", test.args, err, test.want)
		}
	}
}
