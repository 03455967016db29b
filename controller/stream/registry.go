// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/registries"
	"github.com/noderefit/noderefit/releases"
)

const (
	// newest is how many versions of a repository are looked into.
	newest = mostListed
	// mostPlatforms is how many images of a manifest list count.
	mostPlatforms = 16
	// earliest is before the first image. Builds that can be repeated say that their images are of 1970.
	earliest = 946684800

	labelVersion = "org.opencontainers.image.version"
	labelCreated = "org.opencontainers.image.created"
)

// registry asks registries of container images. It remembers what is in an image by its digest, which never changes.
type registry struct {
	transport http.RoundTripper
	// puller keeps the connections and tokens of a pull secret.
	puller *remote.Puller
	secret []byte
	known  map[string]releases.Release
	// digests has the digest of each version that was looked into, by repository and tag.
	digests map[string]string
}

func newRegistry(t http.RoundTripper) *registry {
	return &registry{transport: t, known: map[string]releases.Release{}, digests: map[string]string{}}
}

// login has later questions be asked with a pull secret.
func (r *registry) login(secret []byte) error {
	if r.puller != nil && bytes.Equal(r.secret, secret) {
		return nil
	}
	keys, err := keychainOf(secret)
	if err != nil {
		return err
	}
	r.puller, err = remote.NewPuller(remote.WithTransport(r.transport), remote.WithAuthFromKeychain(keys),
		remote.WithUserAgent(api.Controller), remote.WithRetryPredicate(func(error) bool { return false }),
		remote.WithRetryStatusCodes(http.StatusTooManyRequests))
	if err != nil {
		return fmt.Errorf("preparing questions to registries: %w", err)
	}
	r.secret = bytes.Clone(secret)
	return nil
}

// tag returns what a tag names. While it names the same, that is one conditional request.
func (r *registry) tag(ctx context.Context, q question) (*releases.Offer, error) {
	if err := r.login(q.secret); err != nil {
		return nil, err
	}
	repository, tag := repositoryOf(q.source.Tag.Image)
	digest, err := r.resolve(ctx, q.mirrors, repository, tag)
	if err != nil {
		return nil, err
	}
	found, err := r.look(ctx, q.mirrors, repository, digest)
	if err != nil {
		return nil, err
	}
	found.Version = cmp.Or(found.Version, shortDigest(digest))
	return &releases.Offer{Releases: []releases.Release{found}, Latest: true}, nil
}

// versions returns the newest versions in a range. While the repository has the same tags, that is one request.
func (r *registry) versions(ctx context.Context, q question) (*releases.Offer, error) {
	if err := r.login(q.secret); err != nil {
		return nil, err
	}
	repository := q.source.Versions.Repository
	tags, err := ask(q.mirrors, repository, true, func(at string) ([]string, error) {
		repo, err := name.NewRepository(at)
		if err != nil {
			return nil, err
		}
		return r.puller.List(ctx, repo)
	})
	if err != nil {
		return nil, err
	}
	chosen, err := releases.Range(q.source.Versions.Range, tags, newest)
	if err != nil {
		return nil, err
	}
	out := &releases.Offer{}
	for _, tag := range chosen {
		found, err := r.version(ctx, q, repository, tag)
		if err != nil {
			return nil, err
		}
		found.Version = tag
		out.Releases = append(out.Releases, found)
	}
	return out, nil
}

// version returns what a version's tag named when it was first read, or what it names now if that image is gone.
func (r *registry) version(ctx context.Context, q question, repository, tag string) (releases.Release, error) {
	key := repository + ":" + tag
	if digest := cmp.Or(r.digests[key], q.digestOf(repository, tag)); digest != "" {
		found, err := r.look(ctx, q.mirrors, repository, digest)
		if err == nil {
			r.digests[key] = digest
		}
		if !gone(err) {
			return found, err
		}
	}
	digest, err := r.resolve(ctx, q.mirrors, repository, tag)
	if err != nil {
		return releases.Release{}, err
	}
	found, err := r.look(ctx, q.mirrors, repository, digest)
	if err == nil {
		r.digests[key] = digest
	}
	return found, err
}

// gone reports whether each place that was asked has answered that it has no such image.
func gone(err error) bool {
	var several interface{ Unwrap() []error }
	if errors.As(err, &several) {
		return !slices.ContainsFunc(several.Unwrap(), func(one error) bool { return !gone(one) })
	}
	var refused *transport.Error
	return errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound
}

// digestOf returns the digest that a version's tag had when the status was written.
func (q question) digestOf(repository, version string) string {
	for _, r := range q.listed {
		for _, image := range r.Images {
			if digest, ours := strings.CutPrefix(image, repository+"@"); ours && r.Version == version {
				return digest
			}
		}
	}
	return ""
}

// resolve returns the digest that a tag names.
func (r *registry) resolve(ctx context.Context, mirrors []registries.Source, repository, tag string) (string, error) {
	return ask(mirrors, repository, true, func(at string) (string, error) {
		ref, err := name.NewTag(at + ":" + tag)
		if err != nil {
			return "", err
		}
		head, err := r.puller.Head(ctx, ref)
		if err != nil {
			return "", err
		}
		return head.Digest.String(), nil
	})
}

// look returns what is in an image.
func (r *registry) look(
	ctx context.Context, mirrors []registries.Source, repository, digest string,
) (releases.Release, error) {
	if found, ok := r.known[repository+"@"+digest]; ok {
		return found, nil
	}
	found, err := ask(mirrors, repository, false, func(at string) (releases.Release, error) {
		ref, err := name.NewDigest(at + "@" + digest)
		if err != nil {
			return releases.Release{}, err
		}
		described, err := r.puller.Get(ctx, ref)
		if err != nil {
			return releases.Release{}, err
		}
		return read(described, repository+"@"+digest)
	})
	if err != nil {
		return found, err
	}
	r.known[repository+"@"+digest] = found
	return found, nil
}

// read reads the architectures, the version and the age of an image.
func read(described *remote.Descriptor, image string) (releases.Release, error) {
	out := releases.Release{Images: map[string]string{}}
	if !described.MediaType.IsIndex() {
		single, err := described.Image()
		if err != nil {
			return out, fmt.Errorf("reading %s: %w", image, err)
		}
		config, err := single.ConfigFile()
		if err != nil {
			return out, fmt.Errorf("reading the configuration of %s: %w", image, err)
		}
		out.Images[config.Architecture] = image
		describe(&out, config)
		return out, nil
	}
	index, err := described.ImageIndex()
	if err != nil {
		return out, fmt.Errorf("reading %s: %w", image, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return out, fmt.Errorf("reading %s: %w", image, err)
	}
	var first *v1.Descriptor
	for i, m := range manifest.Manifests {
		if m.Platform == nil || !m.MediaType.IsImage() || m.Platform.OS != "" && m.Platform.OS != "linux" {
			continue
		}
		if len(out.Images) == mostPlatforms {
			break
		}
		out.Images[m.Platform.Architecture] = image
		first = cmp.Or(first, &manifest.Manifests[i])
	}
	if first == nil {
		out.Problem = "its manifest list has no image for Linux"
		return out, nil
	}
	single, err := index.Image(first.Digest)
	if err != nil {
		return out, fmt.Errorf("reading %s of %s: %w", first.Digest, image, err)
	}
	config, err := single.ConfigFile()
	if err != nil {
		return out, fmt.Errorf("reading the configuration of %s of %s: %w", first.Digest, image, err)
	}
	describe(&out, config)
	return out, nil
}

func describe(r *releases.Release, config *v1.ConfigFile) {
	if version := config.Config.Labels[labelVersion]; releases.IsVersion(version) {
		r.Version = version
	}
	r.Since = config.Created.Time
	if at, err := time.Parse(time.RFC3339, config.Config.Labels[labelCreated]); err == nil {
		r.Since = at
	}
	if r.Since.Unix() < earliest {
		r.Since = time.Time{}
	}
}

// ask asks the mirrors of a repository, and then the repository itself, until one answers.
func ask[T any](
	mirrors []registries.Source, repository string, tags bool, question func(at string) (T, error),
) (out T, err error) {
	var errs []error
	for _, at := range registries.Locations(mirrors, repository, tags) {
		if out, err = question(at); err == nil {
			return out, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return out, fmt.Errorf("%s must not be contacted, and has no mirror", repository)
	}
	return out, errors.Join(errs...)
}

func shortDigest(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// keychain has the credentials of a pull secret.
type keychain map[string]authn.AuthConfig

// keychainOf reads the document of a Secret of the type kubernetes.io/dockerconfigjson.
func keychainOf(secret []byte) (keychain, error) {
	if secret == nil {
		return nil, nil
	}
	var document struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	if err := json.Unmarshal(secret, &document); err != nil {
		return nil, errors.New("spec.pullSecret: the Secret has no docker configuration that can be read")
	}
	out := keychain{}
	for key, text := range document.Auths {
		var auth authn.AuthConfig
		if json.Unmarshal(text, &auth) == nil { // another registry's entry may be broken
			out[key] = auth
		}
	}
	return out, nil
}

// Resolve implements authn.Keychain. The entry with the longest part of the repository's name counts.
func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	best, found := "", authn.AuthConfig{}
	for key, auth := range k {
		at := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://"), "/")
		at = strings.TrimSuffix(strings.TrimSuffix(at, "/v1"), "/v2")
		if rest, hub := strings.CutPrefix(at, "docker.io"); hub && (rest == "" || rest[0] == '/') {
			at = name.DefaultRegistry + rest
		}
		if (r.String() == at || strings.HasPrefix(r.String(), at+"/")) && len(at) > len(best) {
			best, found = at, auth
		}
	}
	if best == "" {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(found), nil
}
