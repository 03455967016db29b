// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
)

// machine is a host's deployments and its boot loader, which counts as greenboot's configuration of GRUB does, with the
// engine's own records on the disk of the test. Its power can go at any moment.
type machine struct {
	t      *testing.T
	engine *Engine
	dir    string

	list    []string // of deployments; the first is the default
	staged  string   // becomes the first in an orderly shutdown
	booted  string
	boots   map[string]int
	starts  int
	limit   int
	left    int
	counted bool

	// moments are those that have passed, one before and one after each effect; the power goes at number cut.
	moments, cut int
	soft         bool              // the first boot of B is one of the userspace alone
	order        bool              // B is somebody else's, and a reboot is ordered
	readOnly     bool              // the counter can't be set
	unreadable   bool              // nor read
	off, last    bool              // last: the power went on B with no boot left
	disk         map[string]string // as it is when the power is gone
}

var errOff = errors.New("the power is gone")

func newMachine(t *testing.T, limit, cut int, list ...string) *machine {
	t.Helper()
	root := inMemory(t)
	m := &machine{t: t, dir: root.Path(), list: list, booted: "A", boots: map[string]int{}, limit: limit, cut: cut}
	m.engine = &Engine{Root: root, Deployments: m, Counter: m, BootID: "boot-0", Now: time.Now,
		Uptime: func() time.Duration { return time.Minute }, Say: func(string, string) {}}
	return m
}

// inMemory is a root where a sync costs nothing, if the machine that we are on has such a place.
func inMemory(t *testing.T) *files.Root {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "noderefit-") //nolint:usetesting // that one is on a disk
	if err != nil {
		return host(t, map[string]string{"etc/x": "", "var/lib": "/"})
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	root, err := files.Open(dir)
	if err == nil {
		err = errors.Join(root.MkdirAll("/etc", 0o755), root.MkdirAll("/var/lib", 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// effect does something that lasts, unless the power goes before it or right after it.
func (m *machine) effect(do func()) error {
	moment := func() error {
		if m.moments++; !m.off && m.moments == m.cut {
			m.off, m.disk = true, m.contents()
			m.last = m.booted == "B" && m.counted && m.left == 0 && m.list[0] == "B"
		}
		if m.off {
			return errOff
		}
		return nil
	}
	if err := moment(); err != nil {
		return err
	}
	do()
	return moment()
}

func (m *machine) contents() map[string]string {
	out := map[string]string{}
	if err := filepath.WalkDir(m.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		out[name] = string(data)
		return err
	}); err != nil {
		m.t.Fatal(err)
	}
	return out
}

// boot switches the machine on, with the disk as the power cut left it, and says whether its deployment comes up.
func (m *machine) boot(comesUp func(booted string, boot int) bool) bool {
	if m.off {
		for name := range m.contents() {
			if _, kept := m.disk[name]; !kept {
				if err := os.Remove(name); err != nil {
					m.t.Fatal(err)
				}
			}
		}
		for name, text := range m.disk {
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
				m.t.Fatal(err)
			}
		}
		m.off = false
	}
	if m.staged != "" && m.cut != 0 && m.moments >= m.cut {
		m.staged = ""
	}
	if m.staged != "" {
		m.list, m.staged = slices.Insert(m.list, 0, m.staged), ""
	}
	entry := 0
	switch {
	case !m.counted:
	case m.left > 0:
		m.left--
	default:
		entry, m.left = 1, -1
	}
	if entry >= len(m.list) {
		entry = 0
	}
	m.booted = m.list[entry]
	m.boots[m.booted]++
	m.starts++
	m.engine.BootID = fmt.Sprintf("boot-%d", m.starts)
	return comesUp(m.booted, m.boots[m.booted])
}

// softBoot starts the userspace of the default deployment, which the boot loader hears nothing of.
func (m *machine) softBoot(comesUp func(booted string, boot int) bool) bool {
	m.booted = m.list[0]
	m.boots[m.booted]++
	m.engine.BootID += "+1"
	return comesUp(m.booted, m.boots[m.booted])
}

func (m *machine) Status(context.Context) ([]ostree.Deployment, error) {
	var out []ostree.Deployment
	if m.staged != "" {
		out = append(out, ostree.Deployment{ID: m.staged, Staged: true})
	}
	for i, id := range m.list {
		out = append(out, ostree.Deployment{ID: id, Index: i, Booted: id == m.booted, Default: i == 0})
	}
	return out, nil
}

// Materialise puts the new deployment after the booted one, as ostree does.
func (m *machine) Materialise(context.Context, ostree.Request) (ostree.Deployment, error) {
	err := m.effect(func() { m.list = slices.Insert(m.list, slices.Index(m.list, m.booted)+1, "B") })
	return ostree.Deployment{ID: "B"}, err
}

func (m *machine) SetDefault(_ context.Context, id string) error {
	return m.effect(func() {
		at := slices.Index(m.list, id)
		m.list = slices.Insert(slices.Delete(m.list, at, at+1), 0, id)
	})
}

func (m *machine) Discard(_ context.Context, id string) error {
	return m.effect(func() { m.list = slices.DeleteFunc(m.list, func(l string) bool { return l == id }) })
}

func (m *machine) Limit() int { return m.limit }

func (m *machine) Set(boots int) (bool, error) {
	if m.unreadable || m.readOnly {
		return false, unix.EROFS
	}
	return true, m.effect(func() { m.left, m.counted = boots, true })
}

func (m *machine) Left() (int, bool, error) {
	if m.unreadable {
		return 0, false, unix.EIO
	}
	return m.left, m.counted, nil
}

func (m *machine) Clear() error {
	if m.unreadable {
		return unix.EIO
	}
	if !m.counted {
		return nil
	}
	return m.effect(func() { m.left, m.counted = 0, false })
}

// carryOut has an operation done as a host does it.
func carryOut(ctx context.Context, o Operation) error {
	for _, do := range []func(context.Context) error{o.Stage, o.Materialise, o.Commit, o.Effect} {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// update begins the update from A to B.
func (m *machine) update(ctx context.Context) error {
	r, err := m.engine.store().Load()
	if err != nil {
		return err
	}
	empty := func(*files.Root) ([]files.Want, error) { return nil, nil }
	open := func(ostree.Deployment) (*files.Root, error) { return files.Open(m.dir) }
	if err := carryOut(ctx, m.engine.NewSwitch(r, Switch{Booted: "A", Etc: empty, Open: open, Update: Update{SoftReboot: m.soft,
		Revision: Revision{Config: "b", Digest: "bb"}, Document: []byte("{}"), Timeout: time.Hour}})); err != nil || !m.soft {
		return err
	}
	return m.engine.BootBy(r, SoftStarted)
}

// turn is what the agent does on a deployment that came up; more says whether the machine boots again for it.
func (m *machine) turn(ctx context.Context, healthy bool) (r *Record, more bool) {
	r, err := m.engine.store().Load()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := m.engine.Recover(ctx, r)
	if err == nil && !out.Rebooting && r.Pending != nil {
		if healthy {
			err = m.engine.Settle(r)
		} else {
			err = m.engine.GoBack(ctx, r, "x.service failed", true)
		}
		more = !healthy
	}
	if m.off {
		return r, true
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return r, more || out.Rebooting
}

// Whatever becomes of B, and at whichever moment the power goes once, the machine comes to rest on A or B with a record
// that says so, that deployment its default and no boots counted any more.
func TestBootLoaderThatCountsEndsOnOneSide(t *testing.T) {
	never := func(string, int) bool { return false }
	always := func(string, int) bool { return true }
	late := func(_ string, boot int) bool { return boot >= 3 }
	for _, c := range []struct {
		name    string
		list    []string
		soft    bool
		comesUp func(booted string, boot int) bool // of B
		healthy bool
		ends    string
		boots   int // of B, without a cut and with three allowed; one more may be the price of a cut
		why     string
	}{
		{"B hangs", []string{"A"}, false, never, false, "A", 3, "the boot loader gave b up after 3 boots, of which none came up"},
		{"B hangs, with an older one there", []string{"A", "O"}, false, never, false, "A", 3, "the boot loader gave b up"},
		{"B hangs, and another than A was the default", []string{"P", "A", "O"}, false, never, false, "A", 3, "the boot loader gave b up"},
		{"B is good", []string{"A", "O"}, false, always, true, "B", 1, ""},
		{"B is bad", []string{"A", "O"}, false, always, false, "A", 1, "x.service failed"},
		{"B comes up late, and is good", []string{"A"}, false, late, true, "B", 3, ""},
		{"B comes up late, and is bad", []string{"A"}, false, late, false, "A", 3, "x.service failed"},
		{"B hangs in a soft reboot and after", []string{"A", "O"}, true, never, false, "A", 4, "gave b up after 3 boots, of which none"},
		{"B is good after a soft reboot", []string{"P", "A"}, true, always, true, "B", 1, ""},
		{"B is bad after a soft reboot", []string{"A", "O"}, true, always, false, "A", 1, "x.service failed"},
		{"B comes up late after a soft reboot", []string{"A"}, true, late, true, "B", 3, ""},
	} {
		for _, limit := range []int{1, 3} {
			for cut := 0; ; cut++ {
				m := newMachine(t, limit, cut, slices.Clone(c.list)...)
				m.soft = c.soft
				name := fmt.Sprintf("%s, %d boots, cut %d", c.name, limit, cut)
				if !m.run(t, name, c.comesUp, c.healthy) {
					break
				}
				ends, boots, why := c.ends, c.boots, c.why
				if gaveUp := "the boot loader gave b up after"; m.boots["P"] > 0 {
					continue // the power went while somebody else's was still the default
				} else if limit == 1 && boots > 1 { // what comes up at the third boot has no third one
					ends, boots, why = "A", 1, gaveUp
					if c.soft {
						boots = 2
					}
				} else if ends == "B" && m.booted == "A" && m.last { // nor has one whose last boot was cut
					ends, why = "A", gaveUp
				}
				m.judge(name, ends, boots, why)
				if m.moments < cut {
					break
				}
			}
		}
	}
}

// run takes the machine through the update to its rest.
func (m *machine) run(t *testing.T, name string, comesUp func(string, int) bool, healthy bool) bool {
	t.Helper()
	ctx := t.Context()
	begin := m.update
	if m.order {
		begin = m.reboot
	}
	if err := begin(ctx); err != nil && !m.off {
		t.Errorf("%s: %v", name, err)
		return false
	}
	for n := range 12 {
		boot := m.boot
		if n == 0 && m.soft && !m.off {
			boot = m.softBoot
		}
		if !boot(func(booted string, boot int) bool { return booted != "B" || comesUp(booted, boot) }) {
			continue
		}
		if r, more := m.turn(ctx, healthy); m.booted == "P" || r.Pending == nil && !more {
			return true
		}
	}
	t.Errorf("%s: the machine does not come to rest: booted %v, now %s of %v, %d left (%v)",
		name, m.boots, m.booted, m.list, m.left, m.counted)
	return false
}

func (m *machine) judge(name, ends string, boots int, why string) {
	m.t.Helper()
	r, err := m.engine.store().Load()
	if err != nil {
		m.t.Fatal(err)
	}
	decided := m.boots["B"] > 0
	if !decided { // a cut before the commit
		ends, why = "A", ""
	}
	if m.booted != ends || m.list[0] != ends || m.counted {
		m.t.Errorf("%s: ended on %s of %v, counted %v", name, m.booted, m.list, m.counted)
	}
	if got := m.boots["B"]; got > boots+1 || m.cut > m.moments && got != boots {
		m.t.Errorf("%s: B was booted %d times", name, got)
	}
	if m.boots["O"]+m.boots["P"] > 0 {
		m.t.Errorf("%s: booted %v", name, maps.Clone(m.boots))
	}
	gone := decided && ends == "A"
	if (r.State == RolledBack) != gone || (r.Quarantine("bb") != nil) != gone || gone && !strings.Contains(r.Reason, why) {
		m.t.Errorf("%s: %s: %q, quarantined %v", name, r.State, r.Reason, r.Quarantined)
	}
	if on := r.Committed != nil && r.Committed.Deployment == "B"; on != (ends == "B") {
		m.t.Errorf("%s: committed %+v", name, r.Committed)
	}
}

// reboot begins an ordered reboot to somebody else's B.
func (m *machine) reboot(ctx context.Context) error {
	r, err := m.engine.store().Load()
	if err != nil {
		return err
	}
	return m.engine.BeginReboot(ctx, r, Reboot{Rebooted: Rebooted{ID: "one"}, Booted: "A", Next: "B", Timeout: time.Hour})
}

// A deployment of somebody else is held to the same: whatever becomes of it, the machine comes to rest on it or on A.
func TestBootsOfAnotherProgramsDeploymentAreCounted(t *testing.T) {
	never := func(string, int) bool { return false }
	always := func(string, int) bool { return true }
	for _, c := range []struct {
		name    string
		list    []string
		staged  string
		comesUp func(booted string, boot int) bool // of B
		healthy bool
		ends    string
		boots   int // of B
		why     string
	}{
		{"B hangs", []string{"B", "A", "O"}, "", never, false, "A", 3, "the boot loader gave B up after 3 boots, of which none came up"},
		{"B is staged, and hangs", []string{"A", "O"}, "B", never, false, "A", 3, "the boot loader gave B up after 3 boots"},
		{"B is good", []string{"B", "A"}, "", always, true, "B", 1, ""},
		{"B is staged, and good", []string{"A", "O"}, "B", always, true, "B", 1, ""},
		{"B is staged, and bad", []string{"A", "O"}, "B", always, false, "A", 1, "x.service failed"},
		{"B is bad", []string{"B", "A", "O"}, "", always, false, "A", 1, "x.service failed"},
	} {
		for cut := 0; ; cut++ {
			if cut == 1 && c.staged == "" && !c.comesUp("B", 1) {
				continue // the power went before the counter was set: B was the default before the order, too
			}
			m := newMachine(t, 3, cut, slices.Clone(c.list)...)
			m.staged, m.order = c.staged, true
			name := fmt.Sprintf("%s, cut %d", c.name, cut)
			if !m.run(t, name, c.comesUp, c.healthy) {
				break
			}
			r, err := m.engine.store().Load()
			if err != nil {
				t.Fatal(err)
			}
			ends, why := c.ends, c.why
			if m.boots["B"] == 0 { // the staged one is lost with the power
				ends, why = "A", ""
			}
			o := r.Rebooted
			if m.booted != ends || m.list[0] != ends || m.counted || m.boots["O"] > 0 || m.boots["B"] > c.boots+1 ||
				cut == 0 && m.boots["B"] != c.boots {
				t.Errorf("%s: booted %v, now %s of %v, %d left (%v)", name, m.boots, m.booted, m.list, m.left, m.counted)
			}
			if o == nil || o.Ended.IsZero() || o.TakenBack != (why != "") || !strings.Contains(o.Failed, why) ||
				(len(r.Withheld) > 0) != (why != "") {
				t.Errorf("%s: %+v, %+v", name, o, r.Withheld)
			}
			if m.moments < cut {
				break
			}
		}
	}
}

// Where the boot loader would fall back on a third deployment, or the order never begins, no boots are counted.
func TestNoBootsAreCountedForNothing(t *testing.T) {
	for _, list := range [][]string{{"B", "O", "A"}, {"B"}, {"A", "B"}} {
		m := newMachine(t, 3, 0, list...)
		if err := m.reboot(t.Context()); err != nil || m.counted {
			t.Errorf("%v: %d left (%v), %v", list, m.left, m.counted, err)
		}
	}
	m := newMachine(t, 3, 0, "B", "A")
	err := m.reboot(t.Context())
	r, loading := m.engine.store().Load()
	if err = errors.Join(err, loading); err != nil || !m.counted {
		t.Fatalf("%d left (%v), %v", m.left, m.counted, err)
	}
	if err := m.engine.WithdrawReboot(t.Context(), r, "withdrawn"); err != nil || m.counted || m.list[0] != "B" {
		t.Errorf("withdrawn: %v, %d left (%v), %v", m.list, m.left, m.counted, err)
	}
}

// The order before this one had boots counted, and then another deployment became the default.
func TestAnOrderThatIsNotCountedEndsTheCountingOfTheOneBefore(t *testing.T) {
	for what, o := range map[string]Reboot{"another deployment": {Booted: "A", Next: "C"}, "a soft reboot": {Booted: "A", Next: "A"}} {
		m := newMachine(t, 3, 0, "B", "A")
		if err := m.reboot(t.Context()); err != nil || !m.counted {
			t.Fatalf("%d left (%v), %v", m.left, m.counted, err)
		}
		m.list = []string{"C", "B", "A"}
		r, err := m.engine.store().Load()
		if err == nil {
			err = m.engine.BeginReboot(t.Context(), r, o)
		}
		if err != nil || m.counted {
			t.Errorf("%s: %d left (%v), %v", what, m.left, m.counted, err)
		}
	}
}

func TestAnOrderWhoseBootsCantBeCountedEnds(t *testing.T) {
	m := newMachine(t, 3, 0, "B", "A")
	m.readOnly = true
	err := m.reboot(t.Context())
	r, loading := m.engine.store().Load()
	if loading != nil || !errors.Is(err, unix.EROFS) || r.Pending != nil || r.State != Done || r.Rebooted.Ended.IsZero() ||
		!strings.Contains(r.Rebooted.Failed, unix.EROFS.Error()) {
		t.Errorf("%v, %+v, %+v, %v", err, r.Standing, r.Rebooted, loading)
	}
}

// Nothing is left of an order that was never carried out, once a later one is refused.
func TestARefusedOrderEndsTheOneBeforeToo(t *testing.T) {
	m := newMachine(t, 3, 0, "B", "A")
	err := m.reboot(t.Context())
	r, loading := m.engine.store().Load()
	if err = errors.Join(err, loading); err != nil {
		t.Fatal(err)
	}
	err = m.engine.RefuseReboot(t.Context(), r, Rebooted{ID: "two"}, errors.New("a deployment waits"))
	if r, loading = m.engine.store().Load(); errors.Join(err, loading) != nil || r.Pending != nil || r.State != Done ||
		m.counted || r.Rebooted.ID != "two" || r.Rebooted.Ended.IsZero() || r.Rebooted.Failed != "a deployment waits" {
		t.Errorf("%v, %+v, %+v, %d left (%v)", err, r.Standing, r.Rebooted, m.left, m.counted)
	}
}

// A counter that can't be read keeps no order from its end.
func TestAnOrderEndsWithoutTheCounter(t *testing.T) {
	ended := func(what string, m *machine, state State) {
		t.Helper()
		r, err := m.engine.store().Load()
		if err != nil || r.Pending != nil || r.State != state || r.Rebooted == nil || r.Rebooted.Ended.IsZero() ||
			r.Rebooted.Boot != m.engine.BootID {
			t.Errorf("%s: %+v, pending %+v, %+v, %v", what, r.Standing, r.Pending, r.Rebooted, err)
		}
	}
	m := newMachine(t, 3, 0, "B", "A")
	m.unreadable = true
	if err := m.reboot(t.Context()); !errors.Is(err, unix.EROFS) {
		t.Errorf("boots that can't be counted: %v", err)
	}
	ended("boots that can't be counted", m, Done)

	for what, next := range map[string]func(*machine, *Record) error{
		"refused": func(m *machine, r *Record) error {
			return m.engine.RefuseReboot(t.Context(), r, Rebooted{ID: "two"}, errors.New("a deployment waits"))
		},
		"ordered again": func(m *machine, r *Record) error {
			return m.engine.BeginReboot(t.Context(), r, Reboot{Booted: "A", Next: "B"})
		},
	} {
		m = newMachine(t, 3, 0, "B", "A")
		err := m.reboot(t.Context())
		r, loading := m.engine.store().Load()
		if err = errors.Join(err, loading); err != nil {
			t.Fatal(err)
		}
		m.unreadable = true
		if err := next(m, r); !errors.Is(err, unix.EIO) {
			t.Errorf("%s: %v", what, err)
		}
		ended(what, m, Done)
	}

	for healthy, state := range map[bool]State{true: Done, false: Degraded} {
		m = newMachine(t, 3, 0, "A", "O")
		m.unreadable = true
		r, err := m.engine.store().Load()
		if err == nil {
			err = m.engine.BeginReboot(t.Context(), r, Reboot{Booted: "A", Next: "A", Timeout: time.Hour})
		}
		if err != nil {
			t.Fatal(err)
		}
		m.boot(func(string, int) bool { return true })
		m.turn(t.Context(), healthy)
		ended(fmt.Sprintf("a boot of the same deployment, healthy %v", healthy), m, state)
	}
}
