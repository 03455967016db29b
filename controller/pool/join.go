// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// joinLimit is how long a node is new, and how long before the node its certificate may have been requested. The API
// server keeps an issued request for an hour.
const joinLimit = time.Hour

// requestPage is how many requests for certificates a list has per page. A request may have 1.5 MB.
const requestPage = 50

const (
	// bootstrapUser, with the id of a bootstrap token behind it, is the user of that token.
	bootstrapUser = "system:bootstrap:"
	// nodeUser, with the name of a node behind it, is the user of that node's kubelet.
	nodeUser = "system:node:"
)

// joined is what is known of a new node: the pool that its token was for, or why the pool can't be said. known is false
// until the API server has given the requests. told is the last text of a NotLabelled event about the node.
type joined struct {
	known               bool
	pool, trouble, told string
}

// label gives nodes that have just joined the labels of the pool that their bootstrap token was for. It takes out of
// nodes those of which that could not be found out or done: as they are, they would be sent with another pool. After an
// hour such a node is new no more. The errors hold up no other node.
func (r *reconciler) label(ctx context.Context, pools []*mcfgv1.MachineConfigPool, nodes map[string]*corev1.Node,
) []error {
	var fresh, unknown []*corev1.Node
	current := map[types.UID]*joined{}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		if !newcomer(n, r.now()) {
			continue
		}
		j := cmp.Or(r.joined[n.UID], &joined{})
		current[n.UID] = j
		fresh = append(fresh, n)
		if !j.known {
			unknown = append(unknown, n)
		}
	}
	r.joined = current
	if len(fresh) == 0 {
		return nil
	}
	var errs []error
	if len(unknown) > 0 {
		if err := r.learn(ctx, unknown); err != nil {
			errs = append(errs, err)
			for _, n := range unknown {
				r.tellUnlabelled(ctx, n, err)
				delete(nodes, n.Name)
			}
		}
	}
	members := membership(pools)
	for _, n := range fresh {
		j := current[n.UID]
		if !j.known {
			continue
		}
		if err := r.labelOne(ctx, pools, members, n, j); err != nil {
			errs = append(errs, err)
			r.tellUnlabelled(ctx, n, err)
			delete(nodes, n.Name)
		} else {
			nodes[n.Name] = r.nodes.view(n)
		}
	}
	return errs
}

// tellUnlabelled makes an event of the error because of which a new node has no label yet. The next look takes into
// account what another writer has changed, so a conflict makes no event.
func (r *reconciler) tellUnlabelled(ctx context.Context, n *corev1.Node, err error) {
	if ctx.Err() == nil && !conflicts(err) {
		r.notLabelled(n, fmt.Sprintf("until it has its label, for an hour at most, the node is sent nowhere: %v", err))
	}
}

// notLabelled makes a NotLabelled event with a text, once for a node and text.
func (r *reconciler) notLabelled(n *corev1.Node, text string) {
	if j := r.joined[n.UID]; j.told != text {
		j.told = text
		r.events.Eventf(n, nil, corev1.EventTypeWarning, "NotLabelled", "Label", "%s", note(text))
	}
}

// membership returns how pools select nodes.
func membership(pools []*mcfgv1.MachineConfigPool) progress.Membership {
	values := make([]mcfgv1.MachineConfigPool, 0, len(pools))
	for _, p := range pools {
		values = append(values, *p)
	}
	return progress.NewMembership(values)
}

// learn asks the API server by which tokens nodes have joined. The list comes in small pages, of which little is kept:
// every holder of a bootstrap token may make as many requests as the API server takes, each of them large.
func (r *reconciler) learn(ctx context.Context, nodes []*corev1.Node) error {
	heard := map[string]*voices{}
	for _, n := range nodes {
		heard[nodeUser+n.Name] = &voices{node: n, pools: map[string]bool{}}
	}
	for next := ""; ; {
		page := &certv1.CertificateSigningRequestList{}
		if err := r.live.List(ctx, page, client.Limit(requestPage), client.Continue(next),
			client.MatchingFields{"spec.signerName": certv1.KubeAPIServerClientKubeletSignerName}); err != nil {
			return fmt.Errorf("listing the requests for certificates that nodes have joined by: %w", err)
		}
		for i := range page.Items {
			if v := heard[requestedFor(page.Items[i].Spec.Request)]; v != nil {
				v.hear(&page.Items[i])
			}
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	for _, v := range heard {
		j := r.joined[v.node.UID]
		j.pool, j.trouble = v.answer()
		j.known = true
	}
	return nil
}

func (r *reconciler) labelOne(ctx context.Context, pools []*mcfgv1.MachineConfigPool, members progress.Membership,
	n *corev1.Node, j *joined,
) error {
	if j.pool == "" && j.trouble == "" {
		return nil
	}
	missing, trouble := map[string]string(nil), j.trouble
	if trouble == "" {
		missing, trouble = roleLabels(pools, members, n, j.pool)
	}
	if trouble != "" {
		r.notLabelled(n, trouble)
		return nil
	}
	if len(missing) == 0 {
		return nil
	}
	patched := n.DeepCopy()
	err := r.client.Patch(ctx, patched, client.RawPatch(types.JSONPatchType, labelPatch(n, missing)))
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("labelling node %s for the pool %s: %w", n.Name, j.pool, err)
	}
	r.noteNode(patched)
	text := fmt.Sprintf("joined with a bootstrap token for the pool %s, and has its labels now: %s", j.pool,
		labels.Set(missing))
	log.FromContext(ctx).Info("node labelled", "node", n.Name, "pool", j.pool, "labels", labels.Set(missing).String())
	r.events.Eventf(n, nil, corev1.EventTypeNormal, "Labelled", "Label", "%s", note(text))
	return nil
}

// newcomer reports whether a node has just joined: it was never sent to any configuration.
func newcomer(n *corev1.Node, now time.Time) bool {
	return n.Annotations[api.DesiredConfig] == "" && n.DeletionTimestamp.IsZero() && n.UID != "" &&
		now.Sub(n.CreationTimestamp.Time) < joinLimit
}

// voices are what the requests for certificates of a node's name say. The API server has written the user and the
// groups of a token into a request, so they are not the node's own word.
type voices struct {
	node *corev1.Node
	// pools are the pools for which certificates were requested; empty: any pool.
	pools map[string]bool
	// several are the pools of a token that is for more than one.
	several []string
}

// hear takes in a request for the name of the node. A request that is younger than the node was made by another
// machine, and the node's own are renewals.
func (v *voices) hear(q *certv1.CertificateSigningRequest) {
	age := v.node.CreationTimestamp.Sub(q.CreationTimestamp.Time)
	if age < 0 || age > joinLimit || len(q.Status.Certificate) == 0 || q.Spec.Username == nodeUser+v.node.Name {
		return
	}
	var pools []string
	if strings.HasPrefix(q.Spec.Username, bootstrapUser) {
		pools = api.PoolsOfGroups(q.Spec.Groups)
	}
	if len(pools) > 1 {
		v.several = pools
		return
	}
	v.pools[strings.Join(pools, "")] = true
}

// answer returns the pool that the node has joined for, empty for any pool, or why the pool can't be said.
func (v *voices) answer() (pool, trouble string) {
	switch pools := slices.Sorted(maps.Keys(v.pools)); {
	case v.several != nil:
		return "", fmt.Sprintf("the node's bootstrap token is for several pools by its groups, %s: the node "+
			"gets the labels of none; label it by hand, and take groups out of the token's Secret",
			strings.Join(v.several, ", "))
	case len(pools) > 1:
		return "", fmt.Sprintf("certificates of the node's name were requested by several tokens or users, and "+
			"not all for the same pool (%s): the node gets the labels of none; find out which machines those are, and "+
			"label the node by hand", strings.TrimPrefix(strings.Join(pools, ", "), ", "))
	case len(pools) == 1:
		return pools[0], ""
	}
	return "", ""
}

// requestedFor returns the name that a certificate is requested for, empty for what can't be read.
func requestedFor(request []byte) string {
	block, _ := pem.Decode(request)
	if block == nil {
		return ""
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return ""
	}
	return parsed.Subject.CommonName
}

// roleLabels returns the labels that bring a new node into a pool and that the node lacks, or why the node gets none.
// Only labels of roles are given, which a kubelet can't give itself, and never those of the control plane.
func roleLabels(pools []*mcfgv1.MachineConfigPool, members progress.Membership, n *corev1.Node, name string,
) (missing map[string]string, trouble string) {
	failed := func(format string, args ...any) (map[string]string, string) {
		return nil, fmt.Sprintf("the node's bootstrap token is for the pool %s, and the node is not labelled for it: %s",
			name, fmt.Sprintf(format, args...))
	}
	at := slices.IndexFunc(pools, func(p *mcfgv1.MachineConfigPool) bool { return p.Name == name })
	switch {
	case at < 0:
		return failed("there is no MachineConfigPool/%s; make it, or give tokens another group", name)
	case progress.ControlPlane(name):
		return failed("machines of the control plane are labelled by hand")
	}
	wanted, err := selected(pools[at].Spec.NodeSelector)
	if err != nil {
		return failed("spec.nodeSelector of MachineConfigPool/%s: %v", name, err)
	}
	after := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: maps.Clone(n.Labels)}}
	if after.Labels == nil {
		after.Labels = map[string]string{}
	}
	missing = map[string]string{}
	for key, value := range wanted {
		if has, there := n.Labels[key]; there && has != value {
			return failed("its label %s is %q already, not %q", key, has, value)
		} else if !there {
			missing[key], after.Labels[key] = value, value
		}
	}
	switch pool, conflict := members.Of(after); {
	case conflict != nil:
		return failed("with the labels %s, %s", labels.Set(missing), conflict)
	case pool != name:
		return failed("with the labels %s it would be in the pool %q", labels.Set(missing), pool)
	}
	return missing, ""
}

// selected returns the labels that a selector demands. The error is about a selector that demands other labels than
// those of roles of workers.
func selected(s *metav1.LabelSelector) (map[string]string, error) {
	if s == nil {
		return nil, errors.New("it is missing")
	}
	wanted := maps.Clone(s.MatchLabels)
	if wanted == nil {
		wanted = map[string]string{}
	}
	for _, e := range s.MatchExpressions {
		switch {
		case e.Operator == metav1.LabelSelectorOpExists:
			if _, there := wanted[e.Key]; !there {
				wanted[e.Key] = ""
			}
		case e.Operator == metav1.LabelSelectorOpIn && len(e.Values) == 1:
			wanted[e.Key] = e.Values[0]
		}
	}
	if len(wanted) == 0 {
		return nil, errors.New("it names no label that a node could be given")
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		role, is := strings.CutPrefix(key, api.NodeRole)
		if !is || progress.ControlPlane(role) {
			return nil, fmt.Errorf("%s is not a label of a role of workers (%s…), and others are not given", key, api.NodeRole)
		}
	}
	return wanted, nil
}

// labelPatch returns the JSON patch that gives a node labels. The patch fails where the Node is another one by now, or
// was sent to a configuration.
func labelPatch(n *corev1.Node, missing map[string]string) []byte {
	const path = "/metadata/labels"
	ops := []operation{{"test", "/metadata/uid", n.UID}}
	if n.Annotations == nil { // the path of a single annotation would be an error
		ops = append(ops, operation{"test", "/metadata/annotations", nil})
	} else {
		ops = append(ops, operation{"test", annotationPath(api.DesiredConfig), nil})
	}
	if n.Labels == nil {
		ops = append(ops, operation{"test", path, nil}, operation{"add", path, map[string]string{}})
	}
	for _, key := range slices.Sorted(maps.Keys(missing)) {
		at := path + "/" + escaped(key)
		ops = append(ops, operation{"test", at, nil}, operation{"add", at, missing[key]})
	}
	data, err := json.Marshal(ops)
	if err != nil {
		panic(err) // strings only
	}
	return data
}
