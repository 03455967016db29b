// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Plain manages an ostree host with ostree's own tool. Between two calls it keeps nothing about the host except what
// the tool can do. Plain is safe for concurrent use, but only one caller should decide about deployments.
type Plain struct {
	run  Runner
	root string
	Arch string
	// PullDelays are the pauses between attempts to pull that fail because of the network. One more attempt follows the
	// last pause.
	PullDelays []time.Duration
	// Wakers are the units that an image with a transient /etc must have: nothing in /etc starts them there.
	Wakers []Waker
	// textOnly is set once the tool has refused --json, and version once the tool has reported it. The tool is in /usr and
	// does not change under a running system.
	textOnly atomic.Bool
	version  atomic.Pointer[string]
	features atomic.Pointer[[]string] // set with version
	// transient is set once the mounts have been read.
	transient atomic.Pointer[bool]
}

// NewPlain returns a Plain for the host whose root this process sees at root, "/" on the host itself. Commands for run
// have the host's own paths.
func NewPlain(run Runner, root string) *Plain {
	delays := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second}
	p := &Plain{root: root, Arch: runtime.GOARCH, PullDelays: delays}
	p.run = p.Bounded(run, UsualLimits)
	return p
}

// needsVersion is the first ostree with the command set-default. Without that command an update has no commit point.
const needsVersion = "2023.6"

// Unsupported is why a host can't take the road of materialised deployments.
type Unsupported struct {
	Reason string
	Detail string
}

// The reasons of an Unsupported.
const (
	NotOSTree    = "not-ostree"    // not booted from a deployment
	TooOld       = "too-old"       // ostree lacks the command
	Zipl         = "zipl"          // the boot loader has no atomic switch
	NoBootLink   = "no-boot-link"  // this boot loader has none either
	TransientEtc = "transient-etc" // deployments do not keep their /etc
	noComposefs  = "no-composefs"  // the root can't be mounted twice
)

func (e *Unsupported) Error() string { return e.Detail }

// Version returns the version of the host's ostree, such as 2025.2. One fork the first time.
func (p *Plain) Version(ctx context.Context) (string, error) {
	const doing = "asking ostree for its version"
	if known := p.version.Load(); known != nil {
		return *known, nil
	}
	output, err := p.run(ctx, "ostree", "--version")
	if err != nil {
		return "", Failing(doing, output, err)
	}
	version, err := parseVersion(output)
	if err != nil {
		return "", &Error{Class: Failed, Doing: doing, Err: err}
	}
	features := parseFeatures(output)
	p.features.Store(&features)
	p.version.Store(&version)
	return version, nil
}

// CanSetDefault reports whether ostree has the command set-default. One fork at most.
func (p *Plain) CanSetDefault(ctx context.Context) (bool, error) {
	version, err := p.Version(ctx)
	return err == nil && !older(version, needsVersion), err
}

// Supported returns nil if the host can take the road of materialised deployments. Otherwise it returns an Error around
// an *Unsupported, or why that could not be found out. At most one fork.
func (p *Plain) Supported(ctx context.Context) error {
	refuse := func(reason, detail string) error {
		return &Error{Class: NeedsAdmin, Doing: "checking for ostree", Err: &Unsupported{Reason: reason, Detail: detail}}
	}
	if _, err := os.Stat(p.host("/run/ostree-booted")); errors.Is(err, fs.ErrNotExist) {
		return refuse(NotOSTree, "the host is not booted from an ostree deployment: /run/ostree-booted is missing")
	} else if err != nil {
		return &Error{Class: Failed, Doing: "checking for ostree", Err: err}
	}
	if p.Arch == "s390x" {
		return refuse(Zipl, "zipl, the boot loader of s390x, does not switch atomically")
	}
	if info, err := os.Lstat(p.host("/boot/loader")); err != nil {
		return &Error{Class: Failed, Doing: "checking for ostree", Err: err}
	} else if info.Mode()&fs.ModeSymlink == 0 {
		return refuse(NoBootLink, "/boot/loader is no link, so the boot loader's entries can't be switched atomically")
	}
	repo, err := p.keyFile("/ostree/repo/config")
	if err != nil {
		return err
	}
	if repo["sysroot"]["bootloader"] == "zipl" {
		return refuse(Zipl, "sysroot.bootloader in /ostree/repo/config is zipl, which does not switch atomically")
	}
	prepare, err := p.prepareRoot()
	if err != nil {
		return err
	}
	transient, err := p.TransientEtc()
	if err != nil {
		return err
	}
	if isTrue(prepare["etc"]["transient"]) && !transient {
		return refuse(TransientEtc, "prepare-root.conf has etc.transient: the next deployment would not have "+
			"the /etc of this one")
	}
	if transient {
		if lacks, err := p.wakes(); err != nil {
			return err
		} else if lacks != "" {
			return refuse(TransientEtc, "/etc is transient, and the image has no "+lacks+", which brings the configuration "+
				"back in each boot: "+wakingHint)
		}
	}
	version, err := p.Version(ctx)
	if err != nil {
		return err
	}
	if older(version, needsVersion) {
		return refuse(TooOld, fmt.Sprintf("ostree is %s, and %s is the first with set-default", version, needsVersion))
	}
	return nil
}

// Status lists the deployments in ostree's order, joined with the boot loader's entries. One fork. The first time on an
// ostree before 2025.3, which has no JSON, two.
func (p *Plain) Status(ctx context.Context) ([]Deployment, error) {
	if err := p.arrive(ctx); err != nil {
		return nil, err
	}
	return p.list(ctx)
}

// list is Status as ostree reports it. After a soft reboot ostree takes the previous deployment for the booted one,
// until arrive was called.
func (p *Plain) list(ctx context.Context) ([]Deployment, error) {
	const doing = "reading the deployments"
	var output []byte
	var err error
	if !p.textOnly.Load() {
		output, err = p.run(ctx, "ostree", "admin", "status", "--json")
		if command, ok := errors.AsType[*CommandError](err); ok && strings.Contains(command.Stderr, "--json") {
			p.textOnly.Store(true)
		} else if err != nil {
			return nil, Failing(doing, output, err)
		}
	}
	if p.textOnly.Load() {
		if output, err = p.run(ctx, "ostree", "admin", "status"); err != nil {
			return nil, Failing(doing, output, err)
		}
	}
	deployments, err := parseStatus(output)
	if err != nil {
		return nil, &Error{Class: Failed, Doing: "parsing ostree admin status", Err: err}
	}
	if len(deployments) == 0 {
		return nil, &Error{Class: NeedsAdmin, Doing: doing, Err: errors.New("there are none")}
	}
	entries, err := readEntries(p.root)
	if err != nil {
		return nil, &Error{Class: Failed, Doing: doing, Err: err}
	}
	join(deployments, entries)
	if at := slices.IndexFunc(deployments, func(d Deployment) bool { return d.Staged }); at >= 0 {
		d := &deployments[at]
		staged, err := readStaged(p.root)
		if err != nil {
			return nil, &Error{Class: Failed, Doing: doing, Err: err}
		}
		d.KernelArguments, d.Extra, d.Locked = staged.arguments, staged.extra, staged.locked
	}
	return deployments, nil
}

// ImagePattern matches an image for a plain ostree host: a checksum, REF, REMOTE:REF or REMOTE:CHECKSUM.
var ImagePattern = regexp.MustCompile(
	`^(?:([A-Za-z0-9_][A-Za-z0-9_.-]*):)?([A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)*)$`)

// Stage makes sure that the image's commit is in the host's repository, and returns its checksum. If the image names a
// remote, Stage pulls from the remote. Attempts that fail because of the network are repeated for about half a minute.
// Stage changes no deployment, and may be called twice. A checksum that is in the repository takes no fork. A local ref
// takes one fork, a remote one two or more.
func (p *Plain) Stage(ctx context.Context, image string) (string, error) {
	doing := "staging " + image
	parts := ImagePattern.FindStringSubmatch(image)
	if parts == nil {
		return "", &Error{Class: Invalid, Doing: doing, Err: errors.New("an image for a plain ostree host is " +
			"a checksum, a ref, or REMOTE:REF; container images need rpm-ostree or bootc")}
	}
	remote, ref := parts[1], parts[2]
	exact := IsChecksum(ref)
	if exact {
		complete, err := p.Complete(ref)
		if err != nil {
			return "", &Error{Class: Failed, Doing: doing, Err: err}
		}
		if complete {
			return ref, nil
		}
		if remote == "" {
			return "", &Error{Class: Invalid, Doing: doing,
				Err: errors.New("the commit is not in the repository, and no remote is named")}
		}
	}
	if remote != "" {
		if err := p.pull(ctx, doing, remote, ref); err != nil {
			return "", err
		}
	}
	if exact {
		return ref, nil
	}
	output, err := p.run(ctx, "ostree", "rev-parse", image)
	if err != nil {
		return "", Failing(doing, output, err)
	}
	checksum := strings.TrimSpace(string(output))
	if !IsChecksum(checksum) {
		return "", &Error{Class: Failed, Doing: doing, Err: fmt.Errorf("ostree calls it %q, which is no checksum", checksum)}
	}
	complete, err := p.Complete(checksum)
	if err == nil && !complete {
		err = fmt.Errorf("commit %s is not complete in the repository", checksum)
	}
	if err != nil {
		return "", &Error{Class: Failed, Doing: doing, Err: err}
	}
	return checksum, nil
}

// Named returns the commit that an image names in the repository now, or "" if it names none. It differs from the
// composed commit if another program has pulled since. No remote is asked. One fork, none for a checksum.
func (p *Plain) Named(ctx context.Context, image string) (string, error) {
	if ref := image[strings.Index(image, ":")+1:]; IsChecksum(ref) {
		return ref, nil
	}
	output, err := p.run(ctx, "ostree", "rev-parse", image)
	if err != nil {
		return "", ctx.Err()
	}
	return strings.TrimSpace(string(output)), nil
}

// pull pulls a ref or a checksum. pull tries again after each pause while the network is at fault.
func (p *Plain) pull(ctx context.Context, doing, remote, ref string) error {
	return Retry(ctx, p.PullDelays, nil, func() error {
		output, err := p.run(ctx, "ostree", "pull", remote, ref)
		return Failing(doing, output, err)
	})
}

// Complete reports whether a commit and all of its objects are in the repository.
func (p *Plain) Complete(checksum string) (bool, error) {
	_, err := os.Stat(p.host(objectPath(checksum)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = os.Stat(p.host("/ostree/repo/state/" + checksum + ".commitpartial"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// Request describes a deployment to be made.
type Request struct {
	OS       string
	Checksum string // of a commit in the repository
	// OriginOf is the ID of the deployment whose origin and additional initramfs images the new one gets. For a change of
	// configuration that is the booted deployment. The images of a staged deployment can't be read, so those of the booted
	// one are used. If OriginOf is empty, Origin is the text of the origin file, as Compose returned it.
	OriginOf string
	Origin   string
	// KernelArguments are all arguments of the new deployment, in this order, without ostree=.
	KernelArguments []string
	// KeepRollback keeps the deployments after the booted one, which otherwise make room. The booted deployment, pinned
	// ones, the default and a staged one are always kept, so that a failed attempt can be repeated.
	KeepRollback bool
}

// Materialise makes a deployment with its own /etc, merged now from the booted one's, and does not make it the default.
// Materialise verifies that the new deployment has the requested arguments and would boot. A failed call may leave a
// deployment, which does not boot by itself. The repository is not pruned: Cleanup does that. Three forks.
func (p *Plain) Materialise(ctx context.Context, request Request) (made Deployment, err error) {
	doing := fmt.Sprintf("materialising %s of %s", request.Checksum, request.OS)
	if err := request.check(); err != nil {
		return Deployment{}, &Error{Class: Invalid, Doing: doing, Err: err}
	}
	before, err := p.Status(ctx)
	if err != nil {
		return Deployment{}, fmt.Errorf("%s: %w", doing, err)
	}
	origin, overlays, err := p.takenOver(doing, request, before)
	if err != nil {
		return Deployment{}, err
	}
	path, err := p.writeOrigin(origin)
	if err != nil {
		return Deployment{}, &Error{Class: Failed, Doing: doing, Err: err}
	}
	defer func() { err = errors.Join(err, os.Remove(p.host(path))) }()
	output, err := p.run(ctx, request.deploy(path, overlays)...)
	if err != nil {
		return Deployment{}, Failing(doing, output, err)
	}
	after, err := p.Status(ctx)
	if err != nil {
		return Deployment{}, fmt.Errorf("%s: %w", doing, err)
	}
	made, err = request.made(before, after)
	if err != nil {
		return Deployment{}, &Error{Class: Failed, Doing: doing, Err: err}
	}
	if err := p.CheckRoot(made, request.KernelArguments); err != nil {
		return Deployment{}, fmt.Errorf("%s: %w", doing, err)
	}
	return made, nil
}

// check refuses a request that ostree could misread.
func (r Request) check() error {
	if !IsChecksum(r.Checksum) || !OsPattern.MatchString(r.OS) {
		return errors.New("not the checksum of a commit and the name of an OS")
	}
	for _, argument := range r.KernelArguments {
		if err := CheckArgument(argument); err != nil {
			return err
		}
	}
	return nil
}

// takenOver returns what the new deployment takes over from an existing one: the text of its origin, and the overlays
// of its initramfs. If the request names no deployment, the overlays are the booted one's.
func (p *Plain) takenOver(doing string, r Request, before []Deployment) (origin string, overlays []string, err error) {
	from := slices.IndexFunc(before, func(d Deployment) bool { return d.Booted })
	origin = r.Origin
	if r.OriginOf != "" {
		at := slices.IndexFunc(before, ByID(r.OriginOf))
		if at < 0 {
			return "", nil, &Error{Class: Invalid, Doing: doing,
				Err: fmt.Errorf("there is no deployment %s to take the origin of", r.OriginOf)}
		}
		if !before[at].Staged {
			from = at
		}
		if origin, err = p.Origin(before[at].Dir); err != nil {
			return "", nil, &Error{Class: Failed, Doing: doing, Err: err}
		}
	} else if r.Origin == "" {
		return "", nil, &Error{Class: Invalid, Doing: doing,
			Err: errors.New("neither a deployment to take the origin of nor an origin")}
	}
	if from >= 0 {
		overlays = before[from].overlays
	}
	return origin, overlays, nil
}

// deploy returns the command line that makes the deployment.
func (r Request) deploy(originFile string, overlays []string) []string {
	argv := []string{"ostree", "admin", "deploy", "--os=" + r.OS,
		"--not-as-default", "--no-prune", "--retain-pending"}
	if r.KeepRollback {
		argv = append(argv, "--retain-rollback")
	}
	argv = append(argv, "--origin-file="+originFile)
	for _, overlay := range overlays {
		argv = append(argv, "--overlay-initrd=/boot"+overlay)
	}
	argv = append(argv, "--karg-none")
	for _, argument := range r.KernelArguments {
		argv = append(argv, "--karg-append="+argument)
	}
	return append(argv, r.Checksum)
}

// made finds the new deployment, and verifies that it is as requested.
func (r Request) made(before, after []Deployment) (Deployment, error) {
	var fresh []Deployment
	for _, d := range after {
		known := slices.ContainsFunc(before, func(b Deployment) bool { return b.ID == d.ID && !b.Staged })
		if d.OS == r.OS && d.Checksum == r.Checksum && !d.Staged && !known {
			fresh = append(fresh, d)
		}
	}
	if len(fresh) != 1 {
		return Deployment{}, fmt.Errorf("%d new deployments of it are there, instead of one", len(fresh))
	}
	made := fresh[0]
	if made.Default {
		return Deployment{}, fmt.Errorf("%s boots next, although it was not to", made.ID)
	}
	if got, want := made.KernelArguments, r.KernelArguments; !slices.Equal(got, want) {
		return Deployment{}, fmt.Errorf("%s has the kernel arguments %q instead of %q", made.ID, got, want)
	}
	return made, nil
}

// Origin returns the text of the origin file of the deployment in dir. Origin leaves out what concerns that deployment
// alone: whether it is pinned or unlocked.
func (p *Plain) Origin(dir string) (string, error) {
	text, err := os.ReadFile(p.host(dir + ".origin"))
	if err != nil {
		return "", fmt.Errorf("reading an origin: %w", err)
	}
	var kept strings.Builder
	transient := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "[") {
			transient = strings.HasPrefix(line, "[libostree-transient]")
		}
		if !transient {
			kept.WriteString(line)
		}
	}
	return kept.String(), nil
}

// writeOrigin writes an origin file for the duration of one command, and returns its path on the host.
func (p *Plain) writeOrigin(text string) (string, error) {
	file, err := os.CreateTemp(p.host("/run"), "noderefit-origin-*")
	if err != nil {
		return "", fmt.Errorf("writing an origin: %w", err)
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("writing an origin: %w", err), os.Remove(file.Name()))
	}
	return "/run/" + filepath.Base(file.Name()), nil
}

// SetDefault makes the deployment boot next. This is the commit point: before its rename the old deployment boots,
// after it the new one, even if the power fails. A staged deployment is removed, because it would become the default at
// the shutdown. A nil error means that all this was read back. After an error the caller has to look. One fork if
// nothing is to be done, else three.
func (p *Plain) SetDefault(ctx context.Context, id string) error {
	doing := "making " + id + " the default"
	// Another program may change the indices between Status and the command. Then the wrong deployment is the default, and
	// no error shows that. The next round corrects it at once.
	for attempt := 0; ; attempt++ {
		deployments, err := p.Status(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		at := slices.IndexFunc(deployments, ByID(id))
		staged := slices.IndexFunc(deployments, func(d Deployment) bool { return d.Staged })
		var argv []string
		switch {
		case at < 0:
			return &Error{Class: Invalid, Doing: doing, Err: errors.New("there is no such deployment")}
		case at == staged:
			return &Error{Class: Invalid, Doing: doing, Err: errors.New("it is staged, not materialised")}
		case !deployments[at].Default:
			argv = []string{"ostree", "admin", "set-default", strconv.Itoa(deployments[at].Index)}
		case staged >= 0:
			argv = []string{"ostree", "admin", "undeploy", strconv.Itoa(deployments[staged].Index)}
		}
		if argv != nil && attempt == 3 {
			return &Error{Class: Retryable, Doing: doing, Err: errors.New("another program keeps changing the deployments")}
		}
		err = p.resetSoftReboot(ctx, doing, deployments, func(d Deployment) bool { return d.ID != id })
		if err != nil || argv == nil {
			return err
		}
		output, err := p.run(ctx, argv...)
		if err != nil && (attempt > 0 || ctx.Err() != nil) {
			return Failing(doing, output, err)
		}
	}
}

// Discard removes a deployment that is not booted. A deployment that is already gone is no error. If the deployment was
// the default, the next one in the list becomes the default. One fork if it is gone, else three.
func (p *Plain) Discard(ctx context.Context, id string) error {
	doing := "discarding " + id
	deployments, err := p.Status(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	at := slices.IndexFunc(deployments, ByID(id))
	if at < 0 {
		return nil
	}
	if deployments[at].Booted {
		return &Error{Class: Invalid, Doing: doing, Err: errors.New("it is the one that runs")}
	}
	if err := p.resetSoftReboot(ctx, doing, deployments, ByID(id)); err != nil {
		return err
	}
	if output, err := p.run(ctx, "ostree", "admin", "undeploy", strconv.Itoa(deployments[at].Index)); err != nil {
		return Failing(doing, output, err)
	}
	if deployments, err = p.Status(ctx); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if slices.ContainsFunc(deployments, ByID(id)) {
		return &Error{Class: Retryable, Doing: doing,
			Err: errors.New("it is still there: another program is changing the deployments")}
	}
	return nil
}

// needsVersionSoft is the first ostree with the command prepare-soft-reboot.
const needsVersionSoft = "2025.3"

// SoftReboots returns nil if the host's ostree can prepare a soft reboot at all. Otherwise it returns an Error around
// an *Unsupported (TooOld or NoComposefs), or why that could not be found out. PrepareSoftReboot finds out whether a
// soft reboot into a certain deployment is possible. At most one fork.
func (p *Plain) SoftReboots(ctx context.Context) error {
	refuse := func(reason, detail string) error {
		return &Error{Class: NeedsAdmin, Doing: "checking for soft reboots",
			Err: &Unsupported{Reason: reason, Detail: detail}}
	}
	version, err := p.Version(ctx)
	if err != nil {
		return err
	}
	if older(version, needsVersionSoft) {
		return refuse(TooOld,
			fmt.Sprintf("ostree is %s, and %s is the first with soft reboots", version, needsVersionSoft))
	}
	if transient, err := p.TransientEtc(); err != nil {
		return err
	} else if transient {
		return refuse(TransientEtc, "/etc is transient, and what the boot before left in /run would count")
	}
	prepare, err := p.prepareRoot()
	if err != nil {
		return err
	}
	// Besides the words for yes, the value may name what is to be verified. maybe and an empty value do not enable
	// composefs.
	switch enabled := prepare["composefs"]["enabled"]; enabled {
	case "", "maybe", "no", "false", "0":
		return refuse(noComposefs, "soft reboots take composefs, which is not enabled in prepare-root.conf")
	}
	return nil
}

// PrepareSoftReboot makes the next soft reboot lead to a deployment. ostree refuses a deployment whose kernel,
// initramfs or kernel arguments differ from the running ones. One with another SELinux policy is refused here. Any
// other reboot still boots the default. Four forks.
func (p *Plain) PrepareSoftReboot(ctx context.Context, id string) error {
	doing := "preparing a soft reboot into " + id
	deployments, err := p.Status(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	at := slices.IndexFunc(deployments, ByID(id))
	if at < 0 {
		return &Error{Class: Invalid, Doing: doing, Err: errors.New("there is no such deployment")}
	}
	if err := p.keepsPolicy(doing, deployments, deployments[at]); err != nil {
		return err
	}
	// A deployment that is prepared twice is mounted twice.
	if err := p.resetSoftReboot(ctx, doing, deployments, func(Deployment) bool { return true }); err != nil {
		return err
	}
	output, err := p.run(ctx, "ostree", "admin", "prepare-soft-reboot", strconv.Itoa(deployments[at].Index))
	if err != nil {
		return Failing(doing, output, err)
	}
	if deployments, err = p.Status(ctx); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	at = slices.IndexFunc(deployments, func(d Deployment) bool { return d.SoftReboot })
	if at < 0 || deployments[at].ID != id {
		return &Error{Class: Retryable, Doing: doing,
			Err: errors.New("it would lead elsewhere: another program is changing the deployments")}
	}
	return nil
}

// ResetSoftReboot takes back what PrepareSoftReboot, or another program, has prepared. One fork if nothing is prepared,
// else two.
func (p *Plain) ResetSoftReboot(ctx context.Context) error {
	const doing = "taking back a soft reboot"
	deployments, err := p.Status(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return p.resetSoftReboot(ctx, doing, deployments, func(Deployment) bool { return true })
}

// Where ostree notes what it has prepared, and where it mounts that.
const (
	nextRootNote = "/run/ostree/nextroot-booted"
	nextRoot     = "/run/nextroot"
)

// arrive tells ostree after a soft reboot that the reboot is over. Until then ostree takes the previous deployment for
// the booted one. ostree's own unit does this only late in the boot. Two forks after a soft reboot, else none.
func (p *Plain) arrive(ctx context.Context) error {
	pending := func() bool {
		_, err := os.Lstat(p.host(nextRootNote))
		return err == nil
	}
	if !pending() {
		return nil
	}
	// The file system mounted at nextRoot becomes the root.
	var run, next unix.Stat_t
	if err := unix.Stat(p.host(path.Dir(nextRoot)), &run); err != nil {
		return &Error{Class: Failed, Doing: "looking for a soft reboot", Err: err}
	}
	if err := unix.Stat(p.host(nextRoot), &next); err == nil && next.Dev != run.Dev {
		return nil // the soft reboot is still to come
	}
	if back, err := p.ledBack(ctx); err != nil || back {
		return err
	}
	output, err := p.run(ctx, "ostree", "admin", "boot-complete")
	if pending() { // boot-complete also fails for what it has to report about the previous boot
		return Failing("finishing a soft reboot", output, cmp.Or(err, errors.New("ostree does not take note of it")))
	}
	return nil
}

// ledBack reports whether a soft reboot has led back to the previous deployment, because the prepared root was gone
// when it was needed. ostree then still takes the previous deployment for the booted one. Once told of the end, ostree
// would trust its note and report the prepared deployment as booted. One fork.
func (p *Plain) ledBack(ctx context.Context) (bool, error) {
	const doing = "finding out where a soft reboot has led"
	deployments, err := p.list(ctx)
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, err)
	}
	at := slices.IndexFunc(deployments, func(d Deployment) bool { return d.Booted })
	if at < 0 {
		return false, nil
	}
	running, err := os.Stat(p.host("/etc"))
	if err != nil {
		return false, &Error{Class: Failed, Doing: doing, Err: err}
	}
	before, err := os.Stat(p.host(deployments[at].Dir + "/etc"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, &Error{Class: Failed, Doing: doing, Err: err}
	}
	return err == nil && os.SameFile(running, before), nil
}

// resetSoftReboot takes back a soft reboot that leads to a deployment that matches. One fork if one does, else none.
func (p *Plain) resetSoftReboot(ctx context.Context, doing string, all []Deployment,
	match func(Deployment) bool) error {
	if !slices.ContainsFunc(all, func(d Deployment) bool { return d.SoftReboot && match(d) }) {
		return nil
	}
	output, err := p.run(ctx, "ostree", "admin", "prepare-soft-reboot", "--reset")
	return Failing(doing, output, err)
}

// Cleanup removes checkouts, kernels and objects that no deployment and no ref needs. One fork, which may take long.
func (p *Plain) Cleanup(ctx context.Context) error {
	output, err := p.run(ctx, "ostree", "admin", "cleanup")
	return Failing("cleaning up the sysroot", output, err)
}

// BootSpace refuses, with an Error around a *NoBootSpace, a commit whose kernel does not fit into /boot beside the
// deployments that Status lists. A kernel that is in /boot already fits. One fork, none if the commit has a deployment.
// The kernel and the initramfs are read once.
func (p *Plain) BootSpace(ctx context.Context, deployments []Deployment, osName, checksum string) error {
	doing := "checking /boot for " + checksum
	if slices.ContainsFunc(deployments, func(d Deployment) bool {
		return d.OS == osName && d.Checksum == checksum && d.kernel != ""
	}) {
		return nil
	}
	output, err := p.run(ctx, "ostree", "ls", "--recursive", "--checksum", checksum, "/usr/lib/modules")
	if err != nil {
		return Failing(doing, output, err)
	}
	objects, err := parseListing(output)
	if err != nil {
		return &Error{Class: Failed, Doing: doing, Err: err}
	}
	files, simple := kernelFiles(objects)
	err = bootSpace(p.root, osName, checksum, files, simple, deployments)
	if _, refused := errors.AsType[*NoBootSpace](err); refused {
		return &Error{Class: NeedsAdmin, Doing: doing, Err: err}
	}
	if err != nil {
		return &Error{Class: Failed, Doing: doing, Err: err}
	}
	return nil
}

// ByID returns a function that matches the deployment with that ID.
func ByID(id string) func(Deployment) bool {
	return func(d Deployment) bool { return d.ID == id }
}

// host returns where this process finds a path of the host.
func (p *Plain) host(path string) string { return filepath.Join(p.root, path) }

// prepareRoot returns the configuration of ostree-prepare-root, empty if the host has none.
func (p *Plain) prepareRoot() (map[string]map[string]string, error) {
	for _, path := range []string{etcRootConfig, ownRootConfig} {
		config, err := p.keyFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return config, err
	}
	return nil, nil
}

// keyFile reads a GLib key file: groups of keys. The files read here have neither escapes nor lists.
func (p *Plain) keyFile(path string) (map[string]map[string]string, error) {
	text, err := os.ReadFile(p.host(path))
	if err != nil {
		return nil, &Error{Class: Failed, Doing: "reading the configuration of ostree", Err: err}
	}
	return ParseKeyFile(string(text)), nil
}

// ParseKeyFile returns the groups of keys of a GLib key file, without escapes and lists.
func ParseKeyFile(text string) map[string]map[string]string {
	all, group := groups{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "["); ok {
			group = strings.TrimSuffix(name, "]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if all[group] == nil {
			all[group] = map[string]string{}
		}
		all[group][strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return all
}

func isTrue(value string) bool { return value == "true" || value == "1" || value == "yes" }
