// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/noderefit/noderefit/test/lab/cluster"
)

// controller is a machine-config-controller in a process of its own, so that what it costs can be told apart.
type controller struct {
	*cluster.Child
	metrics string
}

func startController(program, kubeconfig, dir string) (*controller, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "machine-config-controller.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, "run", "--kubeconfig", kubeconfig, "--metrics-bind-address="+address,
		"--health-probe-bind-address=0", "--leader-elect=false")
	cmd.Stdout, cmd.Stderr = log, log
	child, err := cluster.StartChild(cmd)
	if err != nil {
		return nil, fmt.Errorf("starting the controllers: %w", err)
	}
	return &controller{child, "http://" + address + "/metrics"}, nil
}

// Usage is what a process has cost so far.
type Usage struct {
	CPU time.Duration
	// In bytes. Own is the part of RSS that no other process can share, such as the heap; the rest is the program's file.
	RSS, Own, Peak int64
}

// UsageOf reads the usage of a process.
func UsageOf(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Usage{}, err
	}
	return ParseUsage(string(stat), string(status))
}

// ParseUsage reads the files stat and status of a process.
func ParseUsage(stat, status string) (u Usage, err error) {
	// The name, in parentheses, may have spaces in it; the user's and the system's ticks are the 14th and 15th field.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return u, fmt.Errorf("reading the stat of a process: %q", stat)
	}
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return u, fmt.Errorf("reading the stat of a process: %w", err)
		}
		u.CPU += time.Duration(ticks) * time.Second / 100
	}
	for line := range strings.Lines(status) {
		words := strings.Fields(line)
		if len(words) != 3 || words[2] != "kB" {
			continue
		}
		size, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return u, fmt.Errorf("reading the status of a process: %w", err)
		}
		switch words[0] {
		case "VmRSS:":
			u.RSS = size << 10
		case "RssAnon:":
			u.Own = size << 10
		case "VmHWM:":
			u.Peak = size << 10
		}
	}
	return u, nil
}

// requests are those that the controllers have sent so far, all of them and the patches, as they count them.
func (c *controller) requests(ctx context.Context) (all, patches int64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.metrics, nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return 0, 0, fmt.Errorf("reading the metrics of the controllers: %w", err)
	}
	for _, m := range families["rest_client_requests_total"].GetMetric() {
		n := int64(m.GetCounter().GetValue())
		all += n
		for _, label := range m.GetLabel() {
			if label.GetName() == "method" && label.GetValue() == http.MethodPatch {
				patches += n
			}
		}
	}
	return all, patches, nil
}
