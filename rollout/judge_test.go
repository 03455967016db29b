// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

var now = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// node is one of a pool that is to go to B, as nodeTo reads it.
func node(t *testing.T, text string) progress.Node {
	t.Helper()
	return nodeTo(t, text, "B")
}

// nodeTo reads "name current>desired state", and behind that what else there is to say: the words are in
// testdata/README.md. Where > is missing the node was told what it has; - is nothing.
func nodeTo(t *testing.T, text, target string) progress.Node {
	t.Helper()
	words := strings.Fields(text)
	n := progress.Node{Name: words[0], Labels: map[string]string{}}
	current, desired, told := strings.Cut(words[1], ">")
	if !told {
		desired = current
	}
	n.Current, n.Desired = strings.TrimPrefix(current, "-"), strings.TrimPrefix(desired, "-")
	n.State = api.State(strings.TrimPrefix(words[2], "-"))
	if !n.State.Bad() && n.State != "" && n.State != api.Done && n.State != api.Working {
		t.Fatalf("%q is no state of a node", n.State)
	}
	for _, word := range words[3:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "arrived":
			n.Arrived = api.Arrival{Config: n.Desired, Since: ago(t, value)}
		case "passed":
			n.Arrived.Passed = ago(t, value)
		case "sent":
			n.Arrived = api.Arrival{Config: n.Desired}
		case "previous":
			n.Previous = value
		case "ready":
			n.ReadySince = ago(t, value)
		case "notready":
			n.NotReady = "Ready=Unknown"
			if value != "" {
				n.NotReadySince = ago(t, value)
			}
		case "diskfull":
			n.NotReady, n.NotReadySince = "DiskPressure=True", ago(t, value)
		case "hold":
			n.Hold = &api.NodeHold{By: "ann", Why: "debugging", Since: now.Add(-time.Hour)}
			if value != "" {
				n.Hold.Until = now.Add(now.Sub(ago(t, value)))
			}
		case "skip":
			n.Hold = &api.NodeHold{By: "ann", Why: "dead disk", Since: now.Add(-time.Hour), Config: value}
		case "bootc":
			n.Bootc = true
		case "cordoned":
			n.Cordoned = true
		case "joining":
			n.Joining = true
		case "wants", "committed", "ordered", "begun", "rebooted", "broken", "requested":
			rebootWord(t, &n, key, value)
		case "failed":
			n.Quarantined = append(n.Quarantined, api.Quarantine{Config: value, Reason: "no", Since: now.Add(-time.Hour)})
		case "label":
			name, of, _ := strings.Cut(value, ":")
			n.Labels[name] = of
		case "asked":
			n.Orders.Stage = &api.StageOrder{Config: target}
		case "staged":
			n.Orders.Stage = &api.StageOrder{Config: target}
			n.Staged = &api.Staged{Config: target, Digest: strings.TrimPrefix(value, "none"), Since: now}
		case "unable":
			tries, err := strconv.Atoi(value)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			n.Staged = &api.Staged{Config: target, Error: "the disk is full", Tries: tries, Since: now.Add(-time.Minute)}
		default:
			t.Fatalf("%q is no word of a node", word)
		}
	}
	return n
}

// rebootWord reads a word about reboots of a node.
func rebootWord(t *testing.T, n *progress.Node, key, value string) {
	t.Helper()
	value, more, _ := strings.Cut(value, ":")
	var at time.Time
	if value != "" {
		at = ago(t, value)
	}
	switch key {
	case "wants":
		n.RebootWanted = &api.RebootWanted{Reasons: []api.RebootReason{
			{Kind: api.RebootPackages, Message: "packages ask", Packages: []string{"libc6"}, Since: at},
		}}
	case "committed":
		n.RebootWanted = &api.RebootWanted{Reasons: []api.RebootReason{{Kind: api.RebootConfiguration, Since: at}}}
	case "ordered":
		n.Orders.Reboot = &api.RebootOrder{ID: "one", Why: "packages ask"}
	case "begun":
		n.Orders.Reboot = &api.RebootOrder{ID: "one", Why: "packages ask"}
		n.Rebooted = &api.Rebooted{ID: "one", Begun: at}
	case "rebooted":
		n.Rebooted = &api.Rebooted{ID: "one", Begun: at, Ended: at.Add(time.Minute), Soft: more == "soft"}
	case "broken":
		n.Rebooted = &api.Rebooted{ID: "one", Begun: at, Ended: at.Add(time.Minute), Failed: "the kubelet is down"}
	case "requested":
		n.Reboot = &api.RebootRequest{By: "ann", Why: "CVE", Since: at, Bypass: more == "bypass"}
	}
}

func ago(t *testing.T, text string) time.Time {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return now.Add(-d)
}

// pool is worker, or name, at target B.
func pool(t *testing.T, name string, nodes ...string) *progress.Pool {
	t.Helper()
	return poolThatFailed(t, name, nil, nodes...)
}

// poolThatFailed knows of failures.
func poolThatFailed(t *testing.T, name string, failures []api.Quarantine, nodes ...string) *progress.Pool {
	t.Helper()
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"name": name}, Annotations: map[string]string{},
	}}
	if failures != nil {
		object.Annotations[api.PoolQuarantineKey] = api.Encode(failures)
	}
	object.Spec.Configuration.Name = "B"
	var list []progress.Node
	for _, text := range nodes {
		list = append(list, node(t, text))
	}
	p := progress.NewPool(object, list)
	return &p
}

func follow(policies []api.RolloutPolicy, pools ...*progress.Pool) {
	progress.Share(pools)
	NewBook(policies, Unasked).Follow(pools, now, "")
}

func policyOf(spec api.RolloutPolicySpec, pools ...string) api.RolloutPolicy {
	if len(pools) == 0 {
		pools = []string{"worker"}
	}
	spec.Pools = pools
	return api.RolloutPolicy{ObjectMeta: metav1.ObjectMeta{Name: "careful"}, Spec: spec}
}

func number(text string) *intstr.IntOrString {
	v := intstr.Parse(text)
	return &v
}

// held are the nodes that may not begin, each with the verdict.
func held(p *progress.Pool) string {
	var out []string
	for _, n := range p.Nodes {
		if h := p.Held(&n); h != nil {
			out = append(out, n.Name+":"+string(h.Verdict))
		}
	}
	return strings.Join(out, " ")
}

func TestStagesComeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	runTable(t, "stages.txt")
}

func TestANodeThatHasToTryAgainGoesBeforeAllStages(t *testing.T) {
	t.Parallel()
	runTable(t, "tries-again.txt")
}

func TestAStageHasItsOwnMaxUnavailable(t *testing.T) {
	t.Parallel()
	runTable(t, "stage-pace.txt")
}

func TestNodesOfAllStagesGoByThePoolsOwnMaxUnavailable(t *testing.T) {
	t.Parallel()
	runTable(t, "stages-passed-over.txt")
}

func TestANodeThatJoinedWithTheTargetIsNoCanary(t *testing.T) {
	t.Parallel()
	runTable(t, "joined.txt")
}

func TestASlipInAPolicyKeepsItsFailureBudget(t *testing.T) {
	t.Parallel()
	runTable(t, "slips.txt")
}

func TestNodesThatArrivedCountForAWhile(t *testing.T) {
	t.Parallel()
	runTable(t, "arrived.txt")
}

func TestWhatHoldsAWholePool(t *testing.T) {
	t.Parallel()
	runTable(t, "pool-held.txt")
}

func TestPoolsThatWaitForEachOtherAreHeldAndSaySo(t *testing.T) {
	t.Parallel()
	runTable(t, "circle.txt")
}

func TestABypassGoesForOneConfigurationAndKeepsTheBudget(t *testing.T) {
	t.Parallel()
	runTable(t, "bypass.txt")
}

func TestANodeThatJoinsWaitsForNoWindow(t *testing.T) {
	t.Parallel()
	runTable(t, "joining.txt")
}

func TestRolloutsGoOnWithoutNodesThatPeopleHold(t *testing.T) {
	runTable(t, "people.txt")
}

func TestRolloutsPassOverNodesThatWereNotReadyForLong(t *testing.T) {
	runTable(t, "not-ready.txt")
}

func TestFindingsSayWhatIsWrongWithEachPolicy(t *testing.T) {
	t.Parallel()
	good := policyOf(api.RolloutPolicySpec{}, "a")
	gone := policyOf(api.RolloutPolicySpec{}, "b", "nowhere")
	gone.Name = "gone"
	bad := policyOf(api.RolloutPolicySpec{FailureBudget: number("x")}, "c")
	bad.Name = "bad"
	selects := policyOf(api.RolloutPolicySpec{
		PoolSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "d"}},
	}, "d")
	selects.Name, selects.Spec.Pools = "selects", nil
	pools := []*progress.Pool{pool(t, "a"), pool(t, "b"), pool(t, "c"), pool(t, "d")}
	book := NewBook([]api.RolloutPolicy{good, gone, bad, selects}, Unasked)
	progress.Share(pools)
	book.Follow(pools, now, "")
	got := map[string]string{}
	for _, f := range book.Findings(pools) {
		var names []string
		for _, p := range f.Pools {
			names = append(names, p.Name)
		}
		got[f.Policy] = f.Reason + " " + strings.Join(names, ",")
	}
	want := map[string]string{
		"careful": api.RolloutInForce + " a", "gone": api.RolloutNoPool + " b", "bad": api.RolloutInvalid + " c",
		"selects": api.RolloutInForce + " d",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
