// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/transaction"
)

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
		if err := room.Above(floor, place); err != nil {
			return fmt.Errorf("checking space: %w", err)
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
	err := files.WhileAbove(ctx, func() error { return h.aboveFloor(o.MinFree) },
		func(ctx context.Context) error { return h.stage(ctx, r, cfg, o, res) })
	if err == nil && !there {
		err = h.aboveFloor(o.MinFree)
	}
	return err
}
