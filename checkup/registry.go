// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/message"
)

// registryTime is how long a registry has for its answer.
const registryTime = 20 * time.Second

func reference(registry, image, tag string) string { return registry + "/" + image + ":" + tag }

// askRegistry asks a registry whether it has the images of an installation, with the credentials of docker and podman.
// Nothing is pulled. Without a registry nothing is asked.
func askRegistry(ctx context.Context, registry, plugin, tag string) []image {
	if registry == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, registryTime)
	defer cancel()
	names := []string{api.Controller, api.Daemon}
	out := make([]image, len(names))
	g := &errgroup.Group{}
	for i, n := range names {
		out[i].reference = reference(registry, n, cmp.Or(tag, plugin))
		g.Go(func() error { out[i].err = askFor(ctx, out[i].reference); return nil })
	}
	_ = g.Wait() // each image keeps its error
	return out
}

func askFor(ctx context.Context, text string) error {
	ref, err := name.ParseReference(text)
	if err != nil {
		return fmt.Errorf("reading the reference: %w", err)
	}
	_, err = remote.Head(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if said, ok := errors.AsType[*transport.Error](err); ok {
		switch said.StatusCode {
		case http.StatusNotFound:
			return errors.New("the registry does not have the image")
		case http.StatusUnauthorized, http.StatusForbidden:
			return errors.New("the registry refuses the credentials, or there are none")
		}
	}
	if err != nil {
		return errors.New(message.OneLine(err.Error()))
	}
	return nil
}
