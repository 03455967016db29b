// SPDX-License-Identifier: Apache-2.0

// Package refit is the work of kubectl refit. It shows what a rollout does and waits for, and what a change would do to
// a pool. It stops a rollout and takes it back. A Cluster has a method for each command. The result of the method has
// JSON for programs, and a method WriteText for people:
//
//	c, err := refit.Connect(config, refit.Options{Namespace: api.Namespace, Warnings: os.Stderr})
//	...
//	status, err := c.Status(ctx, []string{"worker"})
//	...
//	err = status.WriteText(os.Stdout, time.Now())
package refit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	mcfgclient "github.com/openshift/client-go/machineconfiguration/clientset/versioned"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/intake"
	"github.com/noderefit/noderefit/kube"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// Cluster is the API server, with the rights of the person who asks.
type Cluster struct {
	kube  kubernetes.Interface
	refit mcfgclient.Interface
	meta  metadata.Interface
	own   rest.Interface
	// drains asks what a drain would wait for.
	drains *kube.Client
	// namespace is the namespace of the daemons.
	namespace string
	warnings  io.Writer
	// read are the RolloutPolicies as they were read last, for estimates; nil: they were not.
	read atomic.Pointer[[]api.RolloutPolicy]
}

// known returns the RolloutPolicies that were read last.
func (c *Cluster) known() []api.RolloutPolicy {
	if all := c.read.Load(); all != nil {
		return *all
	}
	return nil
}

// Requests of one command come in short bursts. The server's own fairness delays them where it must.
const (
	requestsPerSecond = 100
	requestBurst      = 200
)

// Options are the settings of a Cluster.
type Options struct {
	// Version is the program's version, for the API server's log.
	Version string
	// Namespace is the namespace of the daemons.
	Namespace string
	// Warnings gets a line for each part of an answer that is not known.
	Warnings io.Writer
}

// Connect makes the clients for a Cluster. It makes no requests.
func Connect(cfg *rest.Config, o Options) (*Cluster, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = requestsPerSecond, requestBurst
	cfg.UserAgent = "kubectl-refit/" + o.Version
	// An unreadable object must not hide the others: such an object is what people look for here.
	cfg.Wrap(intake.New().Transport)
	// Nodes and pods come in the encoding that is the cheapest to read: a thousand nodes are some ten MB of JSON.
	binary := rest.CopyConfig(cfg)
	binary.ContentType = runtime.ContentTypeProtobuf
	binary.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c := &Cluster{namespace: o.Namespace, warnings: o.Warnings}
	var errs [5]error
	c.kube, errs[0] = kubernetes.NewForConfig(binary)
	c.refit, errs[1] = mcfgclient.NewForConfig(cfg)
	c.meta, errs[2] = metadata.NewForConfig(cfg)
	c.own, errs[3] = ownClient(cfg)
	c.drains, errs[4] = kube.New(cfg)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// Describe returns an error in words. Where the cluster refuses a request, its own words name the missing right.
func Describe(err error) string {
	if !apierrors.IsForbidden(err) {
		return err.Error()
	}
	text := err.Error()
	if _, right, ok := strings.Cut(text, "is forbidden: "); ok {
		text = right
	}
	return "not allowed: " + text
}

// warn writes which part of the answer is missing.
func (c *Cluster) warn(format string, args ...any) {
	fmt.Fprintln(c.warnings, "warning:", message.OneLine(fmt.Sprintf(format, args...)))
}

// whoami returns the user as which the API server knows us.
func (c *Cluster) whoami(ctx context.Context) (string, error) {
	review, err := c.kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil {
		return "", fmt.Errorf("asking the cluster for your user name: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// fromCache lists the objects in the API server's memory, which are at most moments old.
var fromCache = metav1.ListOptions{ResourceVersion: "0"}

func (c *Cluster) pools(ctx context.Context) ([]mcfgv1.MachineConfigPool, error) {
	// Pools are few, and people look at their latest changes.
	list, err := c.refit.MachineconfigurationV1().MachineConfigPools().List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errors.New("the cluster has no MachineConfigPools: Noderefit is not installed here")
	}
	if err != nil {
		return nil, fmt.Errorf("listing MachineConfigPools: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b mcfgv1.MachineConfigPool) int { return strings.Compare(a.Name, b.Name) })
	return list.Items, nil
}

// pool reads the present state of a pool, for a change.
func (c *Cluster) pool(ctx context.Context, name string) (*mcfgv1.MachineConfigPool, error) {
	p, err := c.refit.MachineconfigurationV1().MachineConfigPools().Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		if err != nil {
			return nil, fmt.Errorf("reading MachineConfigPool %s: %w", name, err)
		}
		return p, nil
	}
	pools, listErr := c.pools(ctx)
	if listErr != nil {
		return nil, listErr
	}
	names := make([]string, len(pools))
	for i := range pools {
		names[i] = pools[i].Name
	}
	return nil, noPool(name, names)
}

func noPool(name string, pools []string) error {
	return fmt.Errorf("there is no MachineConfigPool %s; there are: %s%s", name, list(pools), cli.DidYouMean(name, pools))
}

// chosen returns the pools of a command: the named pools, or all.
func chosen(r *progress.Report, named []string) ([]progress.Pool, error) {
	if len(named) == 0 {
		named = r.Pools()
	}
	pools := make([]progress.Pool, len(named))
	for i, name := range named {
		var ok bool
		if pools[i], ok = r.Pool(name); !ok {
			return nil, noPool(name, r.Pools())
		}
	}
	return pools, nil
}

// rendered reads a rendered configuration and checks its name, which is a digest of its content. Of a node's own name
// the configuration of its pool is read.
func (c *Cluster) rendered(ctx context.Context, name string) (*machineconfig.Config, error) {
	name = api.Rendered(name)
	mc, err := c.refit.MachineconfigurationV1().MachineConfigs().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no MachineConfig %s in the cluster: %w", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading MachineConfig %s: %w", name, err)
	}
	cfg, err := machineconfig.Parse(mc)
	if err != nil {
		return nil, err
	}
	if !machineconfig.NamedBy(name, cfg.Digest) {
		return nil, fmt.Errorf("MachineConfig %s does not have the content of the digest in its name: somebody changed "+
			"the object", name)
	}
	return cfg, nil
}

// list joins names for a sentence.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
