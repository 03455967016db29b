// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/message"
)

// HooksKey names hooks. On a MachineConfigPool people write the names of NodeHooks there, separated by commas; on the
// pool's rendered configurations the render controller writes a []Hook there, for the nodes, which read those anyway.
const HooksKey = ownPrefix + "hooks"

// HooksUnusable is the reason of condition RenderDegraded of a pool that names NodeHooks which are not there, or make
// no sense.
const HooksUnusable = "HooksUnusable"

// HookStopKey is the annotation of a MachineConfigNode that holds a HookStop. The daemon writes it.
const HookStopKey = ownPrefix + "hook"

// HookWhen is the point of an update at which a hook is asked.
// +kubebuilder:validation:Enum=BeforeDrain;AfterBoot
type HookWhen string

// The points.
const (
	// HookBeforeDrain: the update is staged and the node still serves. The answer no holds the update until the answer
	// is yes.
	HookBeforeDrain HookWhen = "BeforeDrain"
	// HookAfterBoot: the new configuration has booted. The answer no fails the update, and the node goes back.
	HookAfterBoot HookWhen = "AfterBoot"
)

// NodeHook is a program that nodes ask at a point of their updates. Nodes of the pools that name it in the annotation
// noderefit.dev/hooks ask it.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nodehooks,scope=Cluster,shortName=nh,categories=noderefit
// +kubebuilder:printcolumn:name="When",type=string,JSONPath=`.spec.when`
// +kubebuilder:printcolumn:name="Timeout",type=integer,JSONPath=`.spec.timeoutSeconds`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeHook struct {
	metav1.TypeMeta   `json:",inline"` //nolint:revive // the generator of schemas needs the word
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeHookSpec `json:"spec"`
}

// NodeHookList is a list of NodeHooks.
// +kubebuilder:object:root=true
type NodeHookList struct {
	metav1.TypeMeta `json:",inline"` //nolint:revive // the generator of schemas needs the word
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeHook `json:"items"`
}

// NodeHookSpec says what is run, and when.
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="has(self.script) != has(self.path)",message="exactly one of script and path is needed"
type NodeHookSpec struct {
	// when is the point of an update at which it is asked: BeforeDrain, while the node still serves, or AfterBoot, before
	// the new configuration has its verdict.
	When HookWhen `json:"when"`
	// script is a program with its interpreter in the first line. It is no place for secrets: whoever reads MachineConfigs
	// reads it.
	// +kubebuilder:validation:MaxLength=16384
	// +kubebuilder:validation:XValidation:rule="self.startsWith('#!/')",message="the first line has to name the interpreter, as in #!/bin/sh"
	// +optional
	Script string `json:"script,omitempty"`
	// path is an executable on the host, absolute.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^(/[^/]+)+$') && !self.matches('(^|/)[.][.]?(/|$)')",message="it has to be an absolute path without . and .."
	// +optional
	Path string `json:"path,omitempty"`
	// args are its arguments.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=1024
	// +optional
	Args []string `json:"args,omitempty"`
	// timeoutSeconds is how long it may run.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +kubebuilder:default=120
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// The bounds of what the nodes are told: an annotation's are 256 KiB, of all that an object has.
const (
	hookScript  = 16 << 10
	hookSeconds = 3600
	hooksTold   = 96 << 10
)

// check says what is wrong with a spec, by field. The schema says the same where it is in force.
func (s *NodeHookSpec) check() error {
	var errs []error
	if s.When != HookBeforeDrain && s.When != HookAfterBoot {
		errs = append(errs, fmt.Errorf("spec.when: %q is neither %s nor %s", s.When, HookBeforeDrain, HookAfterBoot))
	}
	switch {
	case (s.Script == "") == (s.Path == ""):
		errs = append(errs, errors.New("spec: exactly one of script and path is needed"))
	case s.Script != "" && !strings.HasPrefix(s.Script, "#!/"):
		errs = append(errs, errors.New("spec.script: the first line has to name the interpreter, as in #!/bin/sh"))
	case len(s.Script) > hookScript:
		errs = append(errs, fmt.Errorf("spec.script: has %d bytes, %d are the most", len(s.Script), hookScript))
	case s.Path != "" && (!path.IsAbs(s.Path) || path.Clean(s.Path) != s.Path || s.Path == "/"):
		errs = append(errs, fmt.Errorf("spec.path: %q is no absolute, clean path of a file", s.Path))
	}
	if s.TimeoutSeconds < 0 || s.TimeoutSeconds > hookSeconds {
		errs = append(errs, fmt.Errorf("spec.timeoutSeconds: %d is not from 1 to %d", s.TimeoutSeconds, hookSeconds))
	}
	return errors.Join(errs...)
}

// Hook is a NodeHook as it is carried to the nodes of a pool.
type Hook struct {
	Name string `json:"name"`
	NodeHookSpec
	// Problem says why nobody knows what is to be asked. Nothing is begun that would have to ask it.
	Problem string `json:"problem,omitempty"`
}

// parseHookNames reads what people write at a pool.
func parseHookNames(text string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		switch {
		case name == "" && strings.TrimSpace(text) == "":
			return nil, nil
		case name == "" || strings.ContainsAny(name, "/ \t\n"):
			return nil, fmt.Errorf("annotation %s: %q is no list of names of NodeHooks, separated by commas", HooksKey, text)
		case slices.Contains(names, name):
			return nil, fmt.Errorf("annotation %s: names NodeHook/%s twice", HooksKey, name)
		}
		names = append(names, name)
	}
	return names, nil
}

// CarryHooks is what a pool that names these hooks has its nodes told, and what is wrong with it: an error names the
// object and the field. What is wrong is told too, so that no node goes on unasked. get returns nil for none.
func CarryHooks(text string, get func(name string) (*NodeHook, error)) (carried []Hook, problem error) {
	names, err := parseHookNames(text)
	if err != nil {
		return []Hook{{Name: "?", Problem: err.Error()}}, err
	}
	var problems []error
	size := 0
	for _, name := range names {
		told := Hook{Name: name}
		object, err := get(name)
		switch {
		case err != nil:
			return nil, err
		case object == nil:
			err = fmt.Errorf("annotation %s: NodeHook/%s: is not there", HooksKey, name)
		default:
			if err = errors.Join(Unreadable(object), object.Spec.check()); err != nil {
				err = fmt.Errorf("NodeHook/%s: %w", name, err)
			}
			told.NodeHookSpec = object.Spec
		}
		if size += len(Encode(told)); err == nil && size > hooksTold {
			err = fmt.Errorf("annotation %s: with NodeHook/%s the hooks have more than %d bytes", HooksKey, name, hooksTold)
		}
		if err != nil {
			told = Hook{Name: name, Problem: message.OneLine(err.Error())}
			problems = append(problems, err)
		}
		carried = append(carried, told)
	}
	return carried, errors.Join(problems...)
}

// HookStop is a hook that holds an update.
type HookStop struct {
	Config string `json:"config"`
	// Hook is a path on the host, or NodeHook/ and a name.
	Hook string `json:"hook"`
	// Why is how it ended, and Output what it printed last.
	Why    string   `json:"why"`
	Output []string `json:"output,omitempty"`
	// Since is when it first said no.
	Since time.Time `json:"since"`
}

// NodeHookPrefix begins the name of a hook that comes from the cluster.
const NodeHookPrefix = "NodeHook/"
