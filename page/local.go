// SPDX-License-Identifier: Apache-2.0

package page

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"strings"
)

// Local returns the pages for the person who started the process, at a loopback address, and the path of the first
// page. The path begins with a secret of this process, which no other user of the machine and no web site knows.
//
// The secret is in the path and not in a cookie: browsers send a cookie to every port of a host, so another user's
// server on the same machine could collect it. Requests must name the loopback address as their host. So a web site
// cannot have its own name resolved to this machine and read the answers.
func Local(o Options) (handler http.Handler, path string) {
	secret := rand.Text()
	o.Base = "/" + secret
	pages := New(o)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header())
		got, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case !loopback(r.Host):
			(&refusal{
				Code: http.StatusMisdirectedRequest, Title: "This is not the address of the page",
				Text: "The page answers at 127.0.0.1 and localhost only.",
			}).write(w)
		case !readOnly(w, r):
		case subtle.ConstantTimeCompare([]byte(got), []byte(secret)) != 1:
			(&refusal{
				Code: http.StatusNotFound, Title: "This address is not complete", Text: "There is no page here.",
				Do: []string{"Open the whole address that the command printed when it was started last."},
			}).write(w)
		case rest == "" || "/"+rest == pagesPath:
			http.Redirect(w, r, o.Base+pagesPath+"/", http.StatusFound)
		default:
			pages.ServeHTTP(w, r)
		}
	}), o.Base + pagesPath + "/"
}

// loopback reports whether the host of a request, perhaps with a port, is this machine by a name that no DNS server has
// a say in. The port is left open, for those who forward it with ssh.
func loopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	switch strings.ToLower(name) {
	case "localhost", "127.0.0.1", "::1":
		return true
	}
	return false
}
