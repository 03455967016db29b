// SPDX-License-Identifier: Apache-2.0

// Package firstboot makes machines with the real Ignition from what the real server serves, and has the agent complete
// them.
package firstboot

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/noderefit/noderefit/test/hosts/node"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// token is what a machine shows to the server.
const token = "abcdef.0123456789abcdef"

// bin has the programs; faultyAgent is the agent with its fault points.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if bin, err = os.MkdirTemp("", "noderefit-firstboot-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(bin)
		_, err = node.Build(context.Background(), filepath.Join(bin, "faulty"), "faults")
		if err := errors.Join(err, programs.All(context.Background(), bin)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

func program(name string) string { return filepath.Join(bin, name) }

func faultyAgent() string { return program("faulty/machine-config-daemon") }

func itoa(n int) string { return strconv.Itoa(n) }

func names(entries []fs.DirEntry) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, e := range entries {
			if !yield(e.Name()) {
				return
			}
		}
	}
}

func command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	lab.Sources(t)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = t.TempDir()
	return cmd
}

func run(t *testing.T, program string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	cmd := command(t, program, args...)
	var out, errout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errout
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return out.String(), errout.String(), cmd.ProcessState.ExitCode()
}

// ignitionPath is where Debian's package has it: it is meant for an initramfs.
const ignitionPath = "/usr/lib/dracut/modules.d/30ignition/ignition"

// needIgnition returns the program, which works as root only.
func needIgnition(t *testing.T) string {
	t.Helper()
	_, err := os.Stat(ignitionPath)
	_, labels := exec.LookPath("setfiles")
	if errors.Join(err, labels) != nil || os.Geteuid() != 0 {
		missing := "Debian's packages ignition and policycoreutils, and root, are needed"
		if os.Getenv("LAB") == "require" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return ignitionPath
}

// server is a machine-config-server in a directory.
type server struct {
	port      int
	authority []byte // PEM
	child     *cluster.Child
	// pool and token are what a machine asks for, and what it shows.
	pool, token string
}

// serve has one serve a pool worker with a configuration until the test ends.
func serve(t *testing.T, name, spec string) server {
	t.Helper()
	dir := t.TempDir()
	pool := fmt.Sprintf(`{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfigPool",
		"metadata":{"name":"worker"},"spec":{"configuration":{"name":%q}}}`, name)
	cert, key := cluster.SelfSigned(t)
	for path, text := range map[string]string{
		"machine-pools/worker.yaml": pool, "machine-configs/a.yaml": document(name, spec), "tokens": token + "\n",
		"tls.crt": string(cert), "tls.key": string(key),
	} {
		err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755),
			os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	return start(t, cert, "--dir="+dir, "--cert="+dir+"/tls.crt", "--key="+dir+"/tls.key", "--token-file="+dir+"/tokens")
}

func writeFile(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// start runs the server until the test ends.
func start(t *testing.T, cert []byte, args ...string) server {
	t.Helper()
	s := server{port: cluster.FreePort(t), authority: cert, pool: "worker", token: token}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program("machine-config-server"), append(args,
		"--address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port), "--metrics-bind-address=0")...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	var err error
	if s.child, err = cluster.StartChild(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.child.Err(); err != nil {
			t.Errorf("the server ended by itself: %v", err)
		} else if err := syscall.Kill(s.child.PID(), syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		<-s.child.Ended()
		if cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("the server ended with %v", cmd.ProcessState)
		}
		if t.Failed() {
			t.Logf("the server:\n%s", &log)
		}
		if strings.Contains(log.String(), token) {
			t.Error("the server's log has the token")
		}
	})
	for deadline := time.Now().Add(time.Minute); ; {
		connection, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
		if err == nil {
			_ = connection.Close()
			return s
		}
		if time.Now().After(deadline) || s.child.Err() != nil {
			t.Fatalf("the server does not listen: %v", err)
		}
	}
}

// pointer is the small config that a machine is started with: where the rest is, whom to believe, what to show.
func (s server) pointer(t *testing.T) []byte {
	t.Helper()
	type object = map[string]any
	text, err := json.Marshal(object{"ignition": object{
		"version": "3.1.0",
		"security": object{"tls": object{"certificateAuthorities": []object{
			{"source": "data:;base64," + base64.StdEncoding.EncodeToString(s.authority)},
		}}},
		"config": object{"merge": []object{{
			"source":      fmt.Sprintf("https://127.0.0.1:%d/config/%s", s.port, s.pool),
			"httpHeaders": []object{{"name": "Authorization", "value": "Bearer " + s.token}},
		}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// provision has Ignition make a machine of a tree.
func (s server) provision(t *testing.T, ignition, root string) {
	t.Helper()
	s.ignite(t, ignition, root)
	// What systemd does as soon as it runs on a new machine, for Ignition has only said which units are to be enabled; and
	// what its SELinux does.
	if _, said, exit := run(t, "systemctl", "--root="+root, "preset-all"); exit != 0 {
		t.Fatalf("systemctl preset-all: %s", said)
	}
	if _, said, exit := run(t, "setfiles", "-F", "-r", root, root+contexts, root+"/etc/systemd"); exit != 0 {
		t.Fatalf("setfiles: %s", said)
	}
}

// contexts is a policy that Ignition finds on the machine: it insists on one.
const contexts = "/etc/selinux/targeted/contexts/files/file_contexts"

// ignite runs the stages of Ignition that fetch a config and write files.
func (s server) ignite(t *testing.T, ignition, root string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "config.ign")
	if err := os.WriteFile(config, s.pointer(t), 0o600); err != nil {
		t.Fatal(err)
	}
	// Ignition asks again for as long as nobody answers.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		select {
		case <-s.child.Ended():
			stop()
		case <-ctx.Done():
		}
	}()
	for _, stage := range []string{"fetch", "files"} {
		cmd := exec.CommandContext(ctx, ignition, "--platform=file", "--stage="+stage, "--root="+root, "--log-to-stdout",
			"--config-cache="+dir+"/ignition.json", "--state-file="+dir+"/state", "--neednet="+dir+"/neednet")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "IGNITION_CONFIG_FILE="+config)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("ignition, stage %s: %v\n%s", stage, err, out)
		}
	}
}
