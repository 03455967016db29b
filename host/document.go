// SPDX-License-Identifier: Apache-2.0

package host

import (
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/plan"
)

// The documents that the commands of a host print with -o json.
type (
	// PlanDocument is what plan prints.
	PlanDocument struct {
		api.Header
		*plan.Plan
	}
	// ResultDocument is what apply, recover, rollback and the other commands that act print.
	ResultDocument struct {
		api.Header
		*Result
	}
	// StatusDocument is what status prints.
	StatusDocument struct {
		api.Header
		*Status
	}
	// VerificationDocument is what verify prints.
	VerificationDocument struct {
		api.Header
		*Verification
	}
	// HooksDocument is what hooks prints.
	HooksDocument struct {
		api.Header
		*HookList
	}
)

// NewPlanDocument returns the document of a plan.
func NewPlanDocument(p *plan.Plan) PlanDocument { return PlanDocument{api.NewHeader("HostPlan"), p} }

// NewResultDocument returns the document of a result.
func NewResultDocument(r *Result) ResultDocument {
	return ResultDocument{api.NewHeader("HostResult"), r}
}

// NewStatusDocument returns the document of a status.
func NewStatusDocument(s *Status) StatusDocument {
	return StatusDocument{api.NewHeader("HostStatus"), s}
}

// NewVerificationDocument returns the document of a comparison.
func NewVerificationDocument(v *Verification) VerificationDocument {
	return VerificationDocument{api.NewHeader("HostVerification"), v}
}

// NewHooksDocument returns the document of the host's own hooks.
func NewHooksDocument(l *HookList) HooksDocument { return HooksDocument{api.NewHeader("HostHooks"), l} }
