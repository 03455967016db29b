// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/noderefit/noderefit/api"
)

const (
	// typePrefix is the prefix of each CloudEvent's type. The kind in small letters follows.
	typePrefix = "dev.noderefit.rollout."
	// sequenceExtension is the CloudEvents extension that orders the events of a source.
	sequenceExtension = "sequence"
	// answerTime is how long a server may take to answer.
	answerTime = 10 * time.Second
	// answerLimit is how many bytes of an answer are read. quotedLimit is how much of a refusal is quoted, from its first
	// searchedLimit bytes.
	answerLimit, searchedLimit, quotedLimit = 32 << 20, 8 << 10, 256
)

// Access is how a server is reached.
type Access struct {
	URL string
	// Token is sent as a bearer token. It is empty for a server without a token.
	Token string
	// CA are the certificates that verify the server, in PEM. Where it is empty, the system's are used.
	CA []byte
	// Agent is our name for the server.
	Agent string
}

// RefusedError is a refusal that stays the same for the same request.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return e.Text }

// cloudEvent makes a CloudEvent of a notification.
func cloudEvent(n api.Notification) (event.Event, error) {
	e := event.New()
	e.SetID(n.ID)
	e.SetType(typePrefix + strings.ToLower(string(n.Kind)))
	e.SetSource(n.Cluster + "/machineconfigpools/" + n.Pool)
	e.SetTime(n.Time.UTC())
	if n.To != "" {
		e.SetSubject(n.To)
	}
	e.SetExtension(sequenceExtension, fmt.Sprintf("%020d", n.Sequence))
	if err := e.SetData(event.ApplicationJSON, n.RolloutNews); err != nil {
		return e, fmt.Errorf("making a CloudEvent: %w", err)
	}
	if err := e.Validate(); err != nil {
		return e, fmt.Errorf("making a CloudEvent: %w", err)
	}
	return e, nil
}

// Deliver posts a notification to a webhook, as a CloudEvent in structured mode. That is one JSON document, which
// passes every proxy and can be read without a library.
func Deliver(ctx context.Context, to Access, n api.Notification) error {
	e, err := cloudEvent(n)
	if err != nil {
		return &RefusedError{err.Error()}
	}
	body, err := json.Marshal(e)
	if err != nil {
		return &RefusedError{err.Error()}
	}
	l, err := to.call()
	if err != nil {
		return err
	}
	defer l.client.CloseIdleConnections()
	_, err = l.ask(ctx, http.MethodPost, "", event.ApplicationCloudEventsJSON, body)
	return err
}

// never are the answers that refuse this very request for good.
var never = []int{
	http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusGone,
	http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
}

// line is a connection to a server.
type line struct {
	Access

	client *http.Client
}

// ask sends a request and reads the answer, which has to be a success.
func (a line) ask(ctx context.Context, method, path, kind string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, a.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("making a request: the URL can't be read") // the error may quote a token
	}
	server := hidden(request.URL)
	if len(body) > 0 {
		request.Header.Set("Content-Type", kind+"; charset=utf-8")
	}
	if a.Token != "" {
		request.Header.Set("Authorization", "Bearer "+a.Token)
	}
	request.Header.Set("User-Agent", a.Agent)
	answer, err := a.client.Do(request)
	if err != nil {
		if failed, is := errors.AsType[*url.Error](err); is {
			err = failed.Err
		}
		return nil, fmt.Errorf("%s %s: %w", method, server, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, answerLimit))
	if answer.StatusCode/100 != 2 {
		quoted := withoutPath(string(text[:min(len(text), searchedLimit)]), request.URL)
		quoted = strings.TrimSpace(strings.ToValidUTF8(quoted[:min(len(quoted), quotedLimit)], ""))
		said := fmt.Sprintf("%s %s: %s", method, server, strings.TrimSpace(answer.Status+" "+
			strings.Trim(strconv.Quote(quoted), `"`)))
		if slices.Contains(never, answer.StatusCode) {
			return nil, &RefusedError{said}
		}
		return nil, errors.New(said)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: reading the answer: %w", method, server, err)
	}
	return text, nil
}

// hidden returns the server of a URL. The rest of a webhook's URL is often as good as a token, and more people read
// errors than Secrets.
func hidden(u *url.URL) string { return u.Scheme + "://" + u.Host }

// withoutPath removes the parts of a URL from a text. Servers without that path repeat them.
func withoutPath(text string, u *url.URL) string {
	for _, part := range []string{u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery} {
		if len(strings.Trim(part, "/")) > 0 {
			text = strings.ReplaceAll(text, part, "…")
		}
	}
	return text
}

// call returns a connection that follows no redirects: a token is only for the named server.
func (a Access) call() (line, error) {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: answerTime,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if len(a.CA) > 0 {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(a.CA) {
			return line{}, fmt.Errorf("the Secret's %s has no certificate", api.SecretCA)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return line{a, &http.Client{
		Transport: transport, Timeout: answerTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}
