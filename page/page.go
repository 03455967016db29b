// SPDX-License-Identifier: Apache-2.0

// Package page shows the answers of package progress about a cluster as web pages: pools, nodes, what they wait for,
// and how the last rollouts went. It only reads. A page is one document with one style sheet, without a script, and a
// browser may load nothing else.
package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
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
	// readLimit is how long a read of the cluster may take. A browser then gets a page that says so, and tries again.
	readLimit = 20 * time.Second
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
	// Cluster is the cluster's name for readers; empty: the pages name none.
	Cluster string
	// Zone is the time zone of times, unless a reader asks for another one; nil: UTC.
	Zone *time.Location
	// Base is what stands before pagesPath in the pages' addresses.
	Base string
}

// New returns the handler of everything below Base and pagesPath. It does not check who may read the pages: that is the
// task of Guard and Local.
func New(o Options) http.Handler {
	return newHandler(o).routes()
}

func newHandler(o Options) *handler {
	if o.Zone == nil {
		o.Zone = time.UTC
	}
	return &handler{Options: o, turn: make(chan struct{}, 1)}
}

func (h *handler) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+h.home()+"{$}", h.page(h.overview))
	mux.HandleFunc("GET "+h.home()+"pools/{pool}", h.page(h.pool))
	mux.HandleFunc("GET "+h.home()+"nodes/{node}", h.page(h.node))
	mux.HandleFunc("GET "+h.Base+stylePath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		w.Header().Set("Cache-Control", "private, max-age=86400, immutable")
		_, _ = w.Write(style)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		h.missing(w, "There is no page "+r.URL.Path+".")
	})
	return mux
}

type handler struct {
	Options

	// turn is held by the request that reads the cluster.
	turn chan struct{}
	last atomic.Pointer[seen]
}

// seen is a read of the cluster, or its failure.
type seen struct {
	state *state
	err   error
}

// home is the path of the first page.
func (h *handler) home() string { return h.Base + pagesPath + "/" }

// look returns the cluster as it is, or was a moment ago. A request that ends early ends no read, because others may
// wait for the same.
func (h *handler) look(ctx context.Context) (*state, error) {
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-h.turn }()
	if last := h.last.Load(); last != nil {
		return last.state, last.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	var now seen
	v, err := h.Read(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		now.err = fmt.Errorf("the cluster did not answer within %s: %w", readLimit, err)
	case err != nil:
		now.err = err
	default:
		now.state = newState(v, h.Now())
	}
	h.last.Store(&now)
	// No state is kept of a cluster without readers.
	time.AfterFunc(fresh, func() { h.last.Store(nil) })
	return now.state, now.err
}

// page answers with a page that make fills. A page that make returns nil for was answered already.
func (h *handler) page(fill func(http.ResponseWriter, *http.Request, *sheet) *document) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := readQuestion(r.URL, h.Zone)
		if err != nil {
			h.refuse(w, &refusal{Code: http.StatusBadRequest, Title: "The address is not valid", Text: err.Error()})
			return
		}
		s, err := h.look(r.Context())
		if err != nil {
			h.unread(w, err)
			return
		}
		if d := fill(w, r, &sheet{state: s, question: q, home: h.home()}); d != nil {
			h.write(w, d)
		}
	}
}

func (h *handler) overview(_ http.ResponseWriter, _ *http.Request, s *sheet) *document {
	d := h.document(s)
	d.Summary = s.summary()
	if s.filtered() {
		d.Found = s.found()
		return d
	}
	for _, name := range s.names() {
		d.Pools = append(d.Pools, s.pool(name, few, 0))
	}
	d.Stray = s.stray()
	return d
}

func (h *handler) pool(w http.ResponseWriter, r *http.Request, s *sheet) *document {
	name := r.PathValue("pool")
	if _, ok := s.report.Pool(name); !ok {
		h.missing(w, "There is no MachineConfigPool "+name+".")
		return nil
	}
	d := h.document(s, crumb{Name: "Pool " + name})
	d.Pools = []poolPart{s.pool(name, many, s.page)}
	return d
}

func (h *handler) node(w http.ResponseWriter, r *http.Request, s *sheet) *document {
	name := r.PathValue("node")
	_, pool, ok := s.report.Node(name)
	if !ok {
		h.missing(w, "There is no Node "+name+".")
		return nil
	}
	var way []crumb
	if pool != "" {
		way = append(way, crumb{"Pool " + pool, s.to(s.poolPath(pool))})
	}
	d := h.document(s, append(way, crumb{Name: "Node " + name})...)
	d.Filter = nil
	d.Node = s.nodePage(name)
	return d
}

func (h *handler) missing(w http.ResponseWriter, text string) {
	h.refuse(w, &refusal{Code: http.StatusNotFound, Title: "Not found", Text: text, Refresh: again})
}

// document returns the frame of a page. way are the steps that lead to it from the first page, with the page itself as
// the last one.
func (h *handler) document(s *sheet, way ...crumb) *document {
	cluster := cmp.Or(h.Cluster, "Noderefit")
	d := &document{
		Style: h.Base + stylePath, Way: append([]crumb{{cluster, s.to(h.home())}}, way...), Version: h.Version,
		At: s.stamp(s.now), Warnings: s.view.Warnings, Refresh: again, Still: s.still, Docs: docs,
		Zone: cmp.Or(s.zoneName, s.zone.String()), Path: s.path, Kept: s.kept(), All: s.all(),
	}
	d.Title = d.Way[len(d.Way)-1].Name
	if len(way) > 0 {
		d.Title += " – " + cluster
	}
	if cluster != "Noderefit" {
		d.Title += " – Noderefit"
	}
	if d.Still {
		d.Toggle = s.turned(paramRefresh, "")
	} else {
		d.Toggle = s.turned(paramRefresh, off)
	}
	if len(s.view.Nodes) == 0 {
		return d
	}
	d.Filter = &filterPart{Text: s.text, State: s.phase, States: states(), On: s.filtered(), Clear: s.to(s.path)}
	return d
}

// write answers with a whole page or with no page.
func (h *handler) write(w http.ResponseWriter, d *document) {
	var out bytes.Buffer
	if err := pages.Execute(&out, d); err != nil {
		h.refuse(w, &refusal{
			Code: http.StatusInternalServerError, Title: "The page could not be made", Text: err.Error(), Refresh: again,
		})
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(out.Len()))
	_, _ = out.WriteTo(w)
}

// policy is what a browser may do with a page: show it with its style sheet, and send its forms back to it.
const policy = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// protect sets the headers that hold a browser back, and other sites in it.
func protect(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
}

// readOnly refuses a request that could be meant to change something, and reports whether it did not.
func readOnly(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	(&refusal{
		Code: http.StatusMethodNotAllowed, Title: "The page is read-only", Text: "It answers GET and HEAD only.",
	}).write(w)
	return false
}

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
		protect(h)
		switch {
		case !readOnly(w, r):
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
			(&refusal{
				Code: http.StatusUnauthorized, Title: "A token is needed", Text: "Nobody sees the page without a token.",
				Do: tokenHelp,
			}).write(w)
			return
		}
		g := &gate{ResponseWriter: w, line: line}
		allowed.ServeHTTP(g, r)
		g.end()
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
