// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// callLimit is how long a call may take that transfers nothing, and pullLimit how long the pull of an image may take.
const (
	callLimit = time.Minute
	pullLimit = 30 * time.Minute
)

const imageService = "runtime.v1.ImageService/"

// ask calls a method that transfers nothing.
func (c *conn) ask(ctx context.Context, method string, m message) (message, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callLimit, fmt.Errorf("no answer within %s", callLimit))
	defer cancel()
	return c.call(ctx, method, m)
}

// images returns the images of the runtime, by CRI's ListImages.
func (c *conn) images(ctx context.Context) (out []stored, err error) {
	answer, err := c.ask(ctx, imageService+"ListImages", nil)
	if err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	var inner error
	err = answer.each(func(field protowire.Number, value message, _ uint64) {
		if field != 1 {
			return
		}
		var image stored
		inner = errors.Join(inner, value.each(func(field protowire.Number, value message, number uint64) {
			switch field {
			case 2, 3: // repo_tags, repo_digests
				image.Names = append(image.Names, string(value))
			case 8:
				image.Pinned = number != 0
			}
		}))
		out = append(out, image)
	})
	if err = errors.Join(err, inner); err != nil {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	return out, nil
}

// store returns the mount point of the file system that has the images, by CRI's ImageFsInfo; empty: the runtime does
// not say.
func (c *conn) store(ctx context.Context) (at string, err error) {
	answer, err := c.ask(ctx, imageService+"ImageFsInfo", nil)
	if err != nil {
		return "", fmt.Errorf("asking where images are stored: %w", err)
	}
	err = answer.each(func(field protowire.Number, usage message, _ uint64) {
		if field != 1 || at != "" {
			return
		}
		_ = usage.each(func(field protowire.Number, identifier message, _ uint64) {
			if field == 2 {
				if paths, err := identifier.texts(1); err == nil && len(paths) > 0 {
					at = paths[0]
				}
			}
		})
	})
	return at, err
}

// pull has the runtime pull an image, by CRI's PullImage. Without user and password the runtime has no credentials but
// its own.
func (c *conn) pull(ctx context.Context, image, user, password string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, pullLimit, fmt.Errorf("the pull has not ended within %s", pullLimit))
	defer cancel()
	m := message{}.with(1, message{}.text(1, image))
	switch {
	case user != "":
		m = m.with(2, message{}.text(1, user).text(2, password))
	case password != "": // a token, which containerd takes from field auth alone
		m = m.with(2, message{}.text(3, base64.StdEncoding.EncodeToString([]byte(":"+password))))
	}
	_, err := c.call(ctx, imageService+"PullImage", m)
	return err
}
