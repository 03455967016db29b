// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// process is a running part of the control plane.
type process struct {
	*Child
	name string
	log  string
}

// start starts a program of kubebox in dir, with its output in dir/PROGRAM.log.
func start(dir, name string, args ...string) (*process, error) {
	kubebox, err := box()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, log: filepath.Join(dir, name+".log")}
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(kubebox, append([]string{name}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if p.Child, err = StartChild(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// wait waits until url is answered with 200 OK. It fails when the process ends first.
func (p *process) wait(ctx context.Context, client *http.Client, url string) error {
	for {
		if ok(ctx, client, url) {
			return nil
		}
		select {
		case <-p.Ended():
			text, _ := os.ReadFile(p.log)
			text = bytes.TrimSpace(text)
			return fmt.Errorf("%s has ended: %w: %s", p.name, p.Err(), text[max(0, len(text)-1000):])
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", p.name, context.Cause(ctx))
		case <-time.After(poll):
		}
	}
}

func ok(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode == http.StatusOK
}

// stranger sends requests without credentials, and does not check the server's certificate.
var stranger = &http.Client{Transport: &http.Transport{
	TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
	DisableKeepAlives: true,
}}

// ports is a block of ports on 127.0.0.1 that no other cluster on this machine has.
type ports struct {
	first int
	claim net.Listener
}

// The range of the ports. The kernel gives connections only ports from 32768 up. So no connection takes one of these
// ports by chance, and a stopped API server finds its own port free.
const (
	lowestPort, highestPort = 20000, 30000
	blockSize               = 10
)

// reservePorts takes a block. The claim to the block is a socket without a file. The socket ends with this process, and
// is visible to all processes that can reach the ports.
func reservePorts() (*ports, error) {
	for first := lowestPort; first < highestPort; first += blockSize {
		claim, err := net.Listen("unix", "@noderefit-cluster-"+strconv.Itoa(first))
		if err != nil {
			continue
		}
		if allFree(first) {
			return &ports{first, claim}, nil
		}
		claim.Close()
	}
	return nil, errors.New("reserving ports for a cluster: none are free")
}

func allFree(first int) bool {
	for port := first; port < first+blockSize; port++ {
		l, err := net.Listen("tcp", address(port))
		if err != nil {
			return false
		}
		l.Close()
	}
	return true
}

// release releases the block.
func (p *ports) release() { p.claim.Close() }

// FreePort returns a port of 127.0.0.1 at which nothing listens.
func FreePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", address(0))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// FreeAddress returns an address of 127.0.0.1 at which nothing listens, with its port.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return address(FreePort(t))
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
