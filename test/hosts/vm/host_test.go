// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab/snapshot"
	"github.com/noderefit/noderefit/test/lab/tally"
	"github.com/noderefit/noderefit/test/schemas"
	"github.com/noderefit/noderefit/transaction"
)

// counted is what the last lines say.
var counted tally.Tally

// scratch has the agent and the memories of saved machines.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if scratch, err = os.MkdirTemp("", "noderefit-vm-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(scratch)
		code := m.Run()
		if os.Getenv("VM_TESTS") != "" {
			fmt.Fprintln(os.Stdout, &counted)
		}
		if hostile.all.Load() > 0 { // the line of the suite of that name
			fmt.Fprintf(os.Stdout, "hostile: %d stuck: %d\n", hostile.all.Load(), hostile.stuck.Load())
		}
		if code == 0 && (counted.Bad() || hostile.stuck.Load() > 0) {
			return 1
		}
		return code
	}())
}

// What a cut can have left. Every other error is the test's own.
var (
	errTorn = errors.New("between two configurations")
	errLost = errors.New("the agent does not know where it is")
)

// agent is where the machine finds the program, as a package or the agent's pod would have put it there.
const agent = "/usr/local/bin/machine-config-daemon"

// document is a configuration of the OS image, kernel arguments, and of what a deployment carries and what it does not.
func document(variant, image string) []byte {
	return []byte(strings.NewReplacer("VARIANT", variant, "IMAGE", image).Replace(`{
"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"VARIANT"},"spec":{
"osImageURL":"IMAGE","kernelArguments":["vm.VARIANT=1","both=1"],"config":{"ignition":{"version":"3.2.0"},
"storage":{"files":[
 {"path":"/etc/chrony.conf","mode":420,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/etc/same.conf","mode":420,"contents":{"source":"data:,same%0A"}},
 {"path":"/etc/only-VARIANT.conf","mode":384,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/usr/local/bin/tool","mode":493,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/usr/local/bin/only-VARIANT","mode":493,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/var/lib/vm/state","mode":384,"contents":{"source":"data:,VARIANT%0A"}},
 {"path":"/home/core/only-VARIANT","mode":384,"user":{"name":"core"},"contents":{"source":"data:,VARIANT%0A"}}],
"links":[{"path":"/etc/link","target":"only-VARIANT.conf"},{"path":"/var/lib/vm/link","target":"VARIANT"}]},
"systemd":{"units":[
 {"name":"both.service","enabled":true,"contents":"[Unit]\nDescription=VARIANT\n[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"},
 {"name":"only-VARIANT.service","enabled":true,"contents":"[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"}]},
"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-ed25519 AAAA VARIANT"]}]}}}}`))
}

// documents are the two sides, one that boots, with another OS, and never proves healthy, one that no host can have, one
// that is a with a file more, and two whose kernels never come up.
var documents = map[string][]byte{
	"a": document("a", RefV1),
	"b": document("b", RefV2),
	"bad": bytes.Replace(document("bad", RefV1), []byte(`"files":[`),
		[]byte(`"files":[{"path":"/etc/kubernetes/crio.conf","mode":420,"contents":{"source":"data:,fail%0A"}},`), 1),
	"outside": bytes.Replace(document("outside", RefV1), []byte(`"files":[`),
		[]byte(`"files":[{"path":"/data/file","mode":420,"contents":{"source":"data:,text"}},`), 1),
	"harmless": []byte(strings.NewReplacer(`"metadata":{"name":"a"}`, `"metadata":{"name":"harmless"}`, `"files":[`,
		`"files":[{"path":"/etc/harmless.conf","mode":420,"contents":{"source":"data:,harmless%0A"}},`).
		Replace(string(document("a", RefV1)))),
	"panics": stuck("panics", false),
	"hangs":  stuck("hangs", true),
}

// versions are what the OS images of the documents say that they are.
var versions = map[string]string{"a": "v1", "b": "v2"}

// version is what a machine on a side says of its OS, and its initramfs of itself. A host of packages has one OS.
func (o Options) version(side string) string {
	if o.Packages {
		return "v1"
	}
	return versions[side] + " " + versions[side]
}

var osImage = regexp.MustCompile(`"osImageURL":"[^"]*",`)

// vmHost is a machine with the agent.
type vmHost struct {
	*Machine
}

// document returns what this machine can have of a document: an OS image is nothing for a host of packages.
func (h *vmHost) document(name string) []byte {
	if h.image.options.Packages {
		return osImage.ReplaceAll(documents[name], nil)
	}
	return documents[name]
}

// picture is the whole of a machine that a configuration decides.
type picture struct {
	tree    snapshot.Tree
	version string // of the OS, and of the initramfs that it was booted with
	kargs   string
}

// places are what is looked at of a machine's files.
func (o Options) places() []string {
	out := []string{"/etc", o.real("/usr/local"), "/var/lib/vm", o.real("/home"), o.real("/root")}
	switch {
	case o.Loader == SystemdBoot: // beside its entries it has a seed of random numbers, which it renews in each boot
		out = append(out, entriesDir)
	case o.Packages:
		out = append(out, "/boot/grub")
	}
	return out
}

// real is where a path is: with ostree some are links.
func (o Options) real(path string) string {
	if o.Packages {
		return path
	}
	for link, to := range map[string]string{"/usr/local": "/var/usrlocal", "/home": "/var/home", "/root": "/var/roothome"} {
		if rest, is := strings.CutPrefix(path, link); is {
			return to + rest
		}
	}
	return path
}

func (h *vmHost) take(ctx context.Context) (picture, error) {
	out := picture{tree: snapshot.Tree{}}
	options := h.image.options
	text, err := h.Output(ctx, append([]string{"/usr/lib/testos/guest", "snapshot"}, options.places()...)...)
	if err != nil {
		return out, err
	}
	var trees map[string]snapshot.Tree
	if err := json.Unmarshal([]byte(text), &trees); err != nil {
		return out, fmt.Errorf("reading the picture of %s: %w", h.name, err)
	}
	for place, tree := range trees {
		for name, entry := range tree {
			out.tree[path.Join(place, name)] = entry
		}
	}
	if options.Packages {
		if err := h.sortArguments(ctx, out.tree); err != nil {
			return out, err
		}
	}
	// How often semodule has looked after the policy. ostree has it do so in each new deployment.
	delete(out.tree, "/etc/selinux/default/active/commit_num")
	sources := []string{"/usr/lib/testos/version", "/run/testos/initramfs"}
	if options.Packages {
		sources = sources[:1]
	}
	if text, err = h.Output(ctx, append([]string{"cat"}, sources...)...); err != nil {
		return out, err
	}
	out.version = strings.Join(strings.Fields(text), " ")
	line, err := h.Read(ctx, "/proc/cmdline")
	if err != nil {
		return out, err
	}
	// These the boot loader adds, and ostree.
	args := slices.DeleteFunc(strings.Fields(line), func(arg string) bool {
		return strings.HasPrefix(arg, "ostree=") || strings.HasPrefix(arg, "BOOT_IMAGE=") || strings.HasPrefix(arg, "initrd=")
	})
	out.kargs = byName(args)
	return out, nil
}

// byName joins kernel arguments. What was taken away and comes back is at the end of them, and so is what kernel-install
// adds; the order says something only among those of one name.
func byName(args []string) string {
	slices.SortStableFunc(args, func(a, b string) int {
		a, _, _ = strings.Cut(a, "=")
		b, _, _ = strings.Cut(b, "=")
		return strings.Compare(a, b)
	})
	return strings.Join(args, " ")
}

// argumentFiles are the files of a host of packages that have the kernel arguments of a configuration, besides entries.
var argumentFiles = []string{"/boot/grub/grub.cfg", "/etc/default/grub.d/90-noderefit.cfg", "/etc/kernel/cmdline"}

// entriesDir has the boot loader entries of a host of packages.
const entriesDir = "/efi/loader/entries"

// optionsLine has all kernel arguments of an entry, and the other files have those of documents in one place.
var optionsLine = regexp.MustCompile(`(?m)^options .*$`)

// sorted puts the arguments of documents into the order that a host has at first.
var sorted = strings.NewReplacer("both=1 vm.a=1", "vm.a=1 both=1", "both=1 vm.b=1", "vm.b=1 both=1")

// sortArguments has the picture of the files with kernel arguments say nothing of their order.
func (h *vmHost) sortArguments(ctx context.Context, tree snapshot.Tree) error {
	for name, entry := range tree {
		if !slices.Contains(argumentFiles, name) && (path.Dir(name) != entriesDir || path.Ext(name) != ".conf") {
			continue
		}
		text, err := h.Read(ctx, name)
		if err != nil {
			return err
		}
		text = optionsLine.ReplaceAllStringFunc(sorted.Replace(text), func(line string) string {
			return byName(strings.Fields(line))
		})
		entry.Sum = fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
		entry.Size = int64(len(text))
		tree[name] = entry
	}
	return nil
}

func (p picture) differs(want picture) []string {
	out := snapshot.Diff(want.tree, p.tree, snapshot.Content)
	if p.version != want.version {
		out = append(out, fmt.Sprintf("OS and initramfs %q, were %q", p.version, want.version))
	}
	if p.kargs != want.kargs {
		out = append(out, fmt.Sprintf("kernel arguments %q, were %q", p.kargs, want.kargs))
	}
	return out
}

// wrong is what a picture that should be of a side has of another, or has not.
func (p picture) wrong(side string, on Options) (out []string) {
	if p.version != on.version(side) {
		out = append(out, fmt.Sprintf("OS and initramfs %q", p.version))
	}
	for name := range versions {
		if slices.Contains(strings.Fields(p.kargs), "vm."+name+"=1") != (name == side) {
			out = append(out, "kernel arguments "+p.kargs)
		}
		for _, path := range []string{"/etc/only-" + name + ".conf", on.real("/usr/local/bin/only-" + name),
			on.real("/home/core/only-" + name), "/etc/systemd/system/multi-user.target.wants/only-" + name + ".service"} {
			if _, there := p.tree[path]; there != (name == side) {
				out = append(out, path)
			}
		}
	}
	return out
}

// apply applies a document and says each line of the agent's progress. The agent may be gone with the machine before it
// has an answer.
func (h *vmHost) apply(ctx context.Context, name string, say func(line string), flags ...string) error {
	exit, said, err := h.try(ctx, h.document(name), say, flags...)
	if err == nil && exit > 0 {
		err = fmt.Errorf("applying %s: exit %d: %s", name, exit, said)
	}
	return err
}

// try applies a document that may be refused, and returns the exit status, -1 where the machine went down, and what
// the agent said.
func (h *vmHost) try(ctx context.Context, document []byte, say func(line string), flags ...string) (int, string, error) {
	const at = "/var/tmp/config.json"
	if err := h.Put(ctx, at, document, 0o600); err != nil {
		return 0, "", err
	}
	progress := &lines{each: say}
	args := append([]string{agent, "apply", "--config", at, "-o", "json"}, flags...)
	exit, err := h.Run(ctx, nil, io.Discard, progress, args...)
	return exit, progress.all.String(), err
}

// lines hands on whole lines.
type lines struct {
	each func(line string)
	all  bytes.Buffer
	rest []byte
}

func (l *lines) Write(data []byte) (int, error) {
	l.all.Write(data)
	l.rest = append(l.rest, data...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(data), nil
		}
		l.each(string(line))
		l.rest = rest
	}
}

func ignore(string) {}

func (h *vmHost) status(ctx context.Context) (*host.Status, error) {
	text, err := h.Output(ctx, agent, "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	s := &host.Status{}
	if err := errors.Join(schemas.Check([]byte(text)), json.Unmarshal([]byte(text), s)); err != nil {
		return nil, fmt.Errorf("status printed %q: %w", text, err)
	}
	return s, nil
}

// settleLimit is how long a machine may take to come to rest, over a few boots.
const settleLimit = 3 * BootLimit

// settled waits until nothing is under way, over any number of boots, and everything that starts at boot has.
func (h *vmHost) settled(ctx context.Context) (*host.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, fmt.Errorf("not at rest after %v", settleLimit))
	defer cancel()
	var last string
	for {
		boots := h.Boots()
		_, err := h.WaitRunning(ctx)
		var s *host.Status
		if err == nil {
			s, err = h.status(ctx)
		}
		switch {
		case err != nil:
			last = err.Error()
		case s.Config.Pending == "" && s.State != transaction.Working && h.Boots() == boots:
			return s, nil
		default:
			last = fmt.Sprintf("%s (%s, pending %q %s)", s.State, s.Reason, s.Config.Pending, s.Phase)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %s, last seen %s: %w; its console ends: %s",
				h.name, last, context.Cause(ctx), h.consoleEnd())
		case <-time.After(time.Second):
		}
	}
}

// moveTo applies a configuration and sees it settled.
func (h *vmHost) moveTo(ctx context.Context, name string, say func(line string)) error {
	if err := h.apply(ctx, name, say); err != nil {
		return err
	}
	s, err := h.settled(ctx)
	if err != nil {
		return fmt.Errorf("moving to %s: %w", name, err)
	}
	if s.State != transaction.Done || s.Config.Committed != name {
		return fmt.Errorf("moving to %s ended on %s, %s: %s", name, s.Config.Committed, s.State, s.Reason)
	}
	return nil
}

// judge asks a settled machine and its disk where they are, and returns the name of the configuration: an update has
// ended there.
func (h *vmHost) judge(ctx context.Context, sides map[string]picture) (string, *host.Status, error) {
	at, status, err := h.where(ctx, sides)
	counted.Ended(at != "")
	return at, status, err
}

func (h *vmHost) where(ctx context.Context, sides map[string]picture) (string, *host.Status, error) {
	status, err := h.settled(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", errLost, err)
	}
	found, err := h.take(ctx)
	if err != nil {
		return "", status, err
	}
	at, near := "", map[string][]string{}
	for name, side := range sides {
		if near[name] = found.differs(side); len(near[name]) == 0 {
			at = name
		}
	}
	if at == "" {
		return "", status, fmt.Errorf("%w: status says %s (%s); differences to each side: %q", errTorn,
			status.Config.Committed, status.Reason, near)
	}
	if status.Config.Committed != at || status.State == transaction.Degraded {
		return at, status, fmt.Errorf("%w: the machine is on %s, status says %s, %s: %s", errLost,
			at, status.Config.Committed, status.State, status.Reason)
	}
	var stderr bytes.Buffer
	exit, err := h.Run(ctx, nil, &stderr, &stderr, agent, "verify")
	if err == nil && exit != 0 {
		err = fmt.Errorf("%w: verify on %s: exit %d: %s", errTorn, at, exit, stderr.String())
	}
	return at, status, err
}

// scene is what the tests of updates start from, made once: a machine on each side, saved.
type scene struct {
	image *Image
	saved map[string]*Saved
	sides map[string]picture
	road  *road
}

// road is what an update from a to b passed, in the disk's write requests since it began.
type road struct {
	marks []mark // in order; the first is the beginning
	end   int
	took  time.Duration
	disk  *recording
}

type mark struct {
	name string
	at   int
}

// in returns the mark that a request belongs to: the last one that was passed before the request.
func (r *road) in(request int) string {
	name := ""
	for _, m := range r.marks {
		if m.at < request {
			name = m.name
		}
	}
	return name
}

// stages have the scene of each variant.
var stages sync.Map

type stage struct {
	sync.Once
	scene *scene
	err   error
}

// set returns the scene on a machine of those options.
func set(t *testing.T, options Options) *scene {
	t.Helper()
	image := Need(t, options)
	made, _ := stages.LoadOrStore(options, &stage{})
	st := made.(*stage)
	st.Do(func() {
		st.scene = &scene{image: image, saved: map[string]*Saved{"": image.booted}, sides: map[string]picture{}}
		st.err = st.scene.build(t)
	})
	if st.err != nil {
		t.Fatal(st.err)
	}
	return st.scene
}

func (s *scene) build(t *testing.T) error {
	t.Helper()
	ctx := context.Background()
	binary, err := node.Build(ctx, scratch)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.step(ctx, t, "", "a", func(h *vmHost) error {
		if err := h.Put(ctx, agent, program, 0o755); err != nil {
			return err
		}
		if s.image.options.SELinux { // as whatever installs programs does
			if _, err := h.Output(ctx, "restorecon", "-R", "/var/usrlocal"); err != nil {
				return err
			}
		}
		return h.moveTo(ctx, "a", ignore)
	}); err != nil {
		return err
	}
	t.Logf("the first update takes %v", time.Since(began).Round(time.Second))
	if err := s.step(ctx, t, "a", "b", func(h *vmHost) (err error) {
		s.road, err = h.walk(ctx)
		return err
	}); err != nil {
		return err
	}
	t.Logf("an update with its reboot and proof takes %v and %d requests to the disk: %v",
		s.road.took.Round(time.Second), s.road.end, s.road.marks)
	return nil
}

// step takes a machine from one side to another, and keeps the picture and the machine that it is then.
func (s *scene) step(ctx context.Context, t *testing.T, from, to string, do func(h *vmHost) error) (err error) {
	t.Helper()
	h, err := s.resume(ctx, "to-"+to, s.saved[from])
	if err != nil {
		return err
	}
	defer func() {
		counted.Boots.Add(int64(h.Boots() - 1))
		if err != nil {
			t.Log(h.lately())
		}
		err = errors.Join(err, h.Close())
	}()
	if err := do(h); err != nil {
		return err
	}
	if s.sides[to], err = h.take(ctx); err != nil {
		return err
	}
	if wrong := s.sides[to].wrong(to, s.image.options); len(wrong) > 0 {
		return fmt.Errorf("on %s, which is no %s: %v", to, to, wrong)
	}
	s.saved[to], err = h.Save(ctx, filepath.Join(scratch, s.image.options.name()+"-"+to+".memory"))
	return err
}

// resume makes a machine from a saved one.
func (s *scene) resume(ctx context.Context, name string, from *Saved) (*vmHost, error) {
	m, err := s.image.Resume(ctx, name, from)
	if err != nil {
		return nil, err
	}
	return &vmHost{m}, nil
}

// walk goes from a to b and writes down what it passes.
func (h *vmHost) walk(ctx context.Context) (*road, error) {
	began, start := time.Now(), h.Traffic().Requests
	r, stop := &road{}, h.Record()
	pass := func(name string) { r.marks = append(r.marks, mark{name, h.Traffic().Requests - start}) }
	pass("begin")
	boots := h.Boots()
	if err := h.apply(ctx, "b", func(line string) {
		name, _, _ := strings.Cut(line, ":")
		pass(name)
	}); err != nil {
		return nil, err
	}
	if err := h.WaitBoot(ctx, boots+1); err != nil {
		return nil, err
	}
	pass("boot")
	for {
		status, err := h.status(ctx)
		if err == nil && (status.Phase == string(transaction.PhaseProve) || status.Config.Pending == "") {
			break
		}
		// A host of packages boots once more: the first boot starts a unit that a alone has, before recovery removes it.
		if h.Boots() > boots+1 && !h.image.options.Packages || h.Boots() > boots+2 {
			return nil, errors.New("it boots too often")
		}
	}
	pass("prove")
	status, err := h.settled(ctx)
	if err != nil {
		return nil, err
	}
	if status.State != transaction.Done || status.Config.Committed != "b" {
		return nil, fmt.Errorf("the update ended on %s, %s: %s", status.Config.Committed, status.State, status.Reason)
	}
	r.disk, r.end = stop(), h.Traffic().Requests-start
	r.took = time.Since(began)
	return r, nil
}
