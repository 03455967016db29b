// SPDX-License-Identifier: Apache-2.0

package contents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/noderefit/noderefit/ostree"
)

// login asks a registry, with the credentials that the registry demands. Other hosts, to which the registry sends a
// client, see none of the credentials.
type login struct {
	base           http.RoundTripper
	host, scope    string
	user, password string

	authorization string // "" as long as the registry has not demanded one
}

// RoundTrip answers a challenge of a registry. A registry demands a new token when the old token has ended.
func (l *login) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != l.host {
		return l.base.RoundTrip(r)
	}
	resp, err := l.base.RoundTrip(l.authorized(r))
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	_ = resp.Body.Close()
	if err := l.answer(r.Context(), resp.Header.Get("WWW-Authenticate")); err != nil {
		return nil, err
	}
	return l.base.RoundTrip(l.authorized(r))
}

func (l *login) authorized(r *http.Request) *http.Request {
	if l.authorization == "" {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", l.authorization)
	return r
}

// known reports whether the host has credentials for the registry. A token may have no user.
func (l *login) known() bool { return l.user != "" || l.password != "" }

// parameter is one parameter of a challenge.
var parameter = regexp.MustCompile(`([a-z]+)="([^"]*)"`)

// answer gets the authorization that a challenge demands.
func (l *login) answer(ctx context.Context, challenge string) error {
	kind, rest, _ := strings.Cut(challenge, " ")
	if strings.EqualFold(kind, "Basic") && l.known() {
		r := &http.Request{Header: http.Header{}}
		r.SetBasicAuth(l.user, l.password)
		l.authorization = r.Header.Get("Authorization")
		return nil
	}
	if !strings.EqualFold(kind, "Bearer") {
		return failure{ostree.NeedsAdmin, fmt.Errorf("registry %s demands credentials, and the host has none for it", l.host)}
	}
	says := map[string]string{}
	for _, m := range parameter.FindAllStringSubmatch(rest, -1) {
		says[m[1]] = m[2]
	}
	at, err := url.Parse(says["realm"])
	if err != nil || at.Scheme != "https" {
		return failure{ostree.NeedsAdmin, fmt.Errorf("registry %s gives no place with TLS for its tokens", l.host)}
	}
	query := at.Query()
	query.Set("service", says["service"])
	query.Set("scope", l.scope)
	at.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return err
	}
	if l.known() {
		req.SetBasicAuth(l.user, l.password)
	}
	resp, err := clientOf(l.base).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("asking for a token of registry %s: %w", l.host, answered(resp))
	}
	var token struct {
		Token  string `json:"token"`
		Access string `json:"access_token"` //nolint:tagliatelle // a registry's name of the field
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxManifest)).Decode(&token); err != nil {
		return failure{ostree.NeedsAdmin, fmt.Errorf("reading the token of registry %s: %w", l.host, err)}
	}
	if token.Token == "" {
		token.Token = token.Access
	}
	if token.Token == "" {
		return failure{ostree.NeedsAdmin, errors.New("registry " + l.host + " gives no token")}
	}
	l.authorization = "Bearer " + token.Token
	return nil
}
