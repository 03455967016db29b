// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"github.com/noderefit/noderefit/api"
)

// The page of a cluster at work, which takes longer to make than to look at. The last part changes it.
func TestThePageOfAClusterAtWork(t *testing.T) {
	l := newLab(t)
	l.scene()
	for _, part := range []struct {
		name string
		see  func(*lab)
	}{
		{"only who may sees it", (*lab).onlyWhoMay},
		{"who does not lead serves it too", (*lab).whoeverLeads},
		{"what the controller may not read is said and holds up nothing", (*lab).unread},
		{"a browser shows where everything stands", (*lab).shown},
		{"a person's own page needs no installation", (*lab).ownRights},
		{"an open page follows the cluster", (*lab).followed},
	} {
		t.Run(part.name, func(t *testing.T) {
			one := *l
			one.t = t
			part.see(&one)
		})
	}
}

func (l *lab) onlyWhoMay() {
	t := l.t
	c := l.controller(api.Controller)
	may, mayNot := l.viewer("may", pageRole), l.viewer("may-not", "noderefit-view")
	l.page(c, may, "/page/", "worker-13")
	for _, test := range []struct {
		method, path string
		with         func(*http.Request)
		code         int
		text         string
	}{
		{"GET", "/page/", func(*http.Request) {}, 401, "Give a token of the cluster as the password"},
		{"GET", "/page/", func(r *http.Request) { r.SetBasicAuth("me", may) }, 200, "worker-13"},
		{"GET", "/page/pools/gpu", func(r *http.Request) { r.SetBasicAuth("", may) }, 200, "no device was found"},
		{"HEAD", "/page/", bearer(may), 200, ""},
		{"GET", "/page/", bearer(may + "x"), 401, ""},
		{"GET", "/page/", func(r *http.Request) { r.SetBasicAuth(may, "") }, 401, ""},
		{"GET", "/page/", bearer(mayNot), 403, "system:serviceaccount:default:may-not"},
		{"GET", "/page/pools/gpu", bearer(mayNot), 403, ""},
		{"GET", "/page/style-00000000.css", bearer(mayNot), 403, ""},
		{"GET", "/metrics", bearer(may), 403, ""},
		{"POST", "/page/", bearer(may), 405, ""},
		{"GET", "/", func(*http.Request) {}, 302, ""},
	} {
		what := test.method + " " + test.path
		got, err := c.ask(l.ctx, nil, test.method, test.path, test.with)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if got.code != test.code || !strings.Contains(got.text, test.text) {
			t.Errorf("%s: %d, not %d with %q\n%s", what, got.code, test.code, test.text, got.text)
		}
		if test.code == http.StatusUnauthorized && !strings.HasPrefix(got.header.Get("WWW-Authenticate"), "Basic ") {
			t.Errorf("%s: a browser would not ask its user for a token: %v", what, got.header)
		}
		if strings.Contains(got.text, "worker-") != (test.text == "worker-13") {
			t.Errorf("%s: %d with\n%s", what, got.code, got.text)
		}
	}
}

func (l *lab) whoeverLeads() {
	t := l.t
	token := l.viewer("may", pageRole)
	leader := l.controller(api.Controller)
	l.page(leader, token, "/page/", "worker-13")
	l.until("the first leads", func() string {
		_, err := l.Client.CoordinationV1().Leases(api.Namespace).Get(l.ctx, api.Controller, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	dir := t.TempDir()
	chain, key, err := cert.GenerateSelfSignedCertKey("page.example.org", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	l.must(err)
	l.must(os.WriteFile(filepath.Join(dir, "tls.crt"), chain, 0o600))
	l.must(os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
	other := l.controller(api.Controller, "--page-cert="+dir+"/tls.crt", "--page-key="+dir+"/tls.key")
	l.page(other, token, "/page/", "worker-13")
	l.until("it is ready", other.ready)

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(chain) {
		t.Fatal("there is no certificate")
	}
	got, err := other.ask(l.ctx, roots, http.MethodGet, "/page/", bearer(token))
	if err != nil || got.code != http.StatusOK {
		t.Errorf("with the certificate that it was given it answers %d, %v", got.code, err)
	}
	if _, err := leader.ask(l.ctx, roots, http.MethodGet, "/page/", bearer(token)); err == nil {
		t.Error("the one that was given none is trusted")
	}
}

func (l *lab) unread() {
	t := l.t
	const account = "narrow"
	token := l.viewer("may", pageRole)
	roles := l.Client.RbacV1().ClusterRoles()
	_, err := roles.Create(l.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"*"}},
	}}, metav1.CreateOptions{})
	l.must(err)
	t.Cleanup(func() {
		if err := roles.Delete(context.Background(), account, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	l.bind("narrow-controller", api.Controller, api.Namespace, account)
	l.bind("narrow-page", account, api.Namespace, account)
	c := l.controller(account, "--leader-elect=false")
	text := l.page(c, token, "/page/", "Steps and drains of nodes are not known")
	for _, want := range []string{"worker-13", "12 of 24 updated", "weekend-nights"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	l.until("it is ready all the same", c.ready)
}

func TestARolloutIsRememberedAcrossControllers(t *testing.T) {
	l := newLab(t)
	token := l.viewer("may", pageRole)
	const a, b = "rendered-small-" + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "rendered-small-" + "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	now := metav1.Now().Time
	l.pool("small", b, a)
	for i := range 2 {
		l.node(fmt.Sprintf("small-%d", i+1), "small", done(a, now))
	}
	t.Run("the first", func(t *testing.T) {
		one := *l
		one.t = t
		c := one.controller(api.Controller, "--leader-elect=false")
		one.page(c, token, "/page/", "under way, 0 of 2 updated")
	})
	record := func() string {
		p, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigPools().Get(l.ctx, "small", metav1.GetOptions{})
		l.must(err)
		return p.Annotations[api.RolloutsKey]
	}
	before, err := api.Decode[[]api.PastRollout](map[string]string{"": record()}, "")
	if err != nil || len(before) != 1 || before[0].Config != b || before[0].Began.IsZero() || !before[0].Ended.IsZero() {
		t.Fatalf("the pool remembers %+v, %v", before, err)
	}
	c := l.controller(api.Controller, "--leader-elect=false")
	l.page(c, token, "/page/", "under way, 0 of 2 updated")
	for i := range 2 {
		name := fmt.Sprintf("small-%d", i+1)
		l.until(name+" is sent", func() string {
			n, err := l.Client.CoreV1().Nodes().Get(l.ctx, name, metav1.GetOptions{})
			l.must(err)
			if d := n.Annotations[api.DesiredConfig]; d != b {
				return d
			}
			return ""
		})
		l.annotate(name, map[string]string{api.CurrentConfig: b, api.StateKey: string(api.Done)})
	}
	l.page(c, token, "/page/", "done, 2 nodes")
	after, err := api.Decode[[]api.PastRollout](map[string]string{"": record()}, "")
	if err != nil || len(after) != 1 || !after[0].Wanted.Equal(before[0].Wanted) || !after[0].Began.Equal(before[0].Began) ||
		after[0].Ended.IsZero() || after[0].Nodes != 2 || after[0].Updated != 2 {
		t.Errorf("the pool remembers %+v, %v, after %+v", after, err, before)
	}
}
