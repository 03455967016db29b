// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/zapr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/daemon"
	"github.com/noderefit/noderefit/drain"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/intake"
	"github.com/noderefit/noderefit/kube"
	"github.com/noderefit/noderefit/pins"
)

// runOptions are the flags of run.
type runOptions struct {
	kubeconfig, node, mount, metrics, level string
	phases                                  bool
	verdict                                 time.Duration
	soft                                    cli.SoftReboot
}

// defaultMount is the path of the host in a pod.
const defaultMount = "/rootfs"

func runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Keep this host at the configuration that the cluster wants of its Node",
		Long: `run is the node's side of a cluster: it watches its own Node and the configurations that this Node is to have,
and has the host stage, apply and prove them. What it does on the host it does in units of the host's, so that ending
it interrupts nothing.`,
		Example: `  machine-config-daemon run --kubeconfig /etc/kubernetes/kubelet.conf --node worker-1`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.phases {
				return daemon.WritePhases(os.Stdout)
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "credentials for the API server; by default those of the pod")
	f.StringVar(&o.node, "node-name", "", "name of the Node; by default $NODE_NAME, or the host name")
	f.StringVar(&o.mount, "root-mount", "",
		"where the host's root is; by default "+defaultMount+" where it exists, else /")
	f.StringVar(&o.metrics, "metrics-url", "127.0.0.1:8797", "address of /metrics and /healthz; empty for none")
	f.BoolVar(&o.phases, "print-phases", false, "print the phases that a node passes and when it is in each, and end")
	f.StringVar(&o.level, "log-level", "info", "debug, info, warn or error")
	f.DurationVar(&o.verdict, "verdict-timeout", api.DefaultVerdictTimeout,
		"how long the host may take to prove healthy after a boot")
	f.Var(&o.soft, "soft-reboot", cli.SoftRebootUsage)
	return cmd
}

func (o *runOptions) run(ctx context.Context) error {
	log, err := o.logger()
	if err != nil {
		return err
	}
	klog.SetLogger(zapr.NewLogger(log)) // client-go's log
	if err := o.defaults(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	program, err := hostProgram(ctx, self)
	if err != nil {
		return err
	}
	config, err := o.credentials()
	if err != nil {
		return err
	}
	head, err := o.head(config, log)
	if err != nil {
		return err
	}
	metrics := daemon.NewMetrics()
	head.Metrics = metrics
	hands, err := hands.New(o.mount, hands.Options{Program: program, Verdict: head.Verdict, SoftReboot: bool(o.soft),
		Observe: metrics.Command})
	if err != nil {
		return err
	}
	defer func() { _ = hands.Close() }()
	head.Hands, head.Senses, head.Verifier, head.Monitor, head.Deliverer = hands, hands, hands, hands, hands
	head.Asker, head.Rebooter, head.Boot = hands, hands, hands.Boot()
	images, err := pins.New(o.mount)
	if err != nil {
		return err
	}
	defer func() { _ = images.Close() }()
	head.Pinner = images
	stop, err := serveMetrics(ctx, o.metrics, metrics.Handler(), log)
	if err != nil {
		return err
	}
	defer stop()
	go register(ctx, hands.Register, log)
	log.Info("running", zap.String("version", version), zap.String("node", o.node), zap.String("host", o.mount))
	return daemon.NewHead(head).Run(ctx)
}

// registerTries are the attempts to register with rpm-ostree. A rpm-ostree that is busy, or slow to start, takes a
// later attempt. One that knows no drivers refuses each of them. registerPause is the time between two attempts.
const (
	registerTries = 5
	registerPause = 10 * time.Minute
)

// register has rpm-ostree refuse the updates of others. The agent is in charge whether or not rpm-ostree does so: a
// failure stops nothing. The first and the last failure are logged.
func register(ctx context.Context, try func(context.Context) error, log *zap.Logger) {
	for n := 1; ; n++ {
		err := try(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if n == registerTries {
			log.Warn("rpm-ostree does not refuse updates by others, and is not asked again", zap.Int("attempts", n),
				zap.Error(err))
			return
		}
		if n == 1 {
			log.Warn("rpm-ostree does not refuse updates by others", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(registerPause):
		}
	}
}

// hostProgram finds the program that is placed on the host, beside this one. That program recovers and proves in the
// next boot. So it must be of this release, and must run on this machine.
func hostProgram(ctx context.Context, self string) (string, error) {
	program := filepath.Join(filepath.Dir(self), agent.Program)
	said, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w: put %s of the same release beside %s", program, err,
			agent.Program, self)
	}
	fields := strings.Fields(string(said))
	if is := fields[max(len(fields)-1, 0):]; len(is) == 0 || is[0] != version {
		return "", fmt.Errorf("%s is version %s, and %s is version %s: install both of one release", program,
			strings.Join(is, ""), self, version)
	}
	return program, nil
}

func (o *runOptions) logger() (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(o.level)
	if err != nil {
		return nil, cli.Usagef("flag --log-level: %w", err)
	}
	config := zap.NewProductionConfig()
	config.Level = zap.NewAtomicLevelAt(level)
	config.Sampling = nil // its counters are a tenth of the head's memory, and no message here repeats that often
	config.EncoderConfig.EncodeTime = zapcore.RFC3339TimeEncoder
	config.EncoderConfig.EncodeDuration = zapcore.StringDurationEncoder
	config.DisableStacktrace, config.DisableCaller = true, true
	return config.Build()
}

func (o *runOptions) defaults() error {
	if o.node == "" {
		o.node = os.Getenv("NODE_NAME")
	}
	if o.node == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("finding the node's name: %w", err)
		}
		o.node = strings.ToLower(name) // as the kubelet does
	}
	if o.mount != "" {
		return nil
	}
	o.mount = "/"
	if _, err := os.Stat(defaultMount); err == nil {
		o.mount = defaultMount
	}
	return nil
}

// ofPod returns the credentials of the pod that this process runs in.
func ofPod() (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("this process runs in no pod of a cluster: name a file with --kubeconfig")
	}
	return config, err
}

func (o *runOptions) credentials() (*rest.Config, error) {
	// Without a file clientcmd warns that those of the pod might not work, at each start.
	load := ofPod
	if o.kubeconfig != "" {
		load = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", o.kubeconfig) }
	}
	config, err := load()
	if err != nil {
		return nil, fmt.Errorf("reading credentials: %w", err)
	}
	config.UserAgent = api.Daemon + "/" + version
	// Configurations are read byte by byte, and checked where they are parsed.
	config.Wrap(intake.New(mcfgv1.GroupVersion.WithKind("ControllerConfig"),
		mcfgv1.GroupVersion.WithKind("MachineConfigNode")).Transport)
	// An update is some twenty requests, one after the other. A drain adds one for each pod.
	config.QPS, config.Burst = 20, 40
	return config, nil
}

func (o *runOptions) head(config *rest.Config, log *zap.Logger) (daemon.HeadOptions, error) {
	out := daemon.HeadOptions{Node: o.node, Log: log, Verdict: o.verdict}
	client, err := kube.New(config)
	if err != nil {
		return out, err
	}
	out.Kube, out.Drainer = client, &drain.Drainer{Client: client, Node: o.node}
	return out, nil
}

// serveMetrics serves the metrics until stop is called.
func serveMetrics(
	ctx context.Context, address string, handler http.Handler, log *zap.Logger,
) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("flag --metrics-url: %w", err)
	}
	log.Info("serving metrics", zap.String("address", listener.Addr().String()))
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error("serving metrics", zap.Error(err))
		}
	}()
	return func() { _ = server.Close() }, nil
}
