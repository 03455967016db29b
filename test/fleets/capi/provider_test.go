// SPDX-License-Identifier: Apache-2.0

package capi

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

const (
	finalizer    = "lab.infrastructure.cluster.x-k8s.io/host"
	controlPlane = "cluster.x-k8s.io/control-plane"
	controlRole  = "node-role.kubernetes.io/control-plane"
)

// provider hands out hosts of the host lab as machines, by the contract for providers of infrastructure. A host gets
// the files of its bootstrap data before its kubelet starts, as cloud-init writes them. Where the data runs kubeadm,
// the host joins the cluster lab's control plane, and the provider makes those of kubeadm's objects that Cluster API
// reads.
type provider struct {
	*stand

	base  *lab.Base
	end   context.CancelFunc
	ended chan struct{}
	tried map[string]bool        // the LabMachines that a host was made for, or could not be
	hosts map[string]*fleet.Node // by the names of their LabMachines
}

func startProvider(l *stand, base *lab.Base) *provider {
	ctx, end := context.WithCancel(context.Background())
	p := &provider{stand: l, base: base, end: end, ended: make(chan struct{}), tried: map[string]bool{},
		hosts: map[string]*fleet.Node{}}
	go func() {
		defer close(p.ended)
		log, err := os.Create(filepath.Join(l.dir, "provider.log"))
		if err != nil {
			return
		}
		defer log.Close()
		for ctx.Err() == nil {
			if err := p.reconcile(ctx, log); err != nil && ctx.Err() == nil {
				fmt.Fprintln(log, time.Now().Format(time.TimeOnly), err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(poll):
			}
		}
	}()
	return p
}

// stop ends the provider. The hosts go on.
func (p *provider) stop() {
	p.end()
	<-p.ended
}

// provisioned says, as the contract has it, that a thing is there.
var provisioned = map[string]any{"provisioned": true}

// reconcile brings all objects of the provider a step on.
func (p *provider) reconcile(ctx context.Context, log *os.File) error {
	clusters, err := p.list(ctx, "LabCluster")
	if err != nil {
		return err
	}
	var errs []error
	for i := range clusters {
		errs = append(errs, p.status(ctx, &clusters[i], map[string]any{"initialization": provisioned}))
	}
	machines, err := p.list(ctx, "LabMachine")
	if err != nil {
		return err
	}
	for i := range machines {
		if err := p.machine(ctx, &machines[i], log); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", machines[i].GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// status writes an object's status, where it has none.
func (p *provider) status(ctx context.Context, o *unstructured.Unstructured, status map[string]any) error {
	if _, has := o.Object["status"]; has {
		return nil
	}
	before := o.DeepCopy()
	o.Object["status"] = status
	return p.client.Status().Patch(ctx, o, client.MergeFrom(before))
}

// machine brings one LabMachine a step on.
func (p *provider) machine(ctx context.Context, o *unstructured.Unstructured, log *os.File) error {
	if o.GetDeletionTimestamp() != nil {
		return p.remove(ctx, o, log)
	}
	if before := o.DeepCopy(); controllerutil.AddFinalizer(o, finalizer) {
		if err := p.client.Patch(ctx, o, client.MergeFrom(before)); err != nil {
			return err
		}
	}
	if _, has := o.Object["status"]; has {
		return nil
	}
	machine, data, err := p.bootstrap(ctx, o)
	if err != nil || data == nil || p.tried[o.GetName()] {
		return err
	}
	p.tried[o.GetName()] = true
	fmt.Fprintln(log, time.Now().Format(time.TimeOnly), "making a host for", o.GetName())
	id, err := p.host(ctx, o.GetName(), machine, data)
	if err != nil {
		return err
	}
	before := o.DeepCopy()
	if err := unstructured.SetNestedField(o.Object, id, "spec", "providerID"); err != nil {
		return err
	}
	if err := p.client.Patch(ctx, o, client.MergeFrom(before)); err != nil {
		return err
	}
	fmt.Fprintln(log, time.Now().Format(time.TimeOnly), o.GetName(), "is a node")
	return p.status(ctx, o, map[string]any{"initialization": provisioned,
		"addresses": []any{map[string]any{"type": "Hostname", "address": o.GetName()}}})
}

// cloudConfig has what of cloud-init's data a host gets.
type cloudConfig struct {
	Files []struct {
		Path        string `json:"path"`
		Encoding    string `json:"encoding"`
		Permissions string `json:"permissions"`
		Content     string `json:"content"`
	} `json:"write_files"` //nolint:tagliatelle // cloud-init's name
	Commands []any `json:"runcmd"`
}

// bootstrap returns the machine of a LabMachine and its bootstrap data, nil as long as there is none.
func (p *provider) bootstrap(
	ctx context.Context, o *unstructured.Unstructured,
) (*unstructured.Unstructured, *cloudConfig, error) {
	owners := o.GetOwnerReferences()
	i := slices.IndexFunc(owners, func(r metav1.OwnerReference) bool { return r.Kind == "Machine" })
	if i < 0 {
		return nil, nil, nil
	}
	machine, err := p.get(ctx, "Machine", owners[i].Name)
	if err != nil {
		return nil, nil, client.IgnoreNotFound(err)
	}
	name, _, err := unstructured.NestedString(machine.Object, "spec", "bootstrap", "dataSecretName")
	if err != nil || name == "" {
		return machine, nil, err
	}
	var secret corev1.Secret
	if err := p.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &secret); err != nil {
		return machine, nil, err
	}
	data := &cloudConfig{}
	return machine, data, yaml.Unmarshal(secret.Data["value"], data)
}

// host makes a host with the files of its bootstrap data, makes the host a node, and starts the agent there.
func (p *provider) host(
	ctx context.Context, name string, machine *unstructured.Unstructured, data *cloudConfig,
) (string, error) {
	if !slices.ContainsFunc(data.Commands, func(c any) bool { return strings.Contains(fmt.Sprint(c), "kubeadm ") }) {
		return "", fmt.Errorf("the bootstrap data runs no kubeadm: %v", data.Commands)
	}
	n, err := p.Enlist(ctx, p.base, name, func(n *fleet.Node) error {
		for _, f := range data.Files {
			if strings.HasPrefix(f.Path, "/run/") {
				continue // for kubeadm, which does not run here
			}
			if err := write(n.HostPath(f.Path), f.Content, f.Encoding, f.Permissions); err != nil {
				return fmt.Errorf("writing %s: %w", f.Path, err)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	p.hosts[name] = n
	id, role := "lab://"+name, api.NodeRole+api.PoolWorker
	if _, is := machine.GetLabels()[controlPlane]; is {
		role = controlRole
		if err := p.initialised(ctx, name); err != nil {
			return "", err
		}
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:""}},"spec":{"providerID":%q}}`, role, id)
	_, err = p.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return "", err
	}
	return id, p.StartAgent(ctx, n)
}

// write writes a file as cloud-init does.
func write(at, content, encoding, permissions string) error {
	text := []byte(content)
	if encoding != "" {
		var err error
		if text, err = base64.StdEncoding.DecodeString(content); err != nil {
			return err
		}
	}
	mode, err := strconv.ParseUint(permissions, 8, 32)
	if err != nil {
		mode = 0o644
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(at, text, os.FileMode(mode)); err != nil {
		return err
	}
	return os.Chmod(at, os.FileMode(mode)) // whatever the umask is
}

// initialised makes what Cluster API reads of what kubeadm init leaves in a cluster.
func (p *provider) initialised(ctx context.Context, node string) error {
	return p.Apply(ctx, fmt.Sprintf(kubeadmLeaves, node))
}

// remove takes the host of a LabMachine away.
func (p *provider) remove(ctx context.Context, o *unstructured.Unstructured, log *os.File) error {
	if n := p.hosts[o.GetName()]; n != nil {
		fmt.Fprintln(log, time.Now().Format(time.TimeOnly), "taking the host of", o.GetName(), "away")
		if err := n.Close(); err != nil {
			return err
		}
		delete(p.hosts, o.GetName())
	}
	before := o.DeepCopy()
	controllerutil.RemoveFinalizer(o, finalizer)
	return client.IgnoreNotFound(p.client.Patch(ctx, o, client.MergeFrom(before)))
}
