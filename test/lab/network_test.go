// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"testing"
	"time"
)

// echo answers at a port of this machine with what it is sent, until the test is over.
func echo(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestWiresLastOverBootsAndEndWithTheCable(t *testing.T) {
	ctx, host := boot(t, Options{})
	port := echo(t)
	// What bash's own TCP client gets back, or nothing: the status is that of the last read.
	ask := func() string {
		out, _, _, err := host.Exec(ctx, nil, "bash", "-c",
			`exec 3<>/dev/tcp/127.0.0.1/$0 && echo hello >&3 && read -r -t 5 line <&3 && echo "$line"`, strconv.Itoa(port))
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got := ask(); got != "" {
		t.Fatalf("a host that is connected to nothing reached this machine: %q", got)
	}
	if err := host.Connect(port); err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != "hello\n" {
		t.Fatalf("got %q", got)
	}
	host.Unplug(true)
	if got := ask(); got != "" {
		t.Errorf("got %q without a cable", got)
	}
	host.Unplug(false)
	if err := host.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != "hello\n" {
		t.Errorf("got %q after a reboot", got)
	}
}

func TestFirmwareTakesItsTimeAndNotWhenThePlugIsPulled(t *testing.T) {
	ctx, host := boot(t, Options{Firmware: time.Hour})
	output(ctx, t, host, "systemctl", "reboot", "--no-block")
	for ; host.Leader() != 0 && ctx.Err() == nil; time.Sleep(poll) {
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := host.WaitBoot(short, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the host does not wait for its firmware: %v", err)
	}
	if err := host.PowerCut(); err != nil {
		t.Fatal(err)
	}
	if boots := host.Boots(); boots != 1 {
		t.Errorf("%d boots", boots)
	}
}

// What a host is asked at an address of this machine comes back over the host.
func TestThisMachineReachesAHostThatIsExposed(t *testing.T) {
	ctx, host := boot(t, Options{})
	port := strconv.Itoa(echo(t))
	output(ctx, t, host, "ip", "address", "replace", "192.0.2.77/32", "dev", "lo")
	inside, outside := net.JoinHostPort("192.0.2.77", port), net.JoinHostPort("127.0.0.77", port)
	if err := host.ConnectAt(inside, net.JoinHostPort("127.0.0.1", port)); err != nil {
		t.Fatal(err)
	}
	if err := host.Expose(outside, inside); err != nil {
		t.Fatal(err)
	}
	ask := func() (string, error) {
		c, err := net.Dial("tcp", outside)
		if err != nil {
			return "", err
		}
		defer c.Close()
		if _, err := io.WriteString(c, "hello"); err != nil {
			return "", err
		}
		answer := make([]byte, 5)
		_, err = io.ReadFull(c, answer)
		return string(answer), err
	}
	if got, err := ask(); err != nil || got != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	host.Unplug(true)
	if got, err := ask(); err == nil {
		t.Errorf("got %q without a cable", got)
	}
}
