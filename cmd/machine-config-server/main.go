// SPDX-License-Identifier: Apache-2.0

// Command machine-config-server gives new machines the Ignition config of their pool.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/controller/bootstrap"
	"github.com/noderefit/noderefit/server"
)

// version is set by the build.
var version = "dev"

func main() {
	ctx, stop := cli.Signals()
	executed, err := command().ExecuteContextC(ctx)
	stop()
	os.Exit(cli.End(os.Stderr, executed, err))
}

type options struct {
	securePort, insecurePort int
	address                  string
	tls                      tlsOptions
	kubeconfig, dir          string
	tokenFile                string
	groups                   []string
	open, closed             bool
	metricsAddress           string
	metricsAsked             bool
	bootstrapKubeconfig      string
	bootstrapKubeconfigPath  string
	daemonImage              string
	render                   bootstrap.Options
}

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "machine-config-server --secure-port PORT --cert FILE --key FILE [--kubeconfig FILE | --dir DIR]",
		Short: "Give new machines the Ignition config of their pool",
		Long: `machine-config-server gives new machines the Ignition config of their pool, at /config/<pool>: the
configuration that nodes of the pool have proved. Every client gets a configuration without secrets. A configuration
with a secret, and the kubeconfig to join the cluster with, require a token (in a cluster a bootstrap token, or one of
--token-file) or a client certificate (--client-ca). Other clients get 401, with the file or field that is secret. With
--allow-unauthenticated every client gets everything.

Exit codes: 0 done, 1 failed, 2 usage.`,
		Example: `  machine-config-server --secure-port 22623 --cert tls.crt --key tls.key
  machine-config-server --secure-port 22623 --cert tls.crt --key tls.key --dir rendered/`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cli.NoArgs(cmd, args); err != nil {
				return err
			}
			return o.check()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.metricsAsked = cmd.Flags().Changed("metrics-bind-address")
			return o.run(cmd.Context())
		},
	}
	cli.Root(cmd, version)
	f := cmd.Flags()
	f.IntVar(&o.securePort, "secure-port", 22623, "port to serve HTTPS on")
	f.IntVar(&o.insecurePort, "insecure-port", 0,
		"port to serve plain HTTP on besides: tokens and configurations can then be read on the way; 0: none")
	f.StringVar(&o.address, "address", "", "address to serve on; empty: all")
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig file; without it and --dir $KUBECONFIG, else the service account of the pod")
	f.StringVar(&o.dir, "dir", "",
		"serve the pools whose documents are in this directory, at any depth, and need no cluster")
	f.StringVar(&o.render.Runtime, "container-runtime", "", "with --dir: "+bootstrap.RuntimeUsage)
	f.StringVar(&o.render.Sets.Dir, "templates", "",
		"with --dir: folder of further sets of templates, as <set>/<role>/<name>/_base/files/*.yaml")
	f.StringVar(&o.tokenFile, "token-file", "", "file with tokens that are taken, one a line")
	f.StringSliceVar(&o.groups, "token-groups", []string{"system:bootstrappers"},
		"groups whose members' tokens the server takes in a cluster, such as those of kubeadm token create; empty: none")
	f.BoolVar(&o.open, "allow-unauthenticated", false,
		"give secrets to every client that can reach the port: files, password hashes, and the kubeconfig to join with")
	f.BoolVar(&o.closed, "require-credentials", false,
		"require a token or a client certificate for everything, also for a configuration without a known secret")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", "127.0.0.1:8799", "where to serve metrics; 0: nowhere")
	f.StringVar(&o.bootstrapKubeconfig, "bootstrap-kubeconfig", "",
		"kubeconfig with which new machines join the cluster, for clients that may read secrets; read for each machine")
	f.StringVar(&o.bootstrapKubeconfigPath, "bootstrap-kubeconfig-path", "/etc/kubernetes/kubeconfig",
		"where new machines get it")
	f.StringVar(&o.daemonImage, "daemon-image", "",
		"image from which new machines take machine-config-daemon, with podman; empty: their OS image has the program")
	o.tls.flags(cmd)
	return cmd
}

func (o *options) check() error {
	port := func(p int) bool { return p >= 0 && p < 1<<16 }
	switch {
	case !port(o.securePort) || o.securePort == 0:
		return cli.Usagef("--secure-port: %d is not a port", o.securePort)
	case !port(o.insecurePort):
		return cli.Usagef("--insecure-port: %d is not a port", o.insecurePort)
	case o.dir != "" && o.kubeconfig != "":
		return cli.Usagef("--dir and --kubeconfig exclude each other")
	case o.dir == "" && (o.render.Runtime != "" || o.render.Sets.Dir != ""):
		return cli.Usagef("--container-runtime and --templates are for --dir: in a cluster the controllers know")
	case o.open && o.closed:
		return cli.Usagef("--allow-unauthenticated and --require-credentials exclude each other")
	case !strings.HasPrefix(o.bootstrapKubeconfigPath, "/"):
		return cli.Usagef("--bootstrap-kubeconfig-path: %q is not an absolute path", o.bootstrapKubeconfigPath)
	case strings.ContainsAny(o.daemonImage, " \t\r\n\"'\\%$"):
		return cli.Usagef("--daemon-image: %q is not an image", o.daemonImage)
	}
	if err := cmp.Or(o.tls.check(), o.render.Check()); err != nil {
		return cli.UsageError{Err: err}
	}
	o.groups = slices.DeleteFunc(o.groups, func(g string) bool { return g == "" })
	return nil
}

func (o *options) run(ctx context.Context) error {
	log, err := logging()
	if err != nil {
		return err
	}
	if o.tokenFile != "" {
		if err := server.CheckTokens(o.tokenFile); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s, err := o.server(ctx, group, registry, log)
	if err != nil {
		return err
	}
	if o.open {
		log.Info("every client that can reach this server gets every configuration, with its secrets",
			"flag", "--allow-unauthenticated")
	}
	if err := o.listen(ctx, group, registry, s, log); err != nil {
		return err
	}
	if err := o.serveMetrics(ctx, group, registry, log); err != nil {
		return err
	}
	return group.Wait()
}

// server returns the handler for new machines, from a directory or from the cluster.
func (o *options) server(ctx context.Context, group *errgroup.Group, registry *prometheus.Registry, log logr.Logger,
) (*server.Server, error) {
	so := server.Options{
		Log: log,
		Gate: server.Gate{Open: o.open, Closed: o.closed, Certificates: o.tls.clientCA != "", TokenFile: o.tokenFile,
			Groups: o.groups},
		BootstrapKubeconfig:     o.bootstrapKubeconfig,
		BootstrapKubeconfigPath: o.bootstrapKubeconfigPath,
		DaemonImage:             o.daemonImage,
	}
	if o.dir != "" {
		o.render.Version = version
		d, err := server.OpenDirectory(o.dir, o.render, log)
		if err != nil {
			return nil, err
		}
		if err := registry.Register(d); err != nil {
			return nil, err
		}
		so.Source = d
		group.Go(func() error { return d.Run(ctx) })
	} else if err := o.connect(ctx, group, &so); err != nil {
		return nil, err
	}
	s := server.New(so)
	return s, registry.Register(s)
}

// listen serves new machines over HTTPS, and over plain HTTP where that is asked for.
func (o *options) listen(
	ctx context.Context, group *errgroup.Group, metrics prometheus.Registerer, s http.Handler, log logr.Logger,
) error {
	tlsConfig, err := o.tls.config(ctx, group, metrics, log)
	if err != nil {
		return err
	}
	secure, err := o.port(ctx, o.securePort)
	if err != nil {
		return fmt.Errorf("serving HTTPS: %w", err)
	}
	h := limited(s)
	h.ErrorLog = zap.NewStdLog(zap.NewNop()) // the log has no errors of clients that send nothing sensible
	serve(ctx, group, h, tls.NewListener(server.Bounded(secure, h), tlsConfig))
	log.Info("serving", "version", version, "https", secure.Addr().String(), "dir", o.dir)
	if o.insecurePort == 0 {
		return nil
	}
	plain, err := o.port(ctx, o.insecurePort)
	if err != nil {
		return fmt.Errorf("serving plain HTTP: %w", err)
	}
	h = limited(s)
	serve(ctx, group, h, server.Bounded(plain, h))
	log.Info("serving without encryption", "http", plain.Addr().String(), "flag", "--insecure-port")
	return nil
}

// port listens on a port of the given address.
func (o *options) port(ctx context.Context, port int) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(o.address, strconv.Itoa(port)))
}

func (o *options) serveMetrics(ctx context.Context, group *errgroup.Group, registry *prometheus.Registry,
	log logr.Logger,
) error {
	if o.metricsAddress == "0" || o.metricsAddress == "" {
		return nil
	}
	metrics, err := new(net.ListenConfig).Listen(ctx, "tcp", o.metricsAddress)
	switch {
	case err == nil:
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		serve(ctx, group, limited(mux), metrics)
	case o.metricsAsked:
		return fmt.Errorf("serving metrics: %w", err)
	default: // the flag was not given; without metrics, a second server on this machine can still run
		log.Info("metrics are not served", "flag", "--metrics-bind-address", "error", err.Error())
	}
	return nil
}

const (
	headerLimit  = 10 * time.Second
	answerLimit  = 2 * time.Minute // a machine on a slow line takes a megabyte
	leaveLimit   = 5 * time.Second
	headersLimit = 32 << 10 // bytes
)

// limited returns a server whose clients have bounded times and headers.
func limited(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ReadHeaderTimeout: headerLimit, ReadTimeout: headerLimit,
		WriteTimeout: answerLimit, IdleTimeout: headerLimit, MaxHeaderBytes: headersLimit}
}

// serve runs a server until ctx ends. Then it gives running answers a moment to finish.
func serve(ctx context.Context, group *errgroup.Group, h *http.Server, l net.Listener) {
	s := manager.Server{Server: h, Listener: l, ShutdownTimeout: new(leaveLimit)}
	group.Go(func() error { return s.Start(ctx) })
}

func logging() (logr.Logger, error) {
	config := zap.NewProductionConfig()
	config.EncoderConfig.EncodeTime = zapcore.RFC3339TimeEncoder
	config.DisableStacktrace = true
	logger, err := config.Build()
	if err != nil {
		return logr.Logger{}, fmt.Errorf("starting the log: %w", err)
	}
	log := zapr.NewLogger(logger)
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	return log, nil
}
