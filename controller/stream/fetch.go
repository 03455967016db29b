// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coreos/stream-metadata-go/arch"
	"github.com/coreos/stream-metadata-go/release"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/registries"
	"github.com/noderefit/noderefit/releases"
)

// The documents of Fedora CoreOS.
const (
	fedoraGraph    = "https://updates.coreos.fedoraproject.org/v1/graph"
	fedoraReleases = "https://builds.coreos.fedoraproject.org/prod/streams/%s/releases.json"
)

// patience is how long one question to a source may take.
const patience = 30 * time.Second

// question is what a stream asks of its source.
type question struct {
	source *api.OSStreamSource
	// arches are the architectures of the stream's pools, at least one.
	arches  []string
	mirrors []registries.Source
	// secret is the document of a pull secret, nil for none.
	secret []byte
	// listed are the releases that the status has: what a tag named, for a controller that has just started.
	listed []api.OSStreamRelease
}

// fetcher asks one source. It keeps what the source said, so that the same answer costs little.
type fetcher struct {
	transport *conditional
	registry  *registry
}

func newFetcher() *fetcher {
	base, _ := http.DefaultTransport.(*http.Transport)
	base = base.Clone() // with the proxies of the environment
	base.ResponseHeaderTimeout, base.MaxResponseHeaderBytes = patience, perAnswer
	t := &conditional{next: base, kept: map[string]*answer{}}
	return &fetcher{transport: t, registry: newRegistry(t)}
}

// offer asks the source.
func (f *fetcher) offer(ctx context.Context, q question) (*releases.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	f.transport.begin()
	offer, err := f.ask(ctx, q)
	if err != nil {
		f.registry.puller = nil // it remembers how the registry wanted to be asked
	}
	return offer, err
}

func (f *fetcher) ask(ctx context.Context, q question) (*releases.Offer, error) {
	switch s := q.source; {
	case s.Tag != nil:
		return f.registry.tag(ctx, q)
	case s.Versions != nil:
		return f.registry.versions(ctx, q)
	case s.FedoraCoreOS != nil:
		return f.fedora(ctx, q)
	case s.Cincinnati != nil:
		return f.cincinnati(ctx, s.Cincinnati)
	}
	return nil, errors.New("spec.source: none is named")
}

func (f *fetcher) cincinnati(ctx context.Context, s *api.CincinnatiSource) (*releases.Offer, error) {
	query := url.Values{}
	if s.Channel != "" {
		query.Set("channel", s.Channel)
	}
	if s.Arch != "" {
		query.Set("arch", s.Arch)
	}
	data, err := f.get(ctx, s.URL, query)
	if err != nil {
		return nil, err
	}
	return releases.ParseGraph(s.Arch, data, nil)
}

// fedora asks for the graph of each architecture. The server is asked with a wariness of 0, so that it hides nothing:
// the choice is made here, and says why.
func (f *fetcher) fedora(ctx context.Context, q question) (*releases.Offer, error) {
	s := q.source.FedoraCoreOS
	var offers []*releases.Offer
	var index *release.Index
	for _, of := range q.arches {
		data, err := f.get(ctx, cmp.Or(s.GraphURL, fedoraGraph), url.Values{
			"stream": {s.Stream}, "basearch": {arch.RpmArch(of)}, "rollout_wariness": {"0"}, "oci": {"true"},
		})
		if err != nil {
			return nil, err
		}
		o, err := releases.ParseGraph(of, data, index)
		if err == nil && index == nil && o.NeedsIndex() {
			if index, err = f.index(ctx, s); err == nil {
				o, err = releases.ParseGraph(of, data, index)
			}
		}
		if err != nil {
			return nil, err
		}
		offers = append(offers, o)
	}
	return releases.Join(offers), nil
}

func (f *fetcher) index(ctx context.Context, s *api.FedoraCoreOSSource) (*release.Index, error) {
	data, err := f.get(ctx, cmp.Or(s.ReleasesURL, fmt.Sprintf(fedoraReleases, s.Stream)), nil)
	if err != nil {
		return nil, err
	}
	return releases.ParseIndex(data)
}

func (f *fetcher) get(ctx context.Context, address string, query url.Values) ([]byte, error) {
	at, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	all := at.Query()
	maps.Copy(all, query)
	at.RawQuery = all.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", api.Controller)
	response, err := (&http.Client{Transport: f.transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s://%s%s: %s", at.Scheme, at.Host, at.Path, response.Status)
	}
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("GET %s://%s%s: %w", at.Scheme, at.Host, at.Path, err)
	}
	return data, nil
}

// repositoryOf cuts an image's name at its tag.
func repositoryOf(image string) (repository, tag string) {
	at := strings.LastIndex(image, ":")
	if at < strings.LastIndex(image, "/") || at < 0 {
		return image, ""
	}
	return image[:at], image[at+1:]
}
