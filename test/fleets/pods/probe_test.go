// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/test/lab/fleet"
)

// probed has a pod of a check look at the hosts, as nobody, and with what the image and the host have.
func probed(ctx context.Context, t *testing.T, s *scene) {
	said, code, err := s.Refit(ctx, "check", "--pre", "--probe", "--node", "w0", "--node", "w1")
	t.Logf("exit code %d, %v\n%s", code, err, said)
	for _, want := range []string{" nodes, 2 looked at", "Node w0: ostree alone", "Node w1: ostree alone"} {
		if !strings.Contains(said, want) {
			t.Errorf("the check does not say %q", want)
		}
	}
	must(t, fleet.Until(ctx, "the probe's Jobs are gone", func(ctx context.Context) (bool, string, error) {
		jobs, err := s.Client.BatchV1().Jobs("").List(ctx, metav1.ListOptions{LabelSelector: "noderefit.dev/probe"})
		if err != nil {
			return false, "", err
		}
		return len(jobs.Items) == 0, "", nil
	}))
}
