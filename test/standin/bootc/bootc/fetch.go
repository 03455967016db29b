// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	ocilayout "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// loopback begins the names of images of a real registry. All others are in a directory of the host.
const loopback = "127.0.0.1:"

// fetch is find for an image that may be in a real registry: it comes into the directory of its repository first.
func (l layout) fetch(ctx context.Context, r reference) (descriptor, error) {
	if r.Transport == "registry" && strings.HasPrefix(r.Image, loopback) {
		if err := l.copied(ctx, r); err != nil {
			return descriptor{}, err
		}
	}
	return l.find()
}

func (l layout) copied(ctx context.Context, r reference) error {
	ref, err := name.ParseReference(r.Image)
	if err != nil {
		return err
	}
	image, err := remote.Image(ref, remote.WithContext(ctx))
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	to, err := ocilayout.FromPath(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		to, err = ocilayout.Write(l.dir, empty.Index)
	}
	if err != nil {
		return err
	}
	if l.digest != "" {
		return to.ReplaceImage(image, match.Digests(digest))
	}
	return to.ReplaceImage(image, match.Name(l.tag), ocilayout.WithAnnotations(map[string]string{refName: l.tag}))
}
