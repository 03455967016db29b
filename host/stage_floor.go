// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/transaction"
)

// lowDisk is the error of staging that would leave less free space on a disk than required.
type lowDisk struct {
	place       string
	free, floor uint64
}

func (e *lowDisk) Error() string {
	return fmt.Sprintf("checking space: %d MiB have to stay free on the file system of %s, and %d MiB are free: %v",
		e.floor>>20, e.place, e.free>>20, unix.ENOSPC)
}

func (e *lowDisk) Unwrap() error { return unix.ENOSPC }

// floorPace is the interval between checks of the disk while an OS is pulled.
const floorPace = time.Second

// aboveFloor refuses a host that has less space free than floor, for the staged OS or for the temporary files of the
// tools that bring it.
func (h *Host) aboveFloor(floor uint64) error {
	places := []string{transaction.StateDir}
	if h.plain != nil {
		places = append(places, "/ostree/deploy")
	}
	for _, place := range places {
		room, err := h.root.Space(place)
		if err != nil {
			return err
		}
		if room.Bytes < floor {
			return &lowDisk{place, room.Bytes, floor}
		}
	}
	return nil
}

// stageAbove stages as long as the disk keeps the required free space. An OS that is already on the disk takes no more
// space.
func (h *Host) stageAbove(ctx context.Context, r *transaction.Record, cfg *machineconfig.Config, o StageOptions,
	res *Result,
) error {
	if h.tools != nil {
		h.tools.Weights = o.Weights
	}
	if o.MinFree == 0 {
		return h.stage(ctx, r, cfg, o, res)
	}
	if err := h.root.MkdirAll(transaction.StateDir, 0o700); err != nil {
		return err
	}
	staged, system := h.stagedDigest()
	there := o.AsStaged && system != "" && staged == cfg.Digest
	if !there {
		if err := h.aboveFloor(o.MinFree); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		h.watchFloor(ctx, o.MinFree, stop)
	}()
	err := h.stage(ctx, r, cfg, o, res)
	if low, is := errors.AsType[*lowDisk](context.Cause(ctx)); is && err != nil {
		err = low
	}
	stop(nil)
	<-watched
	if err == nil && !there {
		err = h.aboveFloor(o.MinFree)
	}
	return err
}

// watchFloor stops the staging when the disk has less space free than floor.
func (h *Host) watchFloor(ctx context.Context, floor uint64, stop context.CancelCauseFunc) {
	tick := time.NewTicker(floorPace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := h.aboveFloor(floor); errors.As(err, new(*lowDisk)) {
			stop(err)
		}
	}
}
