// SPDX-License-Identifier: Apache-2.0

// Package host is one host and its verbs. A verb such as Apply reads a configuration, makes the plan, chooses the road,
// and drives a transaction to its end. A person's command and an update from a cluster take the same path:
//
//	h, err := host.Open("/", host.OSAuto, say)
//	defer h.Close()
//	err = h.Lock(ctx, "apply")
//	result, err := h.Apply(ctx, configuration, host.ApplyOptions{})
//
// The package knows no API server: client-go is not among its dependencies.
package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/bootc"
	"github.com/noderefit/noderefit/bootloader"
	"github.com/noderefit/noderefit/contents"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/reboots"
	"github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// OS names the manager of a host's operating system.
type OS string

// The back ends of CONTRACT's --os. With each of them the deployments are ostree's own; the host's own manager composes
// the content of the OS.
const (
	OSAuto      OS = "auto"
	OSRpmOstree OS = "rpm-ostree"
	OSBootc     OS = "bootc"
	OSOstree    OS = "ostree"
	OSNone      OS = "none"
)

// Refused is the error of work that must not be done now: another operation or manager is working on the host.
type Refused struct{ Err error }

func (e *Refused) Error() string { return e.Err.Error() }
func (e *Refused) Unwrap() error { return e.Err }

// UnreachableError is the error of a configuration that can't be reached from here.
type UnreachableError struct{ Err error }

func (e *UnreachableError) Error() string { return e.Err.Error() }
func (e *UnreachableError) Unwrap() error { return e.Err }

// DriftError is the error of a host that does not match its configuration.
type DriftError struct {
	Config string
	Drift  []Drift
}

func (e *DriftError) Error() string {
	first := e.Drift[0]
	more := ""
	if n := len(e.Drift) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return fmt.Sprintf("host does not match %s: %s %s: %s%s", e.Config, first.Kind, first.Subject(), first.What, more)
}

// Host is a host, or a tree that looks like a host, with everything that its commands need.
type Host struct {
	root *files.Root
	os   OS
	live bool // the tree is the running system
	// transient means that /etc ends with each boot, and recovery writes the configuration into the next one.
	transient bool
	// composefs is how the host boots where bootc runs it without ostree. Its journal carries everything.
	composefs bootc.Composefs
	plain     *ostree.Plain
	loader    *bootloader.Loader // nil with ostree, on bootc's composefs, and where systemd does not run
	grub      *ostree.GRUB
	composer  composer
	// units runs hooks and the composer's tools. Without a composer there are no tools.
	units       *systemd.Units
	tools       *ostree.Tools
	system      *osimage.System // see current
	known       *plan.Catalogue // see catalogue
	platform    plan.Platform
	services    *services
	labels      *files.Labels
	kernel      string        // its boot id
	bootID      func() string // found out once, at the first call
	deployments *rpmostree.Deployments
	now         func() time.Time
	say         func(phase, what string)
	way         string // what status shows of the road, once the road is known

	left     []transaction.Left // see leftAsIs
	contents *contents.Store

	pulling *osimage.Progress
	release func() // of the host's lock
}

// Open returns the host at dir. Open and later operations report each step of their work to say.
func Open(dir string, backend OS, say func(phase, what string)) (*Host, error) {
	root, err := files.Open(dir)
	if err != nil {
		return nil, err
	}
	h := &Host{root: root, contents: &contents.Store{Root: root}, live: path.Clean(dir) == "/", now: time.Now, say: say,
		units: &systemd.Units{Connect: systemd.Connect}}
	h.pulling = &osimage.Progress{Root: root, File: transaction.RunDir + "/pulling.json",
		Now: func() time.Time { return h.now() }, Say: func(text string) { h.say("pull", message.OneLine(text)) }}
	if err := h.open(backend); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// BootIDFile holds the ID of the kernel's boot.
const BootIDFile = "/proc/sys/kernel/random/boot_id"

func (h *Host) open(backend OS) error {
	booted := h.live && h.exists("/run/ostree-booted")
	if h.live && !booted {
		h.composefs = bootc.FindComposefs(h.root.ReadFile, h.exists)
	}
	switch {
	case backend == OSBootc && h.composefs != "", backend == OSAuto && (!booted || h.onTree()):
		h.os = OSNone
	case backend == OSAuto && h.has("rpm-ostree"):
		h.os = OSRpmOstree
	case backend == OSAuto && h.has("bootc"):
		h.os = OSBootc
	case backend == OSAuto:
		h.os = OSOstree
	default:
		h.os = backend
	}
	if h.os != OSNone && !booted {
		return fmt.Errorf("using --os %s: %s is not a booted ostree host", h.os, h.root.Path())
	}
	h.bootID = func() string { return "" }
	if h.live {
		id, err := h.root.ReadFile(BootIDFile)
		if err != nil {
			return fmt.Errorf("reading boot id: %w", err)
		}
		h.kernel, h.bootID = strings.TrimSpace(string(id)), sync.OnceValue(h.boot)
		if h.exists("/run/systemd/system") {
			h.services = &services{}
		}
	}
	if h.os != OSNone {
		h.plain, h.grub = ostree.NewPlain(ostree.Exec, "/"), ostree.NewGRUB("/", files.OverwriteRemounted)
		h.plain.Wakers = agent.Wakers()
		h.deployments = &rpmostree.Deployments{Plain: h.plain}
		h.tools = &ostree.Tools{Units: h.units, Root: "/"}
		progress := h.pulling.Says
		switch h.os {
		case OSRpmOstree:
			driver := rpmostree.New(ostree.Exec, h.tools, h.plain)
			driver.Progress = progress
			h.composer, h.deployments.Driver = driver, driver
		case OSBootc:
			driver := bootc.New(ostree.Exec, h.tools, h.plain)
			driver.Progress = progress
			h.composer = driver
		default:
			h.composer = h.deployments
		}
	}
	if h.services != nil && !booted && h.composefs == "" {
		h.loader = bootloader.Find(h.root, ostree.Exec)
	}
	var err error
	if h.plain != nil {
		if h.transient, err = h.plain.TransientEtc(); err != nil {
			return err
		}
	}
	h.labels, err = h.root.Labels()
	if err != nil {
		return fmt.Errorf("reading SELinux policy: %w", err)
	}
	return nil
}

// onTree reports whether the record is that of a host whose journal carries everything. An update that --os none began
// on a host with ostree continues on that road.
func (h *Host) onTree() bool {
	r, err := h.store().Load()
	if err != nil {
		return false
	}
	if r.Pending != nil && r.Pending.Road != transaction.RoadReboot {
		return !r.Pending.Road.Deploys()
	}
	return r.Committed != nil && r.Committed.Digest != "" && r.Committed.Deployment == ""
}

// contradicts refuses to continue a pending update on another road than its own.
func (h *Host) contradicts(r *transaction.Record) error {
	if p := r.Pending; p != nil && p.Road != transaction.RoadReboot && p.Road.Deploys() != (h.plain != nil) {
		return &Refused{Err: fmt.Errorf("the update to %s is under way on the %s road, which needs another --os than %s",
			p.Config, p.Road, h.os)}
	}
	return nil
}

// Close releases the host, and its lock.
func (h *Host) Close() {
	h.unlock()
	if h.services != nil {
		h.services.close()
	}
	h.units.Close()
	_ = h.root.Close()
}

func (h *Host) installer() agent.Installer { return agent.Installer{Root: h.root, Labels: h.labels} }

func (h *Host) exists(name string) bool {
	n, err := h.root.Inspect(name)
	return err == nil && n.Type != files.Absent
}

// has reports whether the host has a program, from its image or installed by an admin.
func (h *Host) has(program string) bool {
	return h.exists("/usr/bin/"+program) || h.exists("/usr/local/bin/"+program)
}

// settling is how long Lock waits for a verdict that is being recorded: the unit that proves holds the lock only to
// record the verdict and to clean up. The recovery of a boot holds the lock as briefly.
const settling = 30 * time.Second

// proveVerb is the verb under which the proving unit holds the lock.
const proveVerb = "prove"

// hostLock is the name of the host's lock.
const hostLock = "lock"

// Lock makes sure that no other process changes the host meanwhile. Other processes are told the verb.
func (h *Host) Lock(ctx context.Context, verb string) (err error) {
	h.release, err = h.lockFile(ctx, hostLock, verb, "is at work", settling)
	return err
}

// settles reports whether the lock that could not be taken is free soon. The holder of that lock records the end of an
// update, removes contents, or has just taken the lock and not yet written its name.
func settles(held error) bool {
	text := held.Error()
	return !strings.Contains(text, files.HeldBy) || strings.Contains(text, "machine-config-daemon "+proveVerb+",") ||
		strings.Contains(text, "machine-config-daemon recover,") ||
		strings.Contains(text, "machine-config-daemon "+agent.StageVerb.Name+",")
}

func (h *Host) unlock() {
	if h.release != nil {
		h.release()
		h.release = nil
	}
}

func (h *Host) store() *transaction.Store { return transaction.NewStore(h.root) }

// boot returns the name of the current boot.
func (h *Host) boot() string {
	if h.services == nil {
		return h.kernel
	}
	ctx, cancel := context.WithTimeout(context.Background(), BusTimeout)
	defer cancel()
	count, err := systemd.SoftReboots(ctx)
	if err == nil || errors.Is(err, systemd.ErrNoSoftReboots) {
		return transaction.BootID(h.kernel, count)
	}
	// On such an error a soft reboot is taken for the earlier boot. The opposite mistake, to take the same boot for
	// another one, would use up an attempt.
	h.say("boot", err.Error())
	r, err := h.store().Load()
	if err != nil {
		return h.kernel
	}
	return r.BootOf(h.kernel)
}

func (h *Host) engine() *transaction.Engine {
	e := &transaction.Engine{Root: h.root, Labels: h.labels, BootID: h.bootID(), Now: h.now, Uptime: transaction.Uptime,
		Say: h.say, Left: h.leftAsIs}
	if h.plain != nil {
		e.Deployments, e.Counter = h.deployments, h.grub
	}
	if h.deployments != nil && h.deployments.Driver != nil {
		e.Etc, e.Unfinished = h.bootedEtc, h.deployments.Driver.FailedFinalization
	}
	if h.transient {
		e.BootEtc = h.bootEtc
	}
	if h.services != nil {
		e.Services, e.Prove, e.Unheld, e.Reread = h.services, h.verdictLive, h.unheld, h.services.rereadEtc
		e.UnloadKernel = func(ctx context.Context) error { return reboots.UnloadKernel(ctx, h.root, ostree.Exec) }
	}
	if h.loader != nil {
		e.BootLoader = h.loader
	}
	return e
}

// leftAsIs records a path that stays as it is because users other than root are in the way. The first reason counts.
func (h *Host) leftAsIs(l transaction.Left) {
	if !slices.ContainsFunc(h.left, func(known transaction.Left) bool { return known.Path == l.Path }) {
		h.left = append(h.left, l)
	}
}

// errNoCopy is the reason why a revision can't be compared with the host: the host's copy is gone or damaged.
var errNoCopy = errors.New("the host's copy is gone or damaged")

// committed returns the host's configuration as recorded, nil where the host has none yet. Where next, which the host
// is to get, has the same content, committed returns next, also together with errNoCopy: the content is known even
// without the copy.
func (h *Host) committed(r *transaction.Record, next *machineconfig.Config) (*machineconfig.Config, error) {
	if r.Committed != nil && r.Committed.Digest == next.Digest {
		_, err := h.document(r.Committed)
		return next, err
	}
	return h.revision(r.Committed)
}

// unread notes in a plan that the committed configuration could not be read, where err is not nil.
func unread(p *plan.Plan, r *transaction.Record, err error) {
	if err != nil && r.Committed != nil {
		p.Current, p.Unread = r.Committed.Config, message.OneLine(err.Error())
	}
}

// revision returns the wanted content of the host at a revision: the revision's configuration, with all later
// deliveries.
func (h *Host) revision(rev *transaction.Revision) (*machineconfig.Config, error) {
	cfg, err := h.document(rev)
	return h.whole(cfg), err
}

// document returns the configuration of a revision as requested, without deliveries.
func (h *Host) document(rev *transaction.Revision) (*machineconfig.Config, error) {
	if rev == nil || rev.Digest == "" {
		return nil, nil
	}
	missing := func(err error) error {
		if pe, is := errors.AsType[*fs.PathError](err); is {
			err = pe.Err // the message has the path
		}
		return fmt.Errorf("reading configuration %s: %w: %s: %w; apply %s again, which writes it anew",
			rev.Config, errNoCopy, transaction.ConfigPath(rev.Digest), err, rev.Config)
	}
	data, err := h.store().ReadConfig(rev.Digest)
	if err != nil {
		return nil, missing(err)
	}
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(data, mc); err != nil {
		return nil, missing(err)
	}
	cfg, err := machineconfig.Parse(mc)
	if err != nil {
		return nil, missing(err)
	}
	if cfg.Former == rev.Digest {
		cfg.Digest = rev.Digest
	} else if cfg.Digest != rev.Digest {
		return nil, missing(fmt.Errorf("the digest of the copy is %s", cfg.Digest))
	}
	return cfg, nil
}

// setsArguments reports whether this host can be given kernel arguments.
func (h *Host) setsArguments() bool { return h.plain != nil || h.loader != nil && h.loader.Known() }

// booted returns the running deployment. Without ostree it has the arguments of the next boot alone.
func (h *Host) booted(ctx context.Context) (ostree.Deployment, error) {
	if h.plain == nil && h.loader != nil {
		line, err := h.loader.CommandLine()
		return ostree.Deployment{KernelArguments: line}, err
	} else if h.plain == nil {
		return ostree.Deployment{}, nil
	}
	ds, err := h.deployments.Status(ctx)
	if err != nil {
		return ostree.Deployment{}, fmt.Errorf("reading deployments: %w", err)
	}
	for _, d := range ds {
		if d.Booted {
			return d, nil
		}
	}
	return ostree.Deployment{}, errors.New("reading deployments: no deployment is the booted one")
}
