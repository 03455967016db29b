// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestAReaderKeepsItsBandwidthWhateverTheSizeOfItsReads(t *testing.T) {
	for _, size := range []int{1, 1000, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			const bandwidth, length = 100 << 10, 1000 << 10
			began := time.Now()
			r := &Reader{t.Context(), bytes.NewReader(make([]byte, length)), limiter(bandwidth)}
			buffer := make([]byte, size)
			n := 0
			for {
				got, err := r.Read(buffer)
				n += got
				if took := time.Since(began); float64(n) > bandwidth*took.Seconds()+burst+float64(size) {
					t.Fatalf("%d bytes after %s", n, took)
				}
				if errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); n != length || took < 9*time.Second || took > 11*time.Second {
				t.Errorf("reads of %d: %d bytes in %s", size, n, took)
			}
		})
	}
}

// served counts the requests of a server that answers with so many bytes.
func served(length int, tls bool) (*httptest.Server, *[]string) {
	asked := &[]string{}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.Method+" "+r.URL.Path)
		_, _ = w.Write(make([]byte, length))
	})
	if tls {
		return httptest.NewTLSServer(h), asked
	}
	return httptest.NewServer(h), asked
}

// address returns the URL by which the programs of the host find the proxy.
func address(t *testing.T, p *Proxy) *url.URL {
	t.Helper()
	at, err := url.Parse(strings.TrimPrefix(Environment(p.In(t.Context()))[0], "http_proxy="))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// through returns a client of the server whose every request goes to the proxy.
func through(t *testing.T, s *httptest.Server, p *Proxy) *http.Client {
	t.Helper()
	at := address(t, p)
	transport := s.Client().Transport.(*http.Transport).Clone()
	transport.Proxy = http.ProxyURL(at)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func get(t *testing.T, c *http.Client, url string) int {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	return int(n)
}

func TestProgramsBehindTheProxyShareOneBandwidth(t *testing.T) {
	const bandwidth, length = 512 << 10, 512 << 10
	p, err := Listen(t.Context(), bandwidth, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	began := time.Now()
	for _, tls := range []bool{false, true} {
		s, asked := served(length, tls)
		t.Cleanup(s.Close)
		c := through(t, s, p)
		for range 2 { // one connection serves both
			if n := get(t, c, s.URL+"/layer"); n != length {
				t.Errorf("TLS %t: %d bytes", tls, n)
			}
		}
		if len(*asked) != 2 {
			t.Errorf("TLS %t: asked %v", tls, *asked)
		}
	}
	if took, least := time.Since(began), 4*time.Second-burst*time.Second/bandwidth; took < least {
		t.Errorf("%d bytes came in %s, which takes at least %s", 4*length, took, least)
	}
}

func TestTheHostsOwnProxyIsAskedForWhatItServes(t *testing.T) {
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		t.Setenv(name, "")
	}
	// The host's own proxy knows where the names of the test are, which nobody else does.
	plain, asked := served(1000, false)
	defer plain.Close()
	secret, _ := served(2000, true)
	defer secret.Close()
	var said []string
	own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said = append(said, r.Method+" "+r.Host+" "+r.Header.Get("Proxy-Authorization"))
		if r.Method != http.MethodConnect {
			http.Redirect(w, r, plain.URL+"/redirected", http.StatusFound)
			return
		}
		to, err := net.Dial("tcp", secret.Listener.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(to, conn); _ = to.Close() }()
		_, _ = io.Copy(conn, to)
		_ = conn.Close()
	}))
	defer own.Close()
	at := strings.Replace(own.URL, "http://", "http://user:word@", 1)
	p, err := Listen(t.Context(), 64<<20, []byte("HTTP_PROXY="+at+"\nexport HTTPS_PROXY='"+at+"'\nNO_PROXY=other.test\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if n := get(t, through(t, plain, p), "http://mirror.test/a"); n != 1000 || len(*asked) != 1 {
		t.Errorf("%d bytes, asked %v", n, *asked)
	}
	c := through(t, secret, p)
	c.Transport.(*http.Transport).TLSClientConfig.ServerName = "example.com" // of the server's certificate
	if n := get(t, c, "https://registry.test/v2/"); n != 2000 {
		t.Errorf("%d bytes", n)
	}
	want := "GET mirror.test Basic dXNlcjp3b3Jk, CONNECT registry.test:443 Basic dXNlcjp3b3Jk"
	if got := strings.Join(said, ", "); got != want {
		t.Errorf("the host's proxy heard %s, want %s", got, want)
	}
	resp, err := c.Get("https://other.test/")
	if err == nil {
		_ = resp.Body.Close()
	}
	if err == nil || len(said) != 2 {
		t.Errorf("a name that the host's proxy does not serve: %v, %v", err, said)
	}
}

func TestAClosedProxyEndsWhatItCarries(t *testing.T) {
	p, err := Listen(t.Context(), 16<<10, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := served(100<<20, false)
	defer s.Close()
	resp, err := through(t, s, p).Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	go p.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err == nil || n > 10<<20 {
		t.Errorf("%d bytes after the end, %v", n, err)
	}
	if got := strings.Join(Environment(p.In(t.Context())), " "); !strings.Contains(got, "HTTPS_PROXY=http://noderefit:") ||
		!strings.Contains(got, "https_proxy=http://noderefit:") || !strings.Contains(got, " no_proxy= NO_PROXY=") {
		t.Errorf("the variables are %s", got)
	}
	if Environment(t.Context()) != nil || Of(t.Context()) != nil {
		t.Error("work without a bandwidth has a proxy")
	}
}

func TestAMuteProxyOfTheHostHoldsNobody(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	p, err := Listen(t.Context(), 1<<20, []byte("HTTPS_PROXY=http://"+mute.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	s, _ := served(1, true)
	defer s.Close()
	answered := make(chan error, 1)
	c := through(t, s, p)
	go func() {
		resp, err := c.Get("https://registry.test/")
		if err == nil {
			_ = resp.Body.Close()
		}
		answered <- err
	}()
	conn, err := mute.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	from := bufio.NewReader(conn)
	if _, err := http.ReadRequest(from); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() { p.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("the proxy waits for ever")
	}
	if _, err := from.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the host's proxy hears %v", err)
	}
	if err := <-answered; err == nil {
		t.Error("the program has an answer")
	}
}

func TestAQuestionToTheHostsProxyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, other := net.Pipe()
		defer other.Close()
		go func() { _, _ = http.ReadRequest(bufio.NewReader(other)) }()
		began := time.Now()
		_, err := ask(conn, &url.URL{Scheme: "http", Host: "proxy.test"}, "registry.test:443")
		if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != dialLimit {
			t.Errorf("%v after %s", err, took)
		}
		// The bytes of the server may take longer than the answer.
		conn, other = net.Pipe()
		defer other.Close()
		go func() {
			_, _ = http.ReadRequest(bufio.NewReader(other))
			_, _ = io.WriteString(other, "HTTP/1.1 200 OK\r\n\r\n")
			time.Sleep(2 * dialLimit) //nolint:forbidigo // it is the bubble's time
			_, _ = io.WriteString(other, "late")
		}()
		head, err := ask(conn, &url.URL{Scheme: "http", Host: "proxy.test"}, "registry.test:443")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(head, make([]byte, 4)); err != nil {
			t.Error(err)
		}
	})
}

func TestStrangersGetNothingAndKeepNobodyOut(t *testing.T) {
	p, err := Listen(t.Context(), 64<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s, asked := served(1000, false)
	defer s.Close()
	secret, _ := served(1000, true)
	defer secret.Close()
	at := address(t, p).Host
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	wrong := "Proxy-Authorization: " + basic(url.UserPassword("noderefit", "wrong")) + "\r\n"
	for _, text := range []string{
		"GET " + s.URL + "/ HTTP/1.1\r\nHost: a.test\r\n",
		"GET " + s.URL + "/ HTTP/1.1\r\nHost: a.test\r\n" + wrong,
		"CONNECT " + s.Listener.Addr().String() + " HTTP/1.1\r\nHost: a.test\r\n" + wrong,
	} {
		conn := dial()
		_, _ = io.WriteString(conn, text+"\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusProxyAuthRequired || resp.Header.Get("Proxy-Authenticate") == "" || len(*asked) > 0 {
			t.Errorf("%q: %s, asked %v", text, resp.Status, *asked)
		}
	}
	// A request without an end takes no memory.
	conn := dial()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nLong: "+strings.Repeat("a", 2*maxHeader))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a long request: %s", resp.Status)
	}
	// Programs of the host come through however many are mute.
	clients := []*http.Client{through(t, s, p), through(t, secret, p)}
	urls := []string{s.URL, secret.URL}
	get(t, clients[0], urls[0])
	oldest := dial()
	for range 2 * maxStrangers {
		dial()
	}
	if _, err := oldest.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the oldest stranger hears %v", err)
	}
	for i, c := range clients {
		if n := get(t, c, urls[i]); n != 1000 {
			t.Errorf("%d bytes", n)
		}
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if n := len(p.strangers); n > maxStrangers {
		t.Errorf("%d strangers", n)
	}
}
