// SPDX-License-Identifier: Apache-2.0

package render

import (
	"context"
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
)

// streamed returns the document of lowest precedence of a pool, as source.Streamed does. wrong is why the pool's stream
// can't be followed.
func (r *reconciler) streamed(
	ctx context.Context, pool *mcfgv1.MachineConfigPool, base *machineconfig.Document,
) (out *machineconfig.Document, wrong, err error) {
	var streams *mcfgv1.OSImageStream
	if r.watching(kindOSImageStream) {
		streams = &mcfgv1.OSImageStream{}
		err := r.cached.Get(ctx, client.ObjectKey{Name: source.OSImageStreams}, streams)
		if apierrors.IsNotFound(err) {
			streams = nil
		} else if err != nil {
			return nil, nil, fmt.Errorf("reading %s/%s: %w", kindOSImageStream, source.OSImageStreams, err)
		}
	}
	out, wrong = source.Streamed(pool, streams, base)
	return out, wrong, nil
}
