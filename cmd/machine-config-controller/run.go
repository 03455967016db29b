// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/controller/containerruntimeconfig"
	"github.com/noderefit/noderefit/controller/disruptionpolicy"
	"github.com/noderefit/noderefit/controller/imagemirror"
	"github.com/noderefit/noderefit/controller/kubeletconfig"
	"github.com/noderefit/noderefit/controller/nodevalues"
	"github.com/noderefit/noderefit/controller/notifications"
	"github.com/noderefit/noderefit/controller/pinnedimages"
	"github.com/noderefit/noderefit/controller/pool"
	rendering "github.com/noderefit/noderefit/controller/render"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/controller/stream"
	"github.com/noderefit/noderefit/controller/template"
	"github.com/noderefit/noderefit/gate"
	"github.com/noderefit/noderefit/intake"
	"github.com/noderefit/noderefit/rollout"
)

// controllers by name.
var controllers = map[string]func(ctrl.Manager, runOptions) error{
	containerruntimeconfig.Name: func(m ctrl.Manager, _ runOptions) error {
		return containerruntimeconfig.Add(m, version)
	},
	disruptionpolicy.Name: func(m ctrl.Manager, _ runOptions) error { return disruptionpolicy.Add(m) },
	imagemirror.Name:      func(m ctrl.Manager, _ runOptions) error { return imagemirror.Add(m, version) },
	kubeletconfig.Name:    func(m ctrl.Manager, _ runOptions) error { return kubeletconfig.Add(m, version) },
	notifications.Name: func(m ctrl.Manager, o runOptions) error {
		if !o.definitions.had(rolloutPolicies) {
			return nil
		}
		return notifications.Setup{Now: rollout.Now, Version: version}.Add(m)
	},
	nodevalues.Name:   func(m ctrl.Manager, _ runOptions) error { return nodevalues.Add(m) },
	pinnedimages.Name: func(m ctrl.Manager, _ runOptions) error { return pinnedimages.Add(m, rollout.Now) },
	pool.Name:         addPool,
	"render": func(m ctrl.Manager, _ runOptions) error {
		return rendering.Options{Version: version}.Add(m)
	},
	stream.Name: func(m ctrl.Manager, _ runOptions) error { return stream.Add(m, version) },
	template.Name: func(m ctrl.Manager, o runOptions) error {
		return template.Options{Version: version, Sets: template.Sets{Dir: o.templates}}.Add(m)
	},
}

// addPool adds the pool controller, and the asker of the policies' gates. The asker reads past the cache. Otherwise the
// cache would come to hold every kind that a gate names.
func addPool(m ctrl.Manager, o runOptions) error {
	c, err := client.New(m.GetConfig(), client.Options{Scheme: m.GetScheme(), Mapper: m.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("connecting for gates: %w", err)
	}
	asker := gate.New(c, rollout.Now)
	if err := m.Add(asker); err != nil {
		return err
	}
	return pool.Setup{
		Self: o.nodeName, Now: rollout.Now, Gates: asker,
		Certified: o.definitions.had(controllerConfigs), Governed: o.definitions.had(rolloutPolicies),
	}.Add(m)
}

type runOptions struct {
	controllers          []string
	kubeconfig           string
	metricsAddress       string
	probeAddress         string
	leaderElect          bool
	leaderElectNamespace string
	nodeName             string
	templates            string
	page                 pageOptions
	// definitions are what the cluster has.
	definitions *definitionWatch
}

func run() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the controllers in a cluster",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cli.NoArgs(cmd, args); err != nil {
				return err
			}
			return o.check()
		},
		RunE: func(*cobra.Command, []string) error { return o.run() },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.controllers, "controllers", available(), "which controllers to run")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig file; without it $KUBECONFIG, else the service account of the pod")
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", "127.0.0.1:8797", "where to serve metrics; 0: nowhere")
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081",
		"where to serve /healthz and /readyz; 0: nowhere")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "be the only one of several that acts")
	flags.StringVar(&o.leaderElectNamespace, "leader-elect-resource-namespace", api.Namespace,
		"where the leader's lease is")
	flags.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"),
		"the node that this runs on, which is updated last (default $NODE_NAME)")
	flags.StringVar(&o.templates, "templates", "", templatesUsage)
	o.page.flags(flags)
	return cmd
}

// available returns the names of all controllers.
func available() []string { return slices.Sorted(maps.Keys(controllers)) }

// check refuses a command line that names an unknown controller.
func (o *runOptions) check() error {
	if len(o.controllers) == 0 {
		return cli.Usagef("--controllers: at least one is required")
	}
	for _, name := range o.controllers {
		if controllers[name] == nil {
			return cli.Usagef("--controllers: there is no controller %q here: there are %s", name,
				strings.Join(available(), ", "))
		}
	}
	slices.Sort(o.controllers)
	o.controllers = slices.Compact(o.controllers)
	if err := o.page.check(); err != nil {
		return cli.UsageError{Err: err}
	}
	return nil
}

func (o *runOptions) run() error {
	log, err := logging()
	if err != nil {
		return err
	}
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), mcfgv1.Install(scheme), api.Install(scheme)); err != nil {
		return err
	}
	// One unreadable object must not stop the reading of the others.
	in := intake.New()
	config.Wrap(in.Transport)
	keep := pool.CacheOptions()
	maps.Copy(keep, source.CacheOptions())
	watched := newWatches()
	// The lease has the name of OpenShift's own controller. Where that controller runs, this one waits, so no node gets
	// two orders.
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cache.Options{ByObject: keep, DefaultWatchErrorHandler: watched.failed},
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              api.Controller,
		LeaderElectionNamespace:       o.leaderElectNamespace,
		LeaderElectionReleaseOnCancel: true,
		// A controller waits for a kind whose definition is missing. Otherwise it would end and restart until the definition
		// is back.
		Controller: ctrlconfig.Controller{CacheSyncTimeout: patience},
	})
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	watched.tell(mgr)
	err = errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("caches", filled(mgr.GetCache())),
		metrics.Registry.Register(watched))
	if err != nil {
		return err
	}
	if o.definitions, err = newDefinitionWatch(mgr); err != nil {
		return err
	}
	if err := errors.Join(metrics.Registry.Register(o.definitions.missing), mgr.Add(o.definitions)); err != nil {
		return err
	}
	for _, name := range o.controllers {
		if err := controllers[name](mgr, *o); err != nil {
			return err
		}
	}
	if err := o.page.add(mgr, o.nodeName); err != nil {
		return err
	}
	unread, err := newUnread(in, mgr)
	if err != nil {
		return err
	}
	if err := errors.Join(metrics.Registry.Register(unread), mgr.Add(unread)); err != nil {
		return err
	}
	guard := newGuard(mgr.GetAPIReader(), log)
	if err := errors.Join(metrics.Registry.Register(guard.missing), mgr.Add(guard)); err != nil {
		return err
	}
	log.Info("starting", "version", version, "controllers", o.controllers, "node", o.nodeName, "server", config.Host)
	return mgr.Start(ctrl.SetupSignalHandler())
}

// patience is how long a controller waits for its watches to be read: without an effective limit.
const patience = 10 * 365 * 24 * time.Hour

// filledLimit is how long a probe waits for the caches. It is less than the kubelet's wait for the probe.
const filledLimit = 500 * time.Millisecond

// filled reports whether all watched objects were read once. Before that a leader can decide nothing. A process that
// does not lead watches nothing.
func filled(c cache.Informers) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), filledLimit)
		defer cancel()
		if !c.WaitForCacheSync(ctx) {
			return errors.New("the watched objects have not been read yet")
		}
		return nil
	}
}

// logging returns the log, which the libraries write to as well.
func logging() (logr.Logger, error) {
	config := zap.NewProductionConfig()
	config.Sampling = nil // the log has each message to a node, and each answer to Cluster API
	config.EncoderConfig.EncodeTime = zapcore.RFC3339TimeEncoder
	logger, err := config.Build()
	if err != nil {
		return logr.Logger{}, fmt.Errorf("starting the log: %w", err)
	}
	log := zapr.NewLogger(logger)
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	return log, nil
}

// restConfig returns how the API server is reached that a kubeconfig file names; without a file $KUBECONFIG names it,
// else the service account of the pod. The server's own flow control limits us, not a limit in the client.
func restConfig(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("reading the kubeconfig: there is none; name one with --kubeconfig")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	config.UserAgent = api.Controller + "/" + version
	return config, nil
}
