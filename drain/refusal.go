// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"errors"
	"net/http"
	"regexp"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/noderefit/noderefit/api"
)

// refusal is the reason why an eviction was refused. message is the API server's.
type refusal struct {
	why     string
	budget  string // the name of the PodDisruptionBudget, if the answer has one
	message string
}

// budgetCause matches the budget's name in the cause of a refusal by the API server.
var budgetCause = regexp.MustCompile(`^The disruption budget (\S+) `)

// readRefusal reads the API server's answer to an eviction. It returns nil where the eviction was done or is not
// needed. A pod that no longer exists under its name will soon leave the watch.
func readRefusal(err error) *refusal {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	r := &refusal{why: api.DrainWaitError, message: api.ShortReason(err.Error())}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return r
	}
	if cause, ok := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause); ok {
		r.why, r.message = api.DrainWaitBudget, cause.Message
		if m := budgetCause.FindStringSubmatch(cause.Message); m != nil {
			r.budget = m[1]
		}
		return r
	}
	code := status.Status().Code
	switch {
	case strings.Contains(r.message, "more than one PodDisruptionBudget"),
		strings.Contains(r.message, "pdb disruptions allowed is negative"),
		strings.Contains(r.message, "DisruptedPods map too big"):
		r.why = api.DrainWaitBudget
	case strings.Contains(r.message, "admission webhook"), strings.Contains(r.message, "failed calling webhook"):
		r.why = api.DrainWaitRefused
	case code == http.StatusUnauthorized, code == http.StatusRequestTimeout, code == http.StatusConflict,
		code == http.StatusTooManyRequests:
	case code >= 400 && code < 500:
		r.why = api.DrainWaitRefused
	}
	return r
}

// final reports whether a budget or webhook with a say in the eviction refused it.
func (r *refusal) final() bool {
	return r != nil && (r.why == api.DrainWaitBudget || r.why == api.DrainWaitRefused)
}

// forceRole is the ClusterRole that lets an agent delete pods. It has no binding by default.
const forceRole = "machine-config-daemon-force-drain"

// despite returns the rest of a refusal after the pod was deleted in spite of it. err is the error of the deletion.
func (r *refusal) despite(err error) *refusal {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	text := "its RolloutPolicy has it deleted now, which failed: "
	if apierrors.IsForbidden(err) {
		text = "its RolloutPolicy has it deleted now, which takes ClusterRole " + forceRole + ", bound to the agents: "
	}
	out := *r
	out.message = api.ShortReason(text + err.Error() + "; " + r.message)
	return &out
}
