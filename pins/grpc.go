// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"google.golang.org/protobuf/encoding/protowire"
)

// mostAnswer is the most that an answer of a runtime may have.
const mostAnswer = 64 << 20

// conn calls the methods of a gRPC server at a socket.
type conn struct {
	client *http.Client
	socket string // the path on the host, for people
	// namespace is containerd's.
	namespace string
}

// dial returns a connection to the socket at a path. It connects with the first call.
func dial(at, socket, namespace string) *conn {
	plain := new(http.Protocols)
	plain.SetUnencryptedHTTP2(true)
	return &conn{socket: socket, namespace: namespace, client: &http.Client{Transport: &http.Transport{
		Protocols: plain,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", at)
		},
	}}}
}

func (c *conn) close() { c.client.CloseIdleConnections() }

// call calls a method with an encoded message, and returns the encoded answer.
func (c *conn) call(ctx context.Context, method string, message []byte) ([]byte, error) {
	body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/"+method,
		bytes.NewReader(append(body, message...)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	if c.namespace != "" {
		request.Header.Set("Containerd-Namespace", c.namespace)
	}
	answer, err := c.client.Do(request)
	if err != nil {
		return nil, c.unanswered(ctx, err)
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer+1))
	if err != nil {
		return nil, c.unanswered(ctx, err)
	}
	if len(data) > mostAnswer {
		return nil, fmt.Errorf("asking %s: the answer has more than %d MiB", c.socket, mostAnswer>>20)
	}
	// An answer without a message has the status in its header.
	said := func(key string) string { return cmp.Or(answer.Trailer.Get(key), answer.Header.Get(key)) }
	switch code := said("Grpc-Status"); {
	case code == "":
		return nil, fmt.Errorf("asking %s: this is no gRPC server (HTTP status %d)", c.socket, answer.StatusCode)
	case code != "0":
		text, err := url.PathUnescape(said("Grpc-Message"))
		if err != nil {
			text = said("Grpc-Message")
		}
		return nil, errors.New(cmp.Or(text, "gRPC status "+code))
	}
	if len(data) < 5 || data[0] != 0 || int(binary.BigEndian.Uint32(data[1:])) != len(data)-5 {
		return nil, fmt.Errorf("asking %s: the answer is not one whole message", c.socket)
	}
	return data[5:], nil
}

// unanswered names the socket in the error of a call without an answer, and the reason why the call was given up.
func (c *conn) unanswered(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if wrapped, is := err.(*url.Error); is { //nolint:errorlint // its text has a URL that nobody knows
		err = wrapped.Err
	}
	return fmt.Errorf("asking %s: %w", c.socket, err)
}

// message is an encoded protocol buffer. Fields are added in any order; an empty value is left out.
type message []byte

func (m message) text(field protowire.Number, value string) message {
	if value == "" {
		return m
	}
	return m.with(field, message(value))
}

func (m message) with(field protowire.Number, value message) message {
	return protowire.AppendBytes(protowire.AppendTag(m, field, protowire.BytesType), value)
}

// each calls do with each field of a message. value is that of a text or a message, and number that of a number.
func (m message) each(do func(field protowire.Number, value message, number uint64)) error {
	for rest := []byte(m); len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return protowire.ParseError(n)
		}
		rest = rest[n:]
		var value []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(rest)
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(rest)
		default:
			n = protowire.ConsumeFieldValue(field, kind, rest)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		rest = rest[n:]
		do(field, value, number)
	}
	return nil
}

// texts returns the texts of a field, which may be repeated.
func (m message) texts(of protowire.Number) (out []string, err error) {
	err = m.each(func(field protowire.Number, value message, _ uint64) {
		if field == of {
			out = append(out, string(value))
		}
	})
	return out, err
}
