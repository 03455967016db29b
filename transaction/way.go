// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/message"
)

// Method is a way to reboot a host.
type Method string

// The methods, in the words of api.RebootMethod.
const (
	MethodFull    Method = "Full"
	MethodSoft    Method = "Soft"
	MethodKexec   Method = "Kexec"
	MethodCommand Method = "Command"
)

// KexecArgument is the kernel argument that names a kernel started by kexec. No boot loader knows the name.
const KexecArgument = "noderefit.kexec="

// Way is the way of a boot that was asked for by another method than MethodFull, or while a kernel stayed loaded.
type Way struct {
	Asked Method `json:"asked"`
	// Started is the method by which the reboot was started, and Took the method that the boot proved; "" before the boot.
	Started Method `json:"started"`
	Took    Method `json:"took,omitempty"`
	// Why is why the method is not Asked.
	Why string `json:"why,omitempty"`
	// Boot is the boot that the reboot ends, in the form of the function BootID. Token is the value of KexecArgument.
	Boot  string `json:"boot"`
	Token string `json:"token,omitempty"`
}

// StartBy records the way of the reboot that is about to be started, nil for a full reboot that was asked for and
// leaves no kernel loaded. A soft reboot that is started as another one is recorded as such.
func (e *Engine) StartBy(r *Record, w *Way) error {
	if r.Way == nil && w == nil {
		return nil
	}
	if r.Way = w; w != nil {
		w.Boot = e.BootID
		if p := r.Pending; p != nil && p.SoftReboot == SoftStarted && w.Started != MethodSoft {
			e.bootBy(r, "")
		}
	}
	return e.store().save(r)
}

// KernelLoaded is called once the kernel of a reboot is loaded, and before the reboot begins.
func (e *Engine) KernelLoaded() error { return fault("kernel loaded") }

// Loaded returns the token of the kernel that the agent may have loaded for a reboot that has not come, "" for none. A
// soft reboot keeps a loaded kernel.
func (w *Way) Loaded(boot string) string {
	if w == nil || !sameKernel(boot, w.Boot) {
		return ""
	}
	return w.Token
}

// noReboot forgets the way of a reboot that does not come, and the kernel that was loaded for it. Where that kernel
// can't be unloaded, the way stays, so that recovery tries again. noReboot reports whether it changed the record.
func (e *Engine) noReboot(ctx context.Context, r *Record) bool {
	loaded := e.UnloadKernel != nil && r.Way.Loaded(e.BootID) != ""
	if loaded {
		if err := e.UnloadKernel(ctx); err != nil {
			e.Say("reboot", message.OneLine(err.Error()))
			return false
		}
	}
	switch {
	case r.Way == nil || r.Way.Took != "" && !loaded:
		return false
	case r.Way.Took != "":
		r.Way.Token = ""
	default:
		r.Way = nil
	}
	return true
}

// arrived records which method has led to this boot, wherever the boot has led.
func (e *Engine) arrived(r *Record) {
	if w := r.Way; w == nil || w.Took != "" || w.Boot == e.BootID {
		return
	}
	line, _ := e.Root.ReadFile("/proc/cmdline") // without it no kexec is proved
	r.Way.arrive(e.BootID, string(line))
	if err := e.store().save(r); err != nil {
		e.Say("recover", err.Error()) // recovery does not depend on the way
	}
}

// arrive finds out which method has led to a boot. Only a kernel that was started by kexec has the token on its command
// line. A soft reboot keeps the kernel. The host's own command and a full reboot both start a kernel by the firmware:
// the command counts where the kernel came before the command had failed.
func (w *Way) arrive(boot, commandLine string) {
	switch token := KexecArgument + w.Token; {
	case w.Token != "" && slices.Contains(strings.Fields(commandLine), token):
		w.Took = MethodKexec
	case sameKernel(boot, w.Boot):
		w.Took = MethodSoft
	case w.Started == MethodCommand:
		w.Took = MethodCommand
	default:
		w.Took = MethodFull
	}
	if w.Took != w.Asked && w.Why == "" {
		w.Why = fmt.Sprintf("the reboot was started as %s, and another boot came", w.Started)
	}
}
