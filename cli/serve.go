// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// Serve runs an HTTP server in a group until ctx ends. Then running answers may take as long as leave. run serves, such
// as by the server's method Serve. The error is the cause of the end.
func Serve(ctx context.Context, group *errgroup.Group, h *http.Server, leave time.Duration, run func() error) {
	group.Go(func() error {
		if err := run(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), leave)
		defer cancel()
		return cmp.Or(h.Shutdown(ending), context.Cause(ctx))
	})
}
