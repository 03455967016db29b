// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedauthv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"

	"github.com/noderefit/noderefit/api"
)

// Reviewer asks the API server which user a token belongs to. A TokenReviewInterface is a Reviewer.
type Reviewer interface {
	Create(ctx context.Context, review *authv1.TokenReview, o metav1.CreateOptions) (*authv1.TokenReview, error)
}

var _ Reviewer = typedauthv1.TokenReviewInterface(nil)

// Gate decides which clients may read secrets. Such a client shows a certificate that the listener has verified, or a
// token. The token is in a file, or the API server reports that its owner is a member of the groups.
type Gate struct {
	// Open lets every client read everything.
	Open bool
	// Closed refuses every client that has shown nothing, even where there are no secrets to read.
	Closed bool
	// Certificates is true if the listener verifies certificates.
	Certificates bool
	// TokenFile has one token per line. A line that begins with # is a comment. The file is read anew for each request.
	TokenFile string
	// Reviewer may be nil.
	Reviewer Reviewer
	Groups   []string
}

const (
	// A shorter token could be guessed.
	shortestToken = 16
	// longestToken is longer than any token of a service account, and short enough not to burden the API server.
	longestToken = 8 << 10
	// reviewsAtOnce bounds the reviews, so that strangers can't take all of the API server's.
	reviewsAtOnce = 8
)

// refusal is the answer to a client that may not read. It has nothing of what the client asked for.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

// unavailable is an error that may be gone at the next try. Ignition tries again after a 503.
type unavailable struct{ error }

// behind is such an error too, about what is behind the server. Clients are not told its text.
type behind struct{ error }

// asker is the kind of client that asks.
type asker int

const (
	// stranger is a client that has shown nothing. It may read what has no secret.
	stranger asker = iota
	// anybody is a client of an open server. What it has shown was not looked at, and it may read everything.
	anybody
	// shown is a client that may read everything because of what it has shown.
	shown
)

// visitor is a client that was admitted.
type visitor struct {
	kind asker
	// token is a bootstrap token that is for pool alone; both are empty for a client that may ask for any pool.
	token, pool string
}

// may returns a refusal for a client whose token is for another pool.
func (v visitor) may(pool string) error {
	if v.pool != "" && v.pool != pool {
		return refusal{http.StatusForbidden, fmt.Sprintf(
			"the token is for the pool %s, as its group %s says, and for no other", v.pool, api.PoolGroup+v.pool)}
	}
	return nil
}

// admit returns the client, with its kind. The error (a refusal, unavailable or behind) is for a client that shows
// something wrong, or that can't be checked. A machine whose token has expired has to stop where a person sees it. It
// must not be made without what it needs to join.
func (g *Gate) admit(r *http.Request, reviews chan struct{}) (visitor, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return visitor{kind: shown}, nil
	}
	if g.Open {
		return visitor{kind: anybody}, nil
	}
	said := r.Header.Get("Authorization")
	if said == "" {
		if g.Closed {
			return visitor{}, refusal{http.StatusUnauthorized, "this server requires credentials for every request; " + g.how()}
		}
		return visitor{}, nil
	}
	return g.examine(r.Context(), said, reviews)
}

func (g *Gate) examine(ctx context.Context, said string, reviews chan struct{}) (visitor, error) {
	scheme, token, _ := strings.Cut(said, " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return visitor{}, refusal{http.StatusUnauthorized, "Authorization is not that of a token: Bearer, and one"}
	}
	wrong := refusal{http.StatusUnauthorized, "the token is not known"}
	if len(token) > longestToken {
		return visitor{}, wrong
	}
	if g.TokenFile != "" {
		tokens, err := readTokens(g.TokenFile)
		if err != nil {
			return visitor{}, behind{err}
		}
		if among(token, tokens) {
			return visitor{kind: shown}, nil
		}
	}
	if g.Reviewer == nil {
		return visitor{}, wrong
	}
	select {
	case reviews <- struct{}{}:
		defer func() { <-reviews }()
	case <-ctx.Done():
		return visitor{}, unavailable{ctx.Err()}
	}
	review, err := g.Reviewer.Create(ctx, &authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token}},
		metav1.CreateOptions{})
	if err != nil {
		return visitor{}, behind{fmt.Errorf("asking the API server whose a token is: %w", err)}
	}
	if !review.Status.Authenticated {
		return visitor{}, wrong
	}
	groups := review.Status.User.Groups
	if !slices.ContainsFunc(groups, func(s string) bool { return slices.Contains(g.Groups, s) }) {
		return visitor{}, refusal{http.StatusForbidden, "the token's owner is in none of the groups that new nodes are in"}
	}
	switch pools := api.PoolsOfGroups(groups); len(pools) {
	case 0:
		return visitor{kind: shown}, nil
	case 1:
		return visitor{kind: shown, token: token, pool: pools[0]}, nil
	default:
		return visitor{}, refusal{http.StatusForbidden, "the token's groups name several pools, " +
			strings.Join(pools, ", ") + ": a token is for one pool; take the groups " + api.PoolGroup +
			"… but one out of its Secret"}
	}
}

// how returns what a client has to show, or the flags to start the server with where the server knows no clients.
func (g *Gate) how() string {
	const open = "--allow-unauthenticated has the server answer everybody"
	token := g.TokenFile != "" || g.Reviewer != nil
	switch {
	case token && g.Certificates:
		return "show a token (Authorization: Bearer) or a client certificate; " + open
	case token:
		return "show a token (Authorization: Bearer); " + open
	case g.Certificates:
		return "show a client certificate; " + open
	}
	return "this server has no way to check credentials, as --token-file and --client-ca are missing; " + open
}

// CheckTokens reads a token file once, to report errors early.
func CheckTokens(file string) error {
	tokens, err := readTokens(file)
	if err == nil && len(tokens) == 0 {
		err = fmt.Errorf("token file %s: there is no token in it", file)
	}
	return err
}

func readTokens(file string) ([]string, error) {
	text, err := readSecret(file)
	if err != nil {
		return nil, fmt.Errorf("reading tokens: %w", err)
	}
	var tokens []string
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case len(line) < shortestToken:
			return nil, fmt.Errorf("token file %s, line %d: the token is shorter than %d characters", file, n, shortestToken)
		case strings.ContainsAny(line, " \t"):
			return nil, fmt.Errorf("token file %s, line %d: there is white space in the token", file, n)
		}
		tokens = append(tokens, line)
	}
	return tokens, lines.Err()
}

// among reports whether the token is one of the tokens. It takes the same time for each of the tokens, and for any
// number of right characters.
func among(token string, tokens []string) bool {
	given, found := sha256.Sum256([]byte(token)), 0
	for _, t := range tokens {
		sum := sha256.Sum256([]byte(t))
		found |= subtle.ConstantTimeCompare(given[:], sum[:])
	}
	return found == 1
}

// readSecret reads a small file. Its error names the path, and never has contents of the file.
func readSecret(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		err = errors.New(file + " is empty")
	}
	return text, err
}
