// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/noderefit/noderefit/cli"
)

func TestACommandLineThatCantRunIsRefusedBeforeAnythingIsAsked(t *testing.T) {
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{
			"a controller that nobody knows", []string{"--controllers=pool,pol"},
			"--controllers: there is no controller \"pol\" here: there are containerruntimeconfig, " +
				"disruptionpolicy, imagemirror, kubeletconfig, nodevalues, notifications, pinnedimages, pool, render, stream, template",
		},
		{
			"one that OpenShift calls so", []string{"--controllers=kubelet-config"},
			"--controllers: there is no controller \"kubelet-config\" here: there are containerruntimeconfig, " +
				"disruptionpolicy, imagemirror, kubeletconfig, nodevalues, notifications, pinnedimages, pool, render, stream, template",
		},
		{"none", []string{"--controllers="}, "--controllers: at least one is required"},
		{"an argument", []string{"pool"}, `unexpected argument "pool"`},
		{
			"a page for the network without a certificate", []string{"--page-bind-address=:8798"},
			"--page-bind-address: :8798 is reached from elsewhere, and browsers send tokens there: it takes a certificate, " +
				"by --page-cert and --page-key",
		},
		{
			"a page without a port", []string{"--page-bind-address=127.0.0.1"},
			"--page-bind-address: address 127.0.0.1: missing port in address",
		},
		{
			"a key without a certificate", []string{"--page-bind-address=:8798", "--page-key=key"},
			"--page-cert and --page-key: set both, or neither",
		},
		{"a flag that nobody knows", []string{"--pool"}, "unknown flag: --pool"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := command()
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			cmd.SetArgs(append([]string{"run"}, test.args...))
			err := cmd.Execute()
			if _, usage := errors.AsType[cli.UsageError](err); !usage || err.Error() != test.want {
				t.Errorf("got %v, a usage error: %v; want %s", err, usage, test.want)
			}
		})
	}
}

func TestThePageNeedsNoCertificateWhereOnlyTheHostReachesIt(t *testing.T) {
	for address, may := range map[string]bool{
		nowhere: true, "127.0.0.1:8798": true, "127.9.9.9:1": true, "[::1]:8798": true, "localhost:8798": true,
		":8798": false, "0.0.0.0:8798": false, "[::]:8798": false, "10.0.0.1:8798": false, "page.example.org:8798": false,
	} {
		if err := (&pageOptions{address: address}).check(); (err == nil) != may {
			t.Errorf("%s: %v", address, err)
		}
		if err := (&pageOptions{address: address, cert: "crt", key: "key"}).check(); err != nil {
			t.Errorf("%s with a certificate: %v", address, err)
		}
	}
}

func TestThePageNamesTheClusterByTheHostOfItsServer(t *testing.T) {
	for address, want := range map[string]string{
		"https://api.prod.example.org:6443": "api.prod.example.org:6443", "https://10.96.0.1": "10.96.0.1",
		"https://api.example.org/clusters/one": "api.example.org", "localhost:8080": "localhost:8080", "": "",
	} {
		if got := server(address); got != want {
			t.Errorf("%s is called %q, not %q", address, got, want)
		}
	}
}

func TestAKubeconfigThatIsNotThereIsNamed(t *testing.T) {
	cmd := command()
	cmd.SetArgs([]string{"run", "--kubeconfig=/nowhere/kubeconfig"})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "/nowhere/kubeconfig") {
		t.Errorf("got %v", err)
	}
}

// informers are those of a cache that is filled, or that never is.
type informers struct {
	cache.Informers
	filled bool
}

func (i informers) WaitForCacheSync(ctx context.Context) bool {
	if !i.filled {
		<-ctx.Done()
	}
	return i.filled
}

func TestItIsReadyOnceItsCachesAreFilled(t *testing.T) {
	request := httptest.NewRequest(http.MethodGet, "/readyz", nil)
	if err := filled(informers{filled: true})(request); err != nil {
		t.Error(err)
	}
	if err := filled(informers{})(request); err == nil {
		t.Error("it is ready before it has read anything")
	}
}

func TestTheVersionIsTheOneThatTheBuildSet(t *testing.T) {
	was := version
	t.Cleanup(func() { version = was })
	version = "v1.2.3"
	var out strings.Builder
	cmd := command()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"version"})
	if err := cmd.Execute(); err != nil || out.String() != "machine-config-controller v1.2.3\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}
