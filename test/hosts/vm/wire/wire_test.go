// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMessagesAreFoundWhateverPrecedesThem(t *testing.T) {
	boot, err := NewBoot()
	if err != nil {
		t.Fatal(err)
	}
	first := Message{Boot: boot, Kind: Out, Number: 7, Data: []byte("text")}
	second := Message{Kind: Hello, Data: []byte{}}
	var whole bytes.Buffer
	if err := errors.Join(Write(&whole, first), Write(&whole, second)); err != nil {
		t.Fatal(err)
	}
	// The rest of a message that was cut in its header, a damaged one, and something that only begins like one.
	var stream bytes.Buffer
	stream.Write(whole.Bytes()[3:20])
	damaged := bytes.Clone(whole.Bytes()[:headerSize])
	damaged[24]++
	stream.Write(damaged)
	stream.WriteString("\x6e\x76\x6d\x31noise")
	stream.Write(whole.Bytes())
	r := NewReader(&stream)
	for _, want := range []Message{first, second} {
		got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if m, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last message: %v, %v", m, err)
	}
}
