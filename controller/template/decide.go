// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
)

// Reasons of the conditions.
const (
	reasonCompleted  = "Completed"
	reasonTemplates  = "TemplatesInvalid"
	reasonTaken      = "NameTaken"
	reasonUnreadable = "Unreadable"
	reasonWrite      = "WriteFailed"
	reasonFailing    = "Failing"
	reasonRunning    = "Running"
)

// change is what one MachineConfig needs, and why.
type change struct {
	is     *mcfgv1.MachineConfig // nil: it is to be made
	to     *mcfgv1.MachineConfig // nil: it is to be removed
	event  string
	reason string
}

// decision is what is to be done. If another program has a MachineConfig of one of the names, nothing is done: half of
// a set is not a configuration.
type decision struct {
	changes []change
	taken   []string
}

// make returns the MachineConfigs that a ControllerConfig asks for.
func (s Sets) make(cc *mcfgv1.ControllerConfig, version string) ([]*mcfgv1.MachineConfig, error) {
	name := cc.Annotations[api.Templates]
	set, err := s.Open(name)
	if err != nil {
		return nil, fmt.Errorf("templates %s: %w", name, err)
	}
	wanted, err := Generate(set, cc)
	if err != nil {
		return nil, fmt.Errorf("templates %s: %w", name, err)
	}
	for _, mc := range wanted {
		own(cc, mc, version)
	}
	return wanted, nil
}

// refused returns why nothing is done, nil if something can be done.
func (d decision) refused() error {
	if len(d.taken) == 0 {
		return nil
	}
	return fmt.Errorf("MachineConfig/%s exists and was not made of templates: rename or delete that MachineConfig, and "+
		"the controller makes its own", strings.Join(d.taken, ", MachineConfig/"))
}

// Decide returns the MachineConfigs to be written and removed where there is this ControllerConfig and these
// MachineConfigs are found. version is the maker's version.
func (s Sets) Decide(
	cc *mcfgv1.ControllerConfig, found []*mcfgv1.MachineConfig, version string,
) (write, remove []*mcfgv1.MachineConfig, err error) {
	if cc.Annotations[api.Templates] == "" || cc.DeletionTimestamp != nil {
		return nil, nil, nil
	}
	wanted, err := s.make(cc, version)
	if err != nil {
		return nil, nil, err
	}
	d := decide(wanted, found)
	for _, c := range d.changes {
		if c.to != nil {
			write = append(write, c.to)
		} else {
			remove = append(remove, c.is)
		}
	}
	return write, remove, d.refused()
}

// decide compares the wanted MachineConfigs with those found.
func decide(wanted, found []*mcfgv1.MachineConfig) decision {
	var d decision
	there := map[string]*mcfgv1.MachineConfig{}
	for _, mc := range found {
		there[mc.Name] = mc
	}
	for _, mc := range wanted {
		is := there[mc.Name]
		delete(there, mc.Name)
		if is == nil {
			d.changes = append(d.changes, change{to: mc, event: eventMade, reason: "made of templates"})
			continue
		}
		if !ours(is) {
			d.taken = append(d.taken, mc.Name)
			continue
		}
		if c := compare(is, mc); c != nil {
			d.changes = append(d.changes, *c)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if mc := there[name]; ours(mc) && mc.DeletionTimestamp == nil {
			d.changes = append(d.changes, change{is: mc, event: eventGone, reason: "the templates have no such MachineConfig"})
		}
	}
	if len(d.taken) > 0 {
		d.changes = nil
	}
	return d
}

// ours reports whether a MachineConfig was made of templates under its own name. A copy has the mark of another name.
func ours(mc metav1.Object) bool {
	if marked, own := source.Marked(mc); marked {
		return own
	}
	o := metav1.GetControllerOf(mc)
	return o != nil && o.Kind == kindControllerConfig && o.Name == api.ControllerConfig
}

// compare returns what has to change in an existing MachineConfig, and nil if nothing has. Labels, annotations and
// owners that others have set stay.
func compare(is, wanted *mcfgv1.MachineConfig) *change {
	to := source.Onto(is, wanted)
	if source.Same(is, to) {
		return nil
	}
	what := differences(is, to)
	switch {
	case is.Annotations[api.MadeAs] != wanted.Annotations[api.MadeAs]:
		return &change{is, to, eventChanged, "the templates or the ControllerConfig have changed"}
	case len(what) == 0:
		return &change{is, to, eventChanged, "the controller is another version, or the ControllerConfig another object"}
	}
	return &change{is, to, eventRestored, "somebody had changed its " + strings.Join(what, " and ") +
		"; the controller has restored it. To override it, create a MachineConfig of your own with a higher name"}
}

// differences returns the names of the parts that differ, without their content.
func differences(is, to *mcfgv1.MachineConfig) []string {
	var out []string
	if !source.SameSpec(&is.Spec, &to.Spec) {
		out = append(out, "spec")
	}
	if !maps.Equal(is.Labels, to.Labels) {
		out = append(out, "labels")
	}
	return out
}

// own marks a MachineConfig as made of a ControllerConfig. The MachineConfig is deleted with the ControllerConfig, and
// does not block that deletion.
func own(cc *mcfgv1.ControllerConfig, mc *mcfgv1.MachineConfig, version string) {
	mc.Annotations = map[string]string{api.GeneratedBy: version, api.MadeAs: source.Mark(mc)}
	mc.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: mcfgv1.GroupVersion.String(), Kind: kindControllerConfig, Name: cc.Name, UID: cc.UID,
		Controller: new(true),
	}}
}

// outcome is how a turn ended. reason is "" after success, and reasonRunning if the turn has not ended.
type outcome struct{ reason, message string }

// status returns the desired status of the ControllerConfig.
func status(cc *mcfgv1.ControllerConfig, o outcome, made int, now metav1.Time) mcfgv1.ControllerConfigStatus {
	s := *cc.Status.DeepCopy()
	s.ObservedGeneration = cc.Generation
	set := cc.Annotations[api.Templates]
	certs, unreadable := certificates(&cc.Spec)
	s.ControllerCertificates = certs
	running, completed, failing := corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionFalse
	done := outcome{reasonCompleted, fmt.Sprintf("%d MachineConfigs are as the templates of %s make them", made, set)}
	failed := outcome{reasonCompleted, ""}
	switch o.reason {
	case "":
	case reasonRunning:
		running, completed, done = corev1.ConditionTrue, corev1.ConditionFalse, o
	default:
		completed, failing = corev1.ConditionFalse, corev1.ConditionTrue
		done, failed = outcome{reasonFailing, "the existing MachineConfigs stay as they are: " + o.message}, o
	}
	if len(unreadable) > 0 {
		// An unreadable bundle holds up no configuration, since no configuration has the certificates.
		done.message += "; not among the certificates: " + strings.Join(unreadable, "; ")
	}
	for _, c := range []mcfgv1.ControllerConfigStatusCondition{
		{Type: mcfgv1.TemplateControllerRunning, Status: running, Reason: cmp.Or(o.reason, reasonCompleted)},
		{Type: mcfgv1.TemplateControllerCompleted, Status: completed, Reason: done.reason, Message: done.message},
		{Type: mcfgv1.TemplateControllerFailing, Status: failing, Reason: failed.reason, Message: failed.message},
		{Type: api.Reconciling, Status: running, Reason: cmp.Or(o.reason, reasonCompleted), Message: done.message},
		{Type: api.Stalled, Status: failing, Reason: failed.reason, Message: failed.message},
	} {
		c.Message = api.ShortReason(c.Message)
		i := slices.IndexFunc(s.Conditions, func(was mcfgv1.ControllerConfigStatusCondition) bool {
			return was.Type == c.Type
		})
		c.LastTransitionTime = now
		if i < 0 {
			s.Conditions = append(s.Conditions, c)
			continue
		}
		if s.Conditions[i].Status == c.Status {
			c.LastTransitionTime = s.Conditions[i].LastTransitionTime
		}
		s.Conditions[i] = c
	}
	return s
}

// withdrawn returns the status of a ControllerConfig that no longer names templates. No MachineConfigs are made of it
// any more, so nothing waits for it. The existing MachineConfigs stay, since nodes need them: without one, a node has
// no unit for its kubelet.
func withdrawn(cc *mcfgv1.ControllerConfig) mcfgv1.ControllerConfigStatus {
	s := *cc.Status.DeepCopy()
	s.ObservedGeneration = cc.Generation
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c mcfgv1.ControllerConfigStatusCondition) bool {
		switch c.Type {
		case mcfgv1.TemplateControllerRunning, mcfgv1.TemplateControllerCompleted, mcfgv1.TemplateControllerFailing,
			api.Reconciling, api.Stalled:
			return true
		default:
			return false
		}
	})
	s.ControllerCertificates, _ = certificates(&cc.Spec)
	return s
}
