// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/releases"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func image(digit int) string { return fmt.Sprintf("r.example/os@sha256:%064x", digit) }

func rendered(digit int) string { return fmt.Sprintf("rendered-worker-%032x", digit) }

// scene is a pool worker with nodes, and a stream for it. A rendered configuration has the image of its number.
type scene struct {
	stream *api.OSStream
	pool   *mcfgv1.MachineConfigPool
	nodes  []*corev1.Node
	config *mcfgv1.MachineConfig
	others []*mcfgv1.MachineConfig
	offer  *releases.Offer
	away   error
}

func newScene(versions ...string) *scene {
	role := map[string]string{api.Role: "worker"}
	s := &scene{
		stream: &api.OSStream{ObjectMeta: metav1.ObjectMeta{Name: "os", Generation: 3}},
		pool:   &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{Name: "worker"}},
		offer:  &releases.Offer{},
	}
	s.stream.Spec.Pools = []string{"worker"}
	s.pool.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: role}
	s.pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: role}
	for i, v := range versions {
		s.offer.Releases = append(s.offer.Releases, releases.Release{
			Version: v, Since: began, Images: map[string]string{"amd64": image(i + 1)},
		})
	}
	return s
}

// node adds a node that has one configuration and is to have another.
func (s *scene) node(name string, current, desired int, state api.State) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{api.Role: "worker"}, Annotations: map[string]string{
			api.CurrentConfig: rendered(current), api.DesiredConfig: rendered(desired), api.StateKey: string(state),
		}}}
	n.Status.NodeInfo.Architecture = "amd64"
	s.nodes = append(s.nodes, n)
	return n
}

// turn decides, and carries that out.
func (s *scene) turn() (decision, api.OSStreamPool) {
	w := &world{World: &source.World{Pools: []*mcfgv1.MachineConfigPool{s.pool}, Nodes: s.nodes, Configs: s.others},
		members: map[string][]*corev1.Node{"worker": s.nodes}, images: map[string]string{}, now: began}
	if s.config != nil {
		w.Configs = append([]*mcfgv1.MachineConfig{s.config}, s.others...)
	}
	for i := range 9 {
		w.images[rendered(i)] = image(i)
	}
	view := progress.View{Pools: []mcfgv1.MachineConfigPool{*s.pool}}
	for _, n := range s.nodes {
		view.Nodes = append(view.Nodes, *n)
	}
	w.report = progress.NewReport(view)
	d := decide(w, []*followed{{OSStream: s.stream, offer: s.offer, away: s.away}})
	for _, mc := range d.write {
		s.config = mc
		s.config.Annotations[api.GeneratedBy] = "v1"
	}
	if len(d.remove) > 0 {
		s.config = nil
	}
	if want, said := d.withheld["worker"]; said && want != nil {
		s.pool.Annotations = map[string]string{api.WithheldKey: api.Encode(want)}
	} else if said {
		delete(s.pool.Annotations, api.WithheldKey)
	}
	s.stream.Status = *d.status["os"]
	return d, entry(&s.stream.Status, "worker")
}

// aims has the pool render to a configuration, quarantined or not.
func (s *scene) aims(digit int, quarantined bool) {
	s.pool.Spec.Configuration.Name = rendered(digit)
	c := mcfgv1.MachineConfigPoolCondition{Type: api.PoolQuarantined, Status: corev1.ConditionFalse}
	if quarantined {
		c.Status = corev1.ConditionTrue
	}
	s.pool.Status.Conditions = []mcfgv1.MachineConfigPoolCondition{c}
}

func (s *scene) fails(n *corev1.Node, digit int) {
	n.Annotations[api.StateKey] = string(api.RolledBack)
	n.Annotations[api.QuarantinedKey] = api.Encode([]api.Quarantine{{
		Config: rendered(digit), Node: n.Name, Reason: "kubelet.service failed", Since: began,
	}})
	s.aims(digit, true)
}

func TestAPoolGetsAMachineConfigWithTheDigest(t *testing.T) {
	t.Parallel()
	s := newScene("1", "2")
	d, e := s.turn()
	mc := s.config
	if mc == nil || mc.Name != "99-worker-generated-osstream" || mc.Spec.OSImageURL != image(2) || mc.Labels[api.Role] != "worker" ||
		mc.Annotations[machineconfig.ReleaseKey] != "os 2" || e.Version != "2" || e.Message != "" {
		t.Fatalf("%+v %+v", mc, e)
	}
	if c := meta.FindStatusCondition(d.status["os"].Conditions, api.StreamReady); c.Status != metav1.ConditionTrue {
		t.Errorf("%+v", c)
	}
	if d, _ = s.turn(); len(d.write)+len(d.remove) > 0 {
		t.Errorf("written again: %+v", d)
	}
	s.config.Spec.OSImageURL = "r.example/mine"
	if d, _ = s.turn(); len(d.write) != 1 || s.config.Spec.OSImageURL != image(2) {
		t.Errorf("an edit stays: %s", s.config.Spec.OSImageURL)
	}
	s.stream.Status = api.OSStreamStatus{}
	s.offer = nil
	if d, e = s.turn(); len(d.write)+len(d.remove) > 0 || e.Version != "2" {
		t.Errorf("with its status lost and its source away: %+v %+v", d, e)
	}
	s.stream.Spec.Pools = []string{"infra"}
	if s.turn(); s.config != nil {
		t.Error("a pool that is let go keeps its MachineConfig")
	}
}

func TestAReleaseThatFailedIsNeverOfferedAgain(t *testing.T) {
	t.Parallel()
	s := newScene("1")
	s.turn()
	n := s.node("n1", 1, 1, api.Done)
	s.offer = newScene("1", "2").offer
	s.turn()
	n.Annotations[api.DesiredConfig] = rendered(2)
	s.fails(n, 2)
	_, e := s.turn()
	if e.Version != "1" || len(e.Quarantined) != 1 || s.config.Spec.OSImageURL != image(1) ||
		e.Skipped[0].Message != "2 failed on node n1: kubelet.service failed" {
		t.Fatalf("%+v", e)
	}
	n.Annotations[api.StateKey], n.Annotations[api.DesiredConfig] = string(api.Done), rendered(1)
	delete(n.Annotations, api.QuarantinedKey)
	s.aims(1, false)
	if _, e = s.turn(); e.Version != "1" || e.Skipped[0].Reason != "Quarantined" {
		t.Errorf("once no node and no pool knows of it any more: %+v", e)
	}
	s.offer = newScene("1", "2", "3").offer
	if _, e = s.turn(); e.Version != "3" || len(e.Skipped) > 0 {
		t.Errorf("the next one: %+v", e)
	}
	s.offer = newScene("1", "2").offer
	s.stream.Status.Pools[0].Version, s.stream.Status.Pools[0].Image = "1", image(1)
	s.pool.Annotations = map[string]string{api.LiftedKey: api.Encode([]api.Lifted{{
		Config: rendered(2), Failures: []api.Failure{{Node: "n1", Since: began}},
	}})}
	if _, e = s.turn(); e.Version != "2" || len(e.Quarantined) > 0 {
		t.Errorf("with the quarantine lifted: %+v", e)
	}
}

func TestAFailureThatIsNotOfTheReleaseIsNotBlamedOnIt(t *testing.T) {
	t.Parallel()
	s := newScene("1")
	s.turn()
	n := s.node("n1", 1, 5, api.Done)
	s.fails(n, 5)
	if _, e := s.turn(); e.Version != "1" || len(e.Quarantined) > 0 {
		t.Errorf("another image failed: %+v", e)
	}
	s.stream.Status.Pools[0].Image = image(5)
	n.Annotations[api.CurrentConfig] = rendered(5)
	s.offer = nil
	if _, e := s.turn(); len(e.Quarantined) > 0 {
		t.Errorf("the node had the image before: %+v", e)
	}
}

func TestNodesThatHaveNotGoneAreHeldAndLetGo(t *testing.T) {
	t.Parallel()
	s := newScene("1", "2")
	s.turn()
	s.aims(2, false)
	s.node("n1", 2, 2, api.Done)
	s.node("n2", 1, 1, api.Done)
	s.offer = newScene("1").offer
	if _, e := s.turn(); e.Version != "2" || e.Withheld == "" || s.pool.Annotations[api.WithheldKey] == "" {
		t.Fatalf("%+v", e)
	}
	s.offer = nil
	if s.turn(); s.pool.Annotations[api.WithheldKey] == "" {
		t.Error("let go while the source is away")
	}
	s.offer = newScene("1", "2", "3").offer
	s.offer.Releases = append(s.offer.Releases[:1], s.offer.Releases[2])
	if _, e := s.turn(); e.Version != "3" || e.Withheld != "" || s.pool.Annotations[api.WithheldKey] == "" {
		t.Errorf("before the next one is rendered: %+v", e)
	}
	s.aims(3, false)
	if s.turn(); s.pool.Annotations[api.WithheldKey] != "" {
		t.Error("still held from the next one")
	}
}

// A node that has only committed a release runs the release before: it does not keep the pool at a withdrawn one.
func TestAWithdrawnReleaseThatNodesHaveOnlyCommittedIsGoneBackFrom(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change  func(*corev1.Node)
		version string
	}{
		"committed":         {func(*corev1.Node) {}, "1"},
		"drained to reboot": {func(n *corev1.Node) { n.Annotations[api.CordonKey] = api.Encode(api.Cordon{By: api.Daemon}) }, "2"},
		"on its way":        {func(n *corev1.Node) { delete(n.Annotations, api.RebootWantedKey) }, "2"},
	} {
		s := newScene("1")
		s.turn()
		n := s.node("n1", 1, 2, api.Working)
		s.node("n2", 1, 1, api.Done)
		s.offer = newScene("1", "2").offer
		s.turn()
		s.aims(2, false)
		n.Annotations[api.RebootWantedKey] = api.Encode(api.RebootWanted{Reasons: []api.RebootReason{
			{Kind: api.RebootConfiguration, Message: "committed", Since: began}}})
		c.change(n)
		s.offer = newScene("1").offer
		_, e := s.turn()
		if held := e.Withheld != ""; e.Version != c.version || held != (c.version == "2") {
			t.Errorf("%s: %+v", what, e)
		}
	}
}

func TestWhatBecomesOfAPoolsMachineConfig(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*scene)
		stays  bool
	}{
		"the stream is being deleted": {func(s *scene) {
			s.stream.DeletionTimestamp = &metav1.Time{Time: began}
		}, false},
		"the stream is for another pool": {func(s *scene) { s.stream.Spec.Pools = []string{"infra"} }, false},
		"the stream's selector no longer selects the pool": {func(s *scene) {
			s.stream.Spec.Pools, s.stream.Spec.PoolSelector = nil, &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, false},
		"the stream's selector makes no sense": {func(s *scene) {
			s.stream.Spec.Pools, s.stream.Spec.PoolSelector = nil, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "a", Operator: "Sometimes"},
			}}
		}, true},
		"the stream's pools can't be read": {func(s *scene) {
			s.stream.Spec.Pools, s.stream.Annotations = nil, map[string]string{api.UnreadableKey: "spec.pools is no list"}
		}, true},
		"the range makes no sense": {func(s *scene) {
			s.stream.Spec.Source.Versions = &api.VersionsSource{Repository: "r.example/os", Range: "newest"}
		}, true},
		"the source has not answered since the controller started": {func(s *scene) { s.offer = nil }, true},
		"the status was lost": {func(s *scene) { s.offer, s.stream.Status = nil, api.OSStreamStatus{} }, true},
	} {
		s := newScene("1")
		s.turn()
		s.pool.Annotations = map[string]string{api.WithheldKey: api.Encode(api.Withheld{Stream: "os", Image: image(1)})}
		s.aims(1, false)
		c.change(s)
		d, _ := s.turn()
		if (s.config != nil) != c.stays || len(d.write) > 0 {
			t.Errorf("%s: %+v", name, s.config)
		}
		if held := s.pool.Annotations[api.WithheldKey] != ""; held != c.stays {
			t.Errorf("%s: held is %v", name, held)
		}
	}
}

func TestWhatKeepsARelease(t *testing.T) {
	t.Parallel()
	policy := func(text string) *mcfgv1.MachineConfig {
		mc := source.Config("worker", "50-policy", fmt.Appendf(nil, `{"ignition":{"version":"3.4.0"},"storage":{"files":[
			{"path":"/etc/containers/policy.json","contents":{"source":"data:;base64,%s"}}]}}`,
			base64.StdEncoding.EncodeToString([]byte(text))))
		return mc
	}
	for name, c := range map[string]struct {
		change func(*scene)
		want   string
	}{
		"a policy that rejects it": {func(s *scene) {
			s.others = []*mcfgv1.MachineConfig{policy(`{"default":[{"type":"reject"}]}`)}
		}, "default rejects it"},
		"a policy that demands no signature": {func(s *scene) {
			s.stream.Spec.Signature = api.SignatureRequired
			s.others = []*mcfgv1.MachineConfig{policy(`{"default":[{"type":"insecureAcceptAnything"}]}`)}
		}, "the policy accepts anything"},
		"no approval": {func(s *scene) { s.stream.Spec.Approval = api.StreamManual }, "nobody has approved it"},
		"a person's image": {func(s *scene) {
			s.others = []*mcfgv1.MachineConfig{{ObjectMeta: metav1.ObjectMeta{Name: "50-mine", Labels: map[string]string{api.Role: "worker"}}}}
			s.others[0].Spec.OSImageURL = "r.example/mine"
		}, "MachineConfig/50-mine sets osImageURL"},
		"a person's MachineConfig of its name": {func(s *scene) {
			s.others = []*mcfgv1.MachineConfig{{ObjectMeta: metav1.ObjectMeta{Name: "99-worker-generated-osstream"}}}
		}, "not of the controller's making"},
		"a pool that does not select it": {func(s *scene) {
			s.pool.Spec.MachineConfigSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, "does not select MachineConfigs"},
	} {
		s := newScene("1")
		c.change(s)
		d, e := s.turn()
		text := e.Message
		for _, skipped := range e.Skipped {
			text += skipped.Message
		}
		if !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, %+v", name, text, d.status["os"].Conditions)
		}
	}
	s := newScene("1")
	s.stream.Spec.Approval = api.StreamManual
	s.stream.Annotations = map[string]string{api.StreamApprovedKey: api.Encode(api.StreamApproval{Version: "1", By: "ada"})}
	s.stream.Spec.Signature = api.SignatureRequired
	if s.turn(); s.config == nil || s.config.Spec.OSImageURL != "ostree-image-signed:docker://"+image(1) {
		t.Errorf("%+v", s.config)
	}
	s.away = errors.New("connection refused")
	d, e := s.turn()
	if c := meta.FindStatusCondition(d.status["os"].Conditions, api.StreamSource); c.Status != metav1.ConditionFalse ||
		!strings.Contains(c.Message, "connection refused") || e.Version != "1" || len(d.write)+len(d.remove) > 0 {
		t.Errorf("%+v %+v", c, e)
	}
}
