// SPDX-License-Identifier: Apache-2.0

package notifications

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// refusing is an API server that has nothing but an error.
type refusing struct {
	client.Reader
	err error
}

func (r refusing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return r.err
}

func TestALaneIsForgottenOnlyWhenItsPolicyIsGone(t *testing.T) {
	t.Parallel()
	policies := schema.GroupResource{Group: "noderefit.dev", Resource: "rolloutpolicies"}
	for _, test := range []struct {
		err             error
		remembered, bad bool
	}{
		{apierrors.NewNotFound(policies, "careful"), false, false},
		{apierrors.NewInternalError(context.DeadlineExceeded), true, true},
	} {
		c := &courier{desk: &desk{live: refusing{err: test.err}, counts: newCounts()}}
		l := lane{"careful", "chat"}
		c.tries.last = map[lane]try{l: {pause: lastPause, why: "it is down"}}
		if _, err := c.Reconcile(t.Context(), l); (err != nil) != test.bad {
			t.Errorf("%v: reconciling says %v", test.err, err)
		}
		if _, remembered := c.tries.reasons()[l]; remembered != test.remembered {
			t.Errorf("%v: remembered: %t", test.err, remembered)
		}
	}
}
