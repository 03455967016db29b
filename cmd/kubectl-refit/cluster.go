// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	mcfgclient "github.com/openshift/client-go/machineconfiguration/clientset/versioned"
	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/intake"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// options are the flags that all commands share.
type options struct {
	kube   *genericclioptions.ConfigFlags
	output string
}

func newOptions() *options {
	return &options{kube: genericclioptions.NewConfigFlags(true)}
}

// formats of outputs: a flag -o has those of its command as this annotation.
const (
	formats        = "formats"
	formatText     = "text"
	formatJSON     = "json"
	formatMarkdown = "markdown"
)

// outputFlag gives a command -o, for text, JSON and what else it has.
func (o *options) outputFlag(cmd *cobra.Command, more ...string) {
	all := append([]string{formatText, formatJSON}, more...)
	cmd.Flags().StringVarP(&o.output, "output", "o", formatText, "output format: "+strings.Join(all, ", "))
	cmd.Flags().Lookup("output").Annotations = map[string][]string{formats: all}
}

// print prints what a command has found: v for programs, or what text writes for people.
func (o *options) print(cmd *cobra.Command, v any, text func(io.Writer) error) error {
	if o.output != formatJSON {
		return text(cmd.OutOrStdout())
	}
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// check looks at -o, where the command has it.
func (o *options) check(cmd *cobra.Command) error {
	flag := cmd.Flags().Lookup("output")
	if flag == nil || o.output == "" || slices.Contains(flag.Annotations[formats], o.output) {
		return nil
	}
	return usageError{fmt.Errorf("flag -o: %q is none of %s", o.output, list(flag.Annotations[formats]))}
}

// cluster is the API server, with the rights of whoever asks.
type cluster struct {
	kube  kubernetes.Interface
	refit mcfgclient.Interface
	meta  metadata.Interface
	own   rest.Interface
	// namespace is where the daemons run.
	namespace string
	warnings  io.Writer
}

// Requests of one command come in short bursts; the server's own fairness holds them back where it must.
const (
	requestsPerSecond = 100
	requestBurst      = 200
)

func (o *options) connect(cmd *cobra.Command) (*cluster, error) {
	if err := o.check(cmd); err != nil {
		return nil, err
	}
	cfg, err := o.kube.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	cfg.QPS, cfg.Burst = requestsPerSecond, requestBurst
	cfg.UserAgent = "kubectl-refit/" + version
	// What can't be read of one object must not hide the others, and is what people come here for.
	cfg.Wrap(intake.New().Transport)
	// Nodes and pods come in the encoding that costs least to read: a thousand nodes are some ten MB of JSON.
	binary := rest.CopyConfig(cfg)
	binary.ContentType = runtime.ContentTypeProtobuf
	binary.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c := &cluster{namespace: api.Namespace, warnings: cmd.ErrOrStderr()}
	if cmd.Flags().Changed("namespace") {
		c.namespace = *o.kube.Namespace
	}
	var errs [4]error
	c.kube, errs[0] = kubernetes.NewForConfig(binary)
	c.refit, errs[1] = mcfgclient.NewForConfig(cfg)
	c.meta, errs[2] = metadata.NewForConfig(cfg)
	c.own, errs[3] = ownClient(cfg)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// warn says what the answer lacks.
func (c *cluster) warn(format string, args ...any) {
	fmt.Fprintln(c.warnings, "warning:", message.OneLine(fmt.Sprintf(format, args...)))
}

// whoami is who the API server takes us for.
func (c *cluster) whoami(ctx context.Context) (string, error) {
	review, err := c.kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil {
		return "", fmt.Errorf("asking the cluster who you are: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// fromCache lists what the API server has in memory, which is at most moments old.
var fromCache = metav1.ListOptions{ResourceVersion: "0"}

func (c *cluster) pools(ctx context.Context) ([]mcfgv1.MachineConfigPool, error) {
	// They are few, and people look at what they have just changed.
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

// pool reads one pool as it is now, for those who are going to change it.
func (c *cluster) pool(ctx context.Context, name string) (*mcfgv1.MachineConfigPool, error) {
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
	return fmt.Errorf("there is no MachineConfigPool %s; there are: %s", name, list(pools))
}

// chosen are the pools that a command is about: those that were named, or all.
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

// rendered reads a rendered configuration and holds it to its name, which is a digest of its content.
func (c *cluster) rendered(ctx context.Context, name string) (*machineconfig.Config, error) {
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
		return nil, fmt.Errorf("MachineConfig %s does not have the content that its name says: somebody changed it", name)
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
