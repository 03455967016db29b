// SPDX-License-Identifier: Apache-2.0

// Package bootstrap makes of documents what the controllers of a cluster would make of them, before there is a cluster:
// the MachineConfigs of KubeletConfigs, ContainerRuntimeConfigs, image mirrors, image policies and templates, and the
// rendered configuration of each pool. The decisions are the controllers' own. What a cluster learns from its Nodes has
// to be said in the documents or in the Options.
package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/controller/template"
	"github.com/noderefit/noderefit/machineconfig"
)

const (
	kindControllerConfig = "ControllerConfig"
	kindOSImageStream    = "OSImageStream"
)

// kinds are the kinds that MachineConfigs are made of.
var kinds = machineconfig.Kinds{
	mcfgv1.GroupVersion.WithKind("KubeletConfig"):                      empty[mcfgv1.KubeletConfig],
	mcfgv1.GroupVersion.WithKind("ContainerRuntimeConfig"):             empty[mcfgv1.ContainerRuntimeConfig],
	mcfgv1.GroupVersion.WithKind(kindControllerConfig):                 empty[mcfgv1.ControllerConfig],
	mcfgv1.GroupVersion.WithKind(kindOSImageStream):                    empty[mcfgv1.OSImageStream],
	configv1.GroupVersion.WithKind("ImageDigestMirrorSet"):             empty[configv1.ImageDigestMirrorSet],
	configv1.GroupVersion.WithKind("ImageTagMirrorSet"):                empty[configv1.ImageTagMirrorSet],
	operatorv1alpha1.GroupVersion.WithKind("ImageContentSourcePolicy"): empty[operatorv1alpha1.ImageContentSourcePolicy],
	configv1.GroupVersion.WithKind("Image"):                            empty[configv1.Image],
	configv1.GroupVersion.WithKind("ClusterImagePolicy"):               empty[configv1.ClusterImagePolicy],
	configv1.GroupVersion.WithKind("ImagePolicy"):                      empty[configv1.ImagePolicy],
}

func empty[T any, O interface {
	*T
	machineconfig.Object
}]() machineconfig.Object {
	return O(new(T))
}

// plurals are the names of the kinds' definitions.
var plurals = map[string]string{
	"KubeletConfig": "kubeletconfigs", "ContainerRuntimeConfig": "containerruntimeconfigs",
	kindControllerConfig: "controllerconfigs", kindOSImageStream: "osimagestreams",
	"ImageDigestMirrorSet": "imagedigestmirrorsets",
	"ImageTagMirrorSet":    "imagetagmirrorsets", "ImageContentSourcePolicy": "imagecontentsourcepolicies",
	"Image": "images", "ClusterImagePolicy": "clusterimagepolicies", "ImagePolicy": "imagepolicies",
}

// Options are what a cluster would know besides the documents.
type Options struct {
	// Version is the maker's version in MachineConfigs, "unknown" if empty.
	Version string
	Sets    template.Sets
	// Runtime is the container runtime of pools whose annotation does not say one, "" if not known.
	Runtime string
	// Base is the document of lowest precedence, nil for none. A ControllerConfig with images has the same place.
	Base *machineconfig.Document

	// reversed has objects whose order is not said come in the reverse order of their names.
	reversed bool
}

// RuntimeUsage says what the flag --container-runtime is for, which sets Options.Runtime.
const RuntimeUsage = "container runtime of pools without the annotation " + api.Runtime + ": crio or containerd"

// Check returns an error if an option has no meaning.
func (o Options) Check() error {
	switch o.Runtime {
	case "", source.CRIO, source.Containerd:
		return nil
	}
	return fmt.Errorf("--container-runtime: %q is neither %s nor %s", o.Runtime, source.CRIO, source.Containerd)
}

// Read reads documents as machineconfig.Read does, with all kinds that MachineConfigs are made of.
func (o Options) Read(paths ...string) (*machineconfig.Documents, []string, error) {
	return kinds.Read(butane.Translate, paths...)
}

// wrong is what is wrong with an object.
type wrong struct {
	err error
	// pools are the pools that the object is for; all of them if any is set.
	pools []string
	any   bool
	// waits means that the object only lacks something that may come.
	waits bool
}

// Made is what the controllers make of documents.
type Made struct {
	o     Options
	docs  *machineconfig.Documents
	pools []*mcfgv1.MachineConfigPool
	// configs are all MachineConfigs that pools are rendered from.
	configs []*machineconfig.Document
	base    *machineconfig.Document
	// streams is the OSImageStream that the cluster will have, nil for none.
	streams *mcfgv1.OSImageStream
	wrong   []wrong
	// unordered has, by kind, the objects whose order is not said. relies means that there are objects for which the
	// container runtime of pools counts.
	unordered map[string][]string
	relies    bool
}

// Make makes all MachineConfigs of the documents. The pools worker and master, and those in names, are taken to be as
// Noderefit installs them if no document defines them. What is wrong with a document is returned by Render, for the
// pools that need the document.
func (o Options) Make(docs *machineconfig.Documents, names ...string) *Made {
	m := &Made{o: o, docs: docs, base: o.Base}
	m.o.Version = cmp.Or(o.Version, "unknown")
	m.addPools(names)
	objects := m.admit()
	m.simulate(objects)
	return m
}

// addPools adds the pools of the documents, and those that no document defines.
func (m *Made) addPools(names []string) {
	for _, d := range m.docs.Pools {
		m.pools = append(m.pools, d.Object.DeepCopy())
	}
	for _, name := range append([]string{api.PoolWorker, api.PoolMaster}, names...) {
		if !slices.ContainsFunc(m.pools, func(p *mcfgv1.MachineConfigPool) bool { return p.Name == name }) {
			m.pools = append(m.pools, builtin(name))
		}
	}
	slices.SortFunc(m.pools, func(a, b *mcfgv1.MachineConfigPool) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range m.pools {
		if m.o.Runtime != "" && p.Annotations[api.Runtime] == "" {
			p.Annotations = maps.Clone(p.Annotations)
			if p.Annotations == nil {
				p.Annotations = map[string]string{}
			}
			p.Annotations[api.Runtime] = m.o.Runtime
		}
	}
}

// builtin returns a pool as packaging/kustomize/pools has the pools of every cluster, and as people make their own.
func builtin(name string) *mcfgv1.MachineConfigPool {
	p := &mcfgv1.MachineConfigPool{}
	p.Name = name
	p.Labels = map[string]string{"pools.operator.machineconfiguration.openshift.io/" + name: ""}
	p.Spec.MachineConfigSelector = machineconfig.RoleSelector(name)
	return p
}

// admit returns the objects as the API server would have them, each with an identity of its own. An object that the API
// server would refuse is wrong for every pool: which pools it is for may be what is wrong.
func (m *Made) admit() (objects []client.Object) {
	for _, d := range m.docs.Others {
		object, err := admitted(d)
		if err != nil {
			m.wrong = append(m.wrong, wrong{err: fmt.Errorf("%s: %s", d, oneLine(err)), any: true})
			continue
		}
		object.SetUID(cmp.Or(object.GetUID(), types.UID(d.Kind+"/"+object.GetNamespace()+"/"+object.GetName())))
		objects = append(objects, object)
	}
	if m.o.reversed {
		slices.SortFunc(objects, func(a, b client.Object) int { return cmp.Compare(b.GetName(), a.GetName()) })
		for i, object := range objects {
			if created := object.GetCreationTimestamp(); created.IsZero() {
				object.SetCreationTimestamp(metav1.Unix(int64(i+1), 0))
			}
		}
	}
	return objects
}

func admitted(d *machineconfig.OtherDocument) (client.Object, error) {
	var fields map[string]any
	if err := json.Unmarshal(d.JSON, &fields); err != nil {
		return nil, err
	}
	// The API server leaves the status out of what is applied. The streams are the status of their object, though: the
	// document says what the cluster is going to say.
	delete(fields, statusOf(d.Kind))
	if err := Admit(plurals[d.Kind], fields); err != nil {
		return nil, err
	}
	delete(fields, statusOf(d.Kind))
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	object, ok := kinds[d.Object.GetObjectKind().GroupVersionKind()]().(client.Object)
	if !ok {
		return nil, errors.New("the object has another type")
	}
	return object, json.Unmarshal(text, object)
}

// statusOf returns the name of the field with the status of a kind that no document has a say in, "" for none.
func statusOf(kind string) string {
	if kind == kindOSImageStream {
		return ""
	}
	return "status"
}

// origin returns the document of an object, for messages.
func (m *Made) origin(object client.Object) fmt.Stringer {
	for _, d := range m.docs.Others {
		same := d.Object.GetName() == object.GetName() && d.Object.GetNamespace() == object.GetNamespace()
		if same && d.Kind == object.GetObjectKind().GroupVersionKind().Kind {
			return d
		}
	}
	return &machineconfig.OtherDocument{Object: object, Kind: object.GetObjectKind().GroupVersionKind().Kind}
}

func (m *Made) note(object client.Object, err error, w wrong) {
	if err != nil {
		w.err = fmt.Errorf("%s: %s", m.origin(object), oneLine(err))
		m.wrong = append(m.wrong, w)
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
