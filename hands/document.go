// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/reboots"
)

// The documents that the verbs of a host print with -o json: a head reads them, and so do people's programs.
type (
	// PlanDocument is what plan prints.
	PlanDocument struct {
		api.Header
		*plan.Plan
	}
	// ResultDocument is what apply, recover, rollback and the other commands that act print.
	ResultDocument struct {
		api.Header
		*host.Result
	}
	// StatusDocument is what status prints.
	StatusDocument struct {
		api.Header
		*host.Status
	}
	// VerificationDocument is what verify prints.
	VerificationDocument struct {
		api.Header
		*host.Verification
	}
	// WantedDocument is what wants-reboot prints.
	WantedDocument struct {
		api.Header
		*reboots.Answer
	}
	// HooksDocument is what hooks prints.
	HooksDocument struct {
		api.Header
		*hooks.List
	}
)

// NewPlanDocument returns the document of a plan.
func NewPlanDocument(p *plan.Plan) PlanDocument { return PlanDocument{api.NewHeader("HostPlan"), p} }

// NewResultDocument returns the document of a result.
func NewResultDocument(r *host.Result) ResultDocument {
	return ResultDocument{api.NewHeader("HostResult"), r}
}

// NewStatusDocument returns the document of a status.
func NewStatusDocument(s *host.Status) StatusDocument {
	return StatusDocument{api.NewHeader("HostStatus"), s}
}

// NewVerificationDocument returns the document of a comparison.
func NewVerificationDocument(v *host.Verification) VerificationDocument {
	return VerificationDocument{api.NewHeader("HostVerification"), v}
}

// NewWantedDocument returns the document of what wants a reboot.
func NewWantedDocument(a *reboots.Answer) WantedDocument {
	return WantedDocument{api.NewHeader("HostRebootWanted"), a}
}

// NewHooksDocument returns the document of the host's own hooks.
func NewHooksDocument(l *hooks.List) HooksDocument {
	return HooksDocument{api.NewHeader("HostHooks"), l}
}
