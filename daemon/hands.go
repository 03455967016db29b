// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// handoversDir holds a directory for each command of the head's that runs, or that nobody has collected yet.
const handoversDir = transaction.RunDir + "/hands"

// verb is a command that the head has the host run. One of each name runs at a time, as a unit of a fixed name: that is
// how a head finds what the one before it has started, and people find it in the journal.
type verb struct {
	name string
	// joins: a running one for the same request is waited for instead of starting another.
	joins bool
	// outlives: the end of the caller's context stops it not. Others that join are stopped for ErrSuperseded alone.
	outlives bool
	nice     int
	limit    time.Duration // how long it may run; 0 for as long as it takes
	// grace is how long it has to end after it was asked to.
	grace time.Duration
}

// unitPrefix begins the names of all units of the agent's.
const unitPrefix = "machine-config-daemon-"

func (v verb) unit() string { return unitPrefix + v.name + ".service" }

// The limits are those of commands that read: a minute is a hundred times what they take, and what hangs for longer
// than that has to be seen. A live change that was decided finishes its restarts before it ends.
var (
	statusVerb = verb{name: "status", limit: time.Minute, grace: 10 * time.Second}
	planVerb   = verb{name: "plan", limit: 5 * time.Minute, grace: 10 * time.Second}
	repairVerb = verb{name: "repair", limit: 10 * time.Minute, grace: 5 * time.Minute}
	// What deliver has recorded is rolled forward by whoever comes next, so that it may be stopped.
	deliverVerb = verb{name: "deliver", limit: 10 * time.Minute, grace: 5 * time.Minute}
	verifyVerb  = verb{name: "verify", limit: 5 * time.Minute, grace: 10 * time.Second}
	stageVerb   = verb{name: "stage", joins: true, nice: 10, grace: 30 * time.Second}
	askVerb     = verb{name: "before-drain", joins: true, grace: 30 * time.Second}
	applyVerb   = verb{name: "apply", joins: true, outlives: true, grace: 5 * time.Minute}
)

// softVerbs are those that a soft reboot matters to.
var softVerbs = []string{planVerb.name, applyVerb.name}

// handVerbs are all of them.
var handVerbs = []verb{statusVerb, planVerb, verifyVerb, repairVerb, deliverVerb, stageVerb, askVerb, applyVerb}

// HandsOptions are for those who need more than the defaults.
type HandsOptions struct {
	// Program is what is placed on the host and run there; this program where it is empty.
	Program string
	// Verdict is how long the host may take to prove healthy after a boot; the host's own default where it is zero.
	Verdict time.Duration
	// SoftReboot allows the host to restart its userspace alone where that is enough.
	SoftReboot bool
	// Observe is told what each command on the host took, from the call to the answer.
	Observe func(verb string, took time.Duration, err error)
}

// HostHands are the Hands and Senses of a host whose root is mounted where we are: /rootfs in a pod, / on the host
// itself. Commands run as units of the host's systemd; nothing here needs a capability. It is safe for concurrent use.
type HostHands struct {
	root    *files.Root
	mount   string
	install installer
	options HandsOptions
	turns   map[string]chan struct{} // a token for each verb
	watch   *handWatch
	drift   *driftWatch

	mu     sync.Mutex
	placed string // the program on the host, as we left it
	swept  bool   // what earlier heads left is gone
	cached *Status
	seen   string // what the host looked like when cached was read
	read   time.Time
}

// statusLasts is how long a status is believed that nothing has changed: an error in it may have gone by itself.
const statusLasts = time.Minute

// fileMark tells what stands at a path of the host from what stood there before.
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

// NewHands returns the hands of the host at mount, after placing the program and its units there.
func NewHands(mount string, options HandsOptions) (*HostHands, error) {
	if options.Program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding this program: %w", err)
		}
		options.Program = self
	}
	if options.Observe == nil {
		options.Observe = func(string, time.Duration, error) {}
	}
	root, err := files.Open(mount)
	if err != nil {
		return nil, err
	}
	h := &HostHands{root: root, mount: root.Path(), options: options, turns: map[string]chan struct{}{}}
	for _, v := range handVerbs {
		h.turns[v.name] = make(chan struct{}, 1)
	}
	if err := h.open(); err != nil {
		_ = h.Close()
		return nil, err
	}
	return h, nil
}

func (h *HostHands) open() error {
	labels, err := h.root.Labels()
	if err != nil {
		return fmt.Errorf("reading SELinux policy: %w", err)
	}
	h.install = installer{root: h.root, labels: labels}
	for dir, mode := range map[string]uint32{transaction.StateDir: 0o700, transaction.RunDir: 0o755, handoversDir: 0o700} {
		if err := h.root.MkdirAll(dir, mode); err != nil {
			return err
		}
	}
	if err := h.place(); err != nil {
		return err
	}
	if err := h.install.units(); err != nil {
		return fmt.Errorf("installing the recovery unit: %w", err)
	}
	h.watch = newHandWatch(h.root)
	h.drift = newDriftWatch(h.root)
	go h.drift.run()
	return nil
}

// Close lets the host go. What runs there goes on.
func (h *HostHands) Close() error {
	if h.watch != nil {
		h.watch.close()
	}
	if h.drift != nil {
		h.drift.close()
	}
	return h.root.Close()
}

// place makes the program on the host ours. Somebody's own command may have put another there since.
func (h *HostHands) place() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.placed != "" && fileMark(h.root, binaryPath) == h.placed {
		return nil
	}
	if h.options.Program != path.Join(h.mount, binaryPath) {
		if err := h.install.program(h.options.Program); err != nil {
			return fmt.Errorf("placing the program on the host: %w", err)
		}
	}
	h.placed = fileMark(h.root, binaryPath)
	return nil
}

// Status reads where the host is. While nothing of what it tells has changed it costs a few looks at files.
func (h *HostHands) Status(ctx context.Context) (*Status, error) {
	before := h.look()
	h.mu.Lock()
	if h.cached != nil && h.seen == before && time.Since(h.read) < statusLasts {
		s := h.cached.clone()
		h.mu.Unlock()
		return s, nil
	}
	h.mu.Unlock()
	out, err := h.do(ctx, statusVerb, nil)
	if err != nil {
		return nil, err
	}
	s := &Status{}
	if err := out.decode(s); err != nil {
		return nil, err
	}
	// A journal that is at work changes nothing but itself.
	phase := transaction.Phase(s.Phase)
	lasting := s.Transaction == nil || phase == transaction.PhaseBoot || phase == transaction.PhaseProve
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cached = nil
	if lasting && h.look() == before {
		h.cached, h.seen, h.read = s.clone(), before, time.Now()
	}
	return s, nil
}

// clone is a copy that its owner may change.
func (s *Status) clone() *Status {
	c := *s
	c.Deployments = slices.Clone(s.Deployments)
	c.Quarantined = slices.Clone(s.Quarantined)
	c.Skipped = slices.Clone(s.Skipped)
	if s.Transaction != nil {
		t := *s.Transaction
		c.Transaction = &t
	}
	return &c
}

// look is what a status depends on: the record; the deployments, whose directory ostree touches whenever one comes or
// goes; which of them boots, which is a link; one that is staged; and what was composed.
func (h *HostHands) look() string {
	var b strings.Builder
	for _, name := range []string{transaction.RecordPath, stagedPath, "/boot/loader", "/ostree/deploy",
		"/run/ostree/staged-deployment"} {
		fmt.Fprintln(&b, name, fileMark(h.root, name))
	}
	return b.String()
}

// Plan is the way from what the host has to what the request names. The plan comes with an *UnreachableError too, where
// it is what says why.
func (h *HostHands) Plan(ctx context.Context, r Request) (*plan.Plan, error) {
	out, err := h.do(ctx, planVerb, &r)
	return answer[plan.Plan](out, err)
}

// Stage refuses what can't work, and brings the OS to the disk.
func (h *HostHands) Stage(ctx context.Context, r Request) error {
	_, err := h.do(ctx, stageVerb, &r)
	return err
}

// Unstage is a stage of nothing: whatever else is being staged is stopped first.
func (h *HostHands) Unstage(ctx context.Context) error {
	_, err := h.do(ctx, stageVerb, nil)
	return err
}

// Apply moves the host to the configuration, or waits for an apply of it that is already running. Another one is a
// *Refused. The result comes with most errors too.
func (h *HostHands) Apply(ctx context.Context, r Request) (*Result, error) {
	out, err := h.do(ctx, applyVerb, &r)
	return answer[Result](out, err)
}

// Ask runs the hooks that are asked before a drain. Where there are none nothing runs on the host.
func (h *HostHands) Ask(ctx context.Context, r Request) error {
	found, _, err := hooks.Find(h.root, hooks.BeforeDrain)
	if err == nil && len(found) == 0 && len(clusterHooks(hooks.BeforeDrain, r.Hooks)) == 0 {
		return nil
	}
	r.asks = api.Encode(r.HookDocument)
	_, err = h.do(ctx, askVerb, &r)
	return err
}

// Verify compares the host with its committed configuration. Drift is no error.
func (h *HostHands) Verify(ctx context.Context) (*Verification, error) {
	out, err := h.do(ctx, verifyVerb, nil)
	v, err := answer[Verification](out, err)
	if errors.As(err, new(*DriftError)) && v != nil {
		err = nil
	}
	return v, err
}

// Repair writes back what of the committed configuration has drifted, as far as the request names it.
func (h *HostHands) Repair(ctx context.Context, r RepairRequest) (*Result, error) {
	out, err := h.do(ctx, repairVerb, &Request{Policy: r.Policy, repair: r.Subjects})
	return answer[Result](out, err)
}

// Deliver writes the certificates of a ControllerConfig. The result comes with most errors too.
func (h *HostHands) Deliver(ctx context.Context, r DeliverRequest) (*Delivery, error) {
	out, err := h.do(ctx, deliverVerb, &Request{Name: r.Name, Config: r.Config, Policy: r.Policy})
	res, err := answer[Result](out, err)
	if res == nil {
		return nil, err
	}
	return res.Delivered, err
}

// Watch replaces the paths whose changes Touched tells.
func (h *HostHands) Watch(paths []string) {
	if len(paths) > 0 {
		paths = append(slices.Clone(paths), ForceFile)
	}
	h.drift.watch(paths)
}

// Touched delivers when something at a watched path may have changed. It is never closed.
func (h *HostHands) Touched() <-chan struct{} { return h.drift.touched }

// Blind says why changes may be told late, nil where they are not.
func (h *HostHands) Blind() error { return h.drift.why() }

// answer reads what the command printed, and adds the error that it ended with.
func answer[T any](out *handOutcome, err error) (*T, error) {
	if out == nil || len(out.output) == 0 {
		return nil, err
	}
	v := new(T)
	if wrong := out.decode(v); wrong != nil {
		return nil, errors.Join(err, wrong)
	}
	return v, err
}

// Config is the host's copy of the committed, pending or previous configuration of that name, as JSON.
func (h *HostHands) Config(_ context.Context, name string) ([]byte, error) {
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

// Boot is the ID of the host's boot, "" where the host does not show it.
func (h *HostHands) Boot() string {
	id, err := h.root.ReadFile(bootIDFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// NodeReady tells the verdict on the host what the API server says of the node, as of now. What was said counts for a
// short time only (wordLasts), so whoever says it repeats it while an update is on the way.
func (h *HostHands) NodeReady(_ context.Context, ready bool, why string, heard time.Time) error {
	word := nodeWord{Ready: ready, Why: why, When: time.Now().UTC(), Uptime: uptime()}
	if !heard.IsZero() {
		word.Heard = word.Uptime - time.Since(heard)
	}
	data, err := json.Marshal(word)
	if err != nil {
		return err
	}
	if err := h.root.WriteRecord(nodeWordFile, data, 0o600); err != nil {
		return fmt.Errorf("telling the host about its node: %w", err)
	}
	return nil
}

// Changed delivers when the host's record may have changed. It is never closed.
func (h *HostHands) Changed() <-chan struct{} { return h.watch.changed }

// handOutcome is what a command on the host gave back.
type handOutcome struct {
	verb   string
	output []byte
}

func (o *handOutcome) decode(into any) error {
	if err := json.Unmarshal(o.output, into); err != nil {
		return fmt.Errorf("reading what %s printed on the host: %w", o.verb, err)
	}
	return nil
}

// handNote says what a command was started for: enough for another head to know it again, and no secret.
type handNote struct {
	Config string `json:"config"`
	Sum    string `json:"sum"`
}

// noteOf sums up what a request comes to. The same configuration has the same digest however it is written, and
// whatever else the cluster has noted in its metadata. What may keep it from being staged counts.
func noteOf(r *Request) handNote {
	if r == nil {
		return handNote{}
	}
	digest := ""
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(r.Config, mc); err == nil {
		if c, err := machineconfig.Parse(mc); err == nil {
			digest = c.Digest
		}
	}
	if digest == "" { // the host's command says what is wrong with it
		sum := sha256.Sum256(r.Config)
		digest = hex.EncodeToString(sum[:])
	}
	text := fmt.Appendf(nil, "%s %s %t %t %q %s %s", r.Name, digest, r.Lift, r.Strict, r.repair, policyRead(r.Policy),
		r.asks)
	if r.Order != nil && r.Order.MinFreeMebibytes > 0 {
		text = fmt.Appendf(text, " %d", r.Order.MinFreeMebibytes)
	}
	sum := sha256.Sum256(text)
	return handNote{Config: r.Name, Sum: hex.EncodeToString(sum[:])}
}

// policyRead is what a node reads of a MachineConfiguration: that somebody wrote its status, or anything else, makes no
// other request.
func policyRead(document []byte) []byte {
	var doc struct {
		Spec struct {
			Policy    any `json:"nodeDisruptionPolicy"`
			Overrides any `json:"irreconcilableValidationOverrides"`
		} `json:"spec"`
	}
	if len(document) == 0 || json.Unmarshal(document, &doc) != nil {
		return document
	}
	text, err := json.Marshal(doc.Spec)
	if err != nil {
		return document
	}
	return text
}

// do runs a command on the host and returns what it printed, and the error that it ended with.
func (h *HostHands) do(ctx context.Context, v verb, r *Request) (out *handOutcome, err error) {
	started := time.Now()
	defer func() { h.options.Observe(v.name, time.Since(started), err) }()
	select {
	case h.turns[v.name] <- struct{}{}:
		defer func() { <-h.turns[v.name] }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c := &handCall{hands: h, verb: v, request: r, note: noteOf(r)}
	defer c.close()
	out, err = c.run(ctx)
	if !errors.Is(err, errCollected) {
		return out, err
	}
	// A lift has served by now, and would let what failed try again.
	if r != nil && r.Lift {
		again := *r
		again.Lift = false
		c.request, c.note = &again, noteOf(&again)
	}
	return c.run(ctx)
}

// errCollected is the end of a command that two heads waited for, to the one that came second: the other has the
// report, and to ask once more finds what became of it.
var errCollected = errors.New("another agent on this host has taken the report")

// handCall is one command on the host.
type handCall struct {
	hands   *HostHands
	verb    verb
	request *Request
	note    handNote
	m       *systemd.Manager
}

func (c *handCall) close() {
	if c.m != nil {
		c.m.Close()
	}
}

// manager is the connection to the host's systemd. It is made anew after an error: a bus that is restarted is no reason
// to lose sight of what runs.
func (c *handCall) manager(ctx context.Context) (*systemd.Manager, error) {
	if c.m == nil {
		ctx, cancel := context.WithTimeout(ctx, busTimeout)
		defer cancel()
		m, err := systemd.ConnectAt(ctx, c.hands.mount)
		if err != nil {
			return nil, fmt.Errorf("running %s on the host: %w", c.verb.name, err)
		}
		c.m = m
	}
	return c.m, nil
}

// ask has one conversation with systemd.
func (c *handCall) ask(ctx context.Context, question func(context.Context, *systemd.Manager) error) error {
	m, err := c.manager(ctx)
	if err != nil {
		return err
	}
	if err := question(ctx, m); err != nil {
		c.close()
		c.m = nil
		return err
	}
	return nil
}

// state asks what runs under the verb's name.
func (c *handCall) state(ctx context.Context) (s systemd.Service, err error) {
	err = c.ask(ctx, func(ctx context.Context, m *systemd.Manager) error {
		ctx, cancel := context.WithTimeout(ctx, busTimeout)
		defer cancel()
		s, err = m.Service(ctx, c.verb.unit())
		return err
	})
	return s, err
}

// run joins what runs already, or clears the way and starts it.
func (c *handCall) run(ctx context.Context) (*handOutcome, error) {
	for {
		s, err := c.state(ctx)
		if err != nil {
			return nil, err
		}
		if s.Ended() {
			dir, err := c.start(ctx)
			if errors.Is(err, systemd.ErrUnitExists) {
				continue // another head was quicker
			}
			if errors.Is(err, systemd.ErrGoingDown) {
				return nil, &Refused{Err: err}
			}
			if err != nil {
				return nil, err
			}
			return c.await(ctx, dir, "")
		}
		dir := path.Clean("/" + handoverOf(s.Environment))
		other := c.noteIn(dir)
		switch {
		case c.verb.joins && other == c.note:
			return c.await(ctx, dir, s.Invocation)
		case !c.hands.root.IsDir(dir): // it has reported, and is about to end
		case c.verb.outlives:
			return nil, &Refused{Err: fmt.Errorf("%s is at work on this host, for %s", c.verb.unit(), other.Config)}
		case c.verb.joins:
			if err := c.stop(ctx); err != nil {
				return nil, err
			}
		}
		if err := c.gone(ctx); err != nil {
			return nil, err
		}
	}
}

// gone waits until what runs under the verb's name has ended.
func (c *handCall) gone(ctx context.Context) error {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		s, err := c.state(ctx)
		if err != nil || s.Ended() {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

func (c *handCall) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.verb.grace+busTimeout)
	defer cancel()
	return c.ask(ctx, func(ctx context.Context, m *systemd.Manager) error { return m.Stop(ctx, c.verb.unit()) })
}

func (c *handCall) noteIn(dir string) handNote {
	var n handNote
	data, err := c.hands.root.ReadFile(path.Join(dir, handoverRequest))
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	if err != nil {
		n.Config = "an unknown configuration"
	}
	return n
}

// start hands over the documents and starts the command. It returns the directory that they share.
func (c *handCall) start(ctx context.Context) (string, error) {
	h := c.hands
	if err := h.place(); err != nil {
		return "", err
	}
	if err := errors.Join(h.sweep(c.verb), c.sweepOnce(ctx)); err != nil {
		return "", err
	}
	dir := path.Join(handoversDir, c.verb.name+"-"+fmt.Sprintf("%x", time.Now().UnixNano()))
	argv, err := c.handOver(dir)
	if err == nil {
		err = c.ask(ctx, func(ctx context.Context, m *systemd.Manager) error {
			ctx, cancel := context.WithTimeout(ctx, busTimeout)
			defer cancel()
			if err := m.Forget(ctx, c.verb.unit()); err != nil {
				return err
			}
			return m.StartTransient(ctx, c.transient(dir, argv))
		})
	}
	if err != nil {
		return "", errors.Join(err, h.root.RemoveAll(dir))
	}
	return dir, nil
}

// transient is the unit that runs the command.
func (c *handCall) transient(dir string, argv []string) systemd.Transient {
	t := systemd.Transient{Name: c.verb.unit(), Description: c.description(), Argv: argv,
		Identifier:  path.Base(binaryPath),
		Environment: []string{handoverEnv + "=" + dir}, Nice: c.verb.nice, Limit: c.verb.limit, Grace: c.verb.grace}
	if o := c.order(); o != nil {
		t.CPUWeight, t.IOWeight = uint64(max(o.CPUWeight, 0)), uint64(max(o.IOWeight, 0))
	}
	return t
}

// order is what a policy says of the command; nil: nothing.
func (c *handCall) order() *api.StageOrder {
	if c.request == nil || c.verb.name != stageVerb.name {
		return nil
	}
	return c.request.Order
}

func (c *handCall) description() string {
	if c.request == nil || c.request.Name == "" {
		return "Noderefit: " + c.verb.name
	}
	return fmt.Sprintf("Noderefit: %s %s", c.verb.name, c.request.Name)
}

// handOver writes what the command needs and returns its command line.
func (c *handCall) handOver(dir string) ([]string, error) {
	root := c.hands.root
	if err := root.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("handing over to the host: %w", err)
	}
	argv := []string{launcher, binaryPath, c.verb.name, "--output", "json"}
	text, err := json.Marshal(c.note)
	if err != nil {
		return nil, err
	}
	documents := map[string][]byte{handoverRequest: text}
	if r := c.request; r != nil {
		flag := "--config"
		if c.verb.name == planVerb.name {
			flag = "--desired"
		}
		switch c.verb.name {
		case repairVerb.name:
			for _, subject := range r.repair {
				argv = append(argv, "--only", subject)
			}
		case askVerb.name:
			argv = append(argv, "--to", r.Name)
		default:
			documents[handoverConfig] = r.Config
			argv = append(argv, flag, path.Join(dir, handoverConfig))
		}
		if told := r.HookDocument; told.Node != "" {
			if documents[handoverHooks], err = json.Marshal(told); err != nil {
				return nil, err
			}
			argv = append(argv, "--hooks", path.Join(dir, handoverHooks))
		}
		if len(r.Policy) > 0 {
			documents[handoverPolicy] = r.Policy
			argv = append(argv, "--policy", path.Join(dir, handoverPolicy))
		}
		if o := c.order(); o != nil {
			argv = append(argv, "--as-staged", fmt.Sprintf("--min-free=%d", o.MinFreeMebibytes),
				fmt.Sprintf("--cpu-weight=%d", o.CPUWeight), fmt.Sprintf("--io-weight=%d", o.IOWeight))
		}
		if r.Lift && c.verb.joins {
			argv = append(argv, "--lift-quarantine")
		}
		if c.verb.name == applyVerb.name {
			argv = append(argv, "--cluster")
			if r.Order != nil && r.Order.Digest != "" {
				argv = append(argv, "--approved="+r.Order.Digest)
			}
			if c.hands.options.Verdict > 0 {
				argv = append(argv, "--verdict-timeout="+c.hands.options.Verdict.String())
			}
		}
		if r.Strict && c.verb.joins {
			argv = append(argv, "--strict")
		}
		if c.hands.options.SoftReboot && slices.Contains(softVerbs, c.verb.name) {
			argv = append(argv, "--soft-reboot=auto")
		}
	}
	if c.request == nil && c.verb.name == stageVerb.name {
		argv = append(argv, "--drop")
	}
	if c.verb.name == verifyVerb.name {
		argv = append(argv, "--paths")
	}
	for name, data := range documents {
		if err := root.Stage(dir, name, files.Node{Type: files.Regular, Mode: 0o600, Data: data}); err != nil {
			return nil, fmt.Errorf("handing over to the host: %w", err)
		}
	}
	return argv, nil
}

// sweep removes what commands of a verb left whose head did not live to collect it. None of them runs.
func (h *HostHands) sweep(v verb) error {
	names, err := h.root.ReadDir(handoversDir)
	if err != nil {
		return fmt.Errorf("handing over to the host: %w", err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, v.name+"-") {
			if err := h.root.RemoveAll(path.Join(handoversDir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sweepOnce removes what earlier heads left, of all verbs that nothing runs of: documents may hold secrets.
func (c *handCall) sweepOnce(ctx context.Context) error {
	h := c.hands
	h.mu.Lock()
	swept := h.swept
	h.mu.Unlock()
	if swept {
		return nil
	}
	for _, v := range handVerbs {
		if v.name == c.verb.name {
			continue // it is swept before it starts
		}
		select {
		case h.turns[v.name] <- struct{}{}:
		default:
			continue // one of ours
		}
		s, err := (&handCall{hands: h, verb: v, m: c.m}).state(ctx)
		if err == nil && s.Ended() {
			err = h.sweep(v)
		}
		<-h.turns[v.name]
		if err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.swept = true
	return nil
}

// overlooked is how soon an end is seen that nothing announces: that of a command that was killed.
const overlooked = time.Second

// await waits for the command's report. invocation tells the run that is waited for from a later one of the same name.
func (c *handCall) await(ctx context.Context, dir, invocation string) (*handOutcome, error) {
	stop := c.hands.watch.wake(dir)
	defer stop.end()
	for {
		if out, done, err := c.collect(dir); done {
			return out, err
		}
		if !c.hands.root.IsDir(dir) {
			return nil, fmt.Errorf("running %s on the host: %w", c.verb.name, errCollected)
		}
		select {
		case <-stop.woken:
			continue
		case <-ctx.Done():
			return nil, c.leave(ctx, dir)
		case <-time.After(overlooked):
		}
		s, err := c.state(ctx)
		if err != nil {
			continue // the bus is away; the report tells all the same
		}
		if !s.Ended() && (invocation == "" || s.Invocation == invocation) {
			invocation = s.Invocation
			continue
		}
		if out, done, err := c.collect(dir); done {
			return out, err
		}
		if !c.hands.root.IsDir(dir) {
			continue
		}
		condition := s.Condition
		if condition == "" {
			condition = "it was stopped"
		}
		err = fmt.Errorf("running %s on the host: %s left no report: %s", c.verb.name, c.verb.unit(), condition)
		return nil, errors.Join(err, c.hands.root.RemoveAll(dir))
	}
}

// leave is what becomes of a command whose caller has no more use for it.
func (c *handCall) leave(ctx context.Context, dir string) error {
	why := ctx.Err()
	if c.verb.outlives || c.verb.joins && !errors.Is(context.Cause(ctx), ErrSuperseded) {
		return why // the next head joins it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.verb.grace+busTimeout)
	defer cancel()
	if err := c.stop(ctx); err != nil {
		return errors.Join(why, err)
	}
	return errors.Join(why, c.hands.root.RemoveAll(dir))
}

// collect takes the report and the output, and says whether the command has ended at all. Taking is one step: of two
// heads that wait for a command one has all of it, and the other finds the directory gone.
func (c *handCall) collect(dir string) (out *handOutcome, done bool, err error) {
	root := c.hands.root
	data, err := root.ReadFile(path.Join(dir, handoverReport))
	if err == nil {
		taken := dir + ".taken"
		err = root.Replace(path.Dir(dir), path.Base(dir), taken)
		dir = taken
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	var r handReport
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	out = &handOutcome{verb: c.verb.name}
	if err == nil {
		out.output, err = root.ReadFile(path.Join(dir, handoverOutput))
	}
	if err != nil {
		err = fmt.Errorf("reading the report of %s: %w", c.verb.unit(), err)
	}
	return out, true, errors.Join(err, root.RemoveAll(dir), r.err())
}

// handWatch sees the host's record and the reports of its commands change.
type handWatch struct {
	root    *files.Root
	changed chan struct{}
	inotify *fsnotify.Watcher // nil where the host has none left to give: then it looks by itself
	stop    chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	waiting map[*handWaiter]bool
}

// handWaiter is woken when something happens in a directory.
type handWaiter struct {
	watch *handWatch
	dir   string
	woken chan struct{}
}

// looks is how often the record is looked at where nothing tells of its changes.
const looks = 2 * time.Second

func newHandWatch(root *files.Root) *handWatch {
	w := &handWatch{root: root, changed: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		waiting: map[*handWaiter]bool{}}
	inotify, err := fsnotify.NewWatcher()
	if err == nil {
		if err = inotify.Add(w.place(transaction.StateDir)); err != nil {
			_ = inotify.Close()
		} else {
			w.inotify = inotify
		}
	}
	go w.run()
	return w
}

// place is where we find a directory of the host's.
func (w *handWatch) place(dir string) string {
	at, err := w.root.Resolve(dir)
	if err != nil {
		at = dir
	}
	return path.Join(w.root.Path(), at)
}

func (w *handWatch) close() {
	close(w.stop)
	<-w.done
}

func (w *handWatch) run() {
	defer close(w.done)
	var events chan fsnotify.Event
	var errs chan error
	if w.inotify != nil {
		events, errs = w.inotify.Events, w.inotify.Errors
		defer func() { _ = w.inotify.Close() }()
	}
	tick := time.NewTicker(looks)
	defer tick.Stop()
	last := fileMark(w.root, transaction.RecordPath)
	for {
		select {
		case <-w.stop:
			return
		case e := <-events:
			if path.Base(e.Name) != handoverReport {
				break
			}
			w.rouse(path.Dir(e.Name))
			continue
		case <-errs: //nolint:errcheck // a queue that ran over, or whatever it is: what it hides is looked for
		case <-tick.C:
			if w.inotify == nil {
				w.rouse("")
			}
		}
		if now := fileMark(w.root, transaction.RecordPath); now != last {
			last = now
			select {
			case w.changed <- struct{}{}:
			default:
			}
		}
	}
}

// rouse wakes those who wait for the directory, all for "".
func (w *handWatch) rouse(dir string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.waiting {
		if dir == "" || i.dir == dir {
			select {
			case i.woken <- struct{}{}:
			default:
			}
		}
	}
}

// wake returns who is woken when the report in dir appears.
func (w *handWatch) wake(dir string) *handWaiter {
	i := &handWaiter{watch: w, dir: w.place(dir), woken: make(chan struct{}, 1)}
	w.mu.Lock()
	w.waiting[i] = true
	w.mu.Unlock()
	if w.inotify != nil {
		if err := w.inotify.Add(i.dir); err != nil {
			i.woken <- struct{}{} // it is gone, or there already
		}
	}
	return i
}

func (i *handWaiter) end() {
	i.watch.mu.Lock()
	delete(i.watch.waiting, i)
	i.watch.mu.Unlock()
	if i.watch.inotify != nil {
		_ = i.watch.inotify.Remove(i.dir) // gone with the directory
	}
}
