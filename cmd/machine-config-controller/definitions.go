// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/noderefit/noderefit/api"
)

// definitionsPace is the time between two checks of the definitions.
const definitionsPace = 20 * time.Second

// definition is a kind that the controllers read.
type definition struct {
	gv             schema.GroupVersion
	resource, kind string
	// required: without this definition nothing works. Any other may be missing at the start, but not later.
	required bool
	// late: the controllers look for this definition only at their start.
	late bool
}

// What the controllers look for when they begin.
const (
	controllerConfigs = "controllerconfigs"
	rolloutPolicies   = "rolloutpolicies"
)

var ourDefinitions = []definition{
	{gv: mcfgv1.GroupVersion, resource: "machineconfigs", kind: "MachineConfig", required: true},
	{gv: mcfgv1.GroupVersion, resource: "machineconfigpools", kind: "MachineConfigPool", required: true},
	{gv: mcfgv1.GroupVersion, resource: "machineconfignodes", kind: "MachineConfigNode", required: true},
	{gv: mcfgv1.GroupVersion, resource: "kubeletconfigs", kind: "KubeletConfig"},
	{gv: mcfgv1.GroupVersion, resource: "containerruntimeconfigs", kind: "ContainerRuntimeConfig"},
	{gv: mcfgv1.GroupVersion, resource: controllerConfigs, kind: "ControllerConfig", late: true},
	{gv: api.GroupVersion, resource: rolloutPolicies, kind: "RolloutPolicy", late: true},
	{gv: api.GroupVersion, resource: "nodehooks", kind: "NodeHook"},
	{gv: api.GroupVersion, resource: "nodevalues", kind: "NodeValues"},
	{gv: api.GroupVersion, resource: "osstreams", kind: "OSStream"},
	{gv: mcfgv1.GroupVersion, resource: "pinnedimagesets", kind: "PinnedImageSet"},
}

// definitionWatch reports definitions that were deleted. Their objects were deleted too, and the controllers have only
// what they had read before. A watch goes on by itself once its definition is back.
type definitionWatch struct {
	api rest.Interface
	log logr.Logger
	// served are the resources that the cluster has had. absent are those that were missing when the controllers began.
	served, absent map[string]bool
	// elected is closed once this process leads. ruled are the late definitions that were there while it led.
	elected <-chan struct{}
	ruled   map[string]bool
	said    []string
	missing *prometheus.GaugeVec
}

// newDefinitionWatch has to run before the controllers look for kinds.
func newDefinitionWatch(mgr ctrl.Manager) (*definitionWatch, error) {
	kube, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("connecting for the definitions: %w", err)
	}
	d := &definitionWatch{
		api: kube.CoreV1().RESTClient(), log: mgr.GetLogger(), served: map[string]bool{}, absent: map[string]bool{},
		elected: mgr.Elected(), ruled: map[string]bool{},
		missing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "noderefit_definition_missing",
			Help: "Whether a definition that the controllers need, or have read objects of, is not there.",
		}, []string{"resource"}),
	}
	for _, one := range ourDefinitions {
		_, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: one.gv.Group, Kind: one.kind}, one.gv.Version)
		if err != nil && !meta.IsNoMatchError(err) {
			return nil, fmt.Errorf("looking for the kind %s: %w", one.kind, err)
		}
		d.served[one.resource], d.absent[one.resource] = err == nil, err != nil
	}
	return d, nil
}

// had reports whether the cluster had a resource when the process began. All controllers use this one answer. With two
// questions, a definition that comes or goes in between would give two answers.
func (d *definitionWatch) had(resource string) bool { return !d.absent[resource] }

// NeedLeaderElection returns false: every process checks, because each has its own watches.
func (d *definitionWatch) NeedLeaderElection() bool { return false }

// Start checks until ctx ends. Start also ends with an error where only a new process can go on: when a late definition
// has come, and when a late definition has gone before this process led. A process that then leads would wait for the
// definition for ever, because it fills its caches only as the leader.
func (d *definitionWatch) Start(ctx context.Context) error {
	for elected := d.elected; ; {
		if err := d.look(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-elected:
			elected = nil // one look at once: what is there now is there while this process leads
		case <-time.After(definitionsPace):
		}
	}
}

// look keeps the last known state where the API server does not answer.
func (d *definitionWatch) look(ctx context.Context) error {
	now := map[string]bool{}
	for _, gv := range []schema.GroupVersion{mcfgv1.GroupVersion, api.GroupVersion} {
		list, err := d.resources(ctx, gv)
		if err != nil {
			if ctx.Err() == nil {
				d.log.Error(err, "looking whether the definitions are there")
			}
			return nil
		}
		for _, r := range list {
			now[r.Name] = true
		}
	}
	leads := false
	select {
	case <-d.elected:
		leads = true
	default:
	}
	var missing []string
	for _, one := range ourDefinitions {
		name := one.resource
		if one.late && d.absent[name] && now[name] {
			return fmt.Errorf("watching %s: the cluster has had the definition only since this process began, which ends "+
				"to be started anew", name)
		}
		if one.late && d.served[name] && !now[name] && !d.ruled[name] {
			return fmt.Errorf("watching %s: the definition was deleted before this process led, which ends to be started anew",
				name)
		}
		d.ruled[name] = d.ruled[name] || now[name] && leads
		d.served[name] = d.served[name] || now[name]
		gone := !now[name] && (one.required || d.served[name])
		if gone {
			missing = append(missing, name)
		}
		d.missing.WithLabelValues(name).Set(number(gone))
	}
	if !slices.Equal(missing, d.said) {
		d.log.Info("definitions are missing: the controllers use the objects that they read before. Install "+
			"the definitions, and apply the objects again", "resources", missing)
	}
	d.said = missing
	return nil
}

// resources returns the API server's resources of a group. An unknown group has none.
func (d *definitionWatch) resources(ctx context.Context, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	list := &metav1.APIResourceList{}
	err := d.api.Get().AbsPath("apis", gv.Group, gv.Version).SetHeader("Accept", "application/json").Do(ctx).Into(list)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s /apis/%s: %w", http.MethodGet, gv, err)
	}
	return list.APIResources, nil
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
