// SPDX-License-Identifier: Apache-2.0

// Package wire has the messages between the lab of a virtual machine and the program guest inside, over a serial port.
//
// Such a port is a stream without a beginning. The machine goes down in the middle of a message, and the next boot
// finds the rest of that message, or messages for the boot before. So each message names its boot, and a reader finds
// the next message behind any bytes.
package wire

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// Kind is the kind of a message.
type Kind byte

// The first messages go to the machine, the others come from it. In, Out and Err carry streams in pieces. An empty In
// ends the input.
const (
	Ping Kind = iota + 1 // asks for a Hello; the boot is not known yet
	Exec                 // Data is a Command in JSON
	In
	Kill // the command and its process group

	Hello // the machine's program runs
	Out
	Err
	Exit // Data is the exit status in decimal, -1 for a signal
)

// Command is the command that Exec runs, as root and in a clean environment.
type Command struct {
	Argv []string `json:"argv"`
}

// Boot names one start of the machine's userspace. A soft reboot starts the userspace again, with the same kernel.
type Boot [16]byte

// NewBoot returns a name that no other boot has.
func NewBoot() (Boot, error) {
	var boot Boot
	_, err := rand.Read(boot[:])
	return boot, err
}

// Message is one message. Number is the number of its command.
type Message struct {
	Boot   Boot
	Kind   Kind
	Number uint32
	Data   []byte
}

// MaxData is the largest size of Data in one message.
const MaxData = 64 << 10

const (
	magic      = 0x6e766d31
	headerSize = 4 + 16 + 1 + 4 + 4 + 4
)

// Write writes one message with one call.
func Write(w io.Writer, m Message) error {
	if len(m.Data) > MaxData {
		return fmt.Errorf("writing a message: %d bytes are too much", len(m.Data))
	}
	out := binary.BigEndian.AppendUint32(make([]byte, 0, headerSize+len(m.Data)), magic)
	out = append(out, m.Boot[:]...)
	out = append(out, byte(m.Kind))
	out = binary.BigEndian.AppendUint32(out, m.Number)
	out = binary.BigEndian.AppendUint32(out, uint32(len(m.Data)))
	out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out))
	_, err := w.Write(append(out, m.Data...))
	return err
}

// Reader reads messages, and skips all other bytes.
type Reader struct {
	in *bufio.Reader
}

// NewReader returns a Reader of in.
func NewReader(in io.Reader) *Reader {
	return &Reader{bufio.NewReaderSize(in, headerSize+MaxData)}
}

// Next returns the next whole message.
func (r *Reader) Next() (Message, error) {
	for {
		head, err := r.in.Peek(headerSize)
		if err != nil {
			return Message{}, err
		}
		size := binary.BigEndian.Uint32(head[25:])
		if binary.BigEndian.Uint32(head) != magic || size > MaxData ||
			binary.BigEndian.Uint32(head[29:]) != crc32.ChecksumIEEE(head[:29]) {
			if _, err := r.in.Discard(1); err != nil {
				return Message{}, err
			}
			continue
		}
		m := Message{Boot: Boot(head[4:20]), Kind: Kind(head[20]), Number: binary.BigEndian.Uint32(head[21:]),
			Data: make([]byte, size)}
		if _, err := r.in.Discard(headerSize); err != nil {
			return Message{}, err
		}
		if _, err := io.ReadFull(r.in, m.Data); err != nil {
			return Message{}, err
		}
		return m, nil
	}
}
