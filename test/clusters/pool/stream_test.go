// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/api"
	machine "github.com/noderefit/noderefit/test/lab"
)

const streamsPath = "/apis/noderefit.dev/v1alpha1/osstreams"

// origin is where releases come from: a registry, and a graph with an ETag. It counts what it is asked.
type origin struct {
	*httptest.Server
	registry *machine.Registry
	mu       sync.Mutex
	graph    string
	away     bool
	requests []string
}

func newOrigin(t *testing.T) *origin {
	t.Helper()
	o := &origin{registry: machine.NeedRegistry(t)}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if r.Header.Get("User-Agent") != "" && strings.Contains(r.Header.Get("User-Agent"), api.Controller) {
			o.requests = append(o.requests, r.Method+" "+r.URL.Path+" "+r.Header.Get("If-None-Match"))
		}
		etag := fmt.Sprintf("%q", fmt.Sprint(len(o.graph)))
		switch {
		case o.away:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path != "/graph":
			o.registry.ServeHTTP(w, r)
		case r.Header.Get("If-None-Match") == etag:
			w.WriteHeader(http.StatusNotModified)
		default:
			w.Header().Set("ETag", etag)
			fmt.Fprint(w, o.graph)
		}
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) change(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

// asked returns how often the controller has asked.
func (o *origin) asked() (n int) {
	o.change(func() { n = len(o.requests) })
	return n
}

// repository is a repository of the registry.
func (o *origin) repository() string { return strings.TrimPrefix(o.URL, "http://") + "/os" }

// push pushes an image of a version under a tag, and returns the image by its digest.
func (o *origin) push(t *testing.T, version, tag string) string {
	t.Helper()
	digest, err := machine.PushRelease(t.Context(), o.repository()+":"+tag, version)
	if err != nil {
		t.Fatal(err)
	}
	return o.repository() + "@" + digest
}

// stream makes an OSStream for the pool worker.
func (l *lab) stream(source string) {
	l.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"noderefit.dev/v1alpha1","kind":"OSStream","metadata":{"name":"os"},
		"spec":{"pools":["worker"],"intervalSeconds":10,"source":%s}}`, source)
	rest := l.Client.CoreV1().RESTClient()
	if err := rest.Post().AbsPath(streamsPath).Body([]byte(body)).Do(l.ctx).Error(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		ctx, all := context.Background(), metav1.ListOptions{}
		_ = rest.Delete().AbsPath(streamsPath).Do(ctx).Error()
		_ = l.MachineConfigs.MachineconfigurationV1().MachineConfigs().DeleteCollection(ctx, metav1.DeleteOptions{}, all)
	})
}

func (l *lab) patchStream(patch string) {
	l.t.Helper()
	err := l.Client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(streamsPath, "os").Body([]byte(patch)).
		Do(l.ctx).Error()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) streamed() (status api.OSStreamStatus, pool api.OSStreamPool) {
	l.t.Helper()
	data, err := l.Client.CoreV1().RESTClient().Get().AbsPath(streamsPath, "os").DoRaw(l.ctx)
	s := &api.OSStream{}
	if err == nil {
		err = json.Unmarshal(data, s)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	if len(s.Status.Pools) > 0 {
		pool = s.Status.Pools[0]
	}
	return s.Status, pool
}

// imageOf is the image of a rendered configuration.
func (l *lab) imageOf(config string) string {
	mc, err := l.MachineConfigs.MachineconfigurationV1().MachineConfigs().Get(l.ctx, config, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return mc.Spec.OSImageURL
}

// arrives waits until the whole pool worker has an image.
func (l *lab) arrives(image string) {
	l.t.Helper()
	l.until("all nodes have "+image, func() bool {
		p := l.getPool("worker")
		return l.imageOf(p.Status.Configuration.Name) == image && p.Spec.Configuration.Name == p.Status.Configuration.Name
	})
}

// offered are the images that any node was told to go to.
func (l *lab) offered() (out []string) {
	told, _, _ := l.eye.seen()
	for _, configs := range told {
		for _, c := range configs {
			out = append(out, l.imageOf(c))
		}
	}
	return out
}

func selectsWorker(p *mcfgv1.MachineConfigPool) {
	p.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{api.Role: "worker"}}
}

// followers starts a pool of three nodes with the controllers that follow releases.
func followers(t *testing.T, source func(o *origin) string) (*lab, *origin) {
	t.Helper()
	l, o := newLab(t), newOrigin(t)
	for i := range 3 {
		l.node(fmt.Sprintf("s-%d", i), "worker", "rendered-worker-a")
	}
	l.pool("worker", "", selectsWorker)
	l.stream(source(o))
	l.motd("one", "worker")
	l.alone("--controllers=pool,render,stream")
	return l, o
}

func TestATagIsFollowedFromItsPushToTheNodes(t *testing.T) {
	var first string
	l, o := followers(t, func(o *origin) string {
		first = o.push(t, "1", "stable")
		return fmt.Sprintf(`{"tag":{"image":"%s:stable"}}`, o.repository())
	})
	l.arrives(first)

	// The second release fails on the first node, and is never offered again.
	l.agents.breakOn("s-0", "s-1", "s-2")
	second := o.push(t, "2", "stable")
	l.until("the release is quarantined, and the pool has the one before", func() bool {
		_, pool := l.streamed()
		return len(pool.Quarantined) == 1 && pool.Quarantined[0].Image == second && pool.Version == "1" &&
			strings.HasPrefix(pool.Skipped[0].Message, "2 failed on node s-")
	})
	l.arrives(first)
	for i := range 3 {
		l.agents.mend(fmt.Sprintf("s-%d", i))
	}
	before := l.offered()
	l.motd("two", "worker")
	l.until("other content goes on", func() bool {
		p := l.getPool("worker")
		return l.condition("worker", mcfgv1.MachineConfigPoolUpdated) == "True All nodes are updated with "+p.Spec.Configuration.Name &&
			l.imageOf(p.Spec.Configuration.Name) == first && len(l.offered()) > len(before)
	})
	if i := slices.Index(l.offered()[len(before):], second); i >= 0 {
		t.Errorf("the release that failed was offered again: %q", l.offered())
	}
	third := o.push(t, "3", "stable")
	l.arrives(third)
	if testing.Short() {
		return // the rest is held by the tests of controller/stream
	}

	// Nothing changes: one conditional request an interval.
	o.change(func() {
		o.requests = nil
		o.registry.Asked()
	})
	from := time.Now()
	l.until("the registry is asked twice", func() bool { return o.asked() >= 2 })
	if took, asked := time.Since(from), o.registry.Asked(); took < 9*time.Second || len(asked) != 2 ||
		slices.ContainsFunc(asked, func(a machine.Asked) bool {
			return a.Method != http.MethodHead || a.Path != "/v2/os/manifests/stable" || !a.Conditional ||
				a.Status != http.StatusNotModified
		}) {
		t.Errorf("in %s, with an interval of 10 s, the registry was asked %+v", took, asked)
	}
	o.change(func() { o.away = true })
	l.until("the stream says that the registry is away", func() bool {
		status, _ := l.streamed()
		return slices.ContainsFunc(status.Conditions, func(c metav1.Condition) bool {
			return c.Type == api.StreamSource && c.Status == metav1.ConditionFalse
		})
	})
	if said := l.refit("streams", "os"); !strings.Contains(said, "away for") || !strings.Contains(said, "pool worker: 3 "+third) {
		t.Errorf("kubectl refit streams says %s", said)
	}
	if mc := l.imageOf("99-worker-generated-osstream"); mc != third {
		t.Errorf("with its registry away, the pool has %s", mc)
	}

	// A person approves the next one. An edit of the MachineConfig is put back.
	o.change(func() { o.away = false })
	l.patchStream(`{"spec":{"approval":"Manual"}}`)
	fourth := o.push(t, "4", "stable")
	l.until("the next one waits for an approval", func() bool {
		_, pool := l.streamed()
		return len(pool.Skipped) > 0 && pool.Skipped[0].Version == "4" && pool.Skipped[0].Reason == "NeedsApproval"
	})
	l.refit("streams", "-o", "json")
	l.refused("offers no release 5", "streams", "approve", "os", "5", "--why", "x")
	l.refit("streams", "approve", "os", "4", "--why", "tested")
	l.arrives(fourth)
	patch := []byte(`{"spec":{"osImageURL":"r.example/mine"}}`)
	mcs := l.MachineConfigs.MachineconfigurationV1().MachineConfigs()
	if _, err := mcs.Patch(l.ctx, "99-worker-generated-osstream", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	l.until("the edit is put back", func() bool { return l.imageOf("99-worker-generated-osstream") == fourth })
}

// graphOf writes a graph of releases whose images are one, two and so on, and updates between them.
func graphOf(updates string, releases ...string) string {
	var nodes []string
	for _, r := range releases {
		nodes = append(nodes, fmt.Sprintf(`{"version":%q,"payload":%q,"metadata":{}}`, r, graphImage(r)))
	}
	return fmt.Sprintf(`{"nodes":[%s],"edges":[%s]}`, strings.Join(nodes, ","), updates)
}

func graphImage(version string) string { return "r.example/os@sha256:" + strings.Repeat(version, 64) }

func TestAGraphThatWithdrawsAReleaseHoldsTheNodesThatHaveNotGone(t *testing.T) {
	l, o := followers(t, func(o *origin) string {
		o.graph = graphOf("", "1")
		return fmt.Sprintf(`{"cincinnati":{"url":"%s/graph"}}`, o.URL)
	})
	l.until("the graph does not know what the nodes run", func() bool {
		_, pool := l.streamed()
		return len(pool.Skipped) == 1 && pool.Skipped[0].Reason == "UnknownVersion"
	})
	l.refit("streams", "approve", "os", "1")
	l.arrives(graphImage("1"))

	l.agents.hold("s-1", true)
	l.agents.hold("s-2", true)
	o.change(func() { o.graph = graphOf("[0,1]", "1", "2") })
	l.until("the first node has the second release", func() bool {
		return l.imageOf(l.stand("s-0").Current) == graphImage("2") && l.stand("s-1").Cordoned
	})
	o.change(func() { o.graph = graphOf("", "1") })
	l.until("the others are held", func() bool {
		_, pool := l.streamed()
		return pool.Withheld != "" && strings.Contains(l.condition("worker", api.PoolHeld), "no further node goes to release 2")
	})
	l.agents.hold("s-2", false)
	at := l.stand("s-2").Desired
	l.agents.hold("s-1", false)
	l.until("the node that was on its way has arrived", func() bool {
		n := l.stand("s-1")
		return n.Settled() && l.imageOf(n.Current) == graphImage("2")
	})
	asked := o.asked()
	l.until("the graph is read twice more", func() bool { return o.asked() >= asked+2 })
	if l.stand("s-2").Desired != at {
		t.Error("a node goes to a release that was withdrawn")
	}
	// The newest one is a dead end, and the one before is behind a barrier.
	l.agents.hold("s-2", true) // or all may have passed the barrier before anybody looks
	o.change(func() {
		o.graph = marked("deadend", "5", marked("barrier", "3", graphOf("[0,2],[1,2],[2,3],[3,4]", "1", "2", "3", "4", "5")))
	})
	l.until("the newest waits for the barrier", func() bool {
		_, pool := l.streamed()
		return pool.Version == "3" && slices.ContainsFunc(pool.Skipped, func(s api.OSStreamSkipped) bool {
			return s.Version == "4" && s.Reason == "BarrierFirst"
		})
	})
	l.agents.hold("s-2", false)
	l.arrives(graphImage("4"))
	if _, pool := l.streamed(); len(pool.Skipped) != 1 || pool.Skipped[0].Reason != "DeadEnd" {
		t.Errorf("the stream says of the dead end: %+v", pool)
	}
	told, _, _ := l.eye.seen()
	for node, configs := range told {
		var images []string
		for _, c := range configs {
			images = append(images, l.imageOf(c))
		}
		if len(images) < 2 || !slices.Equal(images[len(images)-2:], []string{graphImage("3"), graphImage("4")}) {
			t.Errorf("%s went to %q, and not by the barrier", node, images)
		}
	}
	if held := l.getPool("worker").Annotations[api.WithheldKey]; held != "" {
		t.Errorf("the pool is still held: %s", held)
	}
}

// marked writes a mark of Fedora's graphs at a release.
func marked(as, version, graph string) string {
	at := fmt.Sprintf(`"payload":%q,"metadata":{`, graphImage(version))
	return strings.Replace(graph, at, at+fmt.Sprintf(`"org.fedoraproject.coreos.updates.%s":"true"`, as), 1)
}

func TestAStreamThatMakesNoSenseIsRefused(t *testing.T) {
	l := newLab(t)
	for spec, want := range map[string]string{
		`{"source":{"tag":{"image":"r.example/os:stable"}}}`: "pools or poolSelector is needed",
		`{"pools":["worker"],"source":{}}`:                   "exactly one of tag, versions, fedoraCoreOS and cincinnati",
		`{"pools":["worker"],"source":{"tag":{"image":"r.example/os:a"},"cincinnati":{"url":"https://g.example"}}}`: "exactly one of tag",
		`{"pools":["worker"],"source":{"tag":{"image":"r.example/os"}}}`:                                            "spec.source.tag.image",
		`{"pools":["worker"],"source":{"versions":{"repository":"r.example/os","range":""}}}`:                       "spec.source.versions.range",
		`{"pools":["worker"],"source":{"cincinnati":{"url":"ftp://g.example"}}}`:                                    "spec.source.cincinnati.url",
		`{"pools":["worker"],"highestVersion":"new","source":{"tag":{"image":"r.example/os:a"}}}`:                   "spec.highestVersion",
		`{"pools":["worker"],"intervalSeconds":1,"source":{"tag":{"image":"r.example/os:a"}}}`:                      "spec.intervalSeconds",
		`{"pools":["worker"],"source":{"fedoraCoreOS":{"stream":"stable","warinessPercent":101}}}`:                  "warinessPercent",
		`{"pools":["worker"],"approval":"Never","source":{"tag":{"image":"r.example/os:a"}}}`:                       "spec.approval",
	} {
		body := `{"apiVersion":"noderefit.dev/v1alpha1","kind":"OSStream","metadata":{"name":"bad"},"spec":` + spec + `}`
		err := l.Client.CoreV1().RESTClient().Post().AbsPath(streamsPath).Body([]byte(body)).Do(l.ctx).Error()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
}
