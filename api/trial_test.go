// SPDX-License-Identifier: Apache-2.0

package api

import (
	"math"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAnOrderToTryForTooLongIsNoOrder(t *testing.T) {
	for seconds, fine := range map[int64]bool{
		0: true, 1800: true, 7 * 24 * 3600: true, 7*24*3600 + 1: false, -1: false,
		math.MaxInt64/1_000_000_000 + 1:     false, // of nanoseconds: negative
		2 * (math.MaxInt64 / 1_000_000_000): false, math.MaxInt64: false,
	} {
		order := `{"config":"x","from":"a","by":"ann","since":"2026-03-02T12:00:00Z","seconds":` + strconv.FormatInt(seconds, 10) + `}`
		n, err := ReadNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "n-1", Annotations: map[string]string{TrialKey: order},
		}})
		if (n.Trial != nil) != fine || (err == nil) != fine || err != nil && !strings.Contains(err.Error(), TrialKey) {
			t.Errorf("%d: %+v, %v", seconds, n.Trial, err)
		}
	}
}
