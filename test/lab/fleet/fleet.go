// SPDX-License-Identifier: Apache-2.0

// Package fleet is a cluster with real nodes: hosts of the host lab with the kubelet and the agent. The control plane
// is real, and our controllers run beside it. All have exactly the rights that packaging/ gives them. The end-to-end
// tests and the demo use the cluster as people do.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
)

// Options are the parts of a fleet.
type Options struct {
	// Bin is the directory of the project's programs, and Repository that of its files.
	Bin, Repository string
	// Hosts are the names of the real nodes. Kwok are the names of nodes that kwok simulates: they have room for drained
	// pods.
	Hosts, Kwok []string
	// Kinds are the hosts that differ from the others, by name.
	Kinds map[string]Kind
	// Labels are the labels of every node.
	Labels map[string]string
	// Verdict is how long a node may take to prove healthy after a boot; 0: a minute.
	Verdict time.Duration
	// Audit counts requests; see cluster.Options.
	Audit bool
	// Pods, where set, makes the pods of the hosts containers: the agent and the controllers run as they are installed.
	Pods *Pods
	// Empty leaves all of ours out, the definitions of our kinds too: the cluster is one that nobody has installed
	// Noderefit in.
	Empty bool
}

// Pods are where the pods of a fleet come from.
type Pods struct {
	// Registry is the address of a registry on this machine.
	Registry string
	// Pause is the image of the pods' sandboxes.
	Pause string
	// Image returns the name of one of the project's images.
	Image func(name string) string
}

// Kind is a kind of hosts.
type Kind struct {
	Base    *lab.Base
	Options lab.Options
}

// Fleet is a running cluster with its nodes.
type Fleet struct {
	*cluster.Cluster
	Nodes []*Node

	options     Options
	dir         string
	controllers []*Controller
}

// Node is a host that is a node.
type Node struct {
	*node.Node
	Name string
}

// WorkerLabels make a node a worker.
var WorkerLabels = map[string]string{api.NodeRole + api.PoolWorker: ""}

// Start makes a fleet: its nodes are ready, and none of our programs runs yet.
func Start(ctx context.Context, base *lab.Base, options Options) (f *Fleet, err error) {
	if options.Verdict == 0 {
		options.Verdict = time.Minute
	}
	if options.Labels == nil {
		options.Labels = WorkerLabels
	}
	f = &Fleet{options: options}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if f.dir, err = os.MkdirTemp("", "noderefit-fleet-"); err != nil {
		return f, err
	}
	f.Nodes = make([]*Node, len(options.Hosts))
	group, booting := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		f.Cluster, err = cluster.Start(ctx, cluster.Options{Controllers: true, Scheduler: true, Kwok: true,
			Audit: options.Audit, NoCRDs: options.Empty})
		return err
	})
	for i, name := range options.Hosts {
		group.Go(func() (err error) {
			f.Nodes[i], err = f.host(booting, base, name)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return f, err
	}
	for _, n := range f.Nodes { // one by one, since rollouts go by the age of nodes
		if err := f.join(ctx, n); err != nil {
			return f, err
		}
	}
	for _, name := range options.Kwok {
		if err := f.AddNode(ctx, name, nil); err != nil {
			return f, err
		}
	}
	if options.Empty {
		return f, nil
	}
	return f, f.install(ctx)
}

// each does the same for all hosts at once, because most of the time is waiting.
func (f *Fleet) each(do func(*Node) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(f.Nodes))
	for i, n := range f.Nodes {
		all.Go(func() { errs[i] = do(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (f *Fleet) join(ctx context.Context, n *Node) error {
	if p := f.options.Pods; p != nil {
		return f.JoinContainers(ctx, n.Host, n.Name, f.options.Labels, p.Registry, p.Pause)
	}
	return f.Join(ctx, n.Host, n.Name, f.options.Labels)
}

func (f *Fleet) host(ctx context.Context, base *lab.Base, name string) (*Node, error) {
	kind, special := f.options.Kinds[name]
	if !special {
		kind.Base = base
	}
	kind.Options.Name, kind.Options.Hostname = name, name
	if f.options.Pods != nil {
		h, err := kind.Base.Boot(ctx, kind.Options)
		if err != nil {
			return nil, err
		}
		return &Node{Node: &node.Node{Host: h}, Name: name}, nil
	}
	n, err := node.New(ctx, kind.Base, filepath.Join(f.options.Bin, "machine-config-daemon"), kind.Options)
	if err != nil {
		return nil, err
	}
	return &Node{Node: n, Name: name}, nil
}

// Enlist makes one more host a node. First prepare brings the host to the state in which its kubelet is to start.
func (f *Fleet) Enlist(ctx context.Context, base *lab.Base, name string, prepare func(*Node) error) (*Node, error) {
	n, err := f.host(ctx, base, name)
	if err != nil {
		return nil, err
	}
	f.Nodes = append(f.Nodes, n)
	if err := prepare(n); err != nil {
		return n, err
	}
	return n, f.join(ctx, n)
}

// install installs what packaging/ installs. Where pods are on paper, it leaves the workloads out: the programs of
// these pods run beside the cluster.
func (f *Fleet) install(ctx context.Context) error {
	if f.options.Pods != nil {
		return f.Install(ctx, filepath.Join(f.options.Repository, "packaging/kustomize/base"), f.options.Pods.Image)
	}
	_, err := f.Kubectl(ctx, "apply", "-k", filepath.Join(f.options.Repository, "packaging/kustomize/base"))
	if err != nil {
		return fmt.Errorf("installing: %w", err)
	}
	_, err = f.Kubectl(ctx, "-n", api.Namespace, "delete", "--wait=false", "daemonset/"+api.Daemon,
		"deployment/"+api.Controller)
	return err
}

// published is the name of an image in what packaging/ installs.
var published = regexp.MustCompile(`registry\.example\.com/noderefit/([a-z-]+):latest`)

// Install installs a kustomization, with the names of the images that image returns for them.
func (f *Fleet) Install(ctx context.Context, folder string, image func(name string) string) error {
	text, err := f.Kubectl(ctx, "kustomize", folder)
	if err != nil {
		return fmt.Errorf("installing: %w", err)
	}
	text = published.ReplaceAllStringFunc(text, func(name string) string {
		return image(published.FindStringSubmatch(name)[1])
	})
	if err := f.Apply(ctx, text); err != nil {
		return fmt.Errorf("installing: %w", err)
	}
	return nil
}

// Close ends everything and removes all files.
func (f *Fleet) Close() error {
	for _, c := range f.controllers {
		c.Kill()
	}
	errs := []error{f.each(func(n *Node) error {
		if n == nil {
			return nil
		}
		return n.Close()
	})}
	if f.Cluster != nil {
		errs = append(errs, f.Stop())
	}
	if f.dir != "" {
		errs = append(errs, lab.RemoveTree(f.dir))
	}
	return errors.Join(errs...)
}

// Node returns the node of that name.
func (f *Fleet) Node(name string) *Node {
	for _, n := range f.Nodes {
		if n.Name == name {
			return n
		}
	}
	panic("no such node: " + name)
}

// Tell logs what helps to find out why a test failed: the hosts' journals, the controllers' logs and the objects.
func (f *Fleet) Tell(logf func(format string, args ...any)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, n := range f.Nodes {
		text, err := n.Journal(ctx)
		logf("journal of %s: %v\n%s", n.Name, err, last(text, 20000))
	}
	for _, c := range f.Controllers() {
		logf("controllers:\n%s", last(c.Log(), 8000))
	}
	queries := [][]string{{"get", "mcp,nodes,machineconfignodes,mc"}, {"get", "mcp,machineconfignodes", "-o", "yaml"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"}}
	if f.options.Pods != nil {
		queries = append(queries, []string{"get", "pods", "-A", "-o", "wide"}, []string{"get", "pods", "-A", "-o", "yaml"},
			[]string{"-n", "openshift-machine-config-operator", "logs", "-l", "app.kubernetes.io/part-of=noderefit"})
	}
	for _, args := range queries {
		text, err := f.Kubectl(ctx, args...)
		logf("kubectl %v: %v\n%s", args, err, last(text, 12000))
	}
}

// last returns the last n bytes of a text.
func last(text string, n int) string { return text[max(0, len(text)-n):] }
