// SPDX-License-Identifier: Apache-2.0

// Package osupdate drives package rpmostree, and the whole agent with it and with bootc, on hosts of the host lab whose
// OS is managed by somebody else than plain ostree. It ends with the lines of package tally.
package osupdate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	driver "github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/tally"
	"github.com/noderefit/noderefit/test/standin/bootc"
	"github.com/noderefit/noderefit/test/standin/rpmostree"
	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
	"github.com/noderefit/noderefit/test/standin/rpmostree/fault"
)

// limit is what a test takes at most, on a machine that does other things too.
const limit = 10 * time.Minute

// counted is what the last lines say.
var counted tally.Tally

// scratch has the programs, which the tests share.
var scratch string

// prepared are hosts with the stand-in for rpm-ostree, from which the others are made: of today, and those whose ostree
// is of old. Each is made when a test needs it.
var prepared struct {
	sync.Mutex

	hosts map[bool]*lab.Host
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp("", "noderefit-osupdate-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		for _, h := range prepared.hosts {
			err = errors.Join(err, h.Close())
		}
		if err := errors.Join(err, os.RemoveAll(scratch)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		fmt.Fprintln(os.Stdout, &counted)
		if code == 0 && counted.Bad() {
			code = 1
		}
		return code
	}())
}

// found is the rpm-ostree of the hosts: the stand-in, or a real one.
var found = sync.OnceValues(func() (rpmostree.Program, error) { return rpmostree.Find(context.Background(), scratch) })

// need is the base of hosts with rpm-ostree, whose ostree may be of old.
func need(ctx context.Context, t *testing.T, ofOld bool) *lab.Base {
	t.Helper()
	base := lab.Need(t)
	prepared.Lock()
	defer prepared.Unlock()
	if prepared.hosts[ofOld] == nil {
		program, err := found()
		if err != nil {
			t.Fatal(err)
		}
		if program.Real && ofOld {
			t.Skip("not with a real rpm-ostree: the lab's ostree of old has the lock of then, and it that of now")
		}
		h, err := rpmostree.Prepare(ctx, base, program, rpmostree.Options{OfOld: ofOld})
		if err != nil {
			t.Fatal(err)
		}
		if prepared.hosts == nil {
			prepared.hosts = map[bool]*lab.Host{}
		}
		prepared.hosts[ofOld] = h
	}
	return prepared.hosts[ofOld].Base()
}

// builder builds the agent once, with build tags.
func builder(tags ...string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		dir := filepath.Join(scratch, "agent-"+strings.Join(tags, "-"))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
		return node.Build(context.Background(), dir, tags...)
	})
}

// The agents: as it is released, and with its fault points.
var (
	plain  = builder()
	faulty = builder("faults")
)

// bootcStandIn builds the stand-in for bootc once.
var bootcStandIn = sync.OnceValues(func() (string, error) { return bootc.Build(context.Background(), scratch) })

// machine is a host with rpm-ostree that runs.
type machine struct {
	*lab.Host

	t *testing.T

	mu    sync.Mutex
	asked []string // the transactions
	said  []string
}

// boot returns a host that runs its first deployment, of lab.RefV1. The test runs beside others from then on.
func boot(t *testing.T) (context.Context, *machine) {
	t.Helper()
	return bootWith(t, lab.Options{Name: "rpm"}, false)
}

func bootWith(t *testing.T, options lab.Options, ofOld bool) (context.Context, *machine) {
	t.Helper()
	lab.Need(t)
	t.Parallel() // boots mostly wait
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	base := need(ctx, t, ofOld)
	program, err := found()
	if err != nil {
		t.Fatal(err)
	}
	options.Fuse = program.Real
	h, err := base.Boot(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		counted.Boots.Add(int64(h.Boots()))
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx, &machine{Host: h, t: t}
}

// run is the ostree.Runner for the present boot.
func (m *machine) run(ctx context.Context, argv ...string) ([]byte, error) {
	stdout, stderr, exit, err := m.Exec(ctx, nil, argv...)
	if err == nil && exit != 0 {
		err = fmt.Errorf("exit status %d", exit)
	}
	if err != nil {
		err = &ostree.CommandError{Argv: argv, Stderr: strings.TrimSpace(string(stderr)), Err: err}
	}
	return stdout, err
}

// transactions are those that were asked for since the last call.
func (m *machine) transactions() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	asked := m.asked
	m.asked = nil
	return asked
}

func (m *machine) root() string { return fmt.Sprintf("/proc/%d/root", m.Leader()) }

func (m *machine) plain() *ostree.Plain { return ostree.NewPlain(m.run, m.root()) }

// counting are units that tell the machine what is run in them.
type counting struct {
	*systemd.Units

	m *machine
}

func (c counting) Run(ctx context.Context, command systemd.Command) (systemd.Ended, error) {
	c.m.mu.Lock()
	c.m.asked = append(c.m.asked, strings.Join(command.Argv[1:], " "))
	c.m.mu.Unlock()
	return c.Units.Run(ctx, command)
}

// rpm is a new driver, as after a restart of ours.
func (m *machine) rpm() *driver.Driver {
	units := m.Units()
	m.t.Cleanup(units.Close)
	r := driver.New(m.run, &ostree.Tools{Units: counting{units, m}, Root: m.root()}, m.plain())
	r.Progress = func(text string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.said = append(m.said, text)
	}
	return r
}

// output is what a command on the host says.
func (m *machine) output(ctx context.Context, argv ...string) string {
	m.t.Helper()
	text, err := m.Output(ctx, argv...)
	if err != nil {
		m.t.Fatal(err)
	}
	return strings.TrimSpace(text)
}

// standIn skips a test, or the rest of one, that a real rpm-ostree can't take.
func standIn(t *testing.T, why string) {
	t.Helper()
	if program, err := found(); err != nil || program.Real {
		t.Skipf("not with a real rpm-ostree: %s (%v)", why, err)
	}
}

// push puts an image of lab.RefV2 into the registry, by the name that a configuration gives it.
func (m *machine) push(ctx context.Context, version string) string {
	m.t.Helper()
	standIn(m.t, "the lab has no registry")
	commit, err := rpmostree.Commit(ctx, m.Host, lab.RefV2)
	if err != nil {
		m.t.Fatal(err)
	}
	digest, err := rpmostree.Push(m.Host, "quay.example/os/node:"+version, catalogue.Image{Base: commit, Version: version,
		Files: map[string]string{"/usr/lib/testos/image": version + "\n"}})
	if err != nil {
		m.t.Fatal(err)
	}
	return "quay.example/os/node@" + digest
}

func (m *machine) breaks(f fault.Fault) {
	m.t.Helper()
	standIn(m.t, "it has no faults to switch on")
	if err := rpmostree.Break(m.Host, f); err != nil {
		m.t.Fatal(err)
	}
}

// mend lifts the faults of all steps.
func (m *machine) mend() {
	m.t.Helper()
	for _, step := range []fault.Step{fault.Start, fault.Register, fault.Begin, fault.Pull, fault.Compose, fault.Stage, fault.End} {
		if err := rpmostree.Mend(m.Host, step); err != nil {
			m.t.Fatal(err)
		}
	}
}

// staged is the staged deployment, nil if there is none.
func (m *machine) staged(ctx context.Context) *ostree.Deployment {
	m.t.Helper()
	deployments, err := m.plain().Status(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, d := range deployments {
		if d.Staged {
			return &d
		}
	}
	return nil
}

// compose composes what has to work in so many transactions.
func (m *machine) compose(ctx context.Context, s osimage.System, transactions int) osimage.Composed {
	m.t.Helper()
	m.transactions()
	c, err := m.rpm().Compose(ctx, s)
	if err != nil {
		m.t.Fatal(err)
	}
	if asked := m.transactions(); c.Transactions != transactions || len(asked) < transactions {
		m.t.Errorf("composed in %d transactions instead of %d: %q", c.Transactions, transactions, asked)
	}
	if there, err := m.rpm().Present(ctx, s, c); !there || err != nil {
		m.t.Errorf("what was composed is there: %v, %v", there, err)
	}
	return c
}

// soon waits for a condition.
func (m *machine) soon(ctx context.Context, what string, condition func() bool) {
	m.t.Helper()
	for !condition() {
		select {
		case <-ctx.Done():
			m.t.Fatalf("%s: %v", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
