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
)

// Reviewer asks the API server whose a token is. It is a TokenReviewInterface's.
type Reviewer interface {
	Create(ctx context.Context, review *authv1.TokenReview, o metav1.CreateOptions) (*authv1.TokenReview, error)
}

var _ Reviewer = typedauthv1.TokenReviewInterface(nil)

// Gate says who may read secrets: who shows a certificate that the listener has verified, a token of a file, or one
// that the API server says is of a member of the groups.
type Gate struct {
	// Open lets everybody in.
	Open bool
	// Closed has nobody read anything who has shown nothing, secret or not.
	Closed bool
	// Certificates says that the listener verifies certificates.
	Certificates bool
	// TokenFile has a token a line; what begins with # is a comment. It is read anew for each request.
	TokenFile string
	// Reviewer may be nil.
	Reviewer Reviewer
	Groups   []string
}

const (
	// A shorter one is guessed.
	shortestToken = 16
	// longestToken is larger than any that a service account has, and smaller than what would bother the API server.
	longestToken = 8 << 10
	// reviewsAtOnce keeps strangers from having the API server review for them only.
	reviewsAtOnce = 8
)

// refusal is an answer to who may not read, and never has anything of what that would be.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

// unavailable is what may be otherwise if it is tried again, as Ignition does on a 503.
type unavailable struct{ error }

// behind is that too, and about what is behind the server, which is no client's business.
type behind struct{ error }

// asker is who asks, as far as that matters.
type asker int

const (
	// stranger has shown nothing, and may read what holds no secret.
	stranger asker = iota
	// anybody has shown nothing that was looked at, and may read everything, as the server was told.
	anybody
	// shown is who may read everything for what they have shown.
	shown
)

// admit says who asks. The error, a refusal or unavailable, is of one who shows what is wrong: a machine whose token
// has ended is to stop where somebody sees it, rather than be made without what it needs to join.
func (g *Gate) admit(r *http.Request, reviews chan struct{}) (asker, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return shown, nil
	}
	if g.Open {
		return anybody, nil
	}
	said := r.Header.Get("Authorization")
	if said == "" {
		if g.Closed {
			return stranger, refusal{http.StatusUnauthorized, "this server answers nobody who shows nothing; " + g.how()}
		}
		return stranger, nil
	}
	if err := g.examine(r.Context(), said, reviews); err != nil {
		return stranger, err
	}
	return shown, nil
}

func (g *Gate) examine(ctx context.Context, shown string, reviews chan struct{}) error {
	scheme, token, _ := strings.Cut(shown, " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return refusal{http.StatusUnauthorized, "Authorization is not that of a token: Bearer, and one"}
	}
	wrong := refusal{http.StatusUnauthorized, "the token is not known"}
	if len(token) > longestToken {
		return wrong
	}
	if g.TokenFile != "" {
		tokens, err := readTokens(g.TokenFile)
		if err != nil {
			return behind{err}
		}
		if among(token, tokens) {
			return nil
		}
	}
	if g.Reviewer == nil {
		return wrong
	}
	select {
	case reviews <- struct{}{}:
		defer func() { <-reviews }()
	case <-ctx.Done():
		return unavailable{ctx.Err()}
	}
	review, err := g.Reviewer.Create(ctx, &authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token}},
		metav1.CreateOptions{})
	if err != nil {
		return behind{fmt.Errorf("asking the API server whose a token is: %w", err)}
	}
	if !review.Status.Authenticated {
		return wrong
	}
	if !slices.ContainsFunc(review.Status.User.Groups, func(s string) bool { return slices.Contains(g.Groups, s) }) {
		return refusal{http.StatusForbidden, "the token's owner is in none of the groups that new nodes are in"}
	}
	return nil
}

// how says what to show, or what to start the server with where that knows nobody.
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
	return "this server was started without --token-file and --client-ca, and so knows nobody; " + open
}

// CheckTokens reads a token file once, to say early what is wrong with it.
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

// among takes as long whichever of the tokens it is, and however much of one is right.
func among(token string, tokens []string) bool {
	given, found := sha256.Sum256([]byte(token)), 0
	for _, t := range tokens {
		sum := sha256.Sum256([]byte(t))
		found |= subtle.ConstantTimeCompare(given[:], sum[:])
	}
	return found == 1
}

// readSecret reads a small file, whose error is the path's and never has contents in it.
func readSecret(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		err = errors.New(file + " is empty")
	}
	return text, err
}
