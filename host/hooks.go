// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/signature"
	"github.com/noderefit/noderefit/transaction"
)

// answersPath keeps the hooks that agreed in this boot. No other boot inherits the file.
const answersPath = transaction.RunDir + "/hooks.json"

// hookAnswers are the names of the hooks that agreed to a configuration in a boot.
type hookAnswers struct {
	Boot   string   `json:"boot"`
	Digest string   `json:"digest"`
	Yes    []string `json:"yes"`
}

// Hooks lists the host's own hooks.
func (h *Host) Hooks() (*hooks.List, error) { return hooks.All(h.root) }

// AskBeforeDrain asks the hooks whether a drain, or a reboot, for a configuration may begin. A hook's refusal is a
// *Refused with a *hooks.Error.
func (h *Host) AskBeforeDrain(ctx context.Context, to string, doc hooks.Document) error {
	r, err := h.store().Load()
	if err != nil {
		return err
	}
	s, err := h.staged()
	if err != nil || s == nil || to != "" && !machineconfig.NamedBy(to, cmp.Or(s.Template, s.Digest)) {
		s = &staged{}
	}
	return h.askBeforeDrain(ctx, r, to, s.Digest, doc)
}

func (h *Host) askBeforeDrain(ctx context.Context, r *transaction.Record, to, digest string, doc hooks.Document) error {
	if h.services == nil {
		return nil // a tree serves no workload
	}
	all, err := h.hooks(hooks.BeforeDrain, doc)
	if err = errors.Join(h.admits(doc), err); err != nil || len(all) == 0 {
		return err
	}
	environment, err := h.hookEnvironment(ctx, hooks.BeforeDrain, r, to, digest, doc.Node)
	if err != nil {
		return err
	}
	for _, hook := range all {
		h.say("before-drain", hook.Name)
		err := h.runHook(ctx, hooks.BeforeDrain, hook, environment, nil)
		if errors.As(err, new(*hooks.Error)) {
			return &Refused{Err: err}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// admits refuses the cluster's hooks on a host that demands signatures.
func (h *Host) admits(doc hooks.Document) error {
	if len(doc.Hooks) == 0 || !signature.Demanded(h.root) {
		return nil
	}
	return &Refused{Err: &hooks.Error{When: hooks.BeforeDrain, Hook: api.NodeHookPrefix + doc.Hooks[0].Name,
		Why: signature.NoHooks}}
}

// hooks returns the host's own hooks, then the cluster's in the order of its pool.
func (h *Host) hooks(when hooks.When, doc hooks.Document) ([]hooks.Hook, error) {
	all, warnings, err := hooks.Find(h.root, when)
	if err != nil {
		return nil, err
	}
	for _, w := range warnings {
		h.say(string(when), w)
	}
	return append(all, hooks.OfCluster(when, doc.Hooks)...), nil
}

// hookEnvironment returns the environment of a hook. The OS that the host goes to is the one that was composed for the
// configuration of that digest, or else the booted one.
func (h *Host) hookEnvironment(
	ctx context.Context, when hooks.When, r *transaction.Record, to, digest, node string,
) ([]string, error) {
	e := hooks.Environment{From: r.From(), To: to, Node: node}
	err := e.Running(h.root)
	if h.plain == nil || err != nil {
		return e.List(when), err
	}
	booted, err := h.booted(ctx)
	if err != nil {
		return nil, err
	}
	e.Commit = booted.Checksum
	if s, err := h.staged(); err == nil && s != nil && digest != "" && s.Digest == digest && s.Composed.Checksum != "" {
		e.Commit, e.Image = s.Composed.Checksum, s.System.Image
	} else if h.composer != nil {
		if now, err := h.current(ctx); err == nil {
			e.Image = now.Image
		}
	}
	release, err := h.plain.Describe(ctx, e.Commit)
	if when == hooks.AfterBoot {
		err = nil // what runs is known, and a verdict must not depend on a second source
	}
	e.Kernel, e.Release = cmp.Or(release.Kernel, e.Kernel), cmp.Or(release.Version, e.Release)
	return e.List(when), err
}

// hookPatience is how long to wait for other processes that run a hook: only one process at a time runs hooks.
const hookPatience = hooks.LongestLimit

// runHook runs one hook as a unit of its own. hear, where it is not nil, gets each line that the hook prints.
func (h *Host) runHook(ctx context.Context, when hooks.When, hook hooks.Hook, environment []string,
	hear func(line string)) error {
	release, err := h.lockFile(ctx, "hooks.lock", string(when), "runs a hook", hookPatience)
	if err != nil {
		return err
	}
	defer release()
	if hook.Script != "" {
		if err := h.root.MkdirAll(hooks.ScriptsDir, 0o700); err != nil {
			return err
		}
		if err := h.root.WriteRecord(hook.Path, []byte(hook.Script), 0o700); err != nil {
			return fmt.Errorf("placing hook %s: %w", hook.Name, err)
		}
		defer func() { _ = h.root.RemoveAll(hooks.ScriptsDir) }()
	}
	argv := append([]string{agent.Launcher, hook.Path}, hook.Args...)
	return hooks.Run(ctx, h.units, when, hook, argv,
		append(environment, "NODEREFIT_HOOK="+strings.TrimPrefix(hook.Name, api.NodeHookPrefix)),
		func(line string) {
			if hear != nil {
				hear(line)
			}
			h.say(string(when), path.Base(hook.Name)+": "+line)
		})
}

// keepHooks stores the cluster's hooks for the boot of a configuration. A tree serves no workload, and has none.
func (h *Host) keepHooks(digest string, doc hooks.Document) error {
	if h.services == nil {
		return nil
	}
	if err := h.admits(doc); err != nil {
		return err
	}
	return hooks.Keep(h.root, digest, doc)
}

// afterBoot returns the hooks of a booted configuration as checks of its verdict: one after the other, each until the
// hook agrees once in this boot. Hooks may change the host, so every check but that of the boot itself comes after
// them.
func (h *Host) afterBoot(
	ctx context.Context, r *transaction.Record, others []transaction.Check,
) ([]transaction.Check, error) {
	p := r.Pending
	doc, err := hooks.Kept(h.root, p.Digest)
	if err != nil {
		return nil, err
	}
	all, err := h.hooks(hooks.AfterBoot, doc)
	if err != nil || len(all) == 0 {
		return others, err
	}
	environment, err := h.hookEnvironment(ctx, hooks.AfterBoot, r, p.Config, "", doc.Node)
	if err != nil {
		return others, err
	}
	var out []transaction.Check
	after := transaction.BootCheck
	for _, hook := range all {
		c := transaction.Check{Name: "after-boot hook " + hook.Name, After: after}
		c.Run = func(ctx context.Context) error { return h.askAfterBoot(ctx, p, hook, environment) }
		out, after = append(out, c), c.Name
	}
	for i := range others {
		if c := &others[i]; c.Name != transaction.BootCheck && (c.After == "" || c.After == transaction.BootCheck) {
			c.After = after
		}
	}
	at := 1 + slices.IndexFunc(others, func(c transaction.Check) bool { return c.Name == transaction.BootCheck })
	return slices.Insert(others, at, out...), nil // a round asks the checks in this order
}

func (h *Host) askAfterBoot(ctx context.Context, p *transaction.Pending, hook hooks.Hook, environment []string) error {
	said := h.answers(p)
	if slices.Contains(said.Yes, hook.Name) {
		return nil
	}
	err := h.runHook(ctx, hooks.AfterBoot, hook, environment, nil)
	if no, is := errors.AsType[*hooks.Error](err); is {
		return errors.New(no.Said()) // the check already has the hook's name
	}
	if err != nil {
		return err
	}
	said = h.answers(p) // another process may have asked the hook meanwhile
	said.Yes = append(said.Yes, hook.Name)
	data, err := json.Marshal(said)
	if err != nil {
		return err
	}
	return h.root.WriteRecord(answersPath, data, 0o600)
}

// answers returns the answers of this boot; a hook whose answer can't be read is asked again.
func (h *Host) answers(p *transaction.Pending) hookAnswers {
	now := hookAnswers{Boot: p.BootID, Digest: p.Digest}
	var said hookAnswers
	data, err := h.root.ReadFile(answersPath)
	if err != nil || json.Unmarshal(data, &said) != nil || said.Boot != now.Boot || said.Digest != now.Digest {
		return now
	}
	return said
}
