// SPDX-License-Identifier: Apache-2.0

// Package pace keeps fetches below a bandwidth: those of this program by a limiter, and those of other programs by a
// proxy on the loopback interface that these programs are run with.
//
//	p, err := pace.Listen(ctx, 20<<20, proxyFile)
//	defer p.Close()
//	ctx = p.In(ctx) // whatever fetches with this context keeps the bandwidth
package pace

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/time/rate"
)

const (
	// burst is how many bytes may come at once.
	burst = 64 << 10
	// dialLimit is how long a server may take to accept a connection, and a program to ask for something.
	dialLimit = 30 * time.Second
	// idleLimit is how long a connection may stay for a program's next request.
	idleLimit = 2 * time.Minute
	// maxHeader is how long a request may be, without what it sends.
	maxHeader = 64 << 10
	// maxStrangers is how many connections there may be that have not shown the password.
	maxStrangers = 64
)

// limiter returns a limiter of so many bytes a second. Readers have to ask for a burst at most: see Reader.
func limiter(bytesPerSecond int64) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(bytesPerSecond), int(min(bytesPerSecond, burst)))
}

// Reader reads no faster than its limiter allows.
type Reader struct {
	Context context.Context //nolint:containedctx // a reader has no other way to be interrupted
	From    io.Reader
	Limiter *rate.Limiter
}

func (r *Reader) Read(b []byte) (int, error) {
	n, err := r.From.Read(b[:min(len(b), r.Limiter.Burst())])
	if n > 0 {
		if failed := r.Limiter.WaitN(r.Context, n); failed != nil {
			return n, failed
		}
	}
	return n, err
}

// Proxy is an HTTP proxy on the loopback interface. All that comes through it shares its Limiter. What is sent is not
// limited. The proxy serves the programs that have its Environment: others do not know its password.
type Proxy struct {
	Limiter *rate.Limiter

	at       *url.URL // with the password
	password string   // as a program's request has it
	server   *http.Server
	stop     context.CancelFunc
	// onward returns the host's own proxy for a URL, nil where there is none.
	onward func(*url.URL) (*url.URL, error)
	plain  *httputil.ReverseProxy

	mutex sync.Mutex
	// strangers are the connections that have not shown the password yet, the oldest first.
	strangers []net.Conn
}

// Listen opens a proxy of so many bytes a second. proxyFile is that of HostProxies, whose proxies the connections go
// through. The bandwidth has to be more than 0.
func Listen(ctx context.Context, bytesPerSecond int64, proxyFile []byte) (*Proxy, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("opening the proxy that keeps the bandwidth: %w", err)
	}
	user := url.UserPassword("noderefit", rand.Text())
	p := &Proxy{Limiter: limiter(bytesPerSecond), at: &url.URL{Scheme: "http", User: user, Host: listener.Addr().String()},
		password: basic(user), onward: HostProxies(proxyFile)}
	ctx, p.stop = context.WithCancel(ctx)
	direct := &http.Transport{DisableCompression: true, DialContext: (&net.Dialer{Timeout: dialLimit}).DialContext,
		Proxy: func(r *http.Request) (*url.URL, error) { return p.onward(r.URL) }}
	context.AfterFunc(ctx, direct.CloseIdleConnections)
	p.plain = &httputil.ReverseProxy{Transport: direct, ModifyResponse: p.slow, ErrorHandler: failing,
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.RawQuery = r.In.URL.RawQuery }}
	p.server = &http.Server{Handler: p, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: dialLimit, IdleTimeout: idleLimit,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnState: p.connection,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, carrier{}, c) }}
	go func() {
		if err := p.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "accepting the connections of programs that fetch:", err)
		}
	}()
	return p, nil
}

// basic returns the header by which a user shows a password.
func basic(user *url.Userinfo) string {
	password, _ := user.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
}

// HostProxies returns the function that names the proxy for a URL, nil for none. proxyFile is the text of the host's
// file of variables that name proxies. These variables come before those of this process.
func HostProxies(proxyFile []byte) func(*url.URL) (*url.URL, error) {
	config := httpproxy.FromEnvironment()
	for line := range strings.Lines(string(proxyFile)) {
		name, value, is := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if !is {
			continue
		}
		value = strings.Trim(strings.TrimSpace(value), `"'`)
		switch strings.ToUpper(strings.TrimSpace(name)) {
		case "HTTP_PROXY":
			config.HTTPProxy = value
		case "HTTPS_PROXY":
			config.HTTPSProxy = value
		case "NO_PROXY":
			config.NoProxy = value
		}
	}
	return config.ProxyFunc()
}

// carried is the key of a context's proxy.
type carried struct{}

// In returns a context for work that keeps the proxy's bandwidth.
func (p *Proxy) In(ctx context.Context) context.Context { return context.WithValue(ctx, carried{}, p) }

// Of returns the limiter of the work's bandwidth, nil where the work has none.
func Of(ctx context.Context) *rate.Limiter {
	if p, is := ctx.Value(carried{}).(*Proxy); is {
		return p.Limiter
	}
	return nil
}

// Environment returns the variables, as NAME=value, by which programs use the proxy of the work for everything. It
// returns nil where the work has no bandwidth to keep.
func Environment(ctx context.Context) []string {
	if p, is := ctx.Value(carried{}).(*Proxy); is {
		return p.environment()
	}
	return nil
}

// environment has each name twice: libcurl reads the one in small letters alone.
func (p *Proxy) environment() (all []string) {
	for _, v := range [][2]string{{"http_proxy", p.at.String()}, {"https_proxy", p.at.String()}, {"no_proxy", ""}} {
		all = append(all, v[0]+"="+v[1], strings.ToUpper(v[0])+"="+v[1])
	}
	return all
}

// Close ends the proxy and its connections. It waits for none of them.
func (p *Proxy) Close() {
	p.stop()
	_ = p.server.Close()
}

// carrier is the key of the connection by which a request came.
type carrier struct{}

// connection keeps the number of strangers small: the oldest gives way. So they can't keep our programs out, which show
// the password at once.
func (p *Proxy) connection(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		p.mutex.Lock()
		defer p.mutex.Unlock()
		if len(p.strangers) == maxStrangers {
			_ = p.strangers[0].Close()
			p.strangers = p.strangers[1:]
		}
		p.strangers = append(p.strangers, c)
	case http.StateClosed:
		p.known(c)
	case http.StateActive, http.StateIdle, http.StateHijacked:
	}
}

// known takes a connection off the strangers.
func (p *Proxy) known(c net.Conn) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.strangers = slices.DeleteFunc(p.strangers, func(s net.Conn) bool { return s == c })
}

// ServeHTTP connects a program with the server that it names, or carries out its request for a URL without TLS.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Proxy-Authorization")), []byte(p.password)) == 0 {
		w.Header().Set("Proxy-Authenticate", `Basic realm="noderefit"`)
		http.Error(w, "this proxy serves what stages this node alone", http.StatusProxyAuthRequired)
		return
	}
	if c, is := r.Context().Value(carrier{}).(net.Conn); is {
		p.known(c)
	}
	switch {
	case r.Method == http.MethodConnect:
		p.tunnel(w, r)
	case r.URL.IsAbs():
		p.plain.ServeHTTP(w, r)
	default:
		http.Error(w, "this is a proxy", http.StatusBadRequest)
	}
}

// failing answers a request that can't be served.
func failing(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusBadGateway)
}

// slow lets an answer come no faster than the limiter allows.
func (p *Proxy) slow(resp *http.Response) error {
	resp.Body = struct {
		io.Reader
		io.Closer
	}{&Reader{resp.Request.Context(), resp.Body, p.Limiter}, resp.Body}
	return nil
}

// tunnel connects a program with the server that it names.
func (p *Proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	ctx, end := context.WithCancel(r.Context())
	defer end() // of both connections
	server, head, err := p.dial(ctx, r.Host)
	if err != nil {
		failing(w, r, err)
		return
	}
	conn, from, err := http.NewResponseController(w).Hijack()
	if err != nil {
		failing(w, r, err)
		return
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, from) // how it ends is the program's own affair
		if half, is := server.(interface{ CloseWrite() error }); is {
			_ = half.CloseWrite()
		}
	}()
	_, _ = io.Copy(conn, &Reader{ctx, head, p.Limiter})
}

// dial connects with a server until ctx ends, through the host's own proxy where the server has one. head reads what
// the server says.
func (p *Proxy) dial(ctx context.Context, address string) (conn net.Conn, head io.Reader, err error) {
	through, err := p.onward(&url.URL{Scheme: "https", Host: address})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the host's proxy: %w", err)
	}
	at := address
	if through != nil {
		if through.Scheme != "http" {
			return nil, nil, fmt.Errorf("the host's proxy %s: a bandwidth is kept only with a proxy by http", through.Redacted())
		}
		at = net.JoinHostPort(through.Hostname(), cmp.Or(through.Port(), "80"))
	}
	if conn, err = (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, "tcp", at); err != nil {
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if through == nil {
		return conn, conn, nil
	}
	head, err = ask(conn, through, address)
	return conn, head, err
}

// ask has the host's proxy connect conn with a server. The proxy may take as long as a server for that.
func ask(conn net.Conn, through *url.URL, address string) (head io.Reader, err error) {
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if through.User != nil {
		r.Header.Set("Proxy-Authorization", basic(through.User))
	}
	said := bufio.NewReader(conn)
	var resp *http.Response
	if err = conn.SetDeadline(time.Now().Add(dialLimit)); err == nil {
		err = r.Write(conn)
	}
	if err == nil {
		resp, err = http.ReadResponse(said, r) //nolint:bodyclose // an answer to CONNECT has none
	}
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New("it answers " + resp.Status)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, fmt.Errorf("asking the host's proxy %s for %s: %w", through.Redacted(), address, err)
	}
	return said, nil
}
