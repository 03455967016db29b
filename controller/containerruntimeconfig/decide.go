// SPDX-License-Identifier: Apache-2.0

package containerruntimeconfig

import (
	"fmt"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
)

// Series describes ContainerRuntimeConfigs: each includes the settings of earlier ones.
var Series = source.Series[*mcfgv1.ContainerRuntimeConfig, mcfgv1.ContainerRuntimeConfiguration]{
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

// layer is the ContainerRuntimeConfigs of a pool so far, merged, and the files made of them.
type layer struct {
	pool    string
	on      source.Runtime
	beneath *machineconfig.Config
	config  mcfgv1.ContainerRuntimeConfiguration
	files   []source.File
}

// Over merges one more ContainerRuntimeConfig.
func (l layer) Over(
	c *mcfgv1.ContainerRuntimeConfiguration,
) (source.Layer[mcfgv1.ContainerRuntimeConfiguration], error) {
	if err := check(c); err != nil {
		return nil, err
	}
	// In a pool that has nodes with CRI-O too, a node with containerd does not refuse settings that the others can have.
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

// Ignition returns the config with the files. A later file replaces one of them as a whole, so all paths are returned.
func (l layer) Ignition() (config []byte, paths []string, err error) {
	for _, f := range l.files {
		paths = append(paths, f.Path)
	}
	config, err = source.Ignition(l.files, nil, nil)
	return config, paths, err
}
