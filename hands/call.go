// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/systemd"
)

// outcome is the output of a command on the host.
type outcome struct {
	verb   string
	output []byte
}

func (o *outcome) decode(into any) error {
	if err := json.Unmarshal(o.output, into); err != nil {
		return fmt.Errorf("reading the output of %s on the host: %w", o.verb, err)
	}
	return nil
}

// note identifies the request of a running command: enough for another head to recognise the request, and no secret.
type note struct {
	Config string `json:"config"`
	Sum    string `json:"sum"`
}

// noteOf sums up the meaning of a request. The digest of a configuration depends neither on the way the document is
// written nor on the cluster's metadata. The free space that staging must keep counts too.
func noteOf(r *Request) note {
	if r == nil {
		return note{}
	}
	digest := ""
	mc := &mcfgv1.MachineConfig{}
	if err := json.Unmarshal(r.Config, mc); err == nil {
		if c, err := machineconfig.ParseRendered(mc); err == nil {
			digest = c.Digest
		}
	}
	if digest == "" { // the host's command reports what is wrong with the document
		sum := sha256.Sum256(r.Config)
		digest = hex.EncodeToString(sum[:])
	}
	text := fmt.Appendf(nil, "%s %s %t %t %q %s %s", r.Name, digest, r.Lift, r.Strict, r.repair, policyRead(r.Policy),
		r.asks)
	if r.NoReboot || r.Reboot != nil {
		text = fmt.Appendf(text, " %t %s", r.NoReboot, api.Encode(r.Reboot))
	}
	if r.Beside {
		text = append(text, " beside"...)
	}
	if r.Order != nil && r.Order.MinFreeMebibytes > 0 {
		text = fmt.Appendf(text, " %d", r.Order.MinFreeMebibytes)
	}
	sum := sha256.Sum256(text)
	return note{Config: r.Name, Sum: hex.EncodeToString(sum[:])}
}

// policyRead returns the part of a MachineConfiguration that a node reads: a changed status, or any other change, does
// not make another request.
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

// do runs a command on the host, and returns its output and the error that it ended with.
func (h *Client) do(ctx context.Context, v agent.Verb, r *Request) (out *outcome, err error) {
	started := time.Now()
	defer func() { h.options.Observe(v.Name, time.Since(started), err) }()
	select {
	case h.turns[v.Name] <- struct{}{}:
		defer func() { <-h.turns[v.Name] }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c := &call{hands: h, verb: v, request: r, note: noteOf(r), units: h.units("running " + v.Name + " on the host")}
	defer c.units.Close()
	out, err = c.run(ctx)
	if !errors.Is(err, errCollected) {
		return out, err
	}
	// The lift has been used by now. A second lift would allow a configuration that has just failed to be tried again.
	if r != nil && r.Lift {
		again := *r
		again.Lift = false
		c.request, c.note = &again, noteOf(&again)
	}
	return c.run(ctx)
}

// errCollected tells the second of two heads that waited for a command that the first one has taken the report. The
// second head asks again to learn the outcome.
var errCollected = errors.New("another agent on this host has taken the report")

// call is one command on the host.
type call struct {
	hands   *Client
	verb    agent.Verb
	request *Request
	note    note
	units   *systemd.Units
}

// units returns the services of the host. doing is what they are for.
func (h *Client) units(doing string) *systemd.Units {
	return &systemd.Units{Connect: func(ctx context.Context) (*systemd.Manager, error) {
		m, err := systemd.ConnectAt(ctx, h.mount)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
		return m, nil
	}}
}

// state returns the service that runs under the verb's name.
func (c *call) state(ctx context.Context) (systemd.Service, error) {
	return c.units.Service(ctx, c.verb.Unit())
}

// run joins a running command of the same request. Otherwise run waits until the verb's unit is free, and starts the
// command.
func (c *call) run(ctx context.Context) (*outcome, error) {
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
				return nil, &host.Refused{Err: err}
			}
			if err != nil {
				return nil, err
			}
			return c.await(ctx, dir, "")
		}
		dir := path.Clean("/" + handoverOf(s.Environment))
		other, err := c.noteIn(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist) && path.Dir(dir) == handoversDir:
			// That command has reported, and is about to end.
		case c.verb.Joins && other == c.note:
			return c.await(ctx, dir, s.Invocation)
		case c.verb.Outlives:
			return nil, &host.Refused{Err: fmt.Errorf("%s is at work on this host, for %s", c.verb.Unit(), other.Config)}
		case c.verb.Joins:
			if err := c.stop(ctx); err != nil {
				return nil, err
			}
		}
		if err := systemd.Wait(ctx, c.units, c.verb.Unit()); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil {
			return nil, err
		}
	}
}

func (c *call) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.verb.Grace+host.BusTimeout)
	defer cancel()
	return c.units.Stop(ctx, c.verb.Unit())
}

// noteIn returns the note of the command that works with dir. The note is written before the command starts. So
// fs.ErrNotExist means that the head of that command has its report and is removing dir.
func (c *call) noteIn(dir string) (note, error) {
	n := note{Config: "an unknown configuration"}
	data, err := c.hands.root.ReadFile(path.Join(dir, handoverRequest))
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	return n, err
}

// start hands over the documents and starts the command. It returns the directory that head and command share.
func (c *call) start(ctx context.Context) (string, error) {
	h := c.hands
	if err := h.place(); err != nil {
		return "", err
	}
	if err := errors.Join(h.sweep(c.verb), c.sweepOnce(ctx)); err != nil {
		return "", err
	}
	dir := path.Join(handoversDir, c.verb.Name+"-"+fmt.Sprintf("%x", time.Now().UnixNano()))
	argv, err := c.handOver(dir)
	if err == nil {
		err = c.units.Start(ctx, c.command(dir, argv))
	}
	if err != nil {
		return "", errors.Join(err, h.root.RemoveAll(dir))
	}
	return dir, nil
}

// command returns the command that runs as the verb's unit.
func (c *call) command(dir string, argv []string) systemd.Command {
	t := systemd.Command{Name: c.verb.Unit(), Description: c.description(), Argv: argv,
		Identifier:  path.Base(agent.BinaryPath),
		Environment: []string{handoverEnv + "=" + dir}, Nice: c.verb.Nice, Limit: c.verb.Limit, Grace: c.verb.Grace}
	if o := c.order(); o != nil {
		t.Weights = systemd.Weights{CPU: weight(o.CPUWeight), IO: weight(o.IOWeight)}
	}
	return t
}

// weight returns a weight that systemd accepts; 0: no weight.
func weight(asked int32) uint16 { return uint16(min(max(asked, 0), 10000)) }

// order returns the policy's order for the command; nil: the policy has no order.
func (c *call) order() *api.StageOrder {
	if c.request == nil || c.verb.Name != agent.StageVerb.Name {
		return nil
	}
	return c.request.Order
}

func (c *call) description() string {
	if c.request == nil || c.request.Name == "" {
		return "Noderefit: " + c.verb.Name
	}
	return fmt.Sprintf("Noderefit: %s %s", c.verb.Name, c.request.Name)
}

// handOver writes what the command needs into dir and returns its command line.
func (c *call) handOver(dir string) ([]string, error) {
	root := c.hands.root
	if err := root.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("handing over to the host: %w", err)
	}
	text, err := json.Marshal(c.note)
	if err != nil {
		return nil, err
	}
	l := &commandLine{dir: dir, argv: []string{agent.Launcher, agent.BinaryPath, c.verb.Name, "--output", "json"},
		documents: map[string][]byte{handoverRequest: text}}
	for _, add := range commandLines[c.verb.Name] {
		if err := add(l, c); err != nil {
			return nil, err
		}
	}
	for name, data := range l.documents {
		if err := root.Stage(dir, name, files.Node{Type: files.Regular, Mode: 0o600, Data: data}); err != nil {
			return nil, fmt.Errorf("handing over to the host: %w", err)
		}
	}
	return l.argv, nil
}

// sweep removes the files of a verb's commands whose head ended before collecting them. None of these commands runs.
func (h *Client) sweep(v agent.Verb) error {
	names, err := h.root.ReadDir(handoversDir)
	if err != nil {
		return fmt.Errorf("handing over to the host: %w", err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, v.Name+"-") {
			if err := h.root.RemoveAll(path.Join(handoversDir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sweepOnce removes the files of earlier heads, for all verbs that have no running command: documents may hold secrets.
func (c *call) sweepOnce(ctx context.Context) error {
	h := c.hands
	h.mu.Lock()
	swept := h.swept
	h.mu.Unlock()
	if swept {
		return nil
	}
	for _, v := range agent.Verbs {
		if v.Name == c.verb.Name {
			continue // start sweeps its own verb
		}
		select {
		case h.turns[v.Name] <- struct{}{}:
		default:
			continue // a command of this process
		}
		s, err := (&call{hands: h, verb: v, units: c.units}).state(ctx)
		if err == nil && s.Ended() {
			err = h.sweep(v)
		}
		<-h.turns[v.Name]
		if err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.swept = true
	return nil
}

// overlooked is how soon await notices an end that nothing announces: that of a killed command.
const overlooked = time.Second

// await waits for the command's report. invocation distinguishes the awaited run from a later run of the same name.
func (c *call) await(ctx context.Context, dir, invocation string) (*outcome, error) {
	stop := c.hands.watch.wake(dir)
	defer stop.end()
	for {
		if out, done, err := c.collect(dir); done {
			return out, err
		}
		if !c.hands.root.IsDir(dir) {
			return nil, fmt.Errorf("running %s on the host: %w", c.verb.Name, errCollected)
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
			continue // the bus is away; the report does not need it
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
			condition = "the unit was stopped"
		}
		err = fmt.Errorf("running %s on the host: %s left no report: %s", c.verb.Name, c.verb.Unit(), condition)
		return nil, errors.Join(err, c.hands.root.RemoveAll(dir))
	}
}

// leave decides what becomes of a command whose caller does not need it any more.
func (c *call) leave(ctx context.Context, dir string) error {
	why := ctx.Err()
	if c.verb.Outlives || c.verb.Joins && !errors.Is(context.Cause(ctx), ErrSuperseded) {
		return why // the next head joins the command
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.verb.Grace+host.BusTimeout)
	defer cancel()
	if err := c.stop(ctx); err != nil {
		return errors.Join(why, err)
	}
	return errors.Join(why, c.hands.root.RemoveAll(dir))
}

// collect takes the report and the output, and reports whether the command has ended. It takes both in one step: of two
// heads that wait for a command, one gets everything and the other finds no directory.
func (c *call) collect(dir string) (out *outcome, done bool, err error) {
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
	var r report
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	out = &outcome{verb: c.verb.Name}
	if err == nil {
		out.output, err = root.ReadFile(path.Join(dir, handoverOutput))
	}
	if err != nil {
		err = fmt.Errorf("reading the report of %s: %w", c.verb.Unit(), err)
	}
	return out, true, errors.Join(err, root.RemoveAll(dir), r.err())
}
