// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// The used part of the network block device protocol (NetworkBlockDevice/nbd, doc/proto.md): the fixed newstyle
// handshake with one export. All numbers are big-endian.
const (
	nbdMagic        = 0x4e42444d41474943 // "NBDMAGIC"
	nbdOptionMagic  = 0x49484156454f5054 // "IHAVEOPT"
	nbdReplyMagic   = 0x3e889045565a9    // of an option
	nbdRequestMagic = 0x25609513
	nbdAnswerMagic  = 0x67446698

	nbdFixedNewstyle = 1
	nbdNoZeroes      = 2

	nbdExportName = 1
	nbdAbort      = 2
	nbdInfo       = 6
	nbdGo         = 7

	nbdAck         = 1
	nbdReplyInfo   = 3
	nbdUnsupported = 1<<31 | 1

	nbdHasFlags  = 1
	nbdSendFlush = 4

	nbdRead       = 0
	nbdWrite      = 1
	nbdDisconnect = 2
	nbdFlush      = 3

	nbdIOError = 5
	nbdInvalid = 22
)

// nbdMaxRequest is the longest request that a client may send by default.
const nbdMaxRequest = 32 << 20

// serveDisk serves one client until the client ends or is cut off.
func serveDisk(conn net.Conn, d *disk) error {
	defer conn.Close()
	c := &nbdConn{in: bufio.NewReaderSize(conn, 256<<10), out: conn, disk: d}
	going, err := c.shakeHands()
	for err == nil && going {
		going, err = c.serve()
	}
	// A killed client may end in the middle of anything.
	for _, gone := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

type nbdConn struct {
	in   io.Reader
	out  io.Writer
	disk *disk
}

func (c *nbdConn) send(parts ...any) error {
	var out []byte
	for _, part := range parts {
		var err error
		if out, err = binary.Append(out, binary.BigEndian, part); err != nil {
			return err
		}
	}
	_, err := c.out.Write(out)
	return err
}

// shakeHands reports whether requests follow.
func (c *nbdConn) shakeHands() (bool, error) {
	if err := c.send(uint64(nbdMagic), uint64(nbdOptionMagic), uint16(nbdFixedNewstyle|nbdNoZeroes)); err != nil {
		return false, err
	}
	var flags uint32
	if err := binary.Read(c.in, binary.BigEndian, &flags); err != nil {
		return false, err
	}
	const offers = uint16(nbdHasFlags | nbdSendFlush)
	for {
		var option struct {
			Magic        uint64
			Option, Size uint32
		}
		if err := binary.Read(c.in, binary.BigEndian, &option); err != nil {
			return false, err
		}
		if option.Magic != nbdOptionMagic || option.Size > 1<<16 {
			return false, errors.New("shaking hands with an NBD client: no option follows")
		}
		if _, err := io.CopyN(io.Discard, c.in, int64(option.Size)); err != nil {
			return false, err
		}
		reply := func(kind uint32, parts ...any) error {
			size := 0
			for _, part := range parts {
				size += binary.Size(part)
			}
			return c.send(append([]any{uint64(nbdReplyMagic), option.Option, kind, uint32(size)}, parts...)...)
		}
		switch option.Option {
		case nbdExportName:
			err := c.send(uint64(c.disk.size), offers)
			if err == nil && flags&nbdNoZeroes == 0 {
				err = c.send(make([]byte, 124))
			}
			return err == nil, err
		case nbdAbort:
			return false, reply(nbdAck)
		case nbdInfo, nbdGo:
			const export, blockSizes = uint16(0), uint16(3)
			if err := errors.Join(reply(nbdReplyInfo, export, uint64(c.disk.size), offers),
				reply(nbdReplyInfo, blockSizes, uint32(1), uint32(blockSize), uint32(nbdMaxRequest)),
				reply(nbdAck)); err != nil || option.Option == nbdGo {
				return err == nil, err
			}
		default:
			if err := reply(nbdUnsupported); err != nil {
				return false, err
			}
		}
	}
}

// serve serves one request, and reports whether another may follow. A write request that the disk no longer serves gets
// no answer. The same holds for everything after it.
func (c *nbdConn) serve() (bool, error) {
	var request struct {
		Magic       uint32
		Flags, Kind uint16
		Cookie      uint64
		Offset      uint64
		Size        uint32
	}
	if err := binary.Read(c.in, binary.BigEndian, &request); err != nil {
		return false, err
	}
	if request.Magic != nbdRequestMagic || request.Size > nbdMaxRequest {
		return false, errors.New("serving an NBD client: no request follows")
	}
	var data []byte
	if request.Kind == nbdRead || request.Kind == nbdWrite {
		data = make([]byte, request.Size)
	}
	if request.Kind == nbdWrite {
		if _, err := io.ReadFull(c.in, data); err != nil {
			return false, err
		}
	}
	answer := func(code uint32, data []byte) (bool, error) {
		return true, c.send(uint32(nbdAnswerMagic), code, request.Cookie, data)
	}
	offset := int64(request.Offset)
	if offset < 0 || offset > c.disk.size-int64(len(data)) {
		return answer(nbdInvalid, nil)
	}
	served := true
	var err error
	switch request.Kind {
	case nbdRead:
		if err = c.disk.read(data, offset); err == nil {
			return answer(0, data)
		}
	case nbdWrite:
		served, err = c.disk.write(data, offset)
	case nbdFlush:
		served = c.disk.flush()
	case nbdDisconnect:
		return false, nil
	default:
		return answer(nbdInvalid, nil)
	}
	switch {
	case err != nil:
		_, sendErr := answer(nbdIOError, nil)
		return false, errors.Join(fmt.Errorf("serving the disk: %w", err), sendErr)
	case !served:
		_, err := io.Copy(io.Discard, c.in)
		return false, err
	default:
		return answer(0, nil)
	}
}
