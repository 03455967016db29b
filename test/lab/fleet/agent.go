// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// The agent is a service of its host, as in packaging/systemd.
const (
	agentUnit       = "machine-config-daemon.service"
	agentKubeconfig = "/etc/machine-config-daemon/kubeconfig"
	agentDropIn     = "/etc/systemd/system/machine-config-daemon.service.d/50-fleet.conf"
	unitDir         = "/etc/systemd/system"
)

// StartAgents starts the agent on every host.
func (f *Fleet) StartAgents(ctx context.Context) error {
	return f.each(func(n *Node) error { return f.StartAgent(ctx, n) })
}

// StartAgent installs the agent as a service of the host and starts it. The agent has the same token as a DaemonSet's
// pod on that node. The service starts again after each boot.
func (f *Fleet) StartAgent(ctx context.Context, n *Node) error {
	_, kubeconfig, err := f.ServiceAccountConfig(ctx, api.Namespace, api.Daemon, n.Name)
	if err != nil {
		return err
	}
	unit := filepath.Join(f.options.Repository, "packaging/systemd", agentUnit)
	dropIn := fmt.Sprintf(`[Service]
RestartSec=1
ExecStart=
ExecStart=/usr/local/bin/machine-config-daemon run --root-mount=/ --kubeconfig=%s --verdict-timeout=%s
`, agentKubeconfig, f.options.Verdict)
	if err := n.PutRun(filepath.Join(f.options.Bin, agent.RunProgram)); err != nil {
		return err
	}
	for to, read := range map[string]func() ([]byte, error){
		unitDir + "/" + agentUnit: func() ([]byte, error) { return os.ReadFile(unit) },
		agentKubeconfig:           func() ([]byte, error) { return os.ReadFile(kubeconfig) },
		agentDropIn:               func() ([]byte, error) { return []byte(dropIn), nil },
	} {
		data, err := read()
		if err != nil {
			return err
		}
		at := n.HostPath(to)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, data, 0o600); err != nil {
			return err
		}
	}
	if _, err := n.Output(ctx, "systemctl", "daemon-reload"); err != nil {
		return err
	}
	if _, err := n.Output(ctx, "systemctl", "enable", agentUnit); err != nil {
		return err
	}
	_, err = n.Output(ctx, "systemctl", "restart", agentUnit)
	return err
}

// Rejoin makes a host a node again after its Node was deleted. The kubelet registers, the node gets its labels, and the
// agent gets a token for the new Node.
func (f *Fleet) Rejoin(ctx context.Context, n *Node) error {
	err := Until(ctx, n.Name+" is up", func(ctx context.Context) (bool, string, error) {
		_, err := n.Output(ctx, "systemctl", "restart", "kubelet.service")
		return err == nil, "", err
	})
	if err != nil {
		return err
	}
	if err := f.WaitReady(ctx, n.Name); err != nil {
		return err
	}
	for key, value := range f.options.Labels {
		if _, err := f.Kubectl(ctx, "label", "node", n.Name, key+"="+value); err != nil {
			return err
		}
	}
	return f.StartAgent(ctx, n)
}

// KillAgent kills the agent's head as the kernel does when memory is short. systemd starts another head.
func (n *Node) KillAgent(ctx context.Context) error {
	_, err := n.Output(ctx, "systemctl", "kill", "--signal=SIGKILL", "--kill-whom=main", agentUnit)
	return err
}

// Use has the agents and controllers that are started from now on be those of another directory of programs.
func (f *Fleet) Use(bin string) { f.options.Bin = bin }

// Controller is a machine-config-controller that is started again when it ends, like a Deployment's pod. A controller
// ends when it loses its lease.
type Controller struct {
	stop  context.CancelFunc
	ended chan struct{}
	log   string
}

// restartDelay is the time from a controller's end to its next start.
const restartDelay = time.Second

// StartController starts the controllers, with the rights of their service account. Several controllers elect a leader.
func (f *Fleet) StartController(ctx context.Context) (*Controller, error) {
	_, kubeconfig, err := f.ServiceAccountConfig(ctx, api.Namespace, api.Controller, "")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(f.dir, fmt.Sprintf("controller-%d.log", len(f.controllers)))
	log, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	program := filepath.Join(f.options.Bin, "machine-config-controller")
	running, stop := context.WithCancel(context.Background())
	c := &Controller{stop: stop, ended: make(chan struct{}), log: path}
	go func() {
		defer close(c.ended)
		defer log.Close()
		for running.Err() == nil {
			cmd := exec.Command(program, "run", "--kubeconfig", kubeconfig, "--metrics-bind-address=127.0.0.1:0",
				"--health-probe-bind-address=0")
			cmd.Stdout, cmd.Stderr = log, log
			child, err := cluster.StartChild(cmd)
			if err == nil {
				select {
				case <-running.Done():
					child.Kill()
				case <-child.Ended():
				}
				err = child.Err()
			}
			fmt.Fprintln(log, "the controllers have ended:", err)
			select {
			case <-running.Done():
			case <-time.After(restartDelay):
			}
		}
	}()
	f.controllers = append(f.controllers, c)
	return c, nil
}

// Kill ends the controllers for good, like a crash.
func (c *Controller) Kill() {
	c.stop()
	<-c.ended
}

// Log returns what the controllers have logged so far.
func (c *Controller) Log() string {
	text, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// output runs a program to its end. A failing program is no error.
func output(ctx context.Context, program string, args ...string) (string, int, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	text, err := cmd.CombinedOutput()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		return string(text), -1, err
	}
	return string(text), cmd.ProcessState.ExitCode(), nil
}

// Controllers returns all controllers that were started, including those that were killed.
func (f *Fleet) Controllers() []*Controller { return f.controllers }
