// SPDX-License-Identifier: Apache-2.0

// Package clusterapi is an extension of Cluster API (Runtime SDK, CAPI 1.12 and later) that updates machines in place.
// It says which changes of a machine's bootstrap configuration need no new machine, and hands these to the pool of the
// machine's node as a MachineConfig. Everything else is the engine's: its plan, its rollout, its verdict.
package clusterapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

const (
	// hooksVersion is the version of the hooks that are answered.
	hooksVersion = "hooks.runtime.cluster.x-k8s.io/v1alpha1"
	// requestLimit is the longest request in bytes. A request has six objects at most, each of which an API server holds.
	requestLimit = 8 << 20
	// atOnce is how many requests are answered at a time.
	atOnce = 4
	// retrySeconds is when Cluster API asks again how far a machine is.
	retrySeconds = 15
)

// machine and the other types below have what this package reads and writes of the types of Cluster API, and of its
// package api/runtime/hooks/v1alpha1.
type machine struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec machineSpec `json:"spec"`
}

type machineSpec struct {
	ClusterName string `json:"clusterName"`
	ProviderID  string `json:"providerID"`
}

type machineSet struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Template machine `json:"template"`
	} `json:"spec"`
}

// bootstrapConfig is a KubeadmConfig.
type bootstrapConfig struct {
	Kind string `json:"kind"`
	Spec struct {
		Files []file `json:"files"`
	} `json:"spec"`
}

// bootstrapTemplate is a KubeadmConfigTemplate.
type bootstrapTemplate struct {
	Kind string `json:"kind"`
	Spec struct {
		Template bootstrapConfig `json:"template"`
	} `json:"spec"`
}

type machineObjects struct {
	Machine         machine          `json:"machine"`
	BootstrapConfig *bootstrapConfig `json:"bootstrapConfig"`
}

type machineSetObjects struct {
	MachineSet              machineSet         `json:"machineSet"`
	BootstrapConfigTemplate *bootstrapTemplate `json:"bootstrapConfigTemplate"`
}

type change[T any] struct {
	Current T `json:"current"`
	Desired T `json:"desired"`
}

// patch is what an answer says of an object: what of its changes is made in place.
type patch struct {
	PatchType string `json:"patchType"`
	Patch     []byte `json:"patch"`
}

type handler struct {
	Name        string `json:"name"`
	RequestHook struct {
		APIVersion string `json:"apiVersion"`
		Hook       string `json:"hook"`
	} `json:"requestHook"`
	TimeoutSeconds int32  `json:"timeoutSeconds"`
	FailurePolicy  string `json:"failurePolicy"`
}

// response has the fields of all responses.
type response struct {
	metav1.TypeMeta

	Status            string    `json:"status"`
	Message           string    `json:"message,omitempty"`
	RetryAfterSeconds int32     `json:"retryAfterSeconds,omitempty"`
	Handlers          []handler `json:"handlers,omitempty"`

	BootstrapConfigPatch         *patch `json:"bootstrapConfigPatch,omitempty"`
	BootstrapConfigTemplatePatch *patch `json:"bootstrapConfigTemplatePatch,omitempty"`
}

const (
	success = "Success"
	failure = "Failure"
)

// hook answers the requests of a kind. name is the handler's in the path; empty for the one hook without handlers.
type hook struct {
	kind, name string
	answer     func(*Extension, context.Context, *json.Decoder) (response, error)
}

// handlers are in the order in which Discovery names them.
var handlers = []hook{
	{"CanUpdateMachine", "can-update-machine", (*Extension).canUpdateMachine},
	{"CanUpdateMachineSet", "can-update-machine-set", (*Extension).canUpdateMachineSet},
	{"UpdateMachine", "update-machine", (*Extension).updateMachine},
}

// hookAt returns the hook of the path that Cluster API makes of it, and reports whether there is one.
func hookAt(path string) (hook, bool) {
	for _, h := range append([]hook{{"Discovery", "", (*Extension).discover}}, handlers...) {
		if path == strings.TrimSuffix("/"+hooksVersion+"/"+strings.ToLower(h.kind)+"/"+h.name, "/") {
			return h, true
		}
	}
	return hook{}, false
}

// Options are what the extension is for.
type Options struct {
	// Namespace and Cluster are those of the machines that are updated.
	Namespace, Cluster string
	// Pools are those that may be used; empty: all but those of the control plane.
	Pools []string
}

// Extension answers Cluster API's hooks for the machines of one cluster.
type Extension struct {
	nodes   Nodes
	options Options
	log     logr.Logger
	places  chan struct{}
}

// New returns the extension for the machines of a Cluster, whose nodes are in the cluster that nodes knows.
func New(nodes Nodes, o Options, log logr.Logger) *Extension {
	return &Extension{nodes: nodes, options: o, log: log, places: make(chan struct{}, atOnce)}
}

// ServeHTTP implements http.Handler.
func (e *Extension) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, known := hookAt(r.URL.Path)
	switch {
	case !known:
		http.NotFound(w, r)
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST is answered", http.StatusMethodNotAllowed)
		return
	}
	select {
	case e.places <- struct{}{}:
		defer func() { <-e.places }()
	case <-r.Context().Done():
		http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
		return
	}
	out, err := h.answer(e, r.Context(), json.NewDecoder(http.MaxBytesReader(w, r.Body, requestLimit)))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w, fmt.Sprintf("the request has more than %d bytes", requestLimit), http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		http.Error(w, "reading the request: "+api.ShortReason(err.Error()), http.StatusBadRequest)
		return
	}
	out.APIVersion, out.Kind, out.Message = hooksVersion, h.kind+"Response", api.ShortReason(out.Message)
	if out.Status == "" {
		out.Status = success
	}
	e.log.Info("answered", "hook", h.kind, "status", out.Status, "retryAfterSeconds", out.RetryAfterSeconds,
		"message", out.Message)
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // texts and numbers only
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // fails only if the caller went away
}

func (e *Extension) discover(context.Context, *json.Decoder) (out response, err error) {
	for _, h := range handlers {
		one := handler{Name: h.name, TimeoutSeconds: 10, FailurePolicy: "Fail"}
		one.RequestHook.APIVersion, one.RequestHook.Hook = hooksVersion, h.kind
		out.Handlers = append(out.Handlers, one)
	}
	return out, nil
}

// decode reads a question about a change of objects: as T, and by the names of the objects with all of their fields.
func decode[T any](in *json.Decoder) (typed change[T], all change[objects], err error) {
	var raw change[json.RawMessage]
	if err := in.Decode(&raw); err != nil {
		return typed, all, err
	}
	return typed, all, errors.Join(
		json.Unmarshal(raw.Current, &typed.Current), json.Unmarshal(raw.Desired, &typed.Desired),
		json.Unmarshal(raw.Current, &all.Current), json.Unmarshal(raw.Desired, &all.Desired))
}

func (e *Extension) canUpdateMachine(ctx context.Context, in *json.Decoder) (out response, err error) {
	q, all, err := decode[machineObjects](in)
	if err != nil {
		return out, err
	}
	out.BootstrapConfigPatch, err = e.can(ctx, question{
		machines: change[machine]{q.Current.Machine, q.Desired.Machine},
		configs:  change[*bootstrapConfig]{q.Current.BootstrapConfig, q.Desired.BootstrapConfig},
		path:     "/spec/files", other: other(all, "machine", "infrastructureMachine", "bootstrapConfig"),
	})
	out.say(err)
	return out, nil
}

func (e *Extension) canUpdateMachineSet(ctx context.Context, in *json.Decoder) (out response, err error) {
	q, all, err := decode[machineSetObjects](in)
	if err != nil {
		return out, err
	}
	config := func(t *bootstrapTemplate) *bootstrapConfig {
		if t == nil || t.Kind != "KubeadmConfigTemplate" {
			return nil
		}
		c := t.Spec.Template
		c.Kind = "KubeadmConfig"
		return &c
	}
	template := func(s machineSet) machine {
		m := s.Spec.Template
		m.Namespace = s.Namespace
		return m
	}
	out.BootstrapConfigTemplatePatch, err = e.can(ctx, question{
		machines: change[machine]{template(q.Current.MachineSet), template(q.Desired.MachineSet)},
		configs: change[*bootstrapConfig]{
			config(q.Current.BootstrapConfigTemplate), config(q.Desired.BootstrapConfigTemplate)},
		path:  "/spec/template/spec/files",
		other: other(all, "machineSet", "infrastructureMachineTemplate", "bootstrapConfigTemplate"),
	})
	out.say(err)
	return out, nil
}

// say puts an error into an answer about what can be done. What may be otherwise at the next try is a failure: Cluster
// API remembers each other answer for a day.
func (r *response) say(err error) {
	switch {
	case errors.As(err, new(temporaryError)):
		r.Status, r.Message = failure, err.Error()
	case err != nil:
		r.Message = "a new machine is needed: " + err.Error()
	}
}

// question is whether machines can be updated in place. path is that of the files in the patched object, and other is
// what else changes.
type question struct {
	machines change[machine]
	configs  change[*bootstrapConfig]
	path     string
	other    string
}

// can returns a patch of the files where all that changes is made in place. The error says why not. Before Cluster API
// makes new machines, the pool no longer has what these do not boot with.
func (e *Extension) can(ctx context.Context, q question) (*patch, error) {
	current, desired := q.configs.Current, q.configs.Desired
	if current == nil || desired == nil || current.Kind != "KubeadmConfig" || desired.Kind != "KubeadmConfig" {
		return nil, errors.New("only KubeadmConfigs are updated in place")
	}
	err := e.place(ctx, q)
	if err != nil && !errors.As(err, new(temporaryError)) {
		if unreleased := e.release(ctx, q.machines.Current, desired.Spec.Files); unreleased != nil {
			return nil, unreleased
		}
	}
	if err != nil {
		return nil, err
	}
	op := "replace"
	if len(current.Spec.Files) == 0 {
		op = "add"
	}
	data, err := json.Marshal([]map[string]any{{"op": op, "path": q.path, "value": desired.Spec.Files}})
	if err != nil {
		panic(err) // texts only
	}
	return &patch{"JSONPatch", data}, nil
}

// place notes the paths that change in place. The error says why they do not.
func (e *Extension) place(ctx context.Context, q question) error {
	changed, err := changes(q.configs.Current.Spec.Files, q.configs.Desired.Spec.Files)
	switch {
	case err != nil:
		return err
	case q.other != "":
		return fmt.Errorf("%s has changed otherwise than by files", q.other)
	case len(changed) == 0:
		return errors.New("no file has changed")
	}
	t, err := e.find(ctx, q.machines.Desired)
	if err != nil {
		return err
	}
	widened := t.record.widen(changed)
	if err := t.load(q.configs.Desired.Spec.Files); err != nil {
		return err
	}
	if err := t.judge(); err != nil {
		return temporaryError{err}
	}
	if f := t.failed(t.digest); f != nil {
		return notYet("these files failed on node %s, and are not tried again: %s. Correct the template", f.Node, f.Reason)
	}
	if t.record.forgive(t.digest) || widened {
		config := ignition(nil)
		if t.present != nil {
			config = t.present.Spec.Config.Raw
		}
		if err := t.write(config); err != nil {
			return temporaryError{err}
		}
	}
	return nil
}

func (e *Extension) updateMachine(ctx context.Context, in *json.Decoder) (out response, err error) {
	var q struct {
		Desired machineObjects `json:"desired"`
	}
	if err := in.Decode(&q); err != nil {
		return out, err
	}
	s := e.step(ctx, q.Desired)
	out.Message = s.text
	switch s.is {
	case failed:
		out.Status = failure
	case waits:
		out.RetryAfterSeconds = retrySeconds
	}
	return out, nil
}
