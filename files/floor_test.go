// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestADiskBelowItsFloorAloneEndsWork(t *testing.T) {
	t.Parallel()
	low, other, failed := &LowDisk{"/var", 1 << 20, 2 << 20}, errors.New("statfs: no such file"), errors.New("not found")
	untilDone := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for name, test := range map[string]struct {
		look error
		do   func(context.Context) error
		want error
	}{
		"a disk that comes below": {low, untilDone, low},
		"a disk that can't be asked": {other, func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(2*floorPace + floorPace/2):
				return nil
			}
		}, nil},
		"work that fails by itself": {low, func(context.Context) error { return failed }, failed},
		"work that ends all the same": {low, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var looks atomic.Int32
			err := WhileAbove(t.Context(), func() error {
				looks.Add(1)
				return test.look
			}, test.do)
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Errorf("the work ends with %v, want %v", err, test.want)
			}
			if (looks.Load() > 0) == (test.want == failed) { //nolint:errorlint // the very value of this test
				t.Errorf("%d looks at the disk", looks.Load())
			}
		})
	}
}
