// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// step is the part of an update that a node is at.
type step struct {
	// Name is a word such as Draining; empty if no step is under way.
	Name    string
	Since   time.Time
	Message string
}

// The names of steps that code treats specially.
const (
	stepDraining  = "Draining"
	stepRebooting = "Rebooting"
)

// steps are the conditions of a MachineConfigNode that show the progress of an update, in their order. A condition is
// Unknown from the beginning of its step to the end. Conditions that summarise several steps are left out.
var steps = []struct {
	condition mcfgv1.StateProgress
	name      string
}{
	{mcfgv1.MachineConfigNodeUpdatePrepared, "Staging"},
	{mcfgv1.MachineConfigNodeUpdateCordoned, "Cordoning"},
	{mcfgv1.MachineConfigNodeUpdateDrained, stepDraining},
	{mcfgv1.MachineConfigNodeUpdateFilesAndOS, "Applying"},
	{mcfgv1.MachineConfigNodeUpdateRebooted, stepRebooting},
	{mcfgv1.MachineConfigNodeResumed, "Proving"},
	{mcfgv1.MachineConfigNodeUpdateUncordoned, "Settling"},
}

// readStep returns the furthest step that a MachineConfigNode shows as under way. state may be nil.
func readStep(state *mcfgv1.MachineConfigNode) step {
	var at step
	if state == nil {
		return at
	}
	for _, s := range steps {
		for _, c := range state.Status.Conditions {
			if c.Type == string(s.condition) && c.Status == metav1.ConditionUnknown {
				at = step{Name: s.name, Since: c.LastTransitionTime.Time, Message: c.Message}
			}
		}
	}
	return at
}
