// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/noderefit/noderefit/controller/defined"
)

// definitions are those of what a pool's configuration is made of, by kind; the cluster may lack those that are
// optional.
var definitions = map[string]string{
	kindKubeletConfig:          "kubeletconfigs.machineconfiguration.openshift.io",
	kindContainerRuntimeConfig: "containerruntimeconfigs.machineconfiguration.openshift.io",
	kindControllerConfig:       "controllerconfigs.machineconfiguration.openshift.io",
	"ImageDigestMirrorSet":     "imagedigestmirrorsets.config.openshift.io",
	"ImageTagMirrorSet":        "imagetagmirrorsets.config.openshift.io",
	"ImageContentSourcePolicy": "imagecontentsourcepolicies.operator.openshift.io",
}

const configDefinition = "machineconfigs.machineconfiguration.openshift.io"

// away names the definitions for which less is there than people want. It is asked where a pool's configuration would
// change, since what the objects of a definition say may lie in a MachineConfig that stays; and where a pool was made
// again after a definition was away.
func (r *reconciler) away(ctx context.Context, in input) ([]string, error) {
	pool := in.pool.Name
	known := in.pool.Spec.Configuration.Name != ""
	if in.rendering != nil && known && !in.moves() {
		delete(r.defined, pool)
	}
	watch := r.defined[pool]
	if !in.moves() || !known && (watch == nil || !watch.Lost()) {
		return nil, nil
	}
	if r.whole[pool] == in.rendering.config.Name {
		return nil, nil // a write that is refused is tried again and again
	}
	if watch == nil {
		watch = defined.NewWatch(r.live, time.Now)
		r.defined[pool] = watch
	}
	names := []string{configDefinition}
	for _, k := range r.optional {
		if name := definitions[k.gvk.Kind]; name != "" && k.watching {
			names = append(names, name)
		}
	}
	var out []string
	for _, name := range names {
		why, until, err := watch.Away(ctx, name, time.Time{})
		if apierrors.IsForbidden(err) {
			// An older role: what it does not let be asked about counts as there.
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
