// SPDX-License-Identifier: Apache-2.0

// Package support collects what a report about a fault needs into one archive, without secrets. Each file of the
// archive is a Part. A part that can't be had is named in the list of contents, and the others are there:
//
//	c, err := support.Connect(config, support.Options{Plugin: version, Namespace: api.Namespace})
//	...
//	entries, err := c.Collect(ctx, file, support.Selection{Limit: 64 << 20}, support.Part{Name: "status.json", ...})
package support

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
)

// Cluster is the API server, with the rights of the person who asks.
type Cluster struct {
	config  *rest.Config
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	options Options
}

// Options are the settings of a Cluster.
type Options struct {
	// Plugin is the program's version.
	Plugin string
	// Namespace is the namespace of the agents and the controller.
	Namespace string
}

// Connect makes the clients for a Cluster. It makes no requests.
func Connect(cfg *rest.Config, o Options) (*Cluster, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = 50, 100
	cfg.UserAgent = "kubectl-refit/" + o.Plugin
	c := &Cluster{config: cfg, options: o}
	var errs [2]error
	c.kube, errs[0] = kubernetes.NewForConfig(cfg)
	c.dynamic, errs[1] = dynamic.NewForConfig(cfg)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

// Selection says what goes into an archive.
type Selection struct {
	// Nodes are the nodes whose host and agent are asked; empty: all.
	Nodes []string
	// Limit is how many bytes of contents the archive has at most.
	Limit int64
}

// Collect writes an archive, tar and gzip. first are further parts, which come before those of the cluster. The result
// says what became of each part. An unknown node is an error.
func (c *Cluster) Collect(ctx context.Context, w io.Writer, s Selection, first ...Part) ([]Entry, error) {
	nodes, err := c.nodes(ctx, s.Nodes)
	if err != nil {
		return nil, err
	}
	parts := slices.Concat(first, c.objects())
	pods, err := c.kube.CoreV1().Pods(c.options.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		absent := fmt.Errorf("listing Pods of namespace %s: %w", c.options.Namespace, err)
		parts = append(parts, missing("logs", absent), missing("hosts", absent))
	} else {
		parts = slices.Concat(parts, c.hosts(nodes, pods.Items), c.logs(nodes, pods.Items))
	}
	return archive(ctx, w, s.Limit, time.Now(), parts)
}

// Document returns a part with the JSON of what another command says.
func Document(name string, ask func(context.Context) (any, error)) Part {
	return Part{Name: name, Read: func(ctx context.Context) ([]byte, error) {
		doc, err := ask(ctx)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(doc)
		if err != nil {
			return nil, fmt.Errorf("writing %s: %w", name, err)
		}
		masked, is := maskJSON(text)
		if !is {
			return nil, fmt.Errorf("writing %s: the document is no object", name)
		}
		return masked, nil
	}}
}

func missing(name string, err error) Part {
	return Part{Name: name, Read: func(context.Context) ([]byte, error) { return nil, err }}
}

// nodes returns the nodes to ask, those with trouble first: a limit cuts at the end.
func (c *Cluster) nodes(ctx context.Context, named []string) ([]string, error) {
	all, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	return order(all.Items, named)
}

// order returns the names of nodes, those with trouble first, or of some of them.
func order(nodes []corev1.Node, named []string) ([]string, error) {
	exist := map[string]bool{}
	for i := range nodes {
		exist[nodes[i].Name] = true
	}
	for _, n := range named {
		if !exist[n] {
			return nil, fmt.Errorf("there is no Node %s; kubectl get nodes lists those that there are", n)
		}
	}
	slices.SortFunc(nodes, func(a, b corev1.Node) int {
		return cmp.Or(calm(&a)-calm(&b), strings.Compare(a.Name, b.Name))
	})
	var names []string
	for i := range nodes {
		if name := nodes[i].Name; len(named) == 0 || slices.Contains(named, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// calm returns 1 for a node that is where it should be, else 0.
func calm(n *corev1.Node) int {
	says, err := api.ReadNode(n)
	if err != nil || says.State != api.Done || says.Current != says.Desired || n.Spec.Unschedulable {
		return 0
	}
	return 1
}

// listed are the kinds of an archive, the small and telling ones first. Secrets and ConfigMaps are never read.
var listed = []struct {
	group, version, resource string
	// namespaced: those of the installation's namespace.
	namespaced bool
}{
	{"machineconfiguration.openshift.io", "v1", "machineconfigpools", false},
	{"", "v1", "nodes", false},
	{"machineconfiguration.openshift.io", "v1", "machineconfignodes", false},
	{"machineconfiguration.openshift.io", "v1", "pinnedimagesets", false},
	{"noderefit.dev", "v1alpha1", "rolloutpolicies", false},
	{"noderefit.dev", "v1alpha1", "nodehooks", false},
	{"noderefit.dev", "v1alpha1", "nodevalues", false},
	{"noderefit.dev", "v1alpha1", "osstreams", false},
	{"apps", "v1", "deployments", true},
	{"apps", "v1", "daemonsets", true},
	{"", "v1", "pods", true},
	{"coordination.k8s.io", "v1", "leases", true},
	{"policy", "v1", "poddisruptionbudgets", false},
	{"machineconfiguration.openshift.io", "v1", "controllerconfigs", false},
	{"machineconfiguration.openshift.io", "v1", "kubeletconfigs", false},
	{"machineconfiguration.openshift.io", "v1", "containerruntimeconfigs", false},
	{"operator.openshift.io", "v1", "machineconfigurations", false},
	{"operator.openshift.io", "v1alpha1", "imagecontentsourcepolicies", false},
	{"config.openshift.io", "v1", "imagedigestmirrorsets", false},
	{"config.openshift.io", "v1", "imagetagmirrorsets", false},
	{"config.openshift.io", "v1", "images", false},
	{"config.openshift.io", "v1", "clusterimagepolicies", false},
	{"config.openshift.io", "v1", "imagepolicies", false},
	{"apiextensions.k8s.io", "v1", "customresourcedefinitions", false},
	{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", false},
	{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", false},
	{"machineconfiguration.openshift.io", "v1", "machineconfigs", false},
}

// objects returns a part for each kind, and the events.
func (c *Cluster) objects() []Part {
	parts := make([]Part, 0, len(listed)+1)
	for _, l := range listed {
		resource := schema.GroupVersionResource{Group: l.group, Version: l.version, Resource: l.resource}
		namespace := ""
		if l.namespaced {
			namespace = c.options.Namespace
		}
		parts = append(parts, Part{Name: "objects/" + l.resource + ".yaml", Read: func(ctx context.Context) ([]byte, error) {
			return c.list(ctx, resource, namespace, ours(l.group))
		}})
	}
	events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	for _, namespace := range []string{c.options.Namespace, metav1.NamespaceDefault} {
		parts = append(parts, Part{Name: "events/" + namespace + ".yaml", Read: func(ctx context.Context) ([]byte, error) {
			return c.list(ctx, events, namespace, everything)
		}})
	}
	return parts
}

func everything(*unstructured.Unstructured) bool { return true }

// ours returns which objects of a group are of interest. Other people's definitions and policies are not.
func ours(group string) func(*unstructured.Unstructured) bool {
	switch group {
	case "apiextensions.k8s.io":
		return func(o *unstructured.Unstructured) bool {
			return strings.HasSuffix(o.GetName(), ".noderefit.dev") || strings.HasSuffix(o.GetName(), ".openshift.io")
		}
	case "admissionregistration.k8s.io":
		return func(o *unstructured.Unstructured) bool {
			return o.GetLabels()["app.kubernetes.io/part-of"] == "noderefit"
		}
	}
	return everything
}

// list returns the objects of a kind as YAML, masked. The schemas of definitions are left out: they are ours.
func (c *Cluster) list(ctx context.Context, resource schema.GroupVersionResource, namespace string,
	wanted func(*unstructured.Unstructured) bool,
) ([]byte, error) {
	var out bytes.Buffer
	options := metav1.ListOptions{Limit: 500}
	for {
		all, err := c.dynamic.Resource(resource).Namespace(namespace).List(ctx, options)
		if err != nil {
			return out.Bytes(), fmt.Errorf("listing %s: %w", resource.Resource, err)
		}
		for i := range all.Items {
			o := &all.Items[i]
			if !wanted(o) {
				continue
			}
			if resource.Resource == "customresourcedefinitions" {
				unstructured.RemoveNestedField(o.Object, "spec", "versions")
			}
			text, err := yaml.Marshal(maskObject(o.Object))
			if err != nil {
				return nil, fmt.Errorf("writing %s %s: %w", o.GetKind(), o.GetName(), err)
			}
			out.WriteString("---\n")
			out.Write(text)
		}
		if options.Continue = all.GetContinue(); options.Continue == "" {
			return out.Bytes(), nil
		}
	}
}

const (
	// logBytes and logLines are the most that is read of one log: its end, which is about the fault.
	logBytes = 1 << 20
	logLines = 5000
	// journalLines is the most that is read of a host's journal.
	journalLines = "3000"
)

// asked are the questions to a host, through its agent. name is a file's name.
var asked = []struct {
	name string
	// object: the answer is JSON, masked as an object.
	object bool
	argv   []string
}{
	{"status.json", true, []string{api.HostProgram, "status", "-o", "json"}},
	{"journal.txt", false, []string{"journalctl", "--quiet", "--no-pager", "--output=short-iso-precise",
		"--lines=" + journalLines, "--unit=machine-config-daemon*", "--unit=noderefit*"}},
	{"failed-units.txt", false, []string{"systemctl", "--no-pager", "--plain", "list-units", "--state=failed"}},
}

// hosts returns what the hosts of nodes say of themselves.
func (c *Cluster) hosts(nodes []string, pods []corev1.Pod) []Part {
	agents := map[string]string{}
	for i := range pods {
		if p := &pods[i]; p.Labels["k8s-app"] == api.Daemon && p.Status.Phase == corev1.PodRunning &&
			p.DeletionTimestamp == nil {
			agents[p.Spec.NodeName] = p.Name
		}
	}
	var parts []Part
	for _, node := range nodes {
		pod := agents[node]
		if pod == "" {
			parts = append(parts, missing("hosts/"+node, errors.New("no agent's pod runs on the node; on the host, "+
				"machine-config-daemon status and journalctl say the same")))
			continue
		}
		for _, a := range asked {
			parts = append(parts, Part{Name: "hosts/" + node + "/" + a.name, Text: !a.object,
				Read: func(ctx context.Context) ([]byte, error) {
					text, err := c.exec(ctx, pod, append([]string{"chroot", "/rootfs"}, a.argv...))
					if masked, is := maskJSON([]byte(text)); a.object && is {
						return masked, err
					}
					return []byte(maskText(text)), err
				}})
		}
	}
	return parts
}

// exec runs a command in an agent's pod, and returns what it wrote.
func (c *Cluster) exec(ctx context.Context, pod string, argv []string) (string, error) {
	request := c.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(c.options.Namespace).Name(pod).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{Command: argv, Stdout: true, Stderr: true},
		scheme.ParameterCodec)
	// As kubectl: a web socket, or what older servers and proxies have.
	socket, err := remotecommand.NewWebSocketExecutor(c.config, "GET", request.URL().String())
	if err != nil {
		return "", fmt.Errorf("asking Pod %s: %w", pod, err)
	}
	older, err := remotecommand.NewSPDYExecutor(c.config, "POST", request.URL())
	if err != nil {
		return "", fmt.Errorf("asking Pod %s: %w", pod, err)
	}
	executor, err := remotecommand.NewFallbackExecutor(socket, older, func(err error) bool {
		return !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && ctx.Err() == nil
	})
	if err != nil {
		return "", fmt.Errorf("asking Pod %s: %w", pod, err)
	}
	var stdout, stderr bytes.Buffer
	if err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		err = fmt.Errorf("%s in Pod %s: %w: %s", strings.Join(argv, " "), pod, err, maskText(stderr.String()))
	}
	return stdout.String(), err
}

// logs returns the logs of the installation's pods, the controller's first, and of agents those of nodes alone.
func (c *Cluster) logs(nodes []string, pods []corev1.Pod) []Part {
	rank := func(p *corev1.Pod) int {
		if p.Labels["k8s-app"] != api.Daemon {
			return -1
		}
		return slices.Index(nodes, p.Spec.NodeName)
	}
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(rank(&a)-rank(&b), strings.Compare(a.Name, b.Name))
	})
	var parts []Part
	for i := range pods {
		p := &pods[i]
		if p.Labels["k8s-app"] == api.Daemon && rank(p) < 0 {
			continue // of a node that was not asked for
		}
		for _, s := range p.Status.ContainerStatuses {
			parts = append(parts, c.log(p.Name, s.Name, false))
			if s.RestartCount > 0 {
				parts = append(parts, c.log(p.Name, s.Name, true))
			}
		}
	}
	return parts
}

func (c *Cluster) log(pod, container string, previous bool) Part {
	name := "logs/" + pod + "/" + container
	if previous {
		name += ".previous"
	}
	return Part{Name: name + ".log", Text: true, Read: func(ctx context.Context) ([]byte, error) {
		lines := int64(logLines)
		stream, err := c.kube.CoreV1().Pods(c.options.Namespace).GetLogs(pod, &corev1.PodLogOptions{
			Container: container, Previous: previous, TailLines: &lines, Timestamps: true,
		}).Stream(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading the log of container %s of Pod %s: %w", container, pod, err)
		}
		defer stream.Close()
		text, err := tail(stream, logBytes)
		return []byte(maskText(text)), err
	}}
}

// tail returns the last bytes of a stream.
func tail(r io.Reader, most int) (string, error) {
	var kept []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := r.Read(buffer)
		kept = append(kept, buffer[:n]...)
		if len(kept) > 2*most {
			kept = append(kept[:0], kept[len(kept)-most:]...)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return string(kept[max(0, len(kept)-most):]), err
		}
	}
}

// describe returns an error in one line. Where the cluster refuses a request, its own words name the missing right.
func describe(err error) string {
	text := message.OneLine(err.Error())
	if _, right, ok := strings.Cut(text, "is forbidden: "); ok && apierrors.IsForbidden(err) {
		return "not allowed: " + right
	}
	return text
}
