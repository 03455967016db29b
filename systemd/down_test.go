// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// fakeBus has a systemd that starts every unit, and a logind whose reboots end as refusals says, by the method.
type fakeBus struct {
	noLogind bool
	refusals map[string]string

	mu sync.Mutex
	// asked are the reboots of logind and the units that systemd was to start.
	asked []string
}

// answer returns the name of an error, or the arguments of a reply.
func (b *fakeBus) answer(destination, member string, body []any) (failure string, reply []any) {
	const unknown = "org.freedesktop.DBus.Error.ServiceUnknown"
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case member == "NameHasOwner":
		return "", []any{!b.noLogind}
	case member == "StartUnit":
		b.asked = append(b.asked, body[0].(string))
		return "", []any{godbus.ObjectPath("/org/freedesktop/systemd1/job/1")}
	case destination == loginName && b.noLogind:
		return unknown, nil
	case member == "ListInhibitors":
		return "", []any{[]Inhibitor{}}
	case strings.HasPrefix(member, "Reboot"):
		b.asked = append(b.asked, member)
		return b.refusals[member], nil
	}
	return "", nil
}

// serve lets one client in, and answers its calls until the client is gone.
func (b *fakeBus) serve(conn net.Conn) {
	in := bufio.NewReader(conn)
	for line := ""; !strings.HasPrefix(line, "BEGIN"); {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return
		}
		switch strings.Trim(line, "\x00\r\n") {
		case "BEGIN":
		case "AUTH":
			_, _ = io.WriteString(conn, "REJECTED EXTERNAL\r\n")
		default:
			_, _ = io.WriteString(conn, "OK 0123456789abcdef0123456789abcdef\r\n")
		}
	}
	for serial := uint32(1); ; serial++ {
		call, err := godbus.DecodeMessage(in)
		if err != nil {
			return
		}
		text := func(field godbus.HeaderField) string { s, _ := call.Headers[field].Value().(string); return s }
		failure, body := b.answer(text(godbus.FieldDestination), text(godbus.FieldMember), call.Body)
		out := &godbus.Message{Type: godbus.TypeMethodReply, Body: body,
			Headers: map[godbus.HeaderField]godbus.Variant{godbus.FieldReplySerial: godbus.MakeVariant(call.Serial())}}
		if failure != "" {
			out.Type, out.Headers[godbus.FieldErrorName] = godbus.TypeError, godbus.MakeVariant(failure)
		}
		if len(body) > 0 {
			out.Headers[godbus.FieldSignature] = godbus.MakeVariant(godbus.SignatureOf(body...))
		}
		var buffer bytes.Buffer
		if err := out.EncodeTo(&buffer, binary.LittleEndian); err != nil {
			panic(err)
		}
		binary.LittleEndian.PutUint32(buffer.Bytes()[8:], serial) // the library numbers only what it sends itself
		if _, err := conn.Write(buffer.Bytes()); err != nil {
			return
		}
	}
}

func (b *fakeBus) connect(t *testing.T) *Manager {
	t.Helper()
	m, err := connect(t.Context(), func(ctx context.Context) (*godbus.Conn, error) {
		ours, theirs := net.Pipe()
		go b.serve(theirs)
		c, err := godbus.NewConn(ours, godbus.WithContext(ctx))
		if err != nil {
			return nil, err
		}
		return c, c.Auth([]godbus.Auth{godbus.AuthExternal("root")})
	}, func(context.Context) (*dbus.Conn, error) { return nil, io.ErrUnexpectedEOF })
	must(t, err)
	t.Cleanup(m.stop)
	return m
}

// Programs that delay a shutdown are asked by logind alone: a kexec that logind refuses must not go past them.
func TestAKexecGoesPastLogindOnlyWhereThereIsNone(t *testing.T) {
	t.Parallel()
	const flags = "RebootWithFlags"
	for what, c := range map[string]struct {
		bus   *fakeBus
		down  func(*Manager, context.Context) error
		asked []string
		fails bool
	}{
		"kexec": {&fakeBus{}, (*Manager).Kexec, []string{flags}, false},
		"logind knows no flags": {&fakeBus{refusals: map[string]string{flags: "org.freedesktop.DBus.Error.UnknownMethod"}},
			(*Manager).Kexec, []string{flags}, true},
		"logind knows no such flag": {&fakeBus{refusals: map[string]string{flags: "org.freedesktop.DBus.Error.InvalidArgs"}},
			(*Manager).Kexec, []string{flags}, true},
		"it has gone down": {&fakeBus{refusals: map[string]string{flags: "org.freedesktop.DBus.Error.NoReply"}},
			(*Manager).Kexec, []string{flags}, false},
		"no logind": {&fakeBus{noLogind: true}, (*Manager).Kexec, []string{"kexec.target"}, false},
		"full":      {&fakeBus{}, (*Manager).Reboot, []string{"Reboot"}, false},
		"logind has failed": {&fakeBus{refusals: map[string]string{"Reboot": "org.freedesktop.DBus.Error.Failed"}},
			(*Manager).Reboot, []string{"Reboot", "reboot.target"}, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			err := c.down(c.bus.connect(t), t.Context())
			if (err != nil) != c.fails || !slices.Equal(c.bus.asked, c.asked) {
				t.Errorf("%q, %v; want %q", c.bus.asked, err, c.asked)
			}
		})
	}
}
