// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"
)

// peer is the daemon's end of a D-Bus connection without a bus. The library has the other end alone.
type peer struct {
	conn   net.Conn
	reader *bufio.Reader

	mu     sync.Mutex
	serial uint32
}

// newPeer lets a client of the same machine in, whoever it is: the socket is root's.
func newPeer(conn net.Conn, guid string) (*peer, error) {
	p := &peer{conn: conn, reader: bufio.NewReader(conn)}
	if null, err := p.reader.ReadByte(); err != nil || null != 0 {
		return nil, errors.Join(errors.New("a client that does not authenticate"), err)
	}
	for {
		line, err := p.reader.ReadString('\n')
		if err != nil {
			return nil, err
		}
		answer := "ERROR"
		switch words := strings.Fields(line); {
		case len(words) == 2 && words[0] == "AUTH" && words[1] == "EXTERNAL":
			answer = "DATA" // who it is may follow
		case len(words) > 0 && words[0] == "DATA", len(words) == 3 && words[0] == "AUTH" && words[1] == "EXTERNAL":
			answer = "OK " + guid
		case len(words) > 0 && words[0] == "AUTH":
			answer = "REJECTED EXTERNAL"
		case len(words) > 0 && words[0] == "BEGIN":
			return p, nil
		}
		if _, err := io.WriteString(conn, answer+"\r\n"); err != nil {
			return nil, err
		}
	}
}

// receive reads the next method call.
func (p *peer) receive() (*dbus.Message, error) {
	for {
		message, err := dbus.DecodeMessage(p.reader)
		if err != nil || message.Type == dbus.TypeMethodCall {
			return message, err
		}
	}
}

func (p *peer) reply(call *dbus.Message, args ...any) {
	p.send(&dbus.Message{Type: dbus.TypeMethodReply, Body: args, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
	}})
}

func (p *peer) fail(call *dbus.Message, name, text string) {
	p.send(&dbus.Message{Type: dbus.TypeError, Body: []any{text}, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()), dbus.FieldErrorName: dbus.MakeVariant(name),
	}})
}

func (p *peer) signal(iface, member string, args ...any) {
	p.send(&dbus.Message{Type: dbus.TypeSignal, Body: args, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/")),
		dbus.FieldInterface: dbus.MakeVariant(iface), dbus.FieldMember: dbus.MakeVariant(member),
	}})
}

// send sends a message. That the client is gone is seen where it is read from.
func (p *peer) send(message *dbus.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(message.Body) > 0 {
		message.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(message.Body...))
	}
	var buffer bytes.Buffer
	if err := message.EncodeTo(&buffer, binary.LittleEndian); err != nil {
		panic(fmt.Sprintf("encoding a message of our own: %v", err))
	}
	// The library numbers what it sends itself, and has no way to number what is only encoded: bytes 8 to 11.
	p.serial++
	binary.LittleEndian.PutUint32(buffer.Bytes()[8:], p.serial)
	_, _ = p.conn.Write(buffer.Bytes()) // see above
}
