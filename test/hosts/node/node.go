// SPDX-License-Identifier: Apache-2.0

// Package node is a lab host with the agent on it. The suites, the demo and the benchmark drive it.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/programs"
	"github.com/noderefit/noderefit/test/schemas"
	"github.com/noderefit/noderefit/transaction"
)

// agent is the path of the program on the host. A package or the agent's pod would install it there too.
const agent = "/var/usrlocal/bin/machine-config-daemon"

// Build compiles the agent into dir as a static binary, with build tags, and returns its path.
func Build(ctx context.Context, dir string, tags ...string) (string, error) {
	if len(tags) == 0 {
		return programs.Build(ctx, dir, "cmd/machine-config-daemon")
	}
	return programs.Build(ctx, dir, "cmd/machine-config-daemon", "-tags", strings.Join(tags, ","))
}

// Node is a lab host with the agent.
type Node struct {
	*lab.Host
}

// New makes a host with the agent and boots it.
func New(ctx context.Context, base *lab.Base, binary string, options lab.Options) (*Node, error) {
	h, err := base.NewHost(ctx, "", options)
	if err != nil {
		return nil, err
	}
	n, err := On(h, binary)
	if err := errors.Join(err, h.Start(ctx)); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return n, nil
}

// On puts the agent on a host that is running or off.
func On(h *lab.Host, binary string) (*Node, error) {
	n := &Node{Host: h}
	return n, n.put(binary, agent)
}

// PutRun puts the program of the agent's command run on the host, beside the agent.
func (n *Node) PutRun(binary string) error { return n.put(binary, agent+"-run") }

func (n *Node) put(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	at := n.HostPath(to)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	// A rename is needed because a running program cannot be written to.
	if err := os.WriteFile(at+".new", data, 0o755); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}

// Document puts a document on the host and returns its path there.
func (n *Node) Document(name string, data []byte) (string, error) {
	at := "/var/tmp/" + name
	if err := os.MkdirAll(n.HostPath("/var/tmp"), 0o1777); err != nil {
		return "", err
	}
	return at, os.WriteFile(n.HostPath(at), data, 0o600)
}

// Agent runs the agent on the host, and returns its output and exit code. JSON has to be as its schema says.
func (n *Node) Agent(ctx context.Context, args ...string) (stdout, stderr string, exit int, err error) {
	out, errout, exit, err := n.Exec(ctx, nil, append([]string{agent}, args...)...)
	if err == nil && exit >= 0 && exit <= host.ExitRefused {
		err = schemas.CheckPrinted(string(out), args...)
	}
	return string(out), string(errout), exit, err
}

// Apply applies a document, with flags, and returns the result that the agent printed.
func (n *Node) Apply(ctx context.Context, doc []byte, flags ...string) (*host.Result, int, error) {
	at, err := n.Document("config.json", doc)
	if err != nil {
		return nil, 0, err
	}
	stdout, stderr, exit, err := n.Agent(ctx, append([]string{"apply", "--config", at, "-o", "json"}, flags...)...)
	if err != nil {
		return nil, exit, err
	}
	res := &host.Result{}
	if err := json.Unmarshal([]byte(stdout), res); err != nil {
		return nil, exit, fmt.Errorf("apply printed %q: %w; %s", stdout, err, stderr)
	}
	if exit != 0 {
		return res, exit, fmt.Errorf("apply: exit %d: %s", exit, stderr)
	}
	return res, exit, nil
}

// Status asks the agent for the host's state.
func (n *Node) Status(ctx context.Context) (*host.Status, error) {
	stdout, stderr, _, err := n.Agent(ctx, "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	s := &host.Status{}
	if err := json.Unmarshal([]byte(stdout), s); err != nil {
		return nil, fmt.Errorf("status printed %q: %w; %s", stdout, err, stderr)
	}
	return s, nil
}

// poll is the interval at which a host is asked for its state.
const poll = 200 * time.Millisecond

// WaitState waits, over reboots, until the host runs, no operation is under way, and its state is one of states.
func (n *Node) WaitState(ctx context.Context, states ...transaction.State) (*host.Status, error) {
	var last string
	for {
		s, err := n.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return s, fmt.Errorf("waiting for %v, last seen %s: %w", states, last, context.Cause(ctx))
		case err != nil:
			last = err.Error()
		default:
			last = fmt.Sprintf("%s (%s, pending %q %s)", s.State, s.Reason, s.Config.Pending, s.Phase)
			for _, want := range states {
				if s.State == want && s.Config.Pending == "" {
					return s, nil
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}
