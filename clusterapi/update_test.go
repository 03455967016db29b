// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// stand plays Cluster API before the extension and a cluster of nodes.
type stand struct {
	*played

	t       *testing.T
	e       *Extension
	renders int
}

func newStand(t *testing.T, pools ...string) *stand {
	t.Helper()
	p := newPlayed()
	return &stand{played: p, t: t, e: New(p, Options{Namespace: "fleet", Cluster: "prod", Pools: pools}, logr.Discard())}
}

// files are those of a template: the contents of /etc/a, and of /etc/b where it is not empty.
func files(a, b string) []file {
	out := []file{{Path: "/etc/a", Content: a}, {Path: "/etc/same", Content: "same"}}
	if b != "" {
		out = append(out, file{Path: "/etc/b", Content: b})
	}
	return out
}

// put sets a field of a document.
func put(doc any, value any, path ...string) {
	in := doc.(map[string]any)
	for _, key := range path[:len(path)-1] {
		in = in[key].(map[string]any)
	}
	in[path[len(path)-1]] = value
}

func (s *stand) send(hook, name string, change func(doc any)) response {
	s.t.Helper()
	var doc any
	if err := json.Unmarshal(document(s.t, name), &doc); err != nil {
		s.t.Fatal(err)
	}
	change(doc)
	text, err := json.Marshal(doc)
	if err != nil {
		s.t.Fatal(err)
	}
	return ask(s.t, s.e, hook+"/"+name, text, http.StatusOK)
}

// can asks whether a MachineSet can be updated.
func (s *stand) can(from, to []file, more ...func(doc any)) response {
	s.t.Helper()
	return s.send("canupdatemachineset", "can-update-machine-set", func(doc any) {
		put(doc, from, "current", "bootstrapConfigTemplate", "spec", "template", "spec", "files")
		put(doc, to, "desired", "bootstrapConfigTemplate", "spec", "template", "spec", "files")
		for _, f := range more {
			f(doc)
		}
	})
}

// version makes a change one of the version as well.
func version(doc any) {
	put(doc, "v1.35.0", "desired", "machineSet", "spec", "template", "spec", "version")
}

// update asks to update a machine, and wants an outcome with a text.
func (s *stand) update(machine string, to []file, want outcome, says string, more ...func(doc any)) {
	s.t.Helper()
	out := s.send("updatemachine", "update-machine", func(doc any) {
		put(doc, machine, "desired", "machine", "metadata", "name")
		put(doc, "lab://"+machine, "desired", "machine", "spec", "providerID")
		put(doc, to, "desired", "bootstrapConfig", "spec", "files")
		for _, f := range more {
			f(doc)
		}
	})
	got := done
	switch {
	case out.Status == failure:
		got = failed
	case out.RetryAfterSeconds > 0:
		got = waits
	}
	if got != want || !strings.Contains(out.Message, says) {
		s.t.Fatalf("%s: %+v, want %d with %q", machine, out, want, says)
	}
}

// has wants the MachineConfig to have files: their contents by path, "-" for a path without contents.
func (s *stand) has(want map[string]string) {
	s.t.Helper()
	c, err := machineconfig.Parse(s.configs[prefix+"worker"])
	if err != nil {
		s.t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range c.Files {
		text, whole := strings.CutSuffix(string(f.Contents), "\n")
		if got[f.Path] = text; !whole && !f.NoContents {
			got[f.Path] += " without a newline"
		}
		if f.NoContents {
			got[f.Path] = "-"
		}
	}
	if !maps.Equal(got, want) {
		s.t.Fatalf("the MachineConfig has %v, want %v", got, want)
	}
}

// rendered is the name of the pool's nth configuration.
func rendered(n int) string { return fmt.Sprintf("rendered-worker-%032x", n) }

// rolls renders the pool, and has nodes arrive.
func (s *stand) rolls(nodes ...int) string {
	s.renders++
	name := rendered(s.renders)
	s.render(name)
	for _, n := range nodes {
		s.moves(n, name, api.Done)
	}
	return name
}

func (s *stand) quarantines(config string) {
	s.pools[0].Annotations = map[string]string{api.PoolQuarantineKey: api.Encode([]api.Quarantine{
		{Config: config, Node: "node-m1", Reason: "the verdict was no"}})}
}

// inPlace takes both machines from one template to another.
func (s *stand) inPlace(from, to []file) {
	s.t.Helper()
	if out := s.can(from, to); out.BootstrapConfigTemplatePatch == nil {
		s.t.Fatalf("%+v", out)
	}
	s.update("m1", to, waits, "has the files")
	s.rolls(0, 1)
	s.update("m1", to, done, "has the files")
	s.update("m2", to, done, "has the files")
}

// Cluster API remembers a "no" for a day, and replaces all machines by it.
func TestALostAPIServerIsNoRefusal(t *testing.T) {
	s := newStand(t)
	s.down = errors.New("away")
	if out := s.can(files("1", ""), files("2", "")); out.Status != failure || !strings.Contains(out.Message, "away") {
		t.Errorf("%+v", out)
	}
	if out := s.can(files("1", "1"), files("1", "")); out.Status != failure {
		t.Errorf("a change that needs new machines: %+v", out)
	}
	s.update("m1", files("2", ""), waits, "away")
}

// An update goes from the MachineConfig to the node's verdict. Silence of any kind is asked about again.
func TestAnUpdateIsDoneWithItsNode(t *testing.T) {
	s := newStand(t)
	to := files("2", "new")
	if out := s.can(files("1", ""), to); out.BootstrapConfigTemplatePatch == nil {
		t.Fatalf("%+v", out)
	}
	s.has(map[string]string{})
	s.update("m1", to, waits, "50-cluster-api-worker has the files")
	s.has(map[string]string{"/etc/a": "2", "/etc/b": "new"}) // and not what has not changed
	s.update("m1", to, waits, "renders")
	name := s.rolls()
	s.update("m1", to, waits, "node node-m1: ")
	s.moves(0, name, api.Working)
	s.update("m1", to, waits, "node node-m1: ")
	s.moves(0, name, api.Done)
	s.update("m1", to, done, "node-m1 has the files")
	s.update("m9", to, waits, "of Machine m9 yet")
	s.has(map[string]string{"/etc/a": "2", "/etc/b": "new"})
}

// A node that makes its own configuration of the pool's has the files of the pool's. A MachineConfig that was not
// rendered is no proof, whatever a node says of itself.
func TestANodeHasTheFilesOfItsPoolsConfiguration(t *testing.T) {
	s := newStand(t)
	to := files("2", "")
	s.can(files("1", ""), to)
	s.update("m1", to, waits, "has the files")
	s.update("m2", to, waits, "renders")
	for _, not := range []string{prefix + "worker", "50-of-a-person"} {
		s.configs[not] = s.configs[prefix+"worker"]
		s.moves(1, not, api.Done)
		s.update("m2", to, waits, "")
	}
	name := s.rolls(0)
	s.nodes[0].Annotations[api.MadeKey] = api.Encode(api.Made{Config: api.MadeName(name, "0123")})
	s.update("m1", to, done, "has the files")
}

// A machine that is on its way is not moved by Cluster API: it asks for its files until it is done.
func TestFilesAreNotTakenFromUnderAMachine(t *testing.T) {
	s := newStand(t)
	two, three := files("2", ""), files("3", "")
	s.can(files("1", ""), two)
	s.update("m1", two, waits, "has the files")
	name := s.rolls()
	s.update("m2", three, waits, "the machine of node node-m1 is not told yet")
	s.nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
		Message: "its kubelet restarts", LastTransitionTime: metav1.Now()}}
	s.update("m2", three, waits, "the machine of node node-m1 is not told yet")
	s.moves(0, name, api.Done)
	s.update("m2", three, waits, "the machine of node node-m1 is not told yet")
	s.update("m1", two, done, "has the files")
	s.update("m2", three, waits, "has the files")
	s.has(map[string]string{"/etc/a": "3"})
}

// A node that rollouts pass by holds no correction up, and its machine is not updated any more.
func TestADeadNodeHoldsNoCorrectionUp(t *testing.T) {
	for name, prepare := range map[string]func(*stand){
		"not ready": func(s *stand) {
			s.nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
				Message: "dead", LastTransitionTime: metav1.NewTime(time.Now().Add(-deadAfter - time.Minute))}}
		},
		"degraded": func(s *stand) { s.moves(0, rendered(1), api.Degraded) },
		"gone":     func(s *stand) { s.nodes = slices.Delete(s.nodes, 0, 1) },
		"its files can't be rendered": func(s *stand) {
			s.pools[0].Status.Conditions = append(s.pools[0].Status.Conditions, degraded("MachineConfig/50-cluster-api-worker: x"))
			s.pools[0].Spec.Configuration.Name = ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			two, three := files("2", ""), files("3", "")
			s.can(files("1", ""), two)
			s.update("m1", two, waits, "has the files")
			s.rolls()
			prepare(s)
			s.update("m2", three, waits, "has the files")
			s.has(map[string]string{"/etc/a": "3"})
			if name == "gone" {
				return
			}
			s.update("m1", two, failed, "gone on to other files without node node-m1. Delete Machine fleet/m1")
			s.has(map[string]string{"/etc/a": "3"})
			if out := s.can(three, two); out.BootstrapConfigTemplatePatch == nil {
				t.Fatalf("%+v", out)
			}
			s.update("m1", two, waits, "") // the template has gone back to these files
		})
	}
}

// A template that adds a file and one that takes it back: the new machines do not have the file, and no pool gives it.
func TestATemplateThatGoesBackIsNotOverruled(t *testing.T) {
	s := newStand(t)
	a, b := files("1", ""), files("2", "new")
	s.inPlace(a, b)
	out := s.can(b, a)
	if out.Status != failure || !strings.Contains(out.Message, "is to be rendered without it first") {
		t.Fatalf("new machines before the pool has let go: %+v", out)
	}
	s.has(map[string]string{"/etc/a": "-"})
	s.rolls()
	if out = s.can(b, a); out.Status != success || out.BootstrapConfigTemplatePatch != nil ||
		!strings.Contains(out.Message, "/etc/b goes") {
		t.Fatalf("%+v", out)
	}
	s.inPlace(a, files("4", "again"))
	s.has(map[string]string{"/etc/a": "4", "/etc/b": "again"})
}

// Machines that are replaced boot with newer files, which the pool does not write over.
func TestNewMachinesKeepTheirFiles(t *testing.T) {
	a, b, c := files("1", "1"), files("2", "2"), files("3", "2")
	t.Run("what differs goes", func(t *testing.T) {
		s := newStand(t)
		s.inPlace(a, b)
		if out := s.can(b, c, version); out.Status != failure || out.BootstrapConfigTemplatePatch != nil {
			t.Fatalf("%+v", out)
		}
		s.has(map[string]string{"/etc/a": "-", "/etc/b": "2"})
		s.rolls()
		if out := s.can(b, c, version); out.Status != success || out.BootstrapConfigTemplatePatch != nil ||
			!strings.Contains(out.Message, "machineSet has changed") {
			t.Fatalf("%+v", out)
		}
	})
	t.Run("what cloud-init alone can make goes", func(t *testing.T) {
		s := newStand(t)
		s.inPlace(a, b)
		c := files("3", "2")
		c[0].Owner = "etcd:etcd"
		s.can(b, c)
		s.has(map[string]string{"/etc/b": "2"})
	})
	t.Run("what is the same stays", func(t *testing.T) {
		s := newStand(t)
		s.inPlace(a, b)
		if out := s.can(b, b, version); out.Status != success || out.BootstrapConfigTemplatePatch != nil {
			t.Fatalf("%+v", out)
		}
		s.has(map[string]string{"/etc/a": "2", "/etc/b": "2"})
	})
	t.Run("a machine on its way is waited for", func(t *testing.T) {
		s := newStand(t)
		s.can(a, b)
		s.update("m1", b, waits, "has the files")
		name := s.rolls()
		if out := s.can(b, c, version); out.Status != failure || !strings.Contains(out.Message, "node node-m1") {
			t.Fatalf("%+v", out)
		}
		s.has(map[string]string{"/etc/a": "2", "/etc/b": "2"})
		s.moves(0, name, api.Done)
		s.update("m1", b, done, "has the files")
		s.can(b, c, version)
		s.has(map[string]string{"/etc/a": "-", "/etc/b": "2"})
	})
}

// Files that failed go, so that nothing else of the pool fails with them. The machine that failed goes on to ask for
// them; another has the corrected ones.
func TestFilesThatFailedAreTakenBack(t *testing.T) {
	s := newStand(t)
	good, bad, corrected := files("2", ""), files("fails", "new"), files("3", "")
	s.inPlace(files("1", ""), good)
	s.can(good, bad)
	s.update("m1", bad, waits, "has the files")
	s.quarantines(s.rolls())
	s.update("m1", bad, failed, "failed on node node-m1, which went back: the verdict was no")
	s.has(map[string]string{"/etc/a": "2"})
	s.rolls(0, 1)
	s.update("m1", bad, failed, "delete Machine fleet/m1")
	if out := s.can(good, bad); out.Status != failure || !strings.Contains(out.Message, "not tried again") {
		t.Errorf("files that failed, for the next machines: %+v", out)
	}
	if out := s.can(good, corrected); out.BootstrapConfigTemplatePatch == nil {
		t.Fatalf("%+v", out)
	}
	s.update("m2", corrected, waits, "has the files")
	s.update("m1", bad, failed, "delete Machine fleet/m1")
	s.rolls(1)
	s.update("m2", corrected, done, "node-m2 has the files")
	s.has(map[string]string{"/etc/a": "3"})

	s.pools[0].Annotations = nil // somebody has lifted the quarantine
	s.update("m1", bad, waits, "has the files")
	s.has(map[string]string{"/etc/a": "fails", "/etc/b": "new"})
}

func TestTheFirstFilesThatFailLeaveNothing(t *testing.T) {
	s := newStand(t)
	bad := files("fails", "")
	s.can(files("1", ""), bad)
	s.update("m1", bad, waits, "has the files")
	s.quarantines(s.rolls())
	s.update("m1", bad, failed, "went back")
	s.has(map[string]string{})
}

// A configuration that failed with files which a node has proved has failed by something else.
func TestFilesThatANodeHasProvedHaveNotFailed(t *testing.T) {
	s := newStand(t)
	to := files("2", "")
	s.can(files("1", ""), to)
	s.update("m1", to, waits, "has the files")
	s.rolls(0)
	s.quarantines(s.rolls())
	s.update("m2", to, waits, "")
	s.has(map[string]string{"/etc/a": "2"})
}

// Nothing is written for a machine whose node is not in the pool that its annotation names.
func TestAWrongPoolWritesNothing(t *testing.T) {
	pool := func(name string) func(any) {
		return func(doc any) {
			put(doc, name, "desired", "machine", "metadata", "annotations", api.MachinePoolKey)
		}
	}
	controlPlane := func(doc any) {
		put(doc, "", "desired", "machine", "metadata", "labels", controlPlaneLabel)
	}
	to := files("2", "")
	s := newStand(t)
	s.update("m1", to, waits, `node node-m1 is in the pool "worker"`, pool("infra"))
	s.update("m1", to, failed, "--pools", pool("master"))
	s.update("m1", to, failed, "--pools", pool("master"), controlPlane)
	if out := s.can(files("1", ""), to, func(doc any) {
		put(doc, "master", "desired", "machineSet", "spec", "template", "metadata", "annotations", api.MachinePoolKey)
	}); out.BootstrapConfigTemplatePatch != nil {
		t.Errorf("%+v", out)
	}
	played := s.played
	s = newStand(t, "master")
	s.update("m1", to, failed, "has no label "+controlPlaneLabel, pool("master"))
	s.update("m1", to, waits, `node node-m1 is in the pool "worker"`, pool("master"), controlPlane)
	s.update("m1", to, failed, "--pools")
	if len(s.configs)+len(played.configs) > 0 {
		t.Errorf("written: %v %v", s.configs, played.configs)
	}
	s.nodes[0].Labels = map[string]string{api.NodeRole + "master": ""}
	s.update("m1", to, waits, "50-cluster-api-master has the files", pool("master"), controlPlane)
}

// The provider's id says whose a node is. A kubelet can write any annotations on its own Node.
func TestANodeIsItsMachinesByTheProvidersID(t *testing.T) {
	s := newStand(t)
	s.nodes[1].Annotations = map[string]string{
		"cluster.x-k8s.io/machine": "m1", "cluster.x-k8s.io/cluster-namespace": "fleet"}
	s.nodes[0].Spec.ProviderID, s.nodes[1].Spec.ProviderID = "lab://m2", "lab://other"
	s.update("m1", files("2", ""), waits, `no Node has the spec.providerID "lab://m1" of Machine m1`)
	s.nodes[0].Spec.ProviderID, s.nodes[1].Spec.ProviderID = "lab://m1", "lab://m1"
	s.update("m1", files("2", ""), waits, "node-m1 and node-m2")
	s.nodes[0].Spec.ProviderID = ""
	s.update("m1", files("2", ""), waits, "Machine m1 has no spec.providerID", func(doc any) {
		put(doc, "", "desired", "machine", "spec", "providerID")
	})
	if len(s.configs) > 0 {
		t.Errorf("written: %v", s.configs)
	}
}

// A MachineConfig that was deleted takes the knowledge of what has changed along. Secrets stay out all the same.
func TestSecretsAreNotCarried(t *testing.T) {
	s := newStand(t)
	to := append(files("2", ""), file{Path: "/etc/key", Permissions: "0600", Content: "s"})
	s.update("m1", to, waits, "has the files")
	s.has(map[string]string{"/etc/a": "2", "/etc/same": "same"})
	s = newStand(t)
	large := files(strings.Repeat("x", contentAtMost), "")
	if out := s.can(files("1", ""), large); out.BootstrapConfigTemplatePatch != nil || !strings.Contains(out.Message, "at most") {
		t.Errorf("%+v", out)
	}
}

// Nodes let go of a path that leaves the MachineConfig. So a file that is carried stays, although this version would
// not take it, or it is a secret now.
func TestACarriedFileStays(t *testing.T) {
	t.Run("that this version would not take", func(t *testing.T) {
		const comment = "{# a comment of a template #}"
		s := newStand(t)
		s.inPlace(files("1", ""), files("2", "as an older version took it"))
		s.inPlace(files("2", comment), files("3", comment))
		s.has(map[string]string{"/etc/a": "3", "/etc/b": "as an older version took it"})
	})
	t.Run("without contents where it became a secret", func(t *testing.T) {
		s := newStand(t)
		s.inPlace(files("1", ""), files("2", "new"))
		secret := func(a string) []file {
			out := files(a, "new")
			out[2].Permissions = "0600"
			return out
		}
		s.can(files("2", "new"), secret("2"))
		s.rolls()
		out := s.can(files("2", "new"), secret("2"))
		if out.Status != success || !strings.Contains(out.Message, "is a secret") {
			t.Fatalf("%+v", out)
		}
		s.inPlace(secret("2"), secret("3"))
		s.has(map[string]string{"/etc/a": "3", "/etc/b": "-"})
	})
}

func degraded(why string) mcfgv1.MachineConfigPoolCondition {
	return mcfgv1.MachineConfigPoolCondition{Type: mcfgv1.MachineConfigPoolRenderDegraded, Status: corev1.ConditionTrue,
		Message: why}
}

// Cluster API asks about each machine every 15 seconds. Nodes are listed once for all of them.
func TestListsAreShared(t *testing.T) {
	var s shared[int]
	var fails error
	now, lists := time.Now(), 0
	get := func() ([]int, error) {
		return s.get(func() time.Time { return now }, func() ([]int, error) {
			lists++
			return []int{lists}, fails
		})
	}
	for _, step := range []struct {
		later time.Duration
		fails error
		lists int
	}{{0, nil, 1}, {sharedFor - 1, nil, 1}, {1, errors.New("away"), 2}, {0, nil, 3}, {0, nil, 3}} {
		now, fails = now.Add(step.later), step.fails
		got, err := get()
		if lists != step.lists || !errors.Is(err, step.fails) || err == nil && got[0] != lists {
			t.Fatalf("%+v: %v, %v after %d lists", step, got, err, lists)
		}
	}
}
