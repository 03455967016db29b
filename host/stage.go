// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// StageOptions are the options of stage.
type StageOptions struct {
	Policy *plan.Policy
	// SkipOS leaves out the OS changes that the host can't make.
	SkipOS bool
	// Strict refuses a host that drifted.
	Strict bool
	// Lift accepts a configuration in quarantine, which stays there.
	Lift bool
	// AsStaged uses the OS that was staged for the configuration before, even if the image's name now means another OS.
	AsStaged bool
	// MinFree is the number of bytes that stage leaves free on the disk.
	MinFree uint64
	// Weights are the weights of the tools that bring the OS and run in units of their own.
	Weights systemd.Weights
}

// Stage refuses what Apply would refuse, and brings the OS that cfg needs to the disk: nothing slow is left to do once
// the node is drained. Stage changes neither the record nor anything that boots: a dropped update leaves nothing to
// take back. Stage records which commit an image was, for the apply of the same configuration. The result is never nil.
func (h *Host) Stage(ctx context.Context, cfg *machineconfig.Config, o StageOptions) (*Result, error) {
	res := &Result{Reboot: RebootNone}
	release, lockErr := h.lockStaging(ctx, "stage", settling)
	r, err := h.store().Load()
	if err = errors.Join(lockErr, err); err == nil {
		err = h.stageAbove(ctx, r, cfg, o, res)
	}
	if lockErr == nil {
		release()
	}
	if errors.As(err, new(*files.LowDisk)) {
		// The staged OS is removed, and its disk space is free for others.
		err = errors.Join(err, h.unstage(context.WithoutCancel(ctx), cfg.Digest))
	}
	return h.result(ctx, res, r), err
}

// Unstage removes what was composed for any configuration, where no operation is under way that may need it. A running
// composition stays. The result is never nil.
func (h *Host) Unstage(ctx context.Context) (*Result, error) {
	res := &Result{Reboot: RebootNone}
	r, err := h.store().Load()
	switch {
	case err != nil:
	case r.Pending != nil:
		err = &Refused{Err: fmt.Errorf("removing the staged OS: the update to %s is under way (%s)",
			r.Pending.Config, r.Pending.Phase)}
	default:
		err = h.unstage(ctx, "")
	}
	return h.result(ctx, res, r), err
}

// lockStaging makes sure that no other process composes, or removes what was composed, until release is called. Where
// another process still holds the lock after patience, the error is a *Refused. The lock is a separate one because a
// composition takes minutes, in which the host is free for everything else. A process that needs both locks takes Lock
// first.
func (h *Host) lockStaging(ctx context.Context, verb string, patience time.Duration) (release func(), err error) {
	return h.lockFile(ctx, "staging.lock", verb, "stages", patience)
}

// lockFile takes a lock of the host. Where another process still holds the lock after patience, the error is a *Refused
// that names the holder and its work. Nobody waits for the host's own lock unless that lock is free soon.
func (h *Host) lockFile(ctx context.Context, name, verb, does string, patience time.Duration) (func(), error) {
	if err := h.root.MkdirAll(transaction.RunDir, 0o755); err != nil {
		return nil, err
	}
	for end := h.now().Add(patience); ; {
		f, err := h.root.Lock(path.Join(transaction.RunDir, name),
			fmt.Sprintf("machine-config-daemon %s, pid %d", verb, os.Getpid()))
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		refused := &Refused{Err: fmt.Errorf("another operation %s on this host: %w", does, err)}
		if !h.now().Before(end) || name == hostLock && !settles(err) {
			return nil, refused
		}
		select {
		case <-ctx.Done():
			return nil, refused
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// spares refuses to compose cfg while the host is between two deployments and may need either: an OS manager that
// composes removes deployments that look superfluous.
func spares(r *transaction.Record, cfg *machineconfig.Config) error {
	p := r.Pending
	if p == nil || p.Digest == cfg.Digest ||
		p.Phase != transaction.PhaseBoot && p.Phase != transaction.PhaseProve && p.Phase != transaction.PhaseUndo {
		return nil
	}
	return &Refused{Err: fmt.Errorf("staging %s: the update to %s is under way (%s)", cfg.Name, p.Config, p.Phase)}
}

func (h *Host) stage(ctx context.Context, r *transaction.Record, cfg *machineconfig.Config, o StageOptions,
	res *Result) error {
	return h.carryOut(ctx, steps, &attempt{verb: agent.StageVerb.Name, record: r, result: res, asStaged: o.AsStaged,
		cfg:     h.whole(cfg),
		options: ApplyOptions{Policy: o.Policy, SkipOS: o.SkipOS, Strict: o.Strict, Lift: o.Lift}})
}
