// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	pages "github.com/noderefit/noderefit/page"
	"github.com/noderefit/noderefit/progress"
)

// screen is a page as somebody sees it.
type screen struct {
	// picture is the file in docs; empty: there is none.
	name, picture string
	path          string
	view          func() (pages.View, error)
	width, height int64
	phone         bool
	scheme        string
	reads         []string
}

// The clusters of these pages are made up here: a control plane would take minutes to have 500 nodes.
func TestPagesOnAllScreens(t *testing.T) {
	many := func() (pages.View, error) { return manyNodes(time.Now().Truncate(time.Second)), nil }
	empty := func() (pages.View, error) { return pages.View{}, nil }
	broken := func() (pages.View, error) {
		return pages.View{}, errors.New("listing Nodes: timed out after 5s; check that the controller's account may list " +
			"and watch Nodes")
	}
	b := openBrowser(t)
	for _, s := range []screen{
		{
			"500 nodes", "web-page-500.png", "", many, 1200, 900, false, "light",
			[]string{"167 of 500 nodes updated", "167 Updated 24 Updating 1 Degraded 308 Waiting", "node-168 ! Degraded"},
		},
		{
			"500 nodes in the dark", "web-page-dark.png", "pools/worker?state=Updating", many, 1200, 900, false, "dark",
			[]string{"24 of 500 nodes match", "Updating: nothing blocks them", "node-170 ↻ Staging"},
		},
		{
			"a node", "web-page-node.png", "nodes/node-169", many, 1200, 1050, false, "light",
			[]string{"node-169 ! Draining", "Blocked by", "PodDisruptionBudget shop/checkout", "shop/checkout-7d9f4c6b58-x2k4p",
				"The drain began.", "Conditions of the MachineConfigNode"},
		},
		{
			"a phone in the dark", "", "", many, 390, 844, true, "dark", []string{"167 of 500 nodes updated", "Find nodes"},
		},
		{
			"a node on a phone", "", "nodes/node-169", many, 390, 844, true, "light", []string{"node-169 ! Draining"},
		},
		{
			"nothing", "web-page-empty.png", "", empty, 1200, 620, false, "light",
			[]string{"No MachineConfigPool selects nodes yet.", "What to do next", "kind: MachineConfigPool"},
		},
		{
			"an error", "web-page-error.png", "", broken, 1200, 300, false, "light",
			[]string{"The cluster could not be read", "timed out after 5s", "tries again every 15 s"},
		},
		{
			"an error on a phone in the dark", "", "pools/gone", empty, 390, 844, true, "dark",
			[]string{"Not found", "There is no MachineConfigPool gone."},
		},
	} {
		t.Run(s.name, func(t *testing.T) {
			b.t = t
			s.see(b)
		})
	}
}

func (s *screen) see(b *browser) {
	t := b.t
	t.Helper()
	handler, path := pages.Local(pages.Options{
		Now: time.Now, Version: "v0.1.0", Cluster: "production",
		Read: func(context.Context) (pages.View, error) { return s.view() },
	})
	server := httptest.NewServer(handler)
	defer server.Close()
	b.look(s.width, s.height, s.phone, s.scheme)
	b.visit(server.URL + path + s.path)
	b.reads(s.reads...)
	for _, bad := range value[[]string](b, faint) {
		t.Errorf("this can hardly be read: %s", bad)
	}
	if over := value[int](b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
		t.Errorf("the page is %d pixels too wide", over)
	}
	b.picture(s.picture)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, complaint := range b.complaints {
		// A browser reports the code of an error page.
		if !strings.Contains(complaint, "responded with a status of") {
			t.Errorf("the browser says: %s", complaint)
		}
	}
	b.complaints = nil
}

// manyNodes are 500 nodes in the middle of a rollout: one drains and one failed, others are under way.
func manyNodes(now time.Time) pages.View {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const all, arrived = 500, 167
	v := pages.View{View: progress.View{States: map[string]*mcfgv1.MachineConfigNode{}}}
	pool := poolObject("worker", workerNew, func(p *mcfgv1.MachineConfigPool) {
		p.Spec.MaxUnavailable = new(intstr.FromString("5%"))
	}, rollouts(
		api.PastRollout{Config: workerNew, Wanted: ago(5 * time.Hour), Began: ago(4 * time.Hour)},
		api.PastRollout{
			Config: workerOld, Wanted: ago(200 * time.Hour), Began: ago(198 * time.Hour), Ended: ago(187 * time.Hour), Nodes: all, Updated: all,
		},
	))
	pool.Status.Configuration.Name = workerOld
	v.Pools = []mcfgv1.MachineConfigPool{*pool}
	for i := range all {
		s := done(workerOld, ago(187*time.Hour))
		switch {
		case i < arrived:
			s = done(workerNew, ago(4*time.Hour-time.Duration(i)*time.Minute))
		case i == arrived:
			s = moving(mcfgv1.MachineConfigNodeNodeDegraded, ago(25*time.Minute))
			s.state, s.status, s.cordoned = api.Degraded, metav1.ConditionTrue, false
			delete(s.node, api.CordonKey)
			s.node[api.Reason] = "staging the OS: no space left on /boot: 4 MiB free, 61 MiB needed"
		case i == arrived+1:
			s = draining(now)
		case i <= arrived+24:
			s = moving([]mcfgv1.StateProgress{
				mcfgv1.MachineConfigNodeUpdateFilesAndOS, mcfgv1.MachineConfigNodeUpdatePrepared, mcfgv1.MachineConfigNodeUpdateCordoned,
			}[i%3], ago(time.Duration(i-arrived)*20*time.Second))
		}
		n, said := s.objects(fmt.Sprintf("node-%03d", i+1), "worker")
		n.CreationTimestamp = metav1.NewTime(ago(4000 * time.Hour))
		v.Nodes = append(v.Nodes, *n)
		v.States[n.Name] = said
	}
	return v
}

// draining is a node with a pod that a budget holds.
func draining(now time.Time) stand {
	since := now.Add(-14 * time.Minute)
	s := moving(mcfgv1.MachineConfigNodeUpdateDrained, since)
	s.daemon = map[string]string{
		api.DrainKey: api.Encode(api.Drain{
			Config: workerNew, Since: since.UTC(), Left: 2, Waiting: []api.WaitingPod{{
				Namespace: "shop", Name: "checkout-7d9f4c6b58-x2k4p", Since: since.Add(time.Minute).UTC(),
				Why: api.DrainWaitBudget, Budget: "checkout", Placement: "31 nodes could take it",
			}},
		}),
		api.UpdateKey: api.Encode(api.Update{Config: workerNew, Since: since.Add(-6 * time.Minute).UTC()}),
	}
	return s
}

// What the documentation shows is there, small enough to be loaded with it, and has a text for those who cannot see it.
func TestPicturesInTheDocumentationAreSmall(t *testing.T) {
	const most = 150 << 10
	text, err := os.ReadFile(root + "/docs/web-page.md")
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(root + "/docs/web-page-*.png")
	if err != nil || len(found) == 0 {
		t.Fatalf("there are %v, %v", found, err)
	}
	for _, path := range found {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > most {
			t.Errorf("%s has %d bytes of %d", path, info.Size(), most)
		}
		if name := filepath.Base(path); !strings.Contains(string(text), "]("+name+")") || strings.Contains(string(text), "![]("+name) {
			t.Errorf("docs/web-page.md does not show %s, or shows it without a text", name)
		}
	}
}
