// SPDX-License-Identifier: Apache-2.0

package containerruntimeconfig

import (
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
)

// series is what ContainerRuntimeConfigs are: each has what those before it say too.
var series = source.Series[*mcfgv1.ContainerRuntimeConfig, mcfgv1.ContainerRuntimeConfiguration]{
	Kind: "ContainerRuntimeConfig", What: "containerruntime",
	Spec: func(o *mcfgv1.ContainerRuntimeConfig) (*mcfgv1.ContainerRuntimeConfiguration, *metav1.LabelSelector) {
		return o.Spec.ContainerRuntimeConfig, o.Spec.MachineConfigPoolSelector
	},
	Base: func(
		w *source.World, pool *mcfgv1.MachineConfigPool, around *source.Around,
	) (source.Layer[mcfgv1.ContainerRuntimeConfiguration], error) {
		runtimes, unknown := source.Runtimes(w.Pools, w.Nodes)
		if err := unknown[pool.Name]; err != nil {
			return nil, err
		}
		beneath, err := around.Beneath(pool.Name)
		if err != nil {
			return nil, err
		}
		return layer{pool: pool.Name, on: runtimes[pool.Name], beneath: beneath}, nil
	},
}

// layer is what a pool has of ContainerRuntimeConfigs so far, and the files that it comes to.
type layer struct {
	pool    string
	on      source.Runtime
	beneath *machineconfig.Config
	config  mcfgv1.ContainerRuntimeConfiguration
	files   []source.File
}

// Over merges one more.
func (l layer) Over(
	c *mcfgv1.ContainerRuntimeConfiguration,
) (source.Layer[mcfgv1.ContainerRuntimeConfiguration], error) {
	if err := check(c); err != nil {
		return nil, err
	}
	// Where there are nodes with CRI-O too, one with containerd does not keep them from what they can have.
	if l.on.Containerd && !l.on.CRIO {
		if err := checkContainerd(c); err != nil {
			return nil, fmt.Errorf("MachineConfigPool/%s has containerd: %w", l.pool, err)
		}
	}
	l.config = merge(l.config, *c)
	var err error
	if l.files, err = files(l.config, l.on, l.beneath); err != nil {
		return nil, fmt.Errorf("MachineConfigPool/%s: %w", l.pool, err)
	}
	return l, nil
}

// Ignition is the config of the files, each of which counts as a whole.
func (l layer) Ignition() (config []byte, paths []string, err error) {
	for _, f := range l.files {
		paths = append(paths, f.Path)
	}
	config, err = source.Ignition(l.files, nil, nil)
	return config, paths, err
}
