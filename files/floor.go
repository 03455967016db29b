// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// LowDisk is the error of a file system that has less free space than has to stay.
type LowDisk struct {
	// Place is a directory of the file system.
	Place string
	// Free and Floor are in bytes: what is free, and what has to stay free.
	Free, Floor uint64
}

func (e *LowDisk) Error() string {
	return fmt.Sprintf("%d MiB have to stay free on the file system of %s, and %d MiB are free", e.Floor>>20, e.Place,
		e.Free>>20)
}

func (e *LowDisk) Unwrap() error { return unix.ENOSPC }

// Above returns a *LowDisk where less than floor is free, in bytes. place is a directory of the file system.
func (s Space) Above(floor uint64, place string) error {
	if s.Bytes < floor {
		return &LowDisk{place, s.Bytes, floor}
	}
	return nil
}

// floorPace is the time between two looks at the disk.
const floorPace = time.Second

// WhileAbove calls do, and cancels its context as soon as look returns a *LowDisk. No other error of look cancels do:
// such an error says nothing about the disk. look is called once a second, and not before do begins. The error is that
// of do, or the *LowDisk where do failed because of the cancellation.
func WhileAbove(ctx context.Context, look func() error, do func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(floorPace)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := look(); errors.As(err, new(*LowDisk)) {
				stop(err)
			}
		}
	}()
	err := do(ctx)
	if cause := context.Cause(ctx); err != nil && errors.As(cause, new(*LowDisk)) {
		err = cause
	}
	stop(nil)
	<-watched
	return err
}
