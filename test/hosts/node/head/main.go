// SPDX-License-Identifier: Apache-2.0

// Command head is the head of an agent without a cluster. It drives the hands of a lab host as the DaemonSet's pod
// does.
//
//	head pod|host VERB [flags]   from a pod with the host at /rootfs and no capability, or from the host itself
//	head stall ADDRESS           a server of images that accepts connections and never answers; start does the same,
//	                             for what has to look like upstream's agent
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// Answer is the result of a verb.
type Answer struct {
	Status       *host.Status       `json:"status,omitempty"`
	Plan         *plan.Plan         `json:"plan,omitempty"`
	Result       *host.Result       `json:"result,omitempty"`
	Verification *host.Verification `json:"verification,omitempty"`
	Config       string             `json:"config,omitempty"`
	Error        string             `json:"error,omitempty"`
	// Kind is the type of the error: refused, unreachable, drift, rolledBack, cancelled, or "" for any other.
	Kind string `json:"kind,omitempty"`
	// Took are the times of each turn, in milliseconds. Ran is the number of commands that the host ran for them.
	Took []float64 `json:"took"`
	Ran  int       `json:"ran"`
}

const inPod = "HEAD_IN_POD"

// profile names the AppArmor profile of the pod. Without it the pod has none.
const profile = "HEAD_PROFILE"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: head pod|host VERB [flags] | stall ADDRESS")
	}
	switch {
	case args[0] == "stall", args[0] == "start":
		return stall(args[1])
	case args[0] == "pod" && os.Getenv(inPod) == "":
		return pod()
	case args[0] == "pod":
		return drive("/rootfs", args[1], args[2:])
	}
	return drive("/", args[1], args[2:])
}

// pod runs this program again in the environment of the DaemonSet's pod. Its root has only the program, /proc, and the
// host at /rootfs. Its user is root without any capability.
func pod() error {
	runtime.LockOSThread()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	const root = "/run/pod"
	err = errors.Join(os.MkdirAll(root, 0o755), unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""),
		unix.Mount("pod", root, "tmpfs", 0, "mode=0755"))
	for _, dir := range []string{"rootfs", "proc", "tmp"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	err = errors.Join(err,
		unix.Mount("/proc", root+"/proc", "", unix.MS_BIND|unix.MS_REC, ""),
		unix.Mount("/", root+"/rootfs", "", unix.MS_BIND|unix.MS_REC, ""),
		os.WriteFile(filepath.Join(root, "head"), program, 0o755),
		unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		unix.Chroot(root), unix.Chdir("/"))
	for capability := range uintptr(unix.CAP_LAST_CAP + 1) {
		err = errors.Join(err, unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0))
	}
	// As runc does it: the profile is that of the program which this thread executes next.
	if name := os.Getenv(profile); name != "" {
		err = errors.Join(err, os.WriteFile("/proc/thread-self/attr/apparmor/exec", []byte("exec "+name), 0))
	}
	err = errors.Join(err, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	if err != nil {
		return fmt.Errorf("making the pod: %w", err)
	}
	return syscall.Exec("/head", os.Args, append(os.Environ(), inPod+"=1"))
}

// Watching is the file that shows the host that watch is watching.
const Watching = "/run/head-watches"

// watch compares the host, waits until a compared path is touched, and compares the host again.
func watch(ctx context.Context, h *hands.Client, mount string) (*host.Verification, error) {
	v, err := h.Verify(ctx)
	if err != nil {
		return nil, err
	}
	h.Watch(append(v.Paths, Watching))
	// The watch works once it notices this program's own file.
	for seen := false; !seen; {
		if err := os.WriteFile(filepath.Join(mount, Watching), nil, 0o600); err != nil {
			return nil, err
		}
		select {
		case <-h.Touched():
			seen = true
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err := h.Blind(); err != nil {
		return nil, err
	}
	h.Watch(v.Paths)
	if err := os.WriteFile(filepath.Join(mount, Watching+".ready"), nil, 0o600); err != nil {
		return nil, err
	}
	for {
		select {
		case <-h.Touched():
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if v, err = h.Verify(ctx); err != nil || len(v.Drift) > 0 {
			return v, err
		}
	}
}

func drive(mount, verb string, args []string) error {
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	config := flags.String("config", "", "a document on the host")
	policy := flags.String("policy", "", "a document on the host")
	program := flags.String("program", "/usr/local/bin/machine-config-daemon", "the agent, on the host")
	name := flags.String("name", "", "of the configuration")
	lift := flags.Bool("lift", false, "out of quarantine")
	manual := flags.Bool("no-reboot", false, "leave the reboot to people")
	order := flags.String("order", "", "what a policy says of a stage, as JSON")
	times := flags.Int("times", 1, "how often")
	ready := flags.Bool("ready", false, "what to say of the node")
	why := flags.String("why", "", "why it is not")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	a := Answer{}
	h, err := hands.New(mount, hands.Options{Program: filepath.Join(mount, *program),
		Observe: func(string, time.Duration, error) { a.Ran++ }})
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }()
	r := hands.Request{Name: *name, Lift: *lift, NoReboot: *manual}
	if *order != "" {
		r.Order = &api.StageOrder{}
		if err := json.Unmarshal([]byte(*order), r.Order); err != nil {
			return err
		}
	}
	for at, into := range map[*string]*[]byte{config: &r.Config, policy: &r.Policy} {
		if *at == "" {
			continue
		}
		if *into, err = os.ReadFile(filepath.Join(mount, *at)); err != nil {
			return err
		}
	}
	for range *times {
		started := time.Now()
		switch verb {
		case "status":
			a.Status, err = h.Status(ctx)
		case "plan":
			a.Plan, err = h.Plan(ctx, r)
		case "stage":
			err = h.Stage(ctx, r)
		case "apply":
			a.Result, err = h.Apply(ctx, r)
		case "verify":
			a.Verification, err = h.Verify(ctx)
		case "repair":
			a.Result, err = h.Repair(ctx, hands.RepairRequest{Policy: r.Policy})
		case "watch":
			a.Verification, err = watch(ctx, h, mount)
		case "config":
			var data []byte
			data, err = h.Config(ctx, *name)
			a.Config = string(data)
		case "node":
			err = h.NodeReady(ctx, *ready, *why, time.Time{})
		case "changed":
			select {
			case <-h.Changed():
			case <-ctx.Done():
				err = ctx.Err()
			}
		default:
			err = fmt.Errorf("no verb %q", verb)
		}
		a.Took = append(a.Took, time.Since(started).Seconds()*1000)
	}
	a.tell(err)
	return json.NewEncoder(os.Stdout).Encode(a)
}

func (a *Answer) tell(err error) {
	if err == nil {
		return
	}
	a.Error = err.Error()
	switch {
	case errors.As(err, new(*host.Refused)):
		a.Kind = "refused"
	case errors.As(err, new(*host.UnreachableError)):
		a.Kind = "unreachable"
	case errors.As(err, new(*host.DriftError)):
		a.Kind = "drift"
	case errors.As(err, new(*transaction.BadConfig)):
		a.Kind = "rolledBack"
	case errors.Is(err, context.Canceled):
		a.Kind = "cancelled"
	}
}

func stall(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	var open []net.Conn
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		open = append(open, c)
		fmt.Fprintln(os.Stdout, len(open))
	}
}
