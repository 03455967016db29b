// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/defined"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
)

// definition is a CustomResourceDefinition of objects that a pool's configuration is made of.
type definition struct {
	name string
	// what is the part of source.Name that the MachineConfigs made of its objects have; empty if they do not have such
	// names.
	what string
}

// definitions has the definitions by kind. The cluster may lack those of optional kinds.
var definitions = map[string]definition{
	kindKubeletConfig:          {"kubeletconfigs.machineconfiguration.openshift.io", "kubelet"},
	kindContainerRuntimeConfig: {"containerruntimeconfigs.machineconfiguration.openshift.io", "containerruntime"},
	kindControllerConfig:       {"controllerconfigs.machineconfiguration.openshift.io", ""},
	"OSStream":                 {"osstreams.noderefit.dev", "osstream"},
	"ImageDigestMirrorSet":     {"imagedigestmirrorsets.config.openshift.io", "registries"},
	"ImageTagMirrorSet":        {"imagetagmirrorsets.config.openshift.io", "registries"},
	"Image":                    {"images.config.openshift.io", "registries"},
	"ClusterImagePolicy":       {"clusterimagepolicies.config.openshift.io", "registries"},
	"ImagePolicy":              {"imagepolicies.config.openshift.io", "registries"},
	"ImageContentSourcePolicy": {"imagecontentsourcepolicies.operator.openshift.io", "registries"},
}

const (
	configDefinition = "machineconfigs.machineconfiguration.openshift.io"
	poolDefinition   = "machineconfigpools.machineconfiguration.openshift.io"
)

// away names the definitions that have fewer objects than people want. It asks where a pool's configuration would
// change, even if the pool loses no MachineConfig. A MachineConfig that stays may be made of objects that are gone.
// away also asks where a pool was made again after a definition was away, or does not know the configurations of its
// nodes.
func (r *reconciler) away(ctx context.Context, in input, nodes []corev1.Node) ([]string, error) {
	pool := in.pool.Name
	known := in.pool.Spec.Configuration.Name != ""
	if in.rendering != nil && known && in.rendering.config.Name == in.pool.Spec.Configuration.Name {
		delete(r.defined, pool)
		r.rested[pool] = in.newest()
	}
	if !in.moves() || r.whole[pool] == in.rendering.config.Name {
		return nil, nil // a write that is refused is tried again and again
	}
	watch, had := r.defined[pool], pastOf(in.pool, nodes)
	lost := watch != nil && watch.Lost()
	if !known && (had.alone(in.rendering.config.Name) || len(had.configs) == 0 && !lost) {
		return nil, nil
	}
	if watch == nil {
		watch = defined.NewWatch(r.live, time.Now)
		r.defined[pool] = watch
	}
	var out []string
	since := had.since
	if rested := r.rested[pool]; rested.After(since) {
		since = rested
	}
	for _, q := range questions(in, r.optional, since) {
		why, until, err := watch.Away(ctx, q.definition, q.made)
		if apierrors.IsForbidden(err) {
			// An older role does not allow the question. The definition counts as present then.
			log.FromContext(ctx).Error(err, "a definition can't be asked for; apply the roles of this release")
			continue
		}
		if err != nil {
			return nil, err
		}
		if why != "" {
			out = append(out, why)
			if r.again.IsZero() || until.Before(r.again) {
				r.again = until
			}
		}
	}
	if len(out) == 0 {
		r.whole[pool] = in.rendering.config.Name
	}
	return out, nil
}

// past is what a pool is known to have had from other objects than the pool, since the pool may have been made again.
type past struct {
	// configs are the configurations that the pool's nodes have or are sent to.
	configs map[string]bool
	// since is a time at which the pool, or a node of the pool, was there; zero if neither had a configuration.
	since time.Time
}

// pastOf reads the past from the pool and the nodes. A node that had a configuration of the pool is older than any
// definition that was made again since.
func pastOf(pool *mcfgv1.MachineConfigPool, nodes []corev1.Node) past {
	p := past{configs: map[string]bool{}}
	if pool.Spec.Configuration.Name != "" {
		p.since = pool.CreationTimestamp.Time
	}
	for i := range nodes {
		n, is := &nodes[i], false
		for _, key := range []string{api.CurrentConfig, api.DesiredConfig} {
			if config := n.Annotations[key]; machineconfig.PoolOf(config) == pool.Name {
				p.configs[config], is = true, true
			}
		}
		if made := n.CreationTimestamp.Time; is && (p.since.IsZero() || made.Before(p.since)) {
			p.since = made
		}
	}
	return p
}

// alone reports whether the nodes have one configuration, and no other.
func (p past) alone(config string) bool { return len(p.configs) == 1 && p.configs[config] }

// question is a question about a definition.
type question struct {
	definition string
	// made is when an object of the definition was there that the pool may lack now; zero if no such time is known.
	made time.Time
}

// questions returns what to ask before a pool gets what was rendered. A pool without a configuration may lack any
// former object. A pool with a configuration may lack what that was made of. A kind that the cluster does not have is
// asked about only if the controllers bring its definition. A cluster other than OpenShift may never have had the kinds
// of mirrors, and would wait for them for ever.
func questions(in input, kinds []*optionalKind, since time.Time) []question {
	known := in.pool.Spec.Configuration.Name != ""
	when := func(lacks bool) time.Time {
		if known && !lacks {
			return time.Time{}
		}
		return since
	}
	lost := in.lost()
	out := []question{{configDefinition, when(len(lost) > 0)}}
	if !known {
		// What was made for the pool went with the pool, and is made again some time after it.
		out = append(out, question{poolDefinition, since})
	}
	named := func(names []string, what string) bool {
		return what != "" && slices.ContainsFunc(names, func(name string) bool { return source.IsNamed(name, what) })
	}
	for _, k := range kinds {
		d, is := definitions[k.gvk.Kind]
		switch {
		case !is:
		case k.watching:
			out = append(out, question{d.name, when(named(in.sources(), d.what) || d.what == "" && len(lost) > 0)})
		case strings.HasSuffix(d.name, "."+mcfgv1.GroupName) && named(lost, d.what):
			out = append(out, question{d.name, since})
		}
	}
	return out
}

// newest returns when the newest of the rendered MachineConfigs was made. A cache that is behind has no MachineConfig
// that was made after its definition was made again.
func (in *input) newest() time.Time {
	var last time.Time
	for _, d := range in.rendering.selected {
		if made := d.Object.CreationTimestamp.Time; made.After(last) {
			last = made
		}
	}
	return last
}

// sources returns the names of what the pool's configuration was made of.
func (in *input) sources() []string {
	var out []string
	for _, o := range in.pool.Spec.Configuration.Source {
		out = append(out, o.Name)
	}
	return out
}

// lost returns the sources that are not in what was rendered.
func (in *input) lost() []string {
	return slices.DeleteFunc(in.sources(), func(name string) bool {
		return slices.ContainsFunc(in.rendering.selected, func(d *machineconfig.Document) bool {
			return d.Object.Name == name
		})
	})
}
