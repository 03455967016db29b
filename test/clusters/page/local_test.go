// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bufio"

	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/noderefit/noderefit/test/lab/cluster"
)

// ownPage is a running kubectl refit page.
type ownPage struct {
	cmd     *exec.Cmd
	address string
	stderr  *strings.Builder
}

// ownPage starts one as an account. Its browser is a program that writes down what it is given.
func (l *lab) ownPage(account, notes string, args ...string) *ownPage {
	l.t.Helper()
	path, err := plugin()
	l.must(err)
	_, kubeconfig, err := l.ServiceAccountConfig(l.ctx, "default", account, "")
	l.must(err)
	p := &ownPage{stderr: &strings.Builder{}}
	p.cmd = exec.Command(path, append([]string{"page", "--kubeconfig=" + kubeconfig}, args...)...)
	p.cmd.Env = append(os.Environ(), "PATH="+notes+":"+os.Getenv("PATH"), "TMPDIR="+notes)
	p.cmd.Stderr, p.cmd.SysProcAttr = p.stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	l.must(err)
	l.must(p.cmd.Start())
	l.t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		l.t.Fatal(err)
	}
	p.address = strings.TrimSpace(line)
	return p
}

func (l *lab) ownRights() {
	t := l.t
	notes := t.TempDir()
	l.must(os.WriteFile(filepath.Join(notes, "xdg-open"), []byte(`#!/bin/sh
cat "$1" > "`+notes+`/file" && stat -c %a "$1" > "`+notes+`/mode" && echo "$@" > "`+notes+`/arguments"
`), 0o755))
	l.viewer("own", "noderefit-view")
	p := l.ownPage("own", notes, "--open")
	address, err := url.Parse(p.address)
	if err != nil || address.Hostname() != "127.0.0.1" || len(address.Path) < len("/page/")+26 {
		t.Fatalf("the address is %q, %v\n%s", p.address, err, p.stderr)
	}
	secret := strings.Split(address.Path, "/")[1]
	l.until("the browser was opened", func() string {
		_, err := os.Stat(notes + "/arguments")
		if err != nil {
			return err.Error()
		}
		return ""
	})
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(notes, name))
		l.must(err)
		return strings.TrimSpace(string(text))
	}
	if strings.Contains(read("arguments"), secret) || !strings.Contains(read("file"), p.address) || read("mode") != "600" {
		t.Errorf("the browser is given %s, with mode %s:\n%s", read("arguments"), read("mode"), read("file"))
	}
	l.ownAnswers(address)

	b := openBrowser(t)
	b.visit(p.address + "?refresh=off")
	b.reads("15 of 37 nodes updated", "worker-13 ! Draining", "RolloutPolicy weekend-nights")
	b.visit(p.address + "nodes/worker-13?refresh=off")
	b.reads("worker-13 ! Draining", "shop/checkout-7d9f4c6b58-x2k4p", "Conditions of the MachineConfigNode")
	b.content(p.address)

	l.must(p.cmd.Process.Signal(os.Interrupt))
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C ends it with %v\n%s", err, p.stderr)
	}
	if left, _ := filepath.Glob(notes + "/kubectl-refit-page-*"); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}

	// Without the rights nothing is served, and the missing one is named.
	l.viewer("nobody", "")
	refused := l.ownPage("nobody", notes)
	err = refused.cmd.Wait()
	if failed, is := errors.AsType[*exec.ExitError](err); !is || failed.ExitCode() != 1 || refused.address != "" ||
		!strings.Contains(refused.stderr.String(), `error: not allowed: User "system:serviceaccount:default:nobody" cannot list`) {
		t.Errorf("without rights: %v, %q\n%s", err, refused.address, refused.stderr)
	}
}

// ownAnswers asks as strangers do.
func (l *lab) ownAnswers(address *url.URL) {
	t := l.t
	for _, test := range []struct {
		host, path string
		code       int
	}{
		{address.Host, address.Path, 200},
		{"localhost", address.Path + "pools/gpu", 200},
		{address.Host, "/", 404},
		{address.Host, "/page/", 404},
		{address.Host, "/AAAAAAAAAAAAAAAAAAAAAAAAAA/page/", 404},
		{"evil.example", address.Path, 421},
	} {
		r, err := http.NewRequestWithContext(l.ctx, http.MethodGet, "http://"+address.Host+test.path, http.NoBody)
		l.must(err)
		r.Host = test.host
		answer, err := http.DefaultClient.Do(r)
		l.must(err)
		text, err := io.ReadAll(answer.Body)
		l.must(errors.Join(err, answer.Body.Close()))
		if seen := strings.Contains(string(text), "gpu-1"); answer.StatusCode != test.code || seen != (test.code == http.StatusOK) {
			t.Errorf("%s at %s: %d", test.path, test.host, answer.StatusCode)
		}
	}
}

func TestAPageThatCannotBeServedSaysWhy(t *testing.T) {
	l := newLab(t)
	l.viewer("own", "noderefit-view")
	path, err := plugin()
	l.must(err)
	_, kubeconfig, err := l.ServiceAccountConfig(l.ctx, "default", "own", "")
	l.must(err)
	l.pool("small", "rendered-small-"+strings.Repeat("a", 32), "rendered-small-"+strings.Repeat("a", 32))
	taken := cluster.FreeAddress(t)
	listener, err := (&net.ListenConfig{}).Listen(l.ctx, "tcp", taken)
	l.must(err)
	defer listener.Close()
	_, port, err := net.SplitHostPort(taken)
	l.must(err)
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--port=" + port}, 1, "error: serving the page: listen tcp " + taken + ": bind: address already in use; name another"},
		{[]string{"--port=70000"}, 2, "error: flag --port: 70000 is no port; name one from 1 to 65535, or leave the flag out"},
		{[]string{"worker"}, 2, `error: unexpected argument "worker"`},
	} {
		cmd := exec.CommandContext(l.ctx, path, append([]string{"page", "--kubeconfig=" + kubeconfig}, test.args...)...)
		text, err := cmd.CombinedOutput()
		failed, is := errors.AsType[*exec.ExitError](err)
		if !is || failed.ExitCode() != test.code || !strings.Contains(string(text), test.want) {
			t.Errorf("%v: %v\n%s", test.args, err, text)
		}
	}
}
