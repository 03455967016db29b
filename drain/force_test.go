// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/noderefit/noderefit/api"
)

// gatekeeper is an API server that answers evictions and deletions, with an error or a yes. A request is wrong that does
// not name the very pod, or gives it another time to end than its own.
type gatekeeper struct {
	evict, remove *apierrors.StatusError
	asked         []string
	wrong         []string
}

func (g *gatekeeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if o := optionsOf(r); o == nil || o.Preconditions == nil || *o.Preconditions.UID != "1" || o.GracePeriodSeconds != nil {
		g.wrong = append(g.wrong, fmt.Sprintf("%s with %+v", r.Method, o))
	}
	answer := g.remove
	if strings.HasSuffix(r.URL.Path, "/eviction") {
		answer = g.evict
	}
	g.asked = append(g.asked, r.Method)
	status := metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusOK}
	if answer != nil {
		status = answer.ErrStatus
	}
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	data, err := json.Marshal(status)
	if err != nil {
		status.Code = http.StatusTeapot
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(data)
}

// optionsOf returns how a request has a pod deleted.
func optionsOf(r *http.Request) *metav1.DeleteOptions {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil
	}
	if eviction, is := object.(*policyv1.Eviction); is {
		return eviction.DeleteOptions
	}
	options, _ := object.(*metav1.DeleteOptions)
	return options
}

func TestForceEvictsFirstAndDeletesOnlyWhatIsRefused(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	budget := apierrors.NewTooManyRequestsError("no")
	budget.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause,
		Message: "The disruption budget web needs 1 healthy pods and has 1 currently"}}}
	forbidden := apierrors.NewForbidden(pods, "web", nil)
	missing := apierrors.NewNotFound(pods, "web")
	busy := apierrors.NewInternalError(http.ErrHandlerTimeout)
	for name, c := range map[string]struct {
		evict, remove *apierrors.StatusError
		gentle        bool
		asked         []string
		forced        bool
		why           string   // empty: it goes
		says          []string // what the refusal names
	}{
		"nothing refuses":           {asked: []string{"POST"}},
		"a budget does":             {evict: budget, asked: []string{"POST", "DELETE"}, forced: true},
		"a budget does, no force":   {evict: budget, gentle: true, asked: []string{"POST"}, why: api.DrainWaitBudget},
		"the API server is at odds": {evict: busy, asked: []string{"POST"}, why: api.DrainWaitError},
		"it has gone meanwhile":     {evict: budget, remove: missing, asked: []string{"POST", "DELETE"}},
		"without the right to delete": {evict: budget, remove: forbidden, asked: []string{"POST", "DELETE"},
			why: api.DrainWaitBudget, says: []string{"machine-config-daemon-force-drain", "forbidden", "budget web needs"}},
		"the API server is at odds with that": {evict: budget, remove: busy, asked: []string{"POST", "DELETE"},
			why: api.DrainWaitBudget, says: []string{"which failed", "budget web needs"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keeper := &gatekeeper{evict: c.evict, remove: c.remove}
			r := &run{Drainer: &Drainer{Client: clientOf(t, keeper.ServeHTTP), Node: "n"}, answers: make(chan answer, 1)}
			r.askFor(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web", UID: "1"}}, !c.gentle)
			a := <-r.answers
			if !slices.Equal(keeper.asked, c.asked) {
				t.Errorf("it asked %v, want %v", keeper.asked, c.asked)
			}
			if len(keeper.wrong) > 0 {
				t.Errorf("it sent %q", keeper.wrong)
			}
			if a.uid != "1" || a.force == c.gentle || (a.forced == "a/web") != c.forced {
				t.Errorf("it says %+v", a)
			}
			if a.refusal == nil {
				a.refusal = &refusal{}
			}
			if a.refusal.why != c.why || c.why == api.DrainWaitBudget && a.refusal.budget != "web" {
				t.Errorf("refused: %+v, want %q", a.refusal, c.why)
			}
			for _, says := range c.says {
				if !strings.Contains(a.refusal.message, says) {
					t.Errorf("%q does not say %q", a.refusal.message, says)
				}
			}
		})
	}
}

func TestForcedPodsAreCountedByWhatBecameOfThem(t *testing.T) {
	t.Parallel()
	r := &run{forcing: 3}
	for _, a := range []answer{{}, {force: true}, {force: true, forced: "a/b"}, {force: true, refusal: &refusal{}}} {
		r.noteForced(a)
	}
	if r.forcing != 0 || !slices.Equal(r.forced, []string{"a/b"}) {
		t.Errorf("%d are not answered, %v were deleted", r.forcing, r.forced)
	}
}
