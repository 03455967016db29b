// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/snapshot"
	"github.com/noderefit/noderefit/transaction"
)

// hostDocument is a configuration of what a deployment carries and of what it does not, on both sides of the switch.
func hostDocument(variant string) []byte {
	return document(variant, `"kernelArguments":["crash.`+variant+`=1","both=1"],`, strings.ReplaceAll(`"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/etc/same.conf","mode":420,"contents":{"source":"data:,same%0A"}},
 {"path":"/etc/only-VARIANT.conf","mode":384,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/usr/local/bin/only-VARIANT","mode":493,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/var/lib/crash/state","mode":384,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/home/core/only-VARIANT","mode":384,"user":{"name":"core"},"contents":{"source":"data:,VARIANT%0A"}}],
"links":[{"path":"/etc/link","target":"only-VARIANT.conf"},{"path":"/var/lib/crash/link","target":"VARIANT"}]},
"systemd":{"units":[
 {"name":"both.service","enabled":true,"contents":"[Unit]\nDescription=VARIANT\n[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"},
 {"name":"only-VARIANT.service","enabled":true,"contents":"[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"}]},
"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-ed25519 AAAA VARIANT"]}]}`, "VARIANT", variant))
}

// badDocument is one that boots and never proves healthy; each has its own content, since a bad one is not tried twice.
func badDocument(n int) []byte {
	return document(fmt.Sprintf("bad-%d", n), `"kernelArguments":["bad=1"],`, fmt.Sprintf(`"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,bad-%d%%0A"}},
 {"path":"/etc/kubernetes/crio.conf","mode":420,"contents":{"source":"data:,fail%%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,bad%%0A"}},
 {"path":"/usr/local/bin/only-bad","mode":493,"contents":{"source":"data:,bad%%0A"}},
 {"path":"/var/lib/crash/state","mode":420,"contents":{"source":"data:,bad%%0A"}}]},
"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-ed25519 AAAA bad"]}]}`, n))
}

// crashHost is a lab host that goes to and fro between two configurations.
type crashHost struct {
	*node.Node
	t     *testing.T
	kind  kind
	docs  map[string][]byte
	sides map[string]hostPicture
	at    string
	flags []string // of each apply
	point string   // the point at which the host hangs
}

// hostPicture is the node as a configuration has it: the running /etc, what no deployment carries, the command line.
type hostPicture struct {
	picture
	kargs string
	// owners are the lines of the boot entry that say whose the arguments are.
	owners string
}

// places are what is looked at of a host; the agent's own are left out.
var places = []string{"/etc", "/usr/local", "/var/lib/crash", "/home"}

// take takes a picture of a settled host, once the clean-up after a verdict is over. What an agent leaves for good is in
// the picture all the same.
func (h *crashHost) take() (hostPicture, error) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(interval) {
		out, err := h.look()
		left := func(name string) bool { return strings.HasPrefix(path.Base(name), files.StagePrefix) }
		if err != nil || time.Now().After(end) || !slices.ContainsFunc(slices.Collect(maps.Keys(out.tree)), left) {
			return out, err
		}
	}
}

func (h *crashHost) look() (hostPicture, error) {
	out := hostPicture{picture: picture{tree: snapshot.Tree{}, links: map[string]string{}}}
	for _, place := range places {
		at := h.HostPath(place)
		tree, err := snapshot.Take(at, "machine-config-daemon")
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Lstat(at); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return h.look() // the clean-up after a verdict has just removed something below it
		}
		if err != nil {
			return out, err
		}
		for name, e := range tree {
			out.tree[path.Join(place, name)] = e
		}
	}
	args := slices.DeleteFunc(strings.Fields(h.Kargs()), func(a string) bool { return strings.HasPrefix(a, "ostree=") })
	out.kargs = strings.Join(args, " ")
	name, err := h.BootedEntry()
	if err != nil || name == "" {
		return out, err
	}
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) { // the clean-up after a verdict has just numbered the entries anew
		return h.look()
	}
	if !strings.Contains(string(text), "ostree=") { // the boot loader's files of a host without ostree, as they are
		tree, err := snapshot.Take(h.HostPath("/boot"))
		for name, e := range tree {
			out.tree[path.Join("/boot", name)] = e
		}
		return out, err
	}
	owned := slices.DeleteFunc(strings.Split(string(text), "\n"), func(l string) bool { return !strings.HasPrefix(l, "x-options-source-") })
	out.owners = strings.Join(owned, "; ")
	return out, err
}

// own gives the host an argument that somebody else owns.
func (h *crashHost) own() error {
	name, err := h.BootedEntry()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return os.WriteFile(name, []byte(strings.Replace(string(text), "options ", "options crash.tuned=1 ", 1)+
		"x-options-source-tuned crash.tuned=1\n"), 0o600)
}

func (p hostPicture) differs(want hostPicture) []string {
	out := p.picture.differs(want.picture)
	if p.kargs != want.kargs {
		out = append(out, fmt.Sprintf("kernel arguments %q, were %q", p.kargs, want.kargs))
	}
	if p.owners != want.owners {
		out = append(out, fmt.Sprintf("owners of kernel arguments %q, were %q", p.owners, want.owners))
	}
	return out
}

// newHost makes a host and takes it to a and b twice, so that the pictures have what either leaves behind.
func newHost(ctx context.Context, t *testing.T, docs map[string][]byte) *crashHost {
	t.Helper()
	h := emptyHost(ctx, t, docs)
	h.toAndFro(ctx)
	return h
}

// emptyHost makes a host that has no configuration.
func emptyHost(ctx context.Context, t *testing.T, docs map[string][]byte) *crashHost {
	t.Helper()
	return emptyHostAs(ctx, t, docs, lab.Options{})
}

func emptyHostAs(ctx context.Context, t *testing.T, docs map[string][]byte, options lab.Options) *crashHost {
	t.Helper()
	need := lab.Need
	if options.Loader != "" {
		need = lab.NeedPackages
	}
	base := need(t)
	t.Parallel() // boots mostly wait
	options.Name, options.Hostname = strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")), "crash"
	n, err := node.New(ctx, base, binary(t, faulty), options)
	if err != nil {
		t.Fatal(err)
	}
	h := &crashHost{Node: n, t: t, kind: kindOf(options), docs: docs, sides: map[string]hostPicture{}}
	if !options.WithoutOSTree {
		h.countBoots()
	}
	t.Cleanup(func() {
		counted.Boots.Add(int64(h.Boots()))
		if t.Failed() {
			if text, err := h.Journal(context.Background()); err == nil {
				t.Log(text[max(0, len(text)-20000):])
			}
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// toAndFro takes a host to a and b twice.
func (h *crashHost) toAndFro(ctx context.Context) {
	t, docs := h.t, h.docs
	t.Helper()
	if err := h.own(); err != nil {
		t.Fatal(err)
	}
	h.takeBoth(ctx)
	for _, name := range []string{"a", "b"} {
		owned := "crash." + name + "=1"
		if bytes.Contains(docs[name], []byte(`"both=1"`)) {
			owned = "both=1 " + owned
		}
		want := "x-options-source-noderefit " + owned + "; x-options-source-tuned crash.tuned=1"
		if h.sides[name].owners != want {
			t.Fatalf("owners on %s are %q, want %q", name, h.sides[name].owners, want)
		}
	}
	status, err := h.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if status.BootLimit != "3 boots" { // as on btrfs: what follows is no less true, but says nothing of the counter
		t.Logf("boot limit: %s", status.BootLimit)
	}
}

// takeBoth takes a host to a and b twice, and the pictures of both.
func (h *crashHost) takeBoth(ctx context.Context) {
	h.t.Helper()
	for _, name := range []string{"a", "b", "a", "b", "a"} {
		err := h.moveTo(ctx, name)
		if err == nil {
			h.sides[name], err = h.take()
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
}

// environment is where GRUB keeps its counter.
const environment = "boot/grub2/grubenv"

// countBoots gives the host what GRUB has where it counts boots. Nobody counts down here; what is held to it is that no
// cut leaves the counter set.
func (h *crashHost) countBoots() {
	h.t.Helper()
	at := filepath.Join(h.Sysroot(), environment)
	const header = "# GRUB Environment Block\n"
	err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755),
		os.WriteFile(filepath.Join(filepath.Dir(at), "grub.cfg"), []byte("save_env boot_counter\n"), 0o600),
		os.WriteFile(at, []byte(header+strings.Repeat("#", 1024-len(header))), 0o600))
	if err != nil {
		h.t.Fatal(err)
	}
}

// limit bounds one move, and one cut with everything that follows; each takes a few seconds.
const limit = 60 * time.Second

// moveTo applies a configuration and sees it settled.
func (h *crashHost) moveTo(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, exit, err := h.Apply(ctx, h.docs[name], h.flags...); err != nil && exit != -1 { // -1: the reboot was quicker than its answer
		return fmt.Errorf("moving to %s: %w", name, err)
	}
	s, err := h.settled(ctx)
	if err != nil {
		return fmt.Errorf("moving to %s: %w", name, err)
	}
	if s.State != transaction.Done || s.Config.Committed != name {
		return fmt.Errorf("moving to %s ended on %s, %s: %s", name, s.Config.Committed, s.State, s.Reason)
	}
	h.at = name
	return nil
}

// settled waits until nothing is under way, over any number of boots, and everything that starts at boot has.
func (h *crashHost) settled(ctx context.Context) (*host.Status, error) {
	for {
		if _, err := h.WaitState(ctx, transaction.Done, transaction.RolledBack, transaction.Degraded); err != nil {
			return nil, err
		}
		boots := h.Boots()
		if _, err := h.WaitRunning(ctx); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			continue // it went down meanwhile
		}
		s, err := h.Status(ctx)
		if err == nil && s.Config.Pending == "" && h.Boots() == boots {
			return s, nil
		}
	}
}

// judge asks a settled host and its disk where they are, and returns the name of the configuration: an update has ended
// there.
func (h *crashHost) judge(ctx context.Context) (string, error) {
	at, err := h.where(ctx)
	counted.Ended(at != "")
	return at, err
}

func (h *crashHost) where(ctx context.Context) (string, error) {
	status, err := h.settled(ctx)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errLost, err)
	}
	found, err := h.take()
	if err != nil {
		return "", err
	}
	var near []string
	at, nearest := "", ""
	for _, name := range slices.Sorted(maps.Keys(h.sides)) {
		d := found.differs(h.sides[name])
		if len(d) == 0 {
			at = name
		}
		if nearest == "" || len(d) < len(near) {
			near, nearest = d, name
		}
	}
	if at == "" {
		return "", fmt.Errorf("%w: status says %s (%s), and from %s the host has these %d differences:\n  %s", errTorn,
			status.Config.Committed, status.Reason, nearest, len(near), strings.Join(near[:min(len(near), 30)], "\n  "))
	}
	if status.Config.Committed != at || status.State == transaction.Degraded {
		return at, fmt.Errorf("%w: the host is on %s, status says %s, %s: %s", errLost,
			at, status.Config.Committed, status.State, status.Reason)
	}
	env, err := os.ReadFile(filepath.Join(h.Sysroot(), environment))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a host without ostree has none
		return at, err
	}
	if strings.Contains(string(env), "boot_counter") {
		return at, fmt.Errorf("%w: on %s boots are still counted: %q", errLost, at, strings.TrimRight(string(env), "#"))
	}
	doc, err := h.Document("verify.json", h.docs[at])
	if err != nil {
		return at, err
	}
	for _, args := range [][]string{{"verify"}, {"verify", "--config", doc}} {
		out, errs, exit, err := h.Agent(ctx, args...)
		if err != nil {
			return at, err
		}
		if exit != 0 {
			return at, fmt.Errorf("%w: %s on %s: exit %d: %s%s", errTorn, strings.Join(args, " "), at, exit, out, errs)
		}
	}
	return at, nil
}

// Where the fault points of the agent on a host look, and say that they were reached.
const (
	requestFile = "/var/lib/noderefit-fault"
	hitFile     = requestFile + ".hit"
	traceFile   = "/var/tmp/noderefit-points"
)

// ask tells the fault points what to do.
func (h *crashHost) ask(verb, mode, at string) error {
	name := h.HostPath(requestFile)
	if err := os.WriteFile(name+".new", fmt.Appendf(nil, "%s %s %s", verb, mode, at), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func (h *crashHost) askNothing() error {
	for _, name := range []string{requestFile, hitFile, traceFile} {
		if err := os.Remove(h.HostPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// interval is how often files of the host are looked at.
const interval = 5 * time.Millisecond

// until waits for a condition that nothing announces.
func until(ctx context.Context, what string, condition func() (bool, error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		done, err := condition()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// hit waits until the point that was asked for is reached, and returns its name.
func (h *crashHost) hit(ctx context.Context) (string, error) {
	var point []byte
	err := until(ctx, "the point", func() (bool, error) {
		var err error
		point, err = os.ReadFile(h.HostPath(hitFile))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return len(point) > 0, err
	})
	h.point = strings.TrimSpace(string(point))
	return h.point, err
}

// proving waits until the pending configuration is being proved. Whoever recovered it has read its request by then.
func (h *crashHost) proving(ctx context.Context) error {
	return until(ctx, "the verdict to begin", func() (bool, error) {
		data, err := os.ReadFile(h.HostPath(transaction.StateDir + "/boot.json"))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return strings.Contains(string(data), `"phase":"prove"`), err
	})
}

// cut pulls the plug, and switches the host on again with nothing asked for.
func (h *crashHost) cut() error {
	counted.Cuts.Add(1)
	cutPoints.add(h.kind, h.point)
	h.point = ""
	return errors.Join(h.PowerCut(), h.askNothing(), h.PowerOn())
}

// other is the configuration that the host is not on.
func (h *crashHost) other() string {
	if h.at == "a" {
		return "b"
	}
	return "a"
}

// start applies a document and does not wait.
func (h *crashHost) start(ctx context.Context, doc []byte, flags ...string) {
	go func() { _, _, _ = h.Apply(ctx, doc, slices.Concat(h.flags, flags)...) }()
}

// afterCut judges the host and does what was cut again.
func (h *crashHost) afterCut(ctx context.Context, to string) error {
	at, err := h.judge(ctx)
	if err != nil {
		return err
	}
	h.at = at
	if at == to {
		return nil
	}
	if err := h.moveTo(ctx, to); err != nil {
		return fmt.Errorf("%w: the update after the cut: %w", errTorn, err)
	}
	if at, err = h.judge(ctx); err == nil && at != to {
		err = fmt.Errorf("%w: the update after the cut ended on %s", errTorn, at)
	}
	return err
}

// points traces what a verb passes while do runs, and returns each kind of point at its first, its middle and its last
// place, in their order: on a tree every one is cut at. The verb may run in several boots.
func (h *crashHost) points(verb string, do func() error) ([]string, error) {
	if err := errors.Join(h.ask(verb, "trace", traceFile), do()); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(h.HostPath(traceFile))
	if err != nil {
		return nil, err
	}
	kinds, order := map[string][]string{}, []string(nil)
	for name := range strings.Lines(string(text)) {
		name = strings.TrimSpace(name)
		kind := pointKind(name)
		if name == "" || slices.Contains(kinds[kind], name) {
			continue
		}
		if verb == "prove" && kind == "again" {
			continue // recovery always passes it; prove does where it is quicker than the shutdown that recovery began
		}
		if kinds[kind] == nil {
			order = append(order, kind)
		}
		kinds[kind] = append(kinds[kind], name)
	}
	var out []string
	for _, kind := range order {
		at := kinds[kind]
		out = append(out, slices.Compact([]string{at[0], at[len(at)/2], at[len(at)-1]})...)
	}
	return out, h.askNothing()
}

// TestPowerCutAtEveryPoint pulls the plug of a host at the points of the update, of the recovery on the first boot of
// the new deployment, and of the verdict.
func TestPowerCutAtEveryPoint(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	h := emptyHost(ctx, t, map[string][]byte{"a": hostDocument("a"), "b": hostDocument("b")})
	if err := h.shell(ctx, playedKexec); err != nil {
		t.Fatal(err)
	}
	h.toAndFro(ctx)
	h.cutUpdates(ctx)
	h.cutReboots(ctx)
	h.cutLoaded(ctx)
}

// cutUpdates pulls the plug at the points of each verb of an update.
func (h *crashHost) cutUpdates(ctx context.Context) {
	h.t.Helper()
	for _, verb := range []string{"apply", "recover", "prove"} {
		h.everyPoint(verb, func() error { return h.moveTo(ctx, h.other()) }, func(point string) (string, error) {
			return h.cutAt(ctx, verb, point, h.other())
		})
	}
}

// everyPoint finds the points of a verb while trace runs, and then cuts at one after the other: at those of the given
// steps, at all without any. It ends the test with the first cut that left something wrong: there is nothing to go on
// from.
func (h *crashHost) everyPoint(verb string, trace func() error, cut func(point string) (string, error), steps ...string) {
	h.t.Helper()
	began := time.Now()
	points, err := h.points(verb, trace)
	if err == nil {
		var of []string
		of, err = pointsOf(h.kind.road(), steps...)
		points = slices.DeleteFunc(points, func(name string) bool { return len(steps) > 0 && !slices.Contains(of, pointKind(name)) })
	}
	if err == nil && len(points) == 0 {
		err = errors.New("no point is passed")
	}
	if err != nil {
		report(h.t, verb+" without a cut", err)
		h.t.FailNow()
	}
	for i, name := range points {
		if testing.Short() && i%4 != 0 {
			continue
		}
		from := h.at
		_, err := cut(name)
		report(h.t, fmt.Sprintf("from %s, %s cut at point %d (%s)", from, verb, i+1, name), err)
		if err != nil {
			h.t.FailNow()
		}
	}
	h.t.Logf("%s: %d points in %v", verb, len(points), time.Since(began).Round(time.Second))
}

// cutAt cuts at a point of an update.
func (h *crashHost) cutAt(ctx context.Context, verb, at, to string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := h.ask(verb, "hang", at); err != nil {
		return "", err
	}
	h.start(ctx, h.docs[to])
	point, err := h.hit(ctx)
	if err != nil {
		return point, err
	}
	if err := h.cut(); err != nil {
		return point, err
	}
	return point, h.afterCut(ctx, to)
}

// TestPowerCutOnTheWayBack pulls the plug of a host that boots a bad configuration: while it is given up, and while
// recovery takes it back on the deployment before.
func TestPowerCutOnTheWayBack(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	h := newHost(ctx, t, map[string][]byte{"a": hostDocument("a"), "b": hostDocument("b")})
	h.cutWaysBack(ctx, badDocument)
	h.cutFallenBack(ctx)
	h.cutTakenBack(ctx)
}

// cutWaysBack pulls the plug at the points of each verb of a way back. What leads there passes the points of an update.
// document returns a bad configuration.
func (h *crashHost) cutWaysBack(ctx context.Context, document func(n int) []byte) {
	h.t.Helper()
	w := &wayBack{crashHost: h, document: document}
	for _, verb := range []string{"prove", "recover"} {
		h.everyPoint(verb, func() error {
			if err := errors.Join(os.Remove(h.HostPath(requestFile)), w.fail(ctx, verb, "trace", traceFile)); err != nil {
				return err
			}
			_, err := h.judge(ctx)
			return err
		}, func(point string) (string, error) { return w.cutAt(ctx, verb, point) }, "go back")
	}
	// After all that, the next update works.
	if err := h.afterCut(ctx, h.other()); err != nil {
		report(h.t, "the update after all ways back", err)
	}
}

// cutFallenBack pulls the plug where the boot loader has booted the deployment before by itself, and recovery follows.
func (h *crashHost) cutFallenBack(ctx context.Context) {
	h.t.Helper()
	w := &wayBack{crashHost: h, document: badDocument, bad: 1000}
	for _, point := range sample("returning", "return", "default") {
		report(h.t, "recover cut at "+point, w.cutFallback(ctx, point))
	}
}

func (w *wayBack) cutFallback(ctx context.Context, point string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w.bad++
	if err := w.ask("recover", "hang", "prove"); err != nil {
		return err
	}
	w.start(ctx, w.document(w.bad), "--verdict-timeout=2s")
	if _, err := w.hit(ctx); err != nil {
		return err
	}
	if err := errors.Join(w.PowerCut(), w.askNothing(), w.ask("recover", "hang", point), w.PowerOnFallback()); err != nil {
		return err
	}
	if _, err := w.hit(ctx); err != nil {
		return err
	}
	if err := w.cut(); err != nil {
		return err
	}
	return w.stays(ctx)
}

// wayBack is a host that gets bad configurations.
type wayBack struct {
	*crashHost
	document func(n int) []byte
	bad      int
}

// fail applies a bad configuration, and asks for something as soon as that can only be about giving it up.
func (w *wayBack) fail(ctx context.Context, verb, mode, at string) error {
	w.bad++
	w.start(ctx, w.document(w.bad), "--verdict-timeout=2s")
	return errors.Join(w.proving(ctx), w.ask(verb, mode, at))
}

// cutAt cuts at a point of a way back.
func (w *wayBack) cutAt(ctx context.Context, verb, at string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := w.fail(ctx, verb, "hang", at); err != nil {
		return "", err
	}
	point, err := w.hit(ctx)
	if err == nil {
		err = w.cut()
	}
	if err == nil {
		err = w.cameBack(ctx, fmt.Sprintf("bad-%d", w.bad))
	}
	return point, err
}

// stays holds a host to the configuration that it had before.
func (h *crashHost) stays(ctx context.Context) error {
	at, err := h.judge(ctx)
	if err == nil && at != h.at {
		err = fmt.Errorf("%w: the host is on %s, and was on %s", errTorn, at, h.at)
	}
	return err
}

// cameBack holds a host to being where it was before a bad configuration, and to knowing that it was bad.
func (h *crashHost) cameBack(ctx context.Context, bad string) error {
	if err := h.stays(ctx); err != nil {
		return err
	}
	s, err := h.Status(ctx)
	if err != nil {
		return err
	}
	known := slices.ContainsFunc(s.Quarantined, func(q transaction.Quarantined) bool { return q.Config == bad })
	if s.State != transaction.RolledBack || !known {
		return fmt.Errorf("%w: %s was bad, and status says %s: %s, quarantined %v", errLost, bad, s.State, s.Reason, s.Quarantined)
	}
	return nil
}

// TestPowerCutAtRandomMoments pulls the plug somewhere between the beginning of an update of 300 files and the end of
// its proof, the reboot included.
func TestPowerCutAtRandomMoments(t *testing.T) {
	cuts := 30
	if testing.Short() {
		cuts = 3
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	docs := map[string][]byte{}
	for _, v := range []string{"a", "b"} {
		docs[v] = document(v, `"kernelArguments":["crash.`+v+`=1"],`, manyFiles(v))
	}
	h := newHost(ctx, t, docs)
	source := random(t, seed(t))
	began := time.Now()
	if err := h.moveTo(ctx, h.other()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	began = time.Now()
	ended := map[string]int{}
	for n := 1; n <= cuts; n++ {
		to := h.other()
		after := time.Duration(source.Int64N(int64(took)))
		err := h.cutAfter(ctx, source, after, to)
		report(t, fmt.Sprintf("cut %d, from %s to %s, after %v", n, h.at, to, after), err)
		if err != nil {
			t.FailNow()
		}
		ended[map[bool]string{true: "new", false: "old"}[h.at == to]]++
	}
	t.Logf("an update with its reboot and proof takes %v; %d cuts in %v ended: %v", took, cuts, time.Since(began).Round(time.Second), ended)
	if err := h.moveTo(ctx, h.other()); err != nil {
		t.Error(err)
	}
}

func (h *crashHost) cutAfter(ctx context.Context, source *rand.Rand, after time.Duration, to string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	plug := time.NewTimer(after)
	h.start(ctx, h.docs[to])
	<-plug.C
	if err := h.cut(); err != nil {
		return err
	}
	if source.IntN(3) == 0 { // and once more, while it starts
		again := time.NewTimer(time.Duration(source.Int64N(int64(2 * time.Second))))
		<-again.C
		if err := h.cut(); err != nil {
			return err
		}
	}
	at, err := h.judge(ctx)
	if err == nil {
		h.at = at
	}
	return err
}
