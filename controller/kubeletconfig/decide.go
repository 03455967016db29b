// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"fmt"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/controller/source"
)

// Series describes KubeletConfigs: each one's settings come on top of the pool's kubelet.conf and of earlier
// KubeletConfigs.
var Series = source.Series[*mcfgv1.KubeletConfig, mcfgv1.KubeletConfigSpec]{
	Kind: "KubeletConfig", What: "kubelet",
	Spec: func(o *mcfgv1.KubeletConfig) (*mcfgv1.KubeletConfigSpec, *metav1.LabelSelector) {
		spec := o.Spec.DeepCopy()
		spec.MachineConfigPoolSelector = nil
		return spec, o.Spec.MachineConfigPoolSelector
	},
	Base: baseOf,
}

// baseOf returns what a pool's nodes have without KubeletConfigs.
func baseOf(
	_ *source.World, pool *mcfgv1.MachineConfigPool, around *source.Around,
) (source.Layer[mcfgv1.KubeletConfigSpec], error) {
	s := settings{pool: pool.Name, doc: document{}}
	merged, err := around.Beneath(pool.Name)
	if err != nil {
		return s, err
	}
	for _, u := range merged.Units {
		if u.Name == sizingUnit {
			s.calculates = u.Contents == calculatorUnit
			s.sizes = !s.calculates
		}
	}
	s.sizing = strings.Contains(string(source.Contents(merged, sizingPath)), sizingEnabled+"true")
	text, path := source.Contents(merged, wholePath), wholePath
	if s.whole = text != nil; !s.whole {
		text, path = source.Contents(merged, dropinPath), dropinPath // from the pool of all workers
	}
	if text == nil {
		return s, nil
	}
	if s.doc, err = parse(text); err == nil {
		err = ofKind(s.doc, false)
	}
	if err != nil {
		return s, fmt.Errorf("MachineConfig/%s: %s is no %s: %w", around.Bringing(path), path, documentKind, err)
	}
	return s, nil
}
