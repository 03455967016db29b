// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/bootc"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// BusTimeout bounds one exchange with systemd other than a job of a unit.
const BusTimeout = 30 * time.Second

// jobTimeout bounds a restart or reload: systemd's own default for a start is 90 s, and a restart includes a stop.
const jobTimeout = 5 * time.Minute

// services is the running system. The connection is made when first needed: most commands never need it.
type services struct {
	m     *systemd.Manager
	acted []Acted
	// early is set on a machine's first boot: this process can't wait for units that start after it.
	early *systemd.Early
}

// Acted is an action that was carried out on a service.
type Acted struct {
	Type    plan.ActionType `json:"type"` // Reload or Restart
	Service string          `json:"service"`
	// Stopped means that the service was stopped instead: its unit is gone.
	Stopped bool   `json:"stopped,omitempty"`
	Error   string `json:"error,omitempty"`
}

func (s *services) manager(ctx context.Context) (*systemd.Manager, error) {
	if s.m == nil {
		m, err := systemd.Connect(ctx)
		if err != nil {
			return nil, err
		}
		s.m = m
	}
	return s.m, nil
}

func (s *services) close() {
	if s.m != nil {
		s.m.Close()
	}
}

func (s *services) with(ctx context.Context, limit time.Duration,
	do func(context.Context, *systemd.Manager) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m, err := s.manager(ctx)
	if err != nil {
		return err
	}
	return do(ctx, m)
}

// Reload has systemd read its units again (daemon-reload).
func (s *services) Reload(ctx context.Context) error {
	return s.with(ctx, jobTimeout, func(ctx context.Context, m *systemd.Manager) error { return m.Reload(ctx) })
}

// Act carries out a Reload or Restart, and records it.
func (s *services) Act(ctx context.Context, a plan.Action, gone bool) error {
	acted := Acted{Type: a.Type, Service: a.Service}
	err := s.with(ctx, jobTimeout, func(ctx context.Context, m *systemd.Manager) error {
		if s.early != nil && !gone {
			return s.early.Act(ctx, m, a.Service, a.Type == plan.ActionRestart)
		}
		do := m.ReloadUnit
		if a.Type == plan.ActionRestart {
			do = m.RestartUnit
		}
		err := do(ctx, a.Service)
		if !gone || !systemd.Unstartable(err) { // the image may have a unit of that name
			return err
		}
		acted.Stopped = true
		return errors.Join(m.Stop(ctx, a.Service), m.Forget(ctx, a.Service))
	})
	if err != nil {
		acted.Error = message.OneLine(err.Error())
	}
	s.acted = append(s.acted, acted)
	return err
}

// Start queues the start of a unit.
func (s *services) Start(ctx context.Context, unit string) error {
	return s.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error { return m.QueueStart(ctx, unit) })
}

// Stop stops a unit, also one that waits for its start.
func (s *services) Stop(ctx context.Context, unit string) error {
	return s.with(ctx, jobTimeout, func(ctx context.Context, m *systemd.Manager) error { return m.Stop(ctx, unit) })
}

// Reboot shuts the host down in an orderly way, even if a program inhibits a shutdown, because this reboot leaves a bad
// configuration. Where that configuration has broken the orderly way, Reboot forces the reboot. A shutdown that does
// not end is forced too.
func (s *services) Reboot(ctx context.Context) error {
	err := s.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
		unlimited := m.QueueStart(ctx, plan.RebootUnit)
		if err := m.QueueStart(ctx, "reboot.target"); err != nil {
			return errors.Join(err, unlimited)
		}
		return nil
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	if forced := systemd.RebootByForce(ctx); forced != nil {
		return errors.Join(err, forced)
	}
	return nil
}

// GoDown asks logind, which honours programs that block a shutdown.
func (s *services) GoDown(ctx context.Context, by transaction.Method) error {
	return s.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
		switch by {
		case transaction.MethodSoft:
			return m.SoftReboot(ctx)
		case transaction.MethodKexec:
			return m.Kexec(ctx)
		}
		return m.Reboot(ctx)
	})
}

// Delay has a shutdown wait until this process has said what was done. Where the host can't be asked, it does not wait.
func (s *services) Delay(ctx context.Context) {
	_ = s.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
		m.DelayShutdown(ctx)
		return nil
	})
}

// Stopping reports whether a shutdown has begun.
func (s *services) Stopping(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), BusTimeout)
	defer cancel()
	m, err := s.manager(ctx)
	return err == nil && m.Preparing(ctx) || systemd.Stopping(ctx) // systemd answers after the bus has ended
}

// Inhibited returns a systemd.InhibitedError where a program blocks a shutdown.
func (s *services) Inhibited(ctx context.Context) error {
	return s.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
		by, err := m.BlockInhibitors(ctx)
		if err != nil && !errors.Is(err, systemd.ErrNoLogind) {
			return err
		}
		if len(by) > 0 {
			return &systemd.InhibitedError{By: by}
		}
		return nil
	})
}

const kubeletUnit = "kubelet.service"

// baseline returns what does not work before the update. A node that was not ready need not be ready after the update;
// a node without a report counts as ready.
func (h *Host) baseline(ctx context.Context, cluster bool) (transaction.Baseline, error) {
	var b transaction.Baseline
	if h.services == nil {
		return b, nil
	}
	if cluster {
		b.NodeReady = transaction.ReadNodeWord(h.root).WasReady(transaction.Uptime())
		b.Network = transaction.ReadNetwork(h.root)
	}
	err := h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
		var err error
		if b.FailedUnits, err = m.FailedUnits(ctx); err != nil {
			return err
		}
		states, err := m.ActiveState(ctx, kubeletUnit)
		b.KubeletActive = err == nil && states[kubeletUnit] == "active"
		return err
	})
	b.KubeletHealthy = b.KubeletActive && transaction.KubeletHealthy(ctx) == nil
	return b, err
}

// states returns the active states of units.
func (h *Host) states(ctx context.Context, units []string) (map[string]string, error) {
	var out map[string]string
	err := h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
		var err error
		out, err = m.ActiveState(ctx, units...)
		return err
	})
	return out, err
}

// kubeletCheck is the name of the check after which the check of the node runs.
const kubeletCheck = "kubelet"

// checks returns the checks of every verdict: no unit failed that had not failed before, the kubelet is back, and the
// host's own check scripts agree. Where the update came from a cluster, the cluster must agree too. booted is when the
// judged boot began, patience until when the cluster may stay silent, both as time since the kernel's boot.
func (h *Host) checks(b transaction.Baseline, wantKubelet bool,
	booted, patience time.Duration, said heard) ([]transaction.Check, error) {
	out := []transaction.Check{{Name: "systemd units", Run: func(ctx context.Context) error {
		return h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
			failed, err := m.FailedUnits(ctx)
			if err != nil {
				return err
			}
			failed = slices.DeleteFunc(failed, func(u string) bool {
				return slices.Contains(b.FailedUnits, u) || u == transaction.RecoverUnit || u == transaction.ProveUnit ||
					u == hooks.Unit ||
					slices.ContainsFunc(agent.Verbs, func(v agent.Verb) bool { return v.Unit() == u })
			})
			if len(failed) > 0 {
				return fmt.Errorf("failed: %v", failed)
			}
			return nil
		})
	}}}
	if b.KubeletActive && wantKubelet {
		out = append(out, transaction.Check{Name: kubeletCheck, Patient: true, Run: func(ctx context.Context) error {
			err := h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
				states, err := m.ActiveState(ctx, kubeletUnit)
				if err == nil && states[kubeletUnit] != "active" {
					err = fmt.Errorf("%s is %s", kubeletUnit, states[kubeletUnit])
				}
				return err
			})
			if err == nil && b.KubeletHealthy {
				err = transaction.KubeletHealthy(ctx)
			}
			return err
		}})
	}
	if b.NodeReady && wantKubelet {
		out = append(out, transaction.Check{Name: "node", Patient: true, After: kubeletCheck,
			Run: func(context.Context) error {
				word := transaction.ReadNodeWord(h.root).Since(booted, h.bootID() != h.kernel)
				return transaction.JudgeNode(word, transaction.Uptime(), patience, b.Network, transaction.ReadNetwork(h.root))
			}})
	}
	scripts, err := transaction.Scripts(h.root, h.say, said.note)
	return append(out, scripts...), err
}

// nodeHeld refuses where a cluster asks for the update and its head has reported that the node is not held any more.
func (h *Host) nodeHeld(cluster bool) error {
	if !cluster {
		return nil
	}
	if err := transaction.NodeHeld(h.root, h.say); err != nil {
		return &Refused{Err: err}
	}
	return nil
}

// liveTimeout bounds the verdict of a change without a boot: its services have already finished their restarts.
const liveTimeout = 2 * time.Minute

// verdictLive asks the usual checks, and whether the services that the actions name run as before, or at all.
func (h *Host) verdictLive(ctx context.Context, p *transaction.Pending) error {
	before, said := p.Services, heard{}
	checks, err := h.checks(p.Baseline, true, 0, 0, said)
	if err != nil {
		return err
	}
	cfg, _ := h.revision(&p.Revision) // status tells people of a copy that can't be read
	checks = append(checks, h.meansCheck(false), h.extensionsCheck(cfg))
	checks = append(checks, transaction.Check{Name: "services", Run: func(ctx context.Context) error {
		now, err := h.states(ctx, slices.Sorted(maps.Keys(before)))
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if h.services.early.Late(name) {
				continue
			}
			// The service's job has ended already: activating now means that the service died and is being started again.
			if now[name] == "failed" || now[name] == "activating" || before[name] == "active" && now[name] != "active" {
				return fmt.Errorf("%s is %s", name, now[name])
			}
		}
		return nil
	}})
	return h.judge(ctx, p.Config, said, checks, h.now().Add(liveTimeout))
}

// Prove gives the verdict on a configuration that has booted. It settles the configuration or starts a rollback, and
// then returns. Where no update waits for a verdict Prove does nothing.
func (h *Host) Prove(ctx context.Context) error {
	if h.services == nil {
		return nil // a tree has no boot to wait for
	}
	if err := h.awaitRecovery(ctx); err != nil {
		return err
	}
	if err := ostree.Uncover(); err != nil { // this boot may have merged extensions of /etc meanwhile
		return err
	}
	if err := h.waitLock(ctx); err != nil {
		return err
	}
	r, err := h.store().Load()
	if err == nil {
		if r.Pending != nil {
			h.makeWritable()
		}
		err = h.carryOut(ctx, bootSteps, &attempt{verb: proveVerb, unlocks: true, record: r, result: &Result{}})
	}
	h.unlock()
	if errors.As(err, new(*transaction.BadConfig)) || errors.As(err, new(*transaction.BadBoot)) {
		h.say("prove", err.Error())
		return nil // the verdict is given and carried out: the unit has not failed
	}
	return err
}

// recoveryFailed reports whether recovery left something unfinished in this boot: a rollback may need rpm-ostree, which
// does not answer as early as recovery runs.
func (h *Host) recoveryFailed(ctx context.Context) bool {
	states, err := h.states(ctx, []string{transaction.RecoverUnit})
	return err == nil && states[transaction.RecoverUnit] == "failed"
}

// prove gives the verdict on the booted configuration, and carries the verdict out.
func (h *Host) prove(ctx context.Context, r *transaction.Record) error {
	at := slices.IndexFunc(bootSteps, func(s step) bool { return s.name == proveStep })
	return h.carryOut(ctx, bootSteps[at:], &attempt{verb: proveVerb, record: r, result: &Result{}})
}

func (h *Host) recoverBooted(ctx context.Context, a *attempt) error {
	if a.record.Pending == nil && !h.recoveryFailed(ctx) {
		return nil
	}
	out, err := h.engine().Recover(ctx, a.record)
	a.over = out.Rebooting
	return err
}

// awaitsVerdict reports whether the update that has booted still waits for its verdict.
func awaitsVerdict(_ *Host, a *attempt) bool {
	return a.record.Pending != nil && a.record.Pending.Phase == transaction.PhaseProve
}

// ownUnits corrects the agent's units: a deployment has the units of the agent that made it. That agent may be older,
// which is no fault of the configuration.
func (h *Host) ownUnits(context.Context, *attempt) error {
	return h.installer().Units()
}

// askVerdict asks the checks without the lock where the lock was taken for recovery, and takes the lock again to record
// the verdict. Meanwhile another process may have settled the update or rolled it back: then nothing is left to do.
func (h *Host) askVerdict(ctx context.Context, a *attempt) error {
	p := a.record.Pending
	if a.unlocks {
		h.unlock()
	}
	verdict := h.verdict(ctx, a.record)
	if ctx.Err() != nil {
		return ctx.Err() // the caller stops this process: that is no verdict
	}
	if h.release == nil {
		if err := h.waitLock(ctx); err != nil {
			return err
		}
	}
	now, err := h.store().Load()
	if err != nil {
		return err
	}
	if q := now.Pending; q == nil || q.Phase != transaction.PhaseProve || q.Digest != p.Digest || q.BootID != p.BootID {
		return nil
	}
	*a.record, a.judged, a.verdict = *now, true, verdict
	return nil
}

func (h *Host) settle(ctx context.Context, a *attempt) error {
	road := a.record.Pending.Road
	if err := h.engine().Settle(a.record); err != nil {
		return err
	}
	if road == transaction.RoadReboot {
		return hooks.Keep(h.root, "", hooks.Document{}) // an OS that was staged meanwhile stays
	}
	h.cleanUp(ctx, a.record)
	return nil
}

// goBack returns a *transaction.BadConfig once the rollback has begun.
func (h *Host) goBack(ctx context.Context, a *attempt) error {
	verdict := h.covering(a.verdict)
	var bad error = &transaction.BadConfig{Config: a.record.Pending.Config, Err: verdict}
	reboot := a.record.Pending.Road == transaction.RoadReboot
	if err := h.engine().GoBack(ctx, a.record, message.OneLine(verdict.Error()), true); err != nil {
		return fmt.Errorf("%w; and going back: %w", verdict, err)
	}
	if reboot {
		bad = &transaction.BadBoot{Err: verdict, Back: a.record.Pending != nil}
	}
	return bad
}

// cleanUp removes what the settled configuration no longer needs. The next update tries a failed removal again.
func (h *Host) cleanUp(ctx context.Context, r *transaction.Record) {
	err := errors.Join(h.engine().Tidy(ctx, r), hooks.Keep(h.root, "", hooks.Document{}))
	if err == nil && h.plain != nil {
		err = errors.Join(h.unstage(ctx, r.Committed.Digest), h.plain.Cleanup(ctx))
	}
	if release, busy := h.lockStaging(ctx, "settle", 0); busy == nil { // a running stage sweeps by itself
		err = errors.Join(err, h.sweep(ctx, "settle", nil))
		release()
	}
	if err != nil {
		h.say("settle", "cleaning up: "+err.Error())
	}
}

// waitLock waits for the operation that holds the lock: most likely an apply that proves the same configuration.
func (h *Host) waitLock(ctx context.Context) error {
	for {
		err := h.Lock(ctx, proveVerb)
		if !errors.As(err, new(*Refused)) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// verdict returns nil for a host that proved healthy. A configuration that can't even be judged is bad.
func (h *Host) verdict(ctx context.Context, r *transaction.Record) error {
	p := r.Pending
	cfg, err := h.revision(&p.Revision)
	if err != nil {
		return err
	}
	if cfg == nil {
		cfg = &machineconfig.Config{} // a reboot of a host that has no configuration
	}
	booted, err := h.booted(ctx)
	if err != nil {
		return err
	}
	if booted.ID != p.Deployment {
		return fmt.Errorf("booted deployment is %s, expected %s", booted.ID, p.Deployment)
	}
	said := heard{}
	checks, err := h.bootChecks(cfg, p, booted, said)
	if err == nil {
		checks, err = h.afterBoot(ctx, r, checks)
	}
	if err != nil {
		return err
	}
	return h.judge(ctx, p.Config, said, checks, h.now().Add(p.Deadline-transaction.Uptime()))
}

func (h *Host) bootChecks(cfg *machineconfig.Config, p *transaction.Pending,
	booted ostree.Deployment, said heard) ([]transaction.Check, error) {
	// The node's pods have half of the time to start and to reach the API server.
	checks, err := h.checks(p.Baseline, !cfg.TurnsOff(kubeletUnit), p.Deadline-p.Timeout, p.Deadline-p.Timeout/2, said)
	if err != nil {
		return nil, err
	}
	osDrift := func(ctx context.Context) ([]Drift, error) {
		if len(p.Skipped) > 0 || p.Digest == "" {
			return nil, nil
		}
		return h.osDrift(ctx, cfg, booted, &p.Layers)
	}
	first := []transaction.Check{
		{Name: transaction.BootCheck, Patient: true, Run: func(ctx context.Context) error {
			return h.services.with(ctx, BusTimeout, func(ctx context.Context, m *systemd.Manager) error {
				settled, waiting, err := m.Settled(ctx)
				waiting = slices.DeleteFunc(waiting, func(u string) bool { return u == transaction.ProveUnit })
				if err == nil && !settled && len(waiting) > 0 {
					err = fmt.Errorf("still waiting for %v", waiting)
				}
				return err
			})
		}},
		// An OS manager that can't answer yet proves nothing about the configuration.
		{Name: "os", Patient: true, Run: func(ctx context.Context) error {
			_, err := osDrift(ctx)
			return err
		}},
		{Name: "configuration", After: "os", Run: func(ctx context.Context) error {
			drift, err := h.compare(cfg)
			if err != nil {
				return err
			}
			drift = slices.DeleteFunc(drift, func(d Drift) bool { return d.exposed })
			if os, err := osDrift(ctx); err == nil {
				drift = append(drift, os...)
			}
			if len(drift) > 0 {
				return &DriftError{Config: cfg.Name, Drift: drift}
			}
			return nil
		}},
	}
	if b, is := h.composer.(*bootc.Driver); is && !strings.Contains(p.From, booted.Checksum) { // the same OS lacks no more
		ask, lacks := b.BoundCheck(booted.Checksum)
		first = append(first, transaction.Check{Name: "container images", Patient: true, Run: ask},
			transaction.Check{Name: "bound images", After: "container images", Run: lacks})
	}
	return slices.Concat(first, []transaction.Check{h.meansCheck(true), h.extensionsCheck(cfg)}, checks), nil
}
