// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/releases"
)

// osImageStreams is the name of the one OSImageStream.
const osImageStreams = "cluster"

// streamed returns base with the images of the OSImageStream that the pool names, or else of the cluster's default
// stream where base has no image. wrong is why the pool's stream can't be followed.
func (r *reconciler) streamed(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, base *machineconfig.Document,
) (out *machineconfig.Document, wrong, err error) {
	var streams *mcfgv1.OSImageStream
	if r.watching(kindOSImageStream) {
		streams = &mcfgv1.OSImageStream{}
		err := r.cached.Get(ctx, client.ObjectKey{Name: osImageStreams}, streams)
		if apierrors.IsNotFound(err) {
			streams = nil
		} else if err != nil {
			return nil, nil, fmt.Errorf("reading %s/%s: %w", kindOSImageStream, osImageStreams, err)
		}
	}
	name := pool.Spec.OSImageStream.Name
	set, err := releases.StreamOf(streams, name)
	if err != nil {
		return nil, fmt.Errorf("MachineConfigPool/%s: spec.osImageStream.name: %w", pool.Name, err), nil
	}
	if set == nil || name == "" && base != nil && base.Object.Spec.OSImageURL != "" {
		return base, nil, nil
	}
	out = &machineconfig.Document{Object: &mcfgv1.MachineConfig{}}
	out.Object.Name = kindOSImageStream + "/" + osImageStreams
	if base != nil {
		out.Object.Annotations = base.Object.Annotations
	}
	out.Object.Spec.OSImageURL = string(set.OSImage)
	out.Object.Spec.BaseOSExtensionsContainerImage = string(set.OSExtensionsImage)
	return out, nil, nil
}
