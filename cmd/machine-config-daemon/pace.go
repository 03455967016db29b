// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/pace"
)

// paced returns a context for work whose fetches keep a bandwidth, in bytes a second, until done is called. With 0 they
// keep none.
func (o *options) paced(ctx context.Context, bandwidth int64) (_ context.Context, done func(), err error) {
	switch {
	case bandwidth == 0:
		return ctx, func() {}, nil
	case bandwidth < api.LeastBandwidth:
		return nil, nil, cli.Usagef("flag --bandwidth: %d bytes a second is less than %d", bandwidth, api.LeastBandwidth)
	}
	root, err := files.Open(o.root)
	if err != nil {
		return nil, nil, err
	}
	text, err := root.ReadFile(osimage.ProxyFile)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, root.Close()); err != nil {
		return nil, nil, fmt.Errorf("reading the host's proxies: %w", err)
	}
	proxy, err := pace.Listen(ctx, bandwidth, text)
	if err != nil {
		return nil, nil, err
	}
	return proxy.In(ctx), proxy.Close, nil
}
