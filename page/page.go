// SPDX-License-Identifier: Apache-2.0

// Package page shows the answers of package progress about a cluster as web pages: pools, nodes, what they wait for,
// and how the last rollouts went. It only reads. A page is one document with one style sheet, without a script, and a
// browser may load nothing else.
package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/noderefit/noderefit/progress"
)

// pagesPath is where the pages are. The right to see them is GET of this path and the paths below it, as a
// nonResourceURL of RBAC.
const pagesPath = "/page"

const (
	// refreshed is how often a browser loads the page again by itself.
	refreshed = 15 * time.Second
	// fresh is for how long one read of the cluster serves all requests. So many readers cost no more than one.
	fresh = time.Second
	// few is how many nodes of a pool the first page lists. many is how many each page of a single pool lists.
	few, many = 25, 200
	// lastPage is higher than the number of pages of any pool.
	lastPage = 1 << 20
)

//go:embed page.html style.css
var files embed.FS

var (
	pages = template.Must(template.New("page.html").Funcs(functions).ParseFS(files, "page.html"))
	style = must(files.ReadFile("style.css"))
	// stylePath changes with the content of the file, so that a browser may keep the file.
	stylePath = pagesPath + "/style-" + digest(style) + ".css"
)

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err) // the file is part of the program
	}
	return data
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:4])
}

// View is a cluster as it was read. Warnings name the parts that could not be read, one sentence each.
type View struct {
	progress.View

	Warnings []string
}

// Options are the dependencies of the pages.
type Options struct {
	// Read reads the cluster.
	Read func(context.Context) (View, error)
	// Now returns the time.
	Now func() time.Time
	// Version is the program's version.
	Version string
}

// New returns the handler of everything below pagesPath. It does not check who may read the pages: that is Guard's
// task.
func New(o Options) http.Handler {
	h := &handler{Options: o}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pagesPath+"/{$}", h.overview)
	mux.HandleFunc("GET "+pagesPath+"/pools/{pool}", h.pool)
	mux.HandleFunc("GET "+stylePath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		w.Header().Set("Cache-Control", "private, max-age=86400, immutable")
		_, _ = w.Write(style)
	})
	return mux
}

type handler struct {
	Options

	mu   sync.Mutex
	last *state
}

// look returns the cluster as it is, or was a moment ago.
func (h *handler) look(ctx context.Context) (*state, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil {
		return h.last, nil
	}
	v, err := h.Read(ctx)
	if err != nil {
		return nil, err
	}
	s := newState(v, h.Now())
	h.last = s
	// No state is kept of a cluster without readers.
	time.AfterFunc(fresh, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.last = nil
	})
	return s, nil
}

func (h *handler) overview(w http.ResponseWriter, r *http.Request) {
	s, err := h.look(r.Context())
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, "the cluster could not be read: "+err.Error())
		return
	}
	d := h.document(r, s, "Noderefit")
	d.Summary = s.summary()
	for _, name := range s.names() {
		d.Pools = append(d.Pools, s.pool(name, few, 0))
	}
	d.Stray = s.stray()
	h.write(w, d)
}

func (h *handler) pool(w http.ResponseWriter, r *http.Request) {
	s, err := h.look(r.Context())
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, "the cluster could not be read: "+err.Error())
		return
	}
	name := r.PathValue("pool")
	if _, ok := s.report.Pool(name); !ok {
		refuse(w, http.StatusNotFound, "there is no MachineConfigPool "+name)
		return
	}
	at, err := strconv.Atoi(r.URL.Query().Get("page"))
	if err != nil || at < 1 {
		at = 1
	}
	at = min(at, lastPage)
	d := h.document(r, s, "Pool "+name)
	d.Alone = true
	d.Pools = []poolPart{s.pool(name, many, at)}
	h.write(w, d)
}

// document returns the frame of a page.
func (h *handler) document(r *http.Request, s *state, title string) *document {
	d := &document{
		Title: title, Style: stylePath, Home: pagesPath + "/", Version: h.Version, At: s.stamp(s.now),
		Warnings: s.view.Warnings, Refresh: int(refreshed.Seconds()),
	}
	query := r.URL.Query()
	if d.Still = query.Get("refresh") == "off"; d.Still {
		query.Del("refresh")
	} else {
		query.Set("refresh", "off")
	}
	d.Toggle = strings.TrimSuffix(r.URL.Path+"?"+query.Encode(), "?")
	return d
}

// write answers with a whole page or with no page.
func (h *handler) write(w http.ResponseWriter, d *document) {
	var out bytes.Buffer
	if err := pages.Execute(&out, d); err != nil {
		refuse(w, http.StatusInternalServerError, "the page could not be made: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(out.Len()))
	_, _ = out.WriteTo(w)
}

func refuse(w http.ResponseWriter, code int, text string) {
	http.Error(w, text, code)
}

// policy is what a browser may do with a page: show it with its style sheet.
const policy = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Guard passes only those requests to pages that the filter allows. A browser can send a token only as a password: with
// any user name, Guard takes the password for the bearer's token. A request without a token is answered by the question
// for one. The filter asks the cluster over line.
func Guard(pages http.Handler, line *Line, filter func(http.Handler) (http.Handler, error)) (http.Handler, error) {
	allowed, err := filter(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if undecided, is := w.(*gate); is {
			w = undecided.ResponseWriter
		}
		w.Header().Del(challenge)
		pages.ServeHTTP(w, r)
	}))
	if err != nil {
		return nil, fmt.Errorf("guarding the web page: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			refuse(w, http.StatusMethodNotAllowed, "the page is read-only")
			return
		case r.URL.Path == "/" || r.URL.Path == pagesPath:
			http.Redirect(w, r, pagesPath+"/", http.StatusFound)
			return
		}
		h.Set(challenge, `Basic realm="Noderefit: any name, and a token of the cluster as the password", charset="UTF-8"`)
		if _, token, is := r.BasicAuth(); is {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		if r.Header.Get("Authorization") == "" {
			refuse(w, http.StatusUnauthorized, "give a token of the cluster as the password (kubectl create token)")
			return
		}
		allowed.ServeHTTP(&gate{ResponseWriter: w, line: line}, r)
	}), nil
}

const challenge = "WWW-Authenticate"

// Line is the filter's connection to the cluster. It knows whether the cluster answers.
type Line struct {
	// Next is the transport below; nil: http.DefaultTransport.
	Next http.RoundTripper

	dead atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (l *Line) RoundTrip(r *http.Request) (*http.Response, error) {
	next := l.Next
	if next == nil {
		next = http.DefaultTransport
	}
	answer, err := next.RoundTrip(r)
	l.dead.Store(err != nil || answer.StatusCode/100 != 2)
	return answer, err
}

// gate changes the filter's answer to a refused request. controller-runtime's filter answers 500 for a token that the
// cluster calls wrong or expired, and for a cluster that does not answer. At a 500 no browser asks for another token.
type gate struct {
	http.ResponseWriter

	line *Line
	mute bool // another answer was already given
}

// WriteHeader asks a client for its token again where the cluster did not accept the token.
func (g *gate) WriteHeader(code int) {
	switch {
	case code == http.StatusInternalServerError && g.line.dead.Load():
		g.mute = true
		g.Header().Del(challenge)
		refuse(g.ResponseWriter, http.StatusServiceUnavailable, "the cluster could not check the token, or "+
			"the rights of its account; try again")
		return
	case code == http.StatusInternalServerError:
		code = http.StatusUnauthorized
	}
	g.ResponseWriter.WriteHeader(code)
}

// Write passes on the filter's text, unless gate gave a better answer.
func (g *gate) Write(data []byte) (int, error) {
	if g.mute {
		return len(data), nil
	}
	return g.ResponseWriter.Write(data)
}
