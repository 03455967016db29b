// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

//nolint:gochecknoinits // flags have to be known before the tests begin
func init() {
	flag.BoolFunc("update", "write the decisions of the code into the tables below testdata", func(string) error {
		return flag.Set("rewrite", "true")
	})
}

// runTable runs a file below testdata, whose README.md has the words.
func runTable(t *testing.T, file string) {
	t.Helper()
	datadriven.RunTest(t, "testdata/"+file, func(t *testing.T, d *datadriven.TestData) string {
		t.Helper()
		s := readSituation(t, d)
		switch d.Cmd {
		case "judge":
			return s.judge()
		case "check":
			return s.check()
		case "windows":
			return s.windows(t, d)
		}
		d.Fatalf(t, "%q is no command", d.Cmd)
		return ""
	})
}

// situation is what a row of a table is about.
type situation struct {
	policies []api.RolloutPolicy
	pools    []*progress.Pool
	answers  Answers
}

func readSituation(t *testing.T, d *datadriven.TestData) situation {
	t.Helper()
	for _, a := range d.CmdArgs {
		if d.Cmd != "windows" || a.Key != "at" {
			d.Fatalf(t, "%q is no word of %s", a.Key, d.Cmd)
		}
	}
	s := situation{answers: Unasked}
	var pools []poolText
	for line := range strings.Lines(strings.ReplaceAll(d.Input, "\n  ", " ")) {
		what, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch what {
		case "policy":
			s.policies = append(s.policies, readPolicy(t, text))
		case "pool":
			pools = append(pools, poolText{words: strings.Fields(text)})
		case "node":
			if len(pools) == 0 {
				pools = append(pools, poolText{words: []string{"worker"}})
			}
			last := &pools[len(pools)-1]
			names, rest, _ := strings.Cut(text, " ")
			for name := range strings.SplitSeq(names, ",") {
				last.nodes = append(last.nodes, name+" "+rest)
			}
		case "answer":
			s.answers = readAnswer(t, text)
		default:
			d.Fatalf(t, "%q is no word of a situation", what)
		}
	}
	for _, p := range pools {
		s.pools = append(s.pools, p.read(t))
	}
	return s
}

// readPolicy reads "NAME SPEC", the spec as YAML between braces. Without a name it is careful, without pools it is
// that of pool worker.
func readPolicy(t *testing.T, text string) api.RolloutPolicy {
	t.Helper()
	name, spec, _ := strings.Cut(text, "{")
	p := policyOf(api.RolloutPolicySpec{})
	if err := yaml.UnmarshalStrict([]byte("{"+spec), &p.Spec); err != nil {
		t.Fatalf("reading %s: %v", text, err)
	}
	if name = strings.TrimSpace(name); name != "" {
		p.Name = name
	}
	return p
}

// readAnswer reads "yes", or "no WORDS: MESSAGE", by which all gates that were asked have answered.
func readAnswer(t *testing.T, text string) Answers {
	t.Helper()
	head, message, _ := strings.Cut(text, ": ")
	words := strings.Fields(head)
	a := Answer{Passed: words[0] == "yes", Message: message, At: now, Since: now}
	for _, word := range words[1:] {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "first":
			a.First = ago(t, value)
		case "closed":
			a.Closed = ago(t, value)
		default:
			t.Fatalf("%q is no word of an answer", word)
		}
	}
	return func(Question) Answer { return a }
}

// poolText is a pool as a table has it.
type poolText struct{ words, nodes []string }

func (p poolText) read(t *testing.T) *progress.Pool {
	t.Helper()
	object := &mcfgv1.MachineConfigPool{ObjectMeta: metav1.ObjectMeta{
		Name: p.words[0], Labels: map[string]string{"name": p.words[0]}, Annotations: map[string]string{},
	}}
	object.Spec.Configuration.Name = "B"
	for _, word := range p.words[1:] {
		key, value, _ := strings.Cut(word, "=")
		config, more, _ := strings.Cut(value, ":")
		switch key {
		case "target":
			object.Spec.Configuration.Name = value
		case "previous":
			object.Status.Configuration.Name = value
		case "paused":
			object.Spec.Paused = true
		case "bypass":
			object.Annotations[api.BypassKey] = api.Encode(api.Bypass{Config: value, By: "ann", Why: "CVE"})
		case "approved":
			object.Annotations[api.ApprovedKey] = api.Encode(api.Approval{Config: config, Digest: more, By: "ann", Since: now})
		case "reboot":
			object.Annotations[api.RebootKey] = api.Encode(api.RebootRequest{
				By: "ann", Why: "CVE", Since: ago(t, config), Bypass: more == "bypass",
			})
		case "lifted":
			object.Annotations[api.LiftedKey] = api.Encode([]api.Lifted{
				{Config: config, Failures: []api.Failure{{Node: more, Since: now.Add(-time.Hour)}}},
			})
		default:
			t.Fatalf("%q is no word of a pool", word)
		}
	}
	var nodes []progress.Node
	for _, text := range p.nodes {
		nodes = append(nodes, nodeTo(t, text, object.Spec.Configuration.Name))
	}
	pool := progress.NewPool(object, nodes)
	return &pool
}

// judge says what the rules of all pools that have a policy are, but for what is so always.
func (s situation) judge() string {
	book := NewBook(s.policies, s.answers)
	progress.Share(s.pools)
	book.Follow(s.pools, now, "")
	v := verdict{}
	for _, p := range s.pools {
		if p.Rules.Policy == "" {
			v.reboots(p)
			continue
		}
		if len(s.pools) > 1 {
			v.say("pool %s:", p.Name)
		}
		v.pace(p)
		v.holds(p)
		v.gates(p)
		v.orders(p)
		v.reboots(p)
	}
	for _, a := range book.Asked() {
		v.say("policy %s of pool %s asks gate %s about %s at %s: %s", a.Policy, a.Pool, a.Gate, a.About(), a.Config,
			strings.Join(a.Nodes, " "))
	}
	return v.String()
}

// check says what is wrong with each policy.
func (s situation) check() string {
	var out strings.Builder
	for i := range s.policies {
		if err := Check(&s.policies[i]); err != nil {
			fmt.Fprintln(&out, message.OneLine(err.Error()))
		} else {
			fmt.Fprintln(&out, "it makes sense")
		}
	}
	return out.String()
}

// windows says of the policy's windows whether one is open at a time, and until when.
func (s situation) windows(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var text string
	d.ScanArgs(t, "at", &text)
	calendar, err := readCalendar(s.policies[0].Spec.Windows)
	if err != nil {
		t.Fatal(err)
	}
	m := calendar.at(at(t, text))
	out := "open"
	switch {
	case m.black:
		out = strings.TrimSpace("closed by a blackout " + m.blackout)
	case !m.open:
		out = "closed"
	}
	if m.until.IsZero() {
		return out + ", with no end in sight"
	}
	return out + " until " + m.until.UTC().Format(time.RFC3339)
}

// verdict writes what was decided.
type verdict struct{ strings.Builder }

func (v *verdict) say(format string, args ...any) { fmt.Fprintf(v, format+"\n", args...) }

// heldBy is what people read of a hold.
func heldBy(h *progress.Hold) string {
	text := ""
	if h.Blocking != nil {
		text += " by " + h.Blocking.Kind + " " + h.Blocking.Name
	}
	if !h.Until.IsZero() {
		text += " until " + clock(h.Until)
	}
	return fmt.Sprintf("%s: %s: %s\n  to do: %s", text, h.Verdict, h.Because, h.Do)
}

// pace says how the pool goes: which stage is at work, how many nodes at a time, which use that up.
func (v *verdict) pace(p *progress.Pool) {
	if p.Rules.Stage != "" {
		v.say("stage at work: %s", p.Rules.Stage)
	}
	if p.MaxUnavailable != 1 {
		v.say("maxUnavailable: %d", p.MaxUnavailable)
	}
	if p.Rules.FailureBudget != 1 {
		v.say("failure budget: %d", p.Rules.FailureBudget)
	}
	var taking []string
	for _, n := range p.Taking() {
		taking = append(taking, n.Name)
	}
	v.list("use up maxUnavailable", taking)
	without := slices.Collect(maps.Keys(p.Rules.Kept))
	for name := range p.Rules.Absent {
		if p.Rules.Kept[name] == nil {
			without = append(without, name)
		}
	}
	slices.Sort(without)
	v.list("goes on without", without)
	for _, name := range slices.Sorted(maps.Keys(p.Rules.Soaking)) {
		v.say("%s soaks until %s", name, clock(p.Rules.Soaking[name]))
	}
	if !p.Rules.Next.IsZero() {
		v.say("look again at %s", clock(p.Rules.Next))
	}
	if p.Quarantine() != nil {
		v.say("%s is quarantined", p.Target)
	}
	if p.GoesBack() {
		v.say("all go back to %s", p.Previous)
	}
	if p.Complete() {
		v.say("the rollout is over")
	}
}

// holds says who may not begin, and why, and who may.
func (v *verdict) holds(p *progress.Pool) {
	var free, reasons []string
	names := map[string][]string{}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		h := p.Held(n)
		if h == nil {
			if n.Desired != p.Target {
				free = append(free, n.Name)
			}
			continue
		}
		why := heldBy(h)
		if names[why] == nil {
			reasons = append(reasons, why)
		}
		names[why] = append(names[why], n.Name)
	}
	v.list("not held", free)
	for _, why := range reasons {
		v.say("held %s%s", strings.Join(names[why], " "), why)
	}
}

// gates says what keeps what has arrived from being proved.
func (v *verdict) gates(p *progress.Pool) {
	for _, name := range slices.Sorted(maps.Keys(p.Rules.Gated)) {
		v.say("not proved on %s: %s: %s", name, p.Rules.Gated[name].Verdict, p.Rules.Gated[name].Because)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Rules.Passed)) {
		v.say("gates passed on %s: %v", name, p.Rules.Passed[name])
	}
	if p.Rules.Unproved != nil {
		v.say("not over%s", heldBy(p.Rules.Unproved))
	}
	if f := p.Rules.Fails; f != nil {
		v.say("quarantine %s: gate %s %s", f.Config, f.Gate, f.Reason)
	}
}

// orders says which agents are asked what beside that.
func (v *verdict) orders(p *progress.Pool) {
	var drain []string
	stage := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(p.Rules.Orders)) {
		o := p.Rules.Orders[name]
		if o.Drain != nil {
			drain = append(drain, name)
		}
		if o.Stage != nil {
			text := o.Stage.Config
			if o.Stage.Digest != "" {
				text += " as " + o.Stage.Digest
			}
			if o.Stage.MinFreeMebibytes+o.Stage.IOWeight+o.Stage.CPUWeight > 0 {
				text += fmt.Sprintf(" with minFreeMebibytes %d, ioWeight %d, cpuWeight %d",
					o.Stage.MinFreeMebibytes, o.Stage.IOWeight, o.Stage.CPUWeight)
			}
			if o.Stage.Bandwidth > 0 {
				text += fmt.Sprintf(", bandwidth %d", o.Stage.Bandwidth)
			}
			stage[text] = append(stage[text], name)
		}
	}
	v.list("drain by the policy", drain)
	for _, text := range slices.Sorted(maps.Keys(stage)) {
		v.list("stage "+text+" ahead", stage[text])
	}
}

// reboots says which nodes reboot, and which wait for what.
func (v *verdict) reboots(p *progress.Pool) {
	var manual []string
	for _, name := range slices.Sorted(maps.Keys(p.Rules.Orders)) {
		if p.Rules.Orders[name].ManualReboots {
			manual = append(manual, name)
		}
	}
	v.list("commit without a reboot", manual)
	r := p.Rules.Reboots
	if r == nil {
		return
	}
	if r.Stage != "" {
		v.say("stage of reboots at work: %s", r.Stage)
	}
	if r.MaxUnavailable != 1 {
		v.say("reboot at a time: %d", r.MaxUnavailable)
	}
	v.list("rebooted and not proved", r.Occupied)
	v.list("failed to reboot", r.Failed)
	var free, reasons []string
	names := map[string][]string{}
	for _, name := range slices.SortedFunc(maps.Keys(r.Asks), func(a, b string) int { return r.Places[a] - r.Places[b] }) {
		h := r.Holds[name]
		if h == nil {
			free = append(free, name)
			continue
		}
		why := heldBy(h)
		if names[why] == nil {
			reasons = append(reasons, why)
		}
		names[why] = append(names[why], name)
	}
	v.list("may reboot", free)
	for _, why := range reasons {
		v.say("not to reboot yet: %s%s", strings.Join(names[why], " "), why)
	}
}

func (v *verdict) list(what string, names []string) {
	if len(names) > 0 {
		v.say("%s: %s", what, strings.Join(names, " "))
	}
}

// clock is a time of the day of the tables, or the whole time.
func clock(at time.Time) string {
	if at = at.UTC(); at.Truncate(24 * time.Hour).Equal(now.Truncate(24 * time.Hour)) {
		return at.Format(time.TimeOnly)
	}
	return at.Format(time.RFC3339)
}
