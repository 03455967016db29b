// SPDX-License-Identifier: Apache-2.0

// Package hands runs the verbs of a host for a pod. Each verb runs as a systemd unit of the host; a directory on the
// host's /run brings the request in, and the output and the report back. An operation outlives the pod that asked for
// it, and the next pod finds the operation by the name of its unit.
package hands

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/reboots"
	"github.com/noderefit/noderefit/rpmostree"
	"github.com/noderefit/noderefit/transaction"
)

// handoversDir holds a directory for each command of the head that is running, or whose report has not been collected
// yet.
const handoversDir = transaction.RunDir + "/hands"

// Options are the settings in which a caller may differ from the default.
type Options struct {
	// Program is the path of the program that is placed on the host and run there.
	Program string
	// Verdict is how long the host may take to prove healthy after a boot; zero: the host's own default.
	Verdict time.Duration
	// SoftReboot allows the host to restart its userspace alone where that is enough.
	SoftReboot bool
	// Observe receives the duration of each command on the host, from the call to the answer.
	Observe func(verb string, took time.Duration, err error)
}

// Client runs the verbs of a host. The root of the host is mounted at a directory: /rootfs in a pod, / on the host
// itself. Commands run as units of the host's systemd, so that a Client needs no capability. A Client is safe for
// concurrent use.
type Client struct {
	root    *files.Root
	mount   string
	install agent.Installer
	options Options
	turns   map[string]chan struct{} // a token for each verb
	watch   *watcher
	drift   *driftWatch

	mu     sync.Mutex
	placed string // the mark of the program that we placed on the host
	swept  bool   // the files of earlier heads are gone
	cached *host.Status
	seen   string // the marks of the host's files when cached was read
	read   time.Time
}

// statusLasts is how long an unchanged status is trusted: an error in a status may end without a change of the files.
const statusLasts = time.Minute

// fileMark returns a mark of the file at a path of the host, which differs from the mark of any earlier file there.
func fileMark(root *files.Root, name string) string {
	at, err := root.Resolve(path.Dir(name))
	if err != nil {
		return "none"
	}
	at = path.Join(root.Path(), at, path.Base(name))
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		return "none"
	}
	link, _ := os.Readlink(at)
	return fmt.Sprintf("%d %d %d.%d %d.%d %q", st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, link)
}

// New returns a Client of the host at mount, after placing the program and its units there.
func New(mount string, options Options) (*Client, error) {
	if options.Observe == nil {
		options.Observe = func(string, time.Duration, error) {}
	}
	root, err := files.Open(mount)
	if err != nil {
		return nil, err
	}
	h := &Client{root: root, mount: root.Path(), options: options, turns: map[string]chan struct{}{}}
	for _, v := range agent.Verbs {
		h.turns[v.Name] = make(chan struct{}, 1)
	}
	if err := h.open(); err != nil {
		_ = h.Close()
		return nil, err
	}
	return h, nil
}

func (h *Client) open() error {
	var err error
	if h.install, err = agent.NewInstaller(h.root); err != nil {
		return err
	}
	for dir, mode := range map[string]uint32{transaction.StateDir: 0o700, transaction.RunDir: 0o755, handoversDir: 0o700} {
		if err := h.root.MkdirAll(dir, mode); err != nil {
			return err
		}
	}
	if err := h.place(); err != nil {
		return err
	}
	if err := h.install.Units(); err != nil {
		return fmt.Errorf("installing the recovery unit: %w", err)
	}
	h.watch = newWatcher(h.root)
	h.drift = newDriftWatch(h.root)
	go h.drift.run()
	return nil
}

// Close releases the host. Commands continue to run there.
func (h *Client) Close() error {
	if h.watch != nil {
		h.watch.close()
	}
	if h.drift != nil {
		h.drift.close()
	}
	return h.root.Close()
}

// place makes the program on the host ours. A person's own command may have placed another program there meanwhile.
func (h *Client) place() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.placed != "" && fileMark(h.root, agent.BinaryPath) == h.placed {
		return nil
	}
	if h.options.Program != path.Join(h.mount, agent.BinaryPath) {
		if err := h.install.Program(h.options.Program); err != nil {
			return fmt.Errorf("placing the program on the host: %w", err)
		}
	}
	h.placed = fileMark(h.root, agent.BinaryPath)
	return nil
}

// Register registers the agent as the update driver of a host with rpm-ostree. Nothing runs on a host without
// rpm-ostree, and where the agent is registered already.
func (h *Client) Register(ctx context.Context) error {
	for _, name := range []string{"/run/ostree-booted", "/usr/bin/rpm-ostree"} {
		if n, err := h.root.Inspect(name); err != nil {
			return fmt.Errorf("looking for rpm-ostree: %w", err)
		} else if n.Type == files.Absent {
			return nil
		}
	}
	units := h.units("registering with rpm-ostree")
	defer units.Close()
	return rpmostree.Register(ctx, h.root.ReadFile, units)
}

// Status reads the state of the host. While no file that the status depends on has changed, Status reads only the marks
// of these files.
func (h *Client) Status(ctx context.Context) (*host.Status, error) {
	before := h.look()
	h.mu.Lock()
	if h.cached != nil && h.seen == before && time.Since(h.read) < statusLasts {
		s := h.cached.Clone()
		h.mu.Unlock()
		return s, nil
	}
	h.mu.Unlock()
	out, err := h.do(ctx, agent.StatusVerb, nil)
	if err != nil {
		return nil, err
	}
	s := &host.Status{}
	if err := out.decode(s); err != nil {
		return nil, err
	}
	// A journal in progress changes no file but itself.
	phase := transaction.Phase(s.Phase)
	lasting := s.Transaction == nil || phase == transaction.PhaseBoot || phase == transaction.PhaseProve
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cached = nil
	if lasting && h.look() == before {
		h.cached, h.seen, h.read = s.Clone(), before, time.Now()
	}
	return s, nil
}

// look returns the marks of the files that a status depends on. These are the record, the deployments, the link to the
// deployment that boots, a staged deployment, the record of the composed OS, and what wants a reboot. ostree touches
// the directory of the deployments with every change.
func (h *Client) look() string {
	var b strings.Builder
	for _, name := range append([]string{transaction.RecordPath, host.StagedPath, "/boot/loader", "/ostree/deploy",
		"/run/ostree/staged-deployment"}, reboots.Watched...) {
		fmt.Fprintln(&b, name, fileMark(h.root, name))
	}
	return b.String()
}

// Plan returns the plan from the host's configuration to the requested one. With an *UnreachableError the plan comes
// too, where the plan gives the reason.
func (h *Client) Plan(ctx context.Context, r Request) (*plan.Plan, error) {
	out, err := h.do(ctx, agent.PlanVerb, &r)
	return answer[plan.Plan](out, err)
}

// Stage refuses an update that can't work, and brings the OS to the disk.
func (h *Client) Stage(ctx context.Context, r Request) error {
	_, err := h.do(ctx, agent.StageVerb, &r)
	return err
}

// Unstage runs the verb stage without a configuration: any other staging is stopped first.
func (h *Client) Unstage(ctx context.Context) error {
	_, err := h.do(ctx, agent.StageVerb, nil)
	return err
}

// Apply moves the host to the configuration, or waits for a running apply of the same request. An apply of another
// request is a *Refused. The result comes with most errors too.
func (h *Client) Apply(ctx context.Context, r Request) (*host.Result, error) {
	out, err := h.do(ctx, agent.ApplyVerb, &r)
	return answer[host.Result](out, err)
}

// Ask runs the hooks that are asked before a drain. Without any hook, nothing runs on the host. The host also judges
// the cluster's hooks for after the boot: it may run none of the cluster's.
func (h *Client) Ask(ctx context.Context, r Request) error {
	found, _, err := hooks.Find(h.root, hooks.BeforeDrain)
	if err == nil && len(found) == 0 && len(r.Hooks) == 0 {
		return nil
	}
	r.asks = api.Encode(r.Document)
	_, err = h.do(ctx, agent.AskVerb, &r)
	return err
}

// RebootWanted asks everything that may want a reboot of the host. The next status has the answer.
func (h *Client) RebootWanted(ctx context.Context) error {
	_, err := h.do(ctx, agent.WantedVerb, nil)
	return err
}

// Reboot reboots the host once, as Request.Reboot orders. An order that was carried out is not carried out again.
func (h *Client) Reboot(ctx context.Context, r Request) (*host.Result, error) {
	out, err := h.do(ctx, agent.RebootVerb, &r)
	return answer[host.Result](out, err)
}

// Verify compares the host with its committed configuration. Drift is no error.
func (h *Client) Verify(ctx context.Context) (*host.Verification, error) {
	out, err := h.do(ctx, agent.VerifyVerb, nil)
	v, err := answer[host.Verification](out, err)
	if errors.As(err, new(*host.DriftError)) && v != nil {
		err = nil
	}
	return v, err
}

// Repair writes back the drifted parts of the committed configuration that the request names.
func (h *Client) Repair(ctx context.Context, r RepairRequest) (*host.Result, error) {
	out, err := h.do(ctx, agent.RepairVerb, &Request{Policy: r.Policy, repair: r.Subjects})
	return answer[host.Result](out, err)
}

// Deliver writes the certificates of a ControllerConfig. The result comes with most errors too.
func (h *Client) Deliver(ctx context.Context, r DeliverRequest) (*host.Delivery, error) {
	out, err := h.do(ctx, agent.DeliverVerb, &Request{Name: r.Name, Config: r.Config, Policy: r.Policy})
	res, err := answer[host.Result](out, err)
	if res == nil {
		return nil, err
	}
	return res.Delivered, err
}

// Watch replaces the paths whose changes Touched announces.
func (h *Client) Watch(paths []string) {
	if len(paths) > 0 {
		paths = slices.Concat(paths, []string{host.ForceFile}, reboots.Paths)
	}
	h.drift.watch(paths)
}

// Touched delivers when the content of a watched path may have changed. It is never closed.
func (h *Client) Touched() <-chan struct{} { return h.drift.touched }

// Blind returns the reason why changes may be announced late, nil where they are not.
func (h *Client) Blind() error { return h.drift.why() }

// answer reads the output of the command, and adds the error that it ended with.
func answer[T any](out *outcome, err error) (*T, error) {
	if out == nil || len(out.output) == 0 {
		return nil, err
	}
	v := new(T)
	if wrong := out.decode(v); wrong != nil {
		return nil, errors.Join(err, wrong)
	}
	return v, err
}

// Config returns the host's copy of the committed, pending or previous configuration of that name, as JSON.
func (h *Client) Config(_ context.Context, name string) ([]byte, error) {
	store := transaction.NewStore(h.root)
	r, err := store.Load()
	if err != nil {
		return nil, err
	}
	revisions := []*transaction.Revision{r.Committed, nil, r.Previous}
	if r.Pending != nil {
		revisions[1] = &r.Pending.Revision
	}
	for _, rev := range revisions {
		if rev != nil && rev.Config == name && rev.Digest != "" {
			data, err := store.ReadConfig(rev.Digest)
			if err != nil {
				return nil, fmt.Errorf("reading the host's copy of %s: %w", name, err)
			}
			return data, nil
		}
	}
	return nil, fmt.Errorf("reading the host's copy of %s: %w", name, fs.ErrNotExist)
}

// Boot returns the ID of the host's boot, "" where the host does not show it.
func (h *Client) Boot() string {
	id, err := h.root.ReadFile(host.BootIDFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// NodeHeld reports to an apply on the host whether the node is still as the drain left it;
// see transaction.ReportNodeHeld.
func (h *Client) NodeHeld(_ context.Context, held bool, why string) error {
	return transaction.ReportNodeHeld(h.root, held, why)
}

// NodeReady reports the node's state from the API server to the verdict on the host; see transaction.ReportNodeReady.
func (h *Client) NodeReady(_ context.Context, ready bool, why string, heard time.Time) error {
	return transaction.ReportNodeReady(h.root, ready, why, heard)
}

// Changed delivers when the host's record may have changed. It is never closed.
func (h *Client) Changed() <-chan struct{} { return h.watch.changed }
