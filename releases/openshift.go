// SPDX-License-Identifier: Apache-2.0

package releases

import (
	"errors"
	"fmt"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
)

// StreamOf returns the images of one of OpenShift's streams by name, and of the default stream for an empty name. The
// result is nil where no name is given, and the cluster has no default stream. streams may be nil.
func StreamOf(streams *mcfgv1.OSImageStream, name string) (*mcfgv1.OSImageStreamSet, error) {
	if streams == nil {
		if name == "" {
			return nil, nil
		}
		return nil, errors.New("the cluster has no OSImageStream/cluster")
	}
	wanted, have := name, []string{}
	if wanted == "" {
		wanted = streams.Status.DefaultStream
	}
	for i := range streams.Status.AvailableStreams {
		set := &streams.Status.AvailableStreams[i]
		if set.Name == wanted {
			return set, nil
		}
		have = append(have, set.Name)
	}
	if name == "" {
		return nil, nil
	}
	return nil, fmt.Errorf("OSImageStream/cluster has no stream %q in status.availableStreams, and has %q", name,
		strings.Join(have, ", "))
}
