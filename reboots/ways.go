// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// options are the reasons why a host can't reboot by a method now; "" where the host can.
type options struct{ Soft, Kexec, Command string }

// choose returns the method by which a reboot is started, and why that is not the method that was asked for. What can't
// be had becomes a full reboot.
func choose(asked transaction.Method, no options) (started transaction.Method, why string) {
	switch asked {
	case transaction.MethodSoft:
		why = no.Soft
	case transaction.MethodKexec:
		why = no.Kexec
	case transaction.MethodCommand:
		why = no.Command
	}
	if why != "" {
		return transaction.MethodFull, why
	}
	return cmp.Or(asked, transaction.MethodFull), ""
}

// System is the running system, as far as it reboots.
type System interface {
	// Inhibited returns an error where a program blocks a shutdown.
	Inhibited(ctx context.Context) error
	// GoDown starts an orderly reboot by a method other than MethodCommand. It waits for programs that delay a shutdown,
	// and refuses where a program blocks a shutdown.
	GoDown(ctx context.Context, by transaction.Method) error
	// Delay has a shutdown wait for the end of this process, for as long as the host allows.
	Delay(ctx context.Context)
	// Stopping reports whether a shutdown has begun.
	Stopping(ctx context.Context) bool
}

// Trip is one reboot that is about to be started.
type Trip struct {
	Root   *files.Root
	System System
	Units  Runner
	// Asked is the method that was asked for, "" for a full reboot. NotSoft is why no soft reboot is prepared.
	Asked   transaction.Method
	NotSoft string
	// Loaded is the token of the kernel that the agent may have loaded (transaction.Way.Loaded), "" for none.
	Loaded string
	// Target is what is to boot.
	Target Target
	// Exec runs a tool of the host.
	Exec ostree.Runner
	// Record keeps the way of the reboot. It is nil for a full reboot that was asked for and leaves no kernel loaded.
	Record func(w *transaction.Way) error
	// AfterLoad is called once a kernel is loaded. An error is one of the load.
	AfterLoad func() error
	Say       func(what string)

	own command // of MethodCommand
}

// notBegunError is the error of a reboot that does not come: the error came before systemd, or the host's own command,
// was asked for the reboot.
type notBegunError struct{ Err error }

func (e *notBegunError) Error() string { return e.Err.Error() }
func (e *notBegunError) Unwrap() error { return e.Err }

// NotBegun reports whether an error of Trip.Start is one after which no reboot comes.
func NotBegun(err error) bool {
	return errors.As(err, new(*notBegunError)) || errors.As(err, new(*systemd.InhibitedError))
}

// Start starts the reboot and returns the way that was recorded. Where the method that was asked for can't be had or
// fails, a full reboot follows. After an error for which NotBegun is true no reboot comes. After another error the
// reboot may have begun: systemd, or the host's own command, had been asked for the reboot.
func (t *Trip) Start(ctx context.Context) (w *transaction.Way, err error) {
	if w, err = t.prepare(ctx); err == nil {
		// The command may pass logind by. And a bus that can't be reached shows here, before anything is asked.
		err = t.System.Inhibited(ctx)
	}
	if err != nil {
		t.unload(ctx)
		return nil, &notBegunError{Err: err}
	}
	started := transaction.MethodFull
	if w != nil {
		started = w.Started
	}
	if started == transaction.MethodCommand {
		if started, err = t.command(ctx, w); err != nil || started == transaction.MethodCommand {
			return w, err
		}
	}
	t.Say(map[transaction.Method]string{transaction.MethodSoft: "of the userspace only",
		transaction.MethodKexec: "into the kernel that kexec has loaded"}[started])
	// A reboot may stop this process first, before the answer arrives.
	err = t.System.GoDown(context.WithoutCancel(ctx), started)
	if err == nil || started != transaction.MethodKexec {
		return w, err
	}
	t.unload(ctx)
	if errors.As(err, new(*systemd.InhibitedError)) {
		return w, err
	}
	if err := t.full(w, err.Error()); err != nil {
		return w, err
	}
	return w, t.System.GoDown(context.WithoutCancel(ctx), transaction.MethodFull)
}

// prepare chooses the way, records it and makes it ready. The way is recorded before the kernel is loaded: whatever
// ends this process afterwards, the record tells that the loaded kernel is the agent's.
func (t *Trip) prepare(ctx context.Context) (*transaction.Way, error) {
	no := options{Soft: t.NotSoft}
	var load []string
	token := rand.Text()
	switch t.Asked {
	case transaction.MethodKexec:
		load, no.Kexec = t.loading(ctx, token)
	case transaction.MethodCommand:
		t.own, no.Command = ownCommand(t.Root)
	}
	started, why := choose(t.Asked, no)
	if started != transaction.MethodKexec {
		// A soft reboot would keep the kernel, and the host's own command may start it.
		if stays := t.unload(ctx); stays != "" && started != transaction.MethodFull {
			started, why = transaction.MethodFull, stays
		}
	}
	w := &transaction.Way{Asked: cmp.Or(t.Asked, transaction.MethodFull), Started: started, Why: why, Token: t.Loaded}
	if w.Asked == transaction.MethodFull && t.Loaded == "" {
		return nil, t.Record(nil)
	}
	if started != transaction.MethodKexec {
		return w, t.Record(w)
	}
	w.Token = token
	err := t.Record(w)
	if err != nil {
		return nil, err
	}
	t.Loaded = token
	limited, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	if _, err = t.Exec(limited, load...); err == nil {
		err = t.AfterLoad()
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("loading the kernel: %w", context.Cause(ctx))
	}
	if err != nil {
		t.unload(ctx)
		// Only the kernel knows whether lockdown, or a signature that is missing, forbids the kernel.
		return w, t.full(w, "loading the kernel: "+err.Error())
	}
	return w, nil
}

// full makes the way one by a full reboot, which starts no loaded kernel.
func (t *Trip) full(w *transaction.Way, why string) error {
	w.Started, w.Why, w.Token = transaction.MethodFull, message.OneLine(why), t.Loaded
	return t.Record(w)
}

// command runs the host's own command, and waits until the command takes the host down. Where the command does not, a
// full reboot follows.
func (t *Trip) command(ctx context.Context, w *transaction.Way) (transaction.Method, error) {
	t.System.Delay(ctx)
	own := t.own
	t.Say("by " + own.path)
	limit := time.NewTimer(own.limit)
	defer limit.Stop()
	ended, err := t.Units.Run(ctx, systemd.Command{Name: commandUnit, Description: "Noderefit: " + own.path,
		Argv: []string{launcher, own.path}, Limit: own.limit, Grace: commandGrace})
	if err = cmp.Or(err, ended.Err()); err != nil && !t.System.Stopping(ctx) {
		if ctx.Err() != nil {
			return transaction.MethodCommand, fmt.Errorf("running %s: %w", own.path, context.Cause(ctx))
		}
		return transaction.MethodFull, t.full(w, fmt.Sprintf("%s failed: %v; see journalctl -u %s", own.path, err,
			commandUnit))
	}
	tick := time.NewTicker(stoppingEvery)
	defer tick.Stop()
	for !t.System.Stopping(ctx) {
		select {
		case <-tick.C:
		case <-limit.C:
			return transaction.MethodFull, t.full(w, fmt.Sprintf("%s did not take the host down within %s", own.path,
				own.limit))
		case <-ctx.Done():
			if t.System.Stopping(context.WithoutCancel(ctx)) {
				return transaction.MethodCommand, nil
			}
			return transaction.MethodCommand, fmt.Errorf("waiting for %s to take the host down: %w", own.path,
				context.Cause(ctx))
		}
	}
	return transaction.MethodCommand, nil
}

// stoppingEvery is how often logind and systemd are asked whether a shutdown has begun. A shutdown waits for the agent,
// and takes longer than that.
const stoppingEvery = time.Second

// loading returns the command that loads the kernel of the target's boot entry, with the token on its command line.
// Where no kernel is to be loaded, loading returns why.
func (t *Trip) loading(ctx context.Context, token string) (argv []string, why string) {
	seen, entry := t.look(ctx)
	if why := seen.refusal(); why != "" {
		return nil, why
	}
	argv = []string{seen.program, "-s", "-l", entry.Kernel,
		"--command-line=" + withoutToken(entry.Arguments) + " " + transaction.KexecArgument + token}
	for _, initrd := range entry.Initrds {
		argv = append(argv, "--initrd="+initrd)
	}
	return argv, ""
}

// loadLimit bounds the reading and the verification of a kernel and its initramfs.
const loadLimit = 2 * time.Minute

// kexecLoaded says 1 where a kernel is loaded. The kernel for crashes is in another file.
const kexecLoaded = "/sys/kernel/kexec_loaded"

// unload has the kernel forgotten that the agent may have loaded. It returns why that kernel stays loaded, "" where it
// does not.
func (t *Trip) unload(ctx context.Context) (stays string) {
	if t.Loaded == "" {
		return ""
	}
	if err := UnloadKernel(ctx, t.Root, t.Exec); err != nil {
		stays = message.OneLine(err.Error())
		t.Say(stays)
		return stays
	}
	t.Loaded = ""
	return ""
}

// UnloadKernel has the kernel forgotten that the agent has loaded for a reboot that does not come. An administrator's
// systemctl reboot, or the host's own command, would start that kernel. The kernel for crashes stays.
func UnloadKernel(ctx context.Context, root *files.Root, exec ostree.Runner) error {
	loaded, _ := root.ReadFile(kexecLoaded) // a kernel without kexec has no such file
	if strings.TrimSpace(string(loaded)) != "1" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadLimit)
	defer cancel()
	if _, err := exec(ctx, cmp.Or(kexecProgram(root), "kexec"), "-s", "-u"); err != nil {
		return fmt.Errorf("the kernel that kexec has loaded stays loaded, and systemctl reboot starts that kernel; "+
			"unload it by kexec -s -u: %w", err)
	}
	return nil
}

// withoutToken returns a command line without the token of an earlier kexec.
func withoutToken(line string) string {
	var out []string
	for _, word := range ostree.SplitArguments(line) {
		if !strings.HasPrefix(word, transaction.KexecArgument) {
			out = append(out, word)
		}
	}
	return strings.Join(out, " ")
}

// ShownWay returns the way of a reboot as it is told, nil where a full reboot was asked for.
func ShownWay(w *transaction.Way) *api.RebootWay {
	if w == nil {
		return nil
	}
	return &api.RebootWay{Asked: api.RebootMethod(w.Asked), Started: api.RebootMethod(w.Started),
		Took: api.RebootMethod(w.Took), Why: w.Why}
}
