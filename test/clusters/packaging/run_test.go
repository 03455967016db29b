// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// exposition is what programs expose: the labels of each metric, by name.
type exposition map[string]map[string]bool

// The programs do a whole update with nothing but what is installed: the accounts, the rules and the policies, and on
// the host the unit. Then everything that alerts and the dashboard ask for is there.
func TestTheProgramsNeedNoMoreThanIsInstalled(t *testing.T) {
	lab.Need(t)
	cluster.Need(t)
	inputs(t)
	const node = "packed"
	c := cluster.New(t, cluster.Options{Controllers: true, NoCRDs: true, Audit: true})
	if err := install(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	programs := build(t)
	host := worker(t, c, node)
	metricsOfController := runController(t, c, programs)
	runDaemon(t, c, host, programs, node)

	// Nobody is there to be told, which is told by metrics and holds up nothing.
	err := c.Client.CoreV1().RESTClient().Post().AbsPath("/apis/noderefit.dev/v1alpha1/rolloutpolicies").
		Body(fmt.Appendf(nil, `{"apiVersion":"noderefit.dev/v1alpha1","kind":"RolloutPolicy","metadata":{"name":"told"},
			"spec":{"pools":["worker"],"notifications":{"webhooks":[{"name":"chat","url":"http://%[1]s"}],
			"alertmanager":{"url":"http://%[1]s"}}}}`, cluster.FreeAddress(t))).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}

	// A file that takes a reboot, and a pod that has to go before.
	if err := createPod(t.Context(), admin(t, c), metav1.NamespaceDefault, "workload", node); err != nil {
		t.Fatal(err)
	}
	create(t, c, "50-first", `{"storage":{"files":[{"path":"/etc/first","mode":420,"contents":{"source":"data:,1"}}]}}`)
	arrives(t, c, host, node, "/etc/first")
	_, err = c.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "workload", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the node was not drained: %v", err)
	}

	said, err := host.Output(t.Context(), "bash", "-c",
		`exec 3<>/dev/tcp/127.0.0.1/8797; printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3; head -n 1 <&3`)
	if err != nil || !strings.Contains(said, "200 OK") {
		t.Errorf("/healthz of the daemon: %q, %v", said, err)
	}
	exposed := exposition{}
	for _, url := range []string{metricsOfController, runServer(t, c, programs, api.PoolWorker)} {
		scrape(t, exposed, func() (io.ReadCloser, error) {
			response, err := http.Get(url)
			if err != nil {
				return nil, err
			}
			return response.Body, nil
		})
	}
	scrape(t, exposed, func() (io.ReadCloser, error) {
		text, err := host.Output(t.Context(), "bash", "-c",
			`exec 3<>/dev/tcp/127.0.0.1/8797; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; sed '1,/^\r$/d' <&3`)
		return io.NopCloser(strings.NewReader(text)), err
	})
	t.Run("every metric that is asked for is exposed", func(t *testing.T) { checkQueries(t, exposed) })
	t.Run("nothing was refused", func(t *testing.T) { nothingRefused(t, c) })
}

// build builds the programs.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{agent.Program, agent.RunProgram, api.Controller, api.Server} {
		if _, err := programs.Build(t.Context(), dir, "cmd/"+name); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// worker is a host that is a node of the pool worker.
func worker(t *testing.T, c *cluster.Cluster, node string) *lab.Host {
	t.Helper()
	host, err := lab.Need(t).NewHost(t.Context(), "", lab.Options{Name: node})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := host.Journal(context.WithoutCancel(t.Context())); err == nil {
				t.Log(text[max(0, len(text)-20000):])
			}
		}
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := host.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Join(t.Context(), host, node, map[string]string{api.NodeRole + api.PoolWorker: ""}); err != nil {
		t.Fatal(err)
	}
	return host
}

// runController runs it as its account, until the test ends, and returns where its metrics are.
func runController(t *testing.T, c *cluster.Cluster, programs string) string {
	t.Helper()
	_, kubeconfig, err := c.ServiceAccountConfig(t.Context(), api.Namespace, api.Controller, "")
	if err != nil {
		t.Fatal(err)
	}
	metrics, probes := cluster.FreeAddress(t), cluster.FreeAddress(t)
	cmd := exec.Command(filepath.Join(programs, api.Controller), "run", "--kubeconfig="+kubeconfig,
		"--metrics-bind-address="+metrics, "--health-probe-bind-address="+probes)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &log, &log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the controller:\n%s", &log)
		}
	})
	ready(t, "http://"+probes+"/readyz")
	return "http://" + metrics + "/metrics"
}

// ready waits until a probe succeeds.
func ready(t *testing.T, probe string) {
	t.Helper()
	var last error
	for started := time.Now(); time.Since(started) < time.Minute; time.Sleep(50 * time.Millisecond) {
		response, err := http.Get(probe)
		if err == nil {
			err = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
		last = cmp.Or(err, errors.New("it is refused"))
	}
	t.Fatalf("%s: %v", probe, last)
}

// runDaemon installs the unit as docs/install.md says.
func runDaemon(t *testing.T, c *cluster.Cluster, host *lab.Host, programs, node string) {
	t.Helper()
	_, kubeconfig, err := c.ServiceAccountConfig(t.Context(), api.Namespace, api.Daemon, node)
	if err != nil {
		t.Fatal(err)
	}
	const unit = "/etc/systemd/system/machine-config-daemon.service"
	for to, file := range map[string]struct {
		from string
		mode os.FileMode
	}{
		"/usr/local/bin/" + agent.Program:       {filepath.Join(programs, agent.Program), 0o755},
		"/usr/local/bin/" + agent.RunProgram:    {filepath.Join(programs, agent.RunProgram), 0o755},
		unit:                                    {root + "/packaging/systemd/machine-config-daemon.service", 0o644},
		"/etc/machine-config-daemon/kubeconfig": {kubeconfig, 0o600},
	} {
		content, err := os.Open(file.from)
		if err != nil {
			t.Fatal(err)
		}
		mode := fmt.Sprintf("%o", file.mode)
		_, said, exit, err := host.Exec(t.Context(), content, "install", "-D", "-m", mode, "/dev/stdin", to)
		if err := errors.Join(err, content.Close()); err != nil || exit != 0 {
			t.Fatalf("installing %s: %v: %s", to, err, said)
		}
	}
	said, err := host.Output(t.Context(), "bash", "-c", "systemd-analyze verify "+unit+" 2>&1")
	if err != nil || said != "" {
		t.Errorf("systemd-analyze verify: %v: %s", err, said)
	}
	if said, err := host.Output(t.Context(), "bash", "-c", "systemctl daemon-reload && systemctl enable --now "+
		"machine-config-daemon.service 2>&1"); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	said, err = host.Output(t.Context(), "systemd-analyze", "security", "--no-pager", "machine-config-daemon.service")
	lines := strings.Split(strings.TrimSpace(said), "\n")
	t.Log(lines[len(lines)-1], err)
}

// create makes a MachineConfig of the pool worker.
func create(t *testing.T, c *cluster.Cluster, name, ignition string) {
	t.Helper()
	text := strings.Replace(ignition, "{", `{"ignition":{"version":"3.5.0"},`, 1)
	_, err := c.MachineConfigs.MachineconfigurationV1().MachineConfigs().Create(t.Context(), &mcfgv1.MachineConfig{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: roleLabel},
		Spec:       mcfgv1.MachineConfigSpec{Config: runtime.RawExtension{Raw: []byte(text)}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// arrives waits until the host has a file, and the node says that it is where it should be.
func arrives(t *testing.T, c *cluster.Cluster, host *lab.Host, node, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := c.WaitNode(ctx, node, "at its configuration with "+path, func(n *corev1.Node) bool {
		says, err := api.ReadNode(n)
		if err != nil || says.State != api.Done || says.Current == "" || says.Current != says.Desired ||
			n.Spec.Unschedulable {
			return false
		}
		_, err = host.Output(ctx, "test", "-e", path)
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func scrape(t *testing.T, into exposition, open func() (io.ReadCloser, error)) {
	t.Helper()
	body, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	found, err := parser.TextToMetricFamilies(body)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatal("nothing is exposed")
	}
	for name, family := range found {
		labels := map[string]bool{}
		for _, metric := range family.Metric {
			for _, pair := range metric.Label {
				labels[pair.GetName()] = true
			}
		}
		into[name] = labels
		if family.GetType().String() == "HISTOGRAM" {
			into[name+"_count"], into[name+"_sum"] = labels, labels
			into[name+"_bucket"] = maps.Clone(labels)
			into[name+"_bucket"]["le"] = true
		}
	}
}

// nothingRefused looks at every answer to our two accounts. That a namespace, or an object, is not there is no refusal.
func nothingRefused(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	requests, err := c.Requests()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range requests {
		account, ours := strings.CutPrefix(r.User.Username, "system:serviceaccount:"+api.Namespace+":")
		if !ours {
			continue
		}
		count[account]++
		if r.Response.Code == http.StatusForbidden || r.Response.Code == http.StatusUnauthorized ||
			r.Response.Code == http.StatusUnprocessableEntity {
			t.Errorf("%s was refused: %s %s: %d", account, r.Verb, r.URI, r.Response.Code)
		}
	}
	for _, account := range []string{api.Daemon, api.Controller, api.Server} {
		if count[account] == 0 {
			t.Errorf("%s asked for nothing", account)
		}
	}
	t.Logf("requests: %v", count)
}
