// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/rollout"
)

const (
	// mostObjects is the largest number of objects for one expression.
	mostObjects = 1000
	// fewNodes is how many Nodes are read one by one.
	fewNodes = 8
)

// evaluate asks a question once. An empty message is a yes. Otherwise the message is the reason for the no.
func (a *Asker) evaluate(ctx context.Context, ask rollout.Ask) (string, error) {
	switch how := ask.How; {
	case how.CEL != nil:
		return a.cel(ctx, ask, how.CEL)
	case how.Prometheus != nil:
		return a.prometheus(ctx, ask, how.Prometheus)
	case how.Job != nil:
		return a.job(ctx, ask, how.Job)
	case how.HostCheck != nil:
		return a.eachNode(ctx, ask, func(n *corev1.Node) (string, error) {
			return hostCheck(n, ask, how.HostCheck.Name), nil
		})
	case how.Annotation != nil:
		return a.eachNode(ctx, ask, func(n *corev1.Node) (string, error) {
			return a.annotation(ctx, n, ask, how.Annotation)
		})
	}
	return "", errors.New("this controller does not know the gate's kind: the controller is older than the policy")
}

// explain returns an error with its remedy, where that is known.
func explain(err error) string {
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("%v; let the controller do that by a ClusterRole with the label %s=true", err, api.GatesRoleLabel)
	}
	return localAddress.ReplaceAllString(err.Error(), "$1 $2 ")
}

// localAddress matches the local address in a network error. Its port changes each time, so every answer would be a new
// one.
var localAddress = regexp.MustCompile(`\b(read|write) (tcp|udp) \S+->`)

// forNode puts the node's name in place of a gate's placeholder.
func forNode(text string, ask rollout.Ask) string {
	if ask.Node == "" {
		return text
	}
	return strings.ReplaceAll(text, "$(NODE)", ask.Node)
}

func (a *Asker) cel(ctx context.Context, ask rollout.Ask, g *api.CELGate) (string, error) {
	e, err := rollout.Compile(g, ask.Node == "")
	if err != nil {
		return "", err
	}
	about, err := a.nodes(ctx, ask)
	if err != nil {
		return "", err
	}
	objects, missing, err := a.objects(ctx, ask, g)
	if err != nil || missing != "" {
		return missing, err
	}
	holds, err := e.Holds(ctx, objects, about)
	switch {
	case err != nil:
		return "", fmt.Errorf("evaluating %s: %w", g.Expression, err)
	case holds:
		return "", nil
	}
	return fmt.Sprintf("the expression is false for %s: %s", described(g, ask), g.Expression), nil
}

func described(g *api.CELGate, ask rollout.Ask) string {
	text := g.Kind
	if g.Name != "" {
		text += " " + forNode(g.Name, ask)
	} else if g.LabelSelector != nil {
		text += " with " + metav1.FormatLabelSelector(g.LabelSelector)
	}
	if g.Namespace != "" {
		text += " in " + g.Namespace
	}
	return text
}

// nodes returns the value of variable node or nodes.
func (a *Asker) nodes(ctx context.Context, ask rollout.Ask) (any, error) {
	nodes, err := a.read(ctx, ask)
	if err != nil {
		return nil, err
	}
	list := make([]any, 0, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		n.ManagedFields = nil
		n.APIVersion, n.Kind = "v1", "Node"
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(n)
		if err != nil {
			return nil, fmt.Errorf("reading node %s: %w", n.Name, err)
		}
		list = append(list, object)
	}
	if ask.Node != "" && len(list) == 1 {
		return list[0], nil
	}
	return list, nil
}

// read returns the Nodes of a question. A few are read one by one, many from the API server's cache.
func (a *Asker) read(ctx context.Context, ask rollout.Ask) ([]corev1.Node, error) {
	out := make([]corev1.Node, 0, len(ask.Nodes))
	if len(ask.Nodes) > fewNodes {
		var all corev1.NodeList
		if err := a.client.List(ctx, &all, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}); err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		for _, n := range all.Items {
			if slices.Contains(ask.Nodes, n.Name) {
				out = append(out, n)
			}
		}
		if len(out) < len(ask.Nodes) {
			return nil, fmt.Errorf("%d of %d nodes are not there", len(ask.Nodes)-len(out), len(ask.Nodes))
		}
		return out, nil
	}
	for _, name := range ask.Nodes {
		var n corev1.Node
		if err := a.client.Get(ctx, client.ObjectKey{Name: name}, &n); err != nil {
			return nil, fmt.Errorf("reading node %s: %w", name, err)
		}
		out = append(out, n)
	}
	return out, nil
}

// objects returns the value of variable object or objects, or the name of what is missing.
func (a *Asker) objects(ctx context.Context, ask rollout.Ask, g *api.CELGate) (objects any, missing string, err error) {
	kind := schema.FromAPIVersionAndKind(g.APIVersion, g.Kind)
	if g.Name != "" {
		var o unstructured.Unstructured
		o.SetGroupVersionKind(kind)
		err := a.client.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: forNode(g.Name, ask)}, &o)
		if apierrors.IsNotFound(err) {
			return nil, "there is no " + described(g, ask), nil
		}
		return o.Object, "", err
	}
	selector, err := metav1.LabelSelectorAsSelector(g.LabelSelector)
	if err != nil {
		return nil, "", err
	}
	options := []client.ListOption{client.InNamespace(g.Namespace), client.Limit(mostObjects)}
	if g.LabelSelector != nil {
		options = append(options, client.MatchingLabelsSelector{Selector: selector})
	}
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(kind)
	if err := a.client.List(ctx, &list, options...); err != nil {
		return nil, "", err
	}
	if list.GetContinue() != "" {
		return nil, "", fmt.Errorf("there are more than %d of %s: select fewer", mostObjects, described(g, ask))
	}
	out := make([]any, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, list.Items[i].Object)
	}
	return out, "", nil
}

// mostNoes is how many nodes with a no a message names.
const mostNoes = 5

// eachNode asks about the nodes one by one. All answers have to be yes.
func (a *Asker) eachNode(ctx context.Context, ask rollout.Ask, one func(*corev1.Node) (string, error)) (string, error) {
	nodes, err := a.read(ctx, ask)
	if err != nil {
		return "", err
	}
	var noes []string
	for i := range nodes {
		no, err := one(&nodes[i])
		if err != nil {
			return "", err
		}
		if no != "" {
			noes = append(noes, "node "+nodes[i].Name+": "+no)
		}
	}
	if rest := len(noes) - mostNoes; rest > 0 {
		noes = append(noes[:mostNoes], fmt.Sprintf("%d more", rest))
	}
	return strings.Join(noes, "; "), nil
}

// hostCheck returns the host's result of a check of the verdict.
func hostCheck(n *corev1.Node, ask rollout.Ask, name string) string {
	checks, err := api.Decode[*api.Checks](n.Annotations, api.ChecksKey)
	switch {
	case err != nil:
		return err.Error()
	case checks == nil || !api.SameContent(checks.Config, ask.Config):
		return "the agent has not reported the checks of " + ask.Config
	}
	said, asked := checks.Said[name]
	if !asked {
		return "there is no check " + name + " in its verdict"
	}
	if said != "" {
		return "check " + name + " said no: " + said
	}
	return ""
}

// annotation asks on the Node, and reads the answer. The write that asks also removes an older answer, so no answer to
// an earlier question counts.
func (a *Asker) annotation(ctx context.Context, n *corev1.Node, ask rollout.Ask, g *api.AnnotationGate,
) (string, error) {
	key, value := api.AskPrefix+ask.Gate, strings.TrimSpace(ask.Config+" "+ask.Arrived)
	if n.Annotations[key] != value {
		asking := n.DeepCopy()
		if asking.Annotations == nil {
			asking.Annotations = map[string]string{}
		}
		asking.Annotations[key] = value
		delete(asking.Annotations, g.Key)
		// An answer that came after the Node was read must not be removed unread. The write has the version, so it fails
		// then.
		patch := client.MergeFromWithOptions(n, client.MergeFromWithOptimisticLock{})
		if err := a.client.Patch(ctx, asking, patch); err != nil {
			return "", fmt.Errorf("asking by annotation %s of node %s: %w", key, n.Name, err)
		}
		return fmt.Sprintf("asked by %s, and %s has not answered yet", key, g.Key), nil
	}
	want := g.Value
	if want == "" {
		want = value
	}
	switch have, there := n.Annotations[g.Key]; {
	case have == want:
		return "", nil
	case there:
		return fmt.Sprintf("%s says %q, and not %q", g.Key, have, want), nil
	}
	return fmt.Sprintf("asked by %s, and %s has not answered yet", key, g.Key), nil
}
