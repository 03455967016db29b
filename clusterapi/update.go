// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/progress"
)

const (
	// prefix, with the name of the pool behind it, is the name of a MachineConfig that this package made.
	prefix = "50-cluster-api-"
	// Labels that Cluster API writes on Machines.
	deploymentLabel   = "cluster.x-k8s.io/deployment-name"
	controlPlaneLabel = "cluster.x-k8s.io/control-plane"
	// deadAfter is how long a node is not ready until its machine's update is not waited for any more.
	deadAfter = 15 * time.Minute
	// contentAtMost bounds the Ignition config that a MachineConfig carries, which the record has once more.
	contentAtMost = 96 << 10
)

// Nodes is the cluster of the nodes.
type Nodes interface {
	// Pools and Nodes return all objects, as they were a few seconds ago. Callers change no returned object.
	Pools(ctx context.Context) ([]mcfgv1.MachineConfigPool, error)
	Nodes(ctx context.Context) ([]corev1.Node, error)
	// Config returns the MachineConfig of a name, nil if the cluster lacks it.
	Config(ctx context.Context, name string) (*mcfgv1.MachineConfig, error)
	// Write makes a MachineConfig, or changes the one that was read.
	Write(ctx context.Context, mc *mcfgv1.MachineConfig) error
}

// outcome is what an update is at.
type outcome int

const (
	waits outcome = iota
	done
	failed
)

type stage struct {
	is   outcome
	text string
}

func waiting(format string, args ...any) stage { return stage{waits, fmt.Sprintf(format, args...)} }
func failing(format string, args ...any) stage { return stage{failed, fmt.Sprintf(format, args...)} }

// target is where the files of a machine go.
type target struct {
	pool    string
	pools   []mcfgv1.MachineConfigPool
	object  *mcfgv1.MachineConfigPool
	present *mcfgv1.MachineConfig // the MachineConfig of the pool, nil before the first update
	carried []held                // what present has
	record  record
	b       *book

	digest  string // of the machine's files, those that a MachineConfig may have
	files   []held // those that are carried
	config  []byte // of files
	nodes   []corev1.Node
	members progress.Membership
}

// temporaryError is an error of the API server, or a state, which may be gone at the next try.
type temporaryError struct{ error }

func notYet(format string, args ...any) error { return temporaryError{fmt.Errorf(format, args...)} }

// find returns the target of a machine: its pool, and the MachineConfig that the pool has from this extension. The
// error says why the machine can't be updated in place.
func (e *Extension) find(ctx context.Context, m machine) (*target, error) {
	if o := e.options; m.Spec.ClusterName != o.Cluster || m.Namespace != o.Namespace {
		return nil, fmt.Errorf("this extension is for machines of the Cluster %s/%s, and not of %s/%s", o.Namespace,
			o.Cluster, m.Namespace, m.Spec.ClusterName)
	}
	of := m.Namespace + "/" + m.Labels[deploymentLabel]
	t := &target{
		pool: m.Annotations[api.MachinePoolKey],
		b:    &book{ctx: ctx, nodes: e.nodes, read: map[string]*machineconfig.Config{}},
	}
	if t.pool == "" {
		return nil, fmt.Errorf("the machine has no annotation %s; the template of its MachineDeployment can have it",
			api.MachinePoolKey)
	}
	if err := e.may(m, t.pool); err != nil {
		return nil, err
	}
	var err error
	if t.pools, err = e.nodes.Pools(ctx); err != nil {
		return nil, temporaryError{err}
	}
	at := slices.IndexFunc(t.pools, func(p mcfgv1.MachineConfigPool) bool { return p.Name == t.pool })
	if at < 0 {
		return nil, fmt.Errorf("there is no MachineConfigPool/%s", t.pool)
	}
	t.object = &t.pools[at]
	selector, err := metav1.LabelSelectorAsSelector(t.object.Spec.MachineConfigSelector)
	if err != nil || !selector.Matches(labels.Set(t.labels())) {
		return nil, fmt.Errorf("MachineConfigPool/%s selects no MachineConfigs with the label %s: %s", t.pool, api.Role,
			t.pool)
	}
	if t.present, err = e.nodes.Config(ctx, prefix+t.pool); err != nil {
		return nil, temporaryError{err}
	}
	t.carried = carriedBy(t.present)
	if t.present != nil {
		if t.record, err = api.Decode[record](t.present.Annotations, api.ClusterAPIKey); err != nil || t.record.Of != of {
			return nil, fmt.Errorf("MachineConfig/%s is of %q, and not of %s: machines of one MachineDeployment alone can be "+
				"updated through a pool", t.present.Name, t.record.Of, of)
		}
	}
	t.record.Of = of
	if t.nodes, err = e.nodes.Nodes(ctx); err != nil {
		return nil, temporaryError{err}
	}
	t.members = progress.NewMembership(t.pools)
	return t, nil
}

// may returns why machines may not be updated through a pool: workers never through a pool of the control plane, and
// machines of the control plane through those that the flag names.
func (e *Extension) may(m machine, pool string) error {
	_, is := m.Labels[controlPlaneLabel]
	switch {
	case len(e.options.Pools) == 0 && !progress.ControlPlane(pool), slices.Contains(e.options.Pools, pool):
	default:
		return fmt.Errorf("the pool %s is none that --pools of the extension names", pool)
	}
	if progress.ControlPlane(pool) && !is {
		return fmt.Errorf("the pool %s is of the control plane, and the machine has no label %s", pool, controlPlaneLabel)
	}
	return nil
}

// load reads the files of a machine, of which those are carried that were ever changed in place. Where nothing is known
// of that, all are: a path that is as it should be is not written. A file that is carried and may not be any more stays
// as it is, since nodes let go of a path that goes. Such a file has not changed: see changes.
func (t *target) load(files []file) error {
	var cannot []string
	t.files, cannot, t.digest = expressed(files)
	if len(t.record.Paths) > 0 {
		t.files = slices.DeleteFunc(t.files, func(h held) bool { return !slices.Contains(t.record.Paths, h.path) })
	}
	for _, h := range t.carried {
		if slices.Contains(cannot, h.path) {
			t.files = append(t.files, h)
		}
	}
	slices.SortFunc(t.files, byItsPath)
	t.config = ignition(t.files)
	if len(t.config) > contentAtMost {
		return fmt.Errorf("the files that were changed in place have %d bytes together, and %d at most are taken",
			len(t.config), contentAtMost)
	}
	_, err := machineconfig.Parse(t.made(t.config))
	return err
}

// write makes or changes the MachineConfig, which has to be as it was read.
func (t *target) write(config []byte) error {
	mc := t.made(config)
	if err := t.b.nodes.Write(t.b.ctx, mc); err != nil {
		return fmt.Errorf("writing MachineConfig/%s: %w", mc.Name, err)
	}
	t.present, t.carried = mc, carriedBy(mc)
	return nil
}

// step takes an update one step further, and says where it is. Whatever is not known yet is no failure: Cluster API
// asks again.
func (e *Extension) step(ctx context.Context, desired machineObjects) stage {
	if desired.BootstrapConfig == nil || desired.BootstrapConfig.Kind != "KubeadmConfig" {
		return failing("only machines with a KubeadmConfig are updated in place")
	}
	t, err := e.find(ctx, desired.Machine)
	if err == nil {
		err = t.load(desired.BootstrapConfig.Spec.Files)
	}
	s := stage{}
	if err == nil {
		s, err = t.follow(desired.Machine)
	}
	switch {
	case err == nil:
		return s
	case errors.As(err, new(temporaryError)):
		return waiting("asking the cluster of the nodes: %v", err)
	}
	return failing("%v", err)
}

// follow writes the MachineConfig where it has another content, and otherwise says where the machine's node is.
func (t *target) follow(m machine) (stage, error) {
	n, s := t.node(m)
	if n == nil {
		return s, nil
	}
	t.adopt()
	if err := t.judge(); err != nil {
		return stage{}, temporaryError{err}
	}
	if q := t.failed(t.digest); q != nil {
		return failing("the files failed on node %s, which went back: %s. They are not tried again. Correct the template, "+
			"and delete Machine %s/%s or have it remediated: Cluster API asks for these files as long as it is there",
			cmp.Or(q.Node, "?"), q.Reason, m.Namespace, m.Name), nil
	}
	if slices.Contains(t.record.Refused, refusal{Digest: t.digest, Node: n.Name}) {
		return failing("the pool %s has gone on to other files without node %s. Delete Machine %s/%s, or have it remediated",
			t.pool, n.Name, m.Namespace, m.Name), nil
	}
	r := &t.record
	if r.Digest != t.digest {
		r.forget(n.Name)
		on, err := t.onItsWay()
		switch {
		case err != nil:
			return stage{}, temporaryError{err}
		case on != "":
			return waiting("the pool %s is on its way to other files of its machines, and %s", t.pool, on), nil
		}
		r.passBy()
	}
	if t.present == nil || r.Digest != t.digest || !slices.EqualFunc(t.carried, t.files, held.equal) {
		r.Digest, r.Left = t.digest, nil
		r.ask(n.Name)
		if err := t.write(t.config); err != nil {
			return stage{}, temporary(err)
		}
		return waiting("MachineConfig/%s has the files, and the pool %s renders them", prefix+t.pool, t.pool), nil
	}
	return t.where(n)
}

// adopt puts the machine's digest into the record where the MachineConfig has the very files of the machine. A version
// of this program that took other files made another digest: two machines that are on their way while the program is
// upgraded would wait for each other.
func (t *target) adopt() {
	if t.record.Digest != "" && slices.EqualFunc(t.carried, t.files, held.equal) {
		t.record.Digest = t.digest
	}
}

// node returns the machine's node, which has to be in the pool; nil with what is waited for.
func (t *target) node(m machine) (*corev1.Node, stage) {
	if m.Spec.ProviderID == "" {
		return nil, waiting("Machine %s has no spec.providerID yet, by which its Node is known", m.Name)
	}
	var found []*corev1.Node
	for i := range t.nodes {
		// A kubelet can write any annotation of its own Node, but not change the id.
		if t.nodes[i].Spec.ProviderID == m.Spec.ProviderID {
			found = append(found, &t.nodes[i])
		}
	}
	switch len(found) {
	case 0:
		return nil, waiting("no Node has the spec.providerID %q of Machine %s yet", m.Spec.ProviderID, m.Name)
	case 1:
	default:
		return nil, waiting("Nodes %s and %s both are of the machine %s: delete the wrong one", found[0].Name, found[1].Name,
			m.Name)
	}
	n := found[0]
	pool, conflict := t.members.Of(n)
	switch {
	case conflict != nil:
		return nil, waiting("%v", conflict)
	case pool != t.pool:
		return nil, waiting("node %s is in the pool %q, and the machine's annotation %s says %s", n.Name, pool,
			api.MachinePoolKey, t.pool)
	}
	return n, stage{}
}

func temporary(err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		return err
	}
	return temporaryError{err}
}

// judge notes that the present files failed, and gives the pool back what it had. Files that a node of the pool has
// proved have not failed: something else in that configuration did.
func (t *target) judge() error {
	r := &t.record
	if t.present == nil || r.Digest == "" {
		return nil
	}
	name := t.object.Spec.Configuration.Name
	list, err := t.quarantine()
	if err != nil || !slices.ContainsFunc(list, func(q api.Quarantine) bool { return api.SameContent(q.Config, name) }) {
		return err
	}
	if has, err := t.b.has(name, t.carried); err != nil || !has {
		return err
	}
	for i := range t.nodes {
		if pool, _ := t.members.Of(&t.nodes[i]); pool != t.pool {
			continue
		}
		if has, err := arrived(t.b, &t.nodes[i], t.carried); err != nil || has {
			return err
		}
	}
	r.refuse(refusal{Digest: r.Digest, Config: name})
	r.Asked, r.Digest = nil, ""
	sound := []byte(r.Sound)
	if len(sound) == 0 {
		sound = ignition(nil)
	}
	return t.write(sound)
}

func (t *target) quarantine() ([]api.Quarantine, error) {
	return api.Decode[[]api.Quarantine](t.object.Annotations, api.PoolQuarantineKey)
}

// failed returns the quarantine of the configuration with which files failed; nil if they did not, or if a
// person has lifted the quarantine.
func (t *target) failed(digest string) *api.Quarantine {
	list, err := t.quarantine()
	if err != nil {
		return nil
	}
	for i := range list {
		if slices.ContainsFunc(t.record.Refused, func(f refusal) bool {
			return f.Digest == digest && f.Config != "" && api.SameContent(list[i].Config, f.Config)
		}) {
			return &list[i]
		}
	}
	return nil
}

// stuck are the answers about a node that does not arrive by itself. Rollouts go on without it.
var stuck = []progress.Verdict{progress.NoDaemon, progress.Degraded, progress.Unreconcilable,
	progress.RolledBack, progress.RebootFailed, progress.HeldByPerson, progress.Skipped, progress.Trying}

// onItsWay returns what the present files wait for, of a node whose machine asked for them and is not told yet that it
// is done; empty if no such node is left. The files may not be taken from under the node: Cluster API moves no machine
// that is on its way, and would ask for them again. A node that rollouts do not count is not waited for, nor is one
// that is gone, nor any where the pool can't be rendered because of these files.
func (t *target) onItsWay() (string, error) {
	rendered, err := t.b.has(t.object.Spec.Configuration.Name, t.carried)
	if err != nil || !rendered && strings.Contains(t.unrendered(), prefix+t.pool) {
		return "", err
	}
	report := progress.NewReport(progress.View{Pools: t.pools, Nodes: t.nodes})
	for i := range t.nodes {
		n := &t.nodes[i]
		if pool, _ := t.members.Of(n); pool != t.pool || !slices.Contains(t.record.Asked, n.Name) {
			continue
		}
		answer, is := report.ExplainNode(n.Name)
		dead := answer.Verdict == progress.NotReady && !answer.Since.IsZero() && time.Since(answer.Since) > deadAfter
		if is && !dead && !slices.Contains(stuck, answer.Verdict) {
			return fmt.Sprintf("the machine of node %s is not told yet that it is done: %s", n.Name, answer.Sentence()), nil
		}
	}
	return "", nil
}

// where says where a node is on its way to the files that the pool's MachineConfig has.
func (t *target) where(n *corev1.Node) (stage, error) {
	has, err := arrived(t.b, n, t.files)
	switch {
	case err != nil:
		return stage{}, temporaryError{err}
	case has:
		return t.tell(n)
	case t.record.ask(n.Name):
		if err := t.write(t.config); err != nil {
			return stage{}, temporary(err)
		}
	}
	name := t.object.Spec.Configuration.Name
	config, err := t.b.config(name)
	switch {
	case err != nil:
		return stage{}, temporaryError{err}
	case config == nil:
		return waiting("the pool %s renders the files", t.pool), nil
	}
	if path := lacks(config, t.files); path != "" {
		if why := t.unrendered(); why != "" {
			return waiting("the pool %s is not rendered: %s", t.pool, why), nil
		}
		return waiting("the pool %s has not rendered %s as MachineConfig/%s has it; a MachineConfig that sorts behind it "+
			"may have the same path", t.pool, path, prefix+t.pool), nil
	}
	report := progress.NewReport(progress.View{Pools: t.pools, Nodes: t.nodes})
	if answer, is := report.ExplainNode(n.Name); is {
		return waiting("node %s: %s", n.Name, answer.Sentence()), nil
	}
	return waiting("node %s is on its way to %s", n.Name, name), nil
}

// tell says that a machine is done, and notes that: its files are proved, and nothing waits for it any more.
func (t *target) tell(n *corev1.Node) (stage, error) {
	r := &t.record
	if r.forget(n.Name) || !bytes.Equal(r.Sound, t.config) {
		r.Sound = t.config
		if err := t.write(t.config); err != nil {
			return stage{}, temporary(err)
		}
	}
	return stage{done, fmt.Sprintf("node %s has the files", n.Name)}, nil
}

// unrendered returns why the pool is not rendered; empty if it is.
func (t *target) unrendered() string {
	for _, c := range t.object.Status.Conditions {
		if c.Type == mcfgv1.MachineConfigPoolRenderDegraded && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// release takes from the MachineConfig what new machines do not boot with: Cluster API is about to make machines with
// the given files. A temporaryError means that it may not make them yet. Nothing is released for a machine that is not
// updated through a pool.
func (e *Extension) release(ctx context.Context, m machine, files []file) error {
	t, err := e.find(ctx, m)
	switch {
	case errors.As(err, new(temporaryError)):
		return err
	case err != nil || t.present == nil:
		return nil //nolint:nilerr // there is nothing to release
	}
	wanted, err := byPath(files)
	if err != nil {
		return nil //nolint:nilerr // Cluster API has to say what is wrong
	}
	if err := t.judge(); err != nil {
		return temporaryError{err}
	}
	kept, left := released(t.carried, wanted)
	if len(left) > 0 {
		on, err := t.onItsWay()
		switch {
		case err != nil:
			return temporaryError{err}
		case on != "":
			return notYet("a new machine is needed, and waits for the update in place: %s", on)
		}
		t.record.passBy()
		config := ignition(kept)
		t.record.Sound, t.record.Left = config, left
		if err := t.write(config); err != nil {
			return temporaryError{err}
		}
	}
	config, err := t.b.config(t.object.Spec.Configuration.Name)
	if err != nil {
		return temporaryError{err}
	}
	if config == nil {
		return nil // no node is sent to a configuration that is gone
	}
	if path := gone(config, t.record.Left); path != "" {
		return notYet("a new machine is needed, and would get %s as it was: the pool %s is to be rendered without it first. "+
			"%s", path, t.pool, t.unrendered())
	}
	return nil
}

// arrived reports whether a node has proved a configuration with the files.
func arrived(b *book, n *corev1.Node, files []held) (bool, error) {
	says, err := api.ReadNode(n)
	if err != nil || says.Current == "" || says.State != api.Done {
		return false, nil //nolint:nilerr // a node that can't be read has not arrived
	}
	return b.has(says.Current, files)
}

// book remembers the configurations that were read for one answer.
type book struct {
	ctx   context.Context //nolint:containedctx // of the one answer
	nodes Nodes
	read  map[string]*machineconfig.Config
}

// config returns the rendered configuration of a name, which may also be that of what a node has made of it. The result
// is nil if the cluster lacks it or if it can't be read.
func (b *book) config(name string) (*machineconfig.Config, error) {
	name = api.Rendered(name)
	if api.Content(name) == name {
		return nil, nil // not a name of a rendered configuration
	}
	if c, known := b.read[name]; known {
		return c, nil
	}
	mc, err := b.nodes.Config(b.ctx, name)
	if err != nil {
		return nil, err
	}
	if mc != nil {
		b.read[name], _ = machineconfig.Parse(mc)
	} else {
		b.read[name] = nil
	}
	return b.read[name], nil
}

func (b *book) has(name string, files []held) (bool, error) {
	c, err := b.config(name)
	return err == nil && c != nil && lacks(c, files) == "", err
}
