// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
)

// refusal is the answer to a request that gets no page. It is a page of its own that a browser loads again by itself,
// so that a display on a wall comes back when the cause is gone.
type refusal struct {
	Code        int
	Title, Text string
	Do          []string
	// Style, Home and Cluster are empty where the request may not read them. Refresh is zero where another try needs a
	// person.
	Style, Home, Cluster string
	Refresh              int
}

// again is the Refresh of a refusal whose cause may end by itself.
const again = int(refreshed / 1e9)

// unread refuses a page of a cluster that was not read.
func (h *handler) unread(w http.ResponseWriter, err error) {
	h.refuse(w, &refusal{
		Code: http.StatusServiceUnavailable, Title: "The cluster could not be read", Text: err.Error(), Refresh: again,
	})
}

// refuse answers a request of somebody who may read pages.
func (h *handler) refuse(w http.ResponseWriter, r *refusal) {
	r.Style, r.Home, r.Cluster = h.Base+stylePath, h.home(), h.Cluster
	r.write(w)
}

func (r *refusal) write(w http.ResponseWriter) {
	var out bytes.Buffer
	if err := pages.ExecuteTemplate(&out, "refusal", r); err != nil {
		http.Error(w, r.Text, r.Code)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(out.Len()))
	if r.Code == http.StatusServiceUnavailable {
		h.Set("Retry-After", strconv.Itoa(again))
	}
	w.WriteHeader(r.Code)
	_, _ = out.WriteTo(w)
}

// gate changes the filter's answer to a refused request. controller-runtime's filter answers 500 for a token that the
// cluster calls wrong or expired, and for a cluster that does not answer. At a 500 no browser asks for another token.
type gate struct {
	http.ResponseWriter

	line *Line
	code int
	text strings.Builder
}

// WriteHeader keeps the filter's answer for end.
func (g *gate) WriteHeader(code int) { g.code = code }

// Write keeps the beginning of the filter's text for end.
func (g *gate) Write(data []byte) (int, error) {
	const enough = 1 << 10
	if room := enough - g.text.Len(); room > 0 {
		g.text.Write(data[:min(room, len(data))])
	}
	return len(data), nil
}

// end gives the filter's answer as a page, if the filter refused the request. It asks a client for a token again where
// the cluster did not accept the token.
func (g *gate) end() {
	r := &refusal{Code: g.code, Text: strings.TrimSpace(g.text.String())}
	switch {
	case g.code == 0:
		return // the request was passed on
	case g.code == http.StatusInternalServerError && g.line.dead.Load():
		g.Header().Del(challenge)
		r.Code, r.Refresh = http.StatusServiceUnavailable, again
		r.Title, r.Text = "The token could not be checked",
			"The cluster did not answer whose the token is, or what its account may do."
	case g.code == http.StatusInternalServerError, g.code == http.StatusUnauthorized:
		r.Code, r.Title, r.Do = http.StatusUnauthorized, "The cluster does not accept the token", tokenHelp
	case g.code == http.StatusForbidden:
		// A browser sends the same token again, so the page comes by itself as soon as its account may see it.
		r.Title, r.Refresh = "The account of the token may not see the page", again
		r.Do = []string{
			"Have the ClusterRole noderefit-page bound to the account. The page then opens by itself.",
			"To give the browser another token, open a new private window.",
		}
	default:
		r.Title = http.StatusText(g.code)
	}
	r.write(g.ResponseWriter)
}

var tokenHelp = []string{
	"Give a token of the cluster as the password, with any user name: kubectl create token ACCOUNT.",
}
