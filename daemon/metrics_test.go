// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
)

func scrape(t *testing.T, m *Metrics, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("%s: %d, %v", path, w.Code, err)
	}
	return string(body)
}

func TestRepairsAreCountedFromNought(t *testing.T) {
	text := scrape(t, NewMetrics(), "/metrics")
	for _, outcome := range []string{"done", "failed", "refused", "cancelled"} {
		if want := `noderefit_drift_repairs_total{outcome="` + outcome + `"} 0`; !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
}

func TestMetricsShowOneStateAtATime(t *testing.T) {
	m := NewMetrics()
	m.show(true, api.Working, cfgB, "")
	m.show(false, api.Degraded, cfgB, reasonStaging)
	m.passed(PhaseStage, outcomeFailed, 3*time.Second)
	m.Command("status", 20*time.Millisecond, nil)
	m.Command("apply", time.Second, fmt.Errorf("applying: %w", &host.Refused{Err: errors.New("something else is at work")}))
	m.drain(&api.Drain{Waiting: []api.WaitingPod{{Why: api.DrainWaitBudget}, {Why: "something new"}}})
	m.drifted(api.NewDrift(cfgB, []api.DriftItem{{Kind: "file", Name: "/etc/x", Since: time.Unix(1767225600, 0)},
		{Kind: "file", Name: "/etc/y", Since: time.Unix(1767225599, 0)}}))
	m.host(&host.Status{OS: host.OSOstree, Deployments: []host.DeploymentStatus{{Version: "41"}, {Booted: true, Version: "42"}}})
	text := scrape(t, m, "/metrics")
	for _, want := range []string{
		`mcd_state{reason="StagingFailed",state="Degraded"}`, `mcd_update_state{config="` + cfgB + `",err="StagingFailed"}`,
		`noderefit_phase_seconds_count{outcome="failed",phase="stage"} 1`, `mcd_host_os_and_version{os="ostree",version="42"} 1`,
		`noderefit_drain_waiting_pods{reason="DisruptionBudget"} 1`, `noderefit_drift_items 2`, `mcd_config_drift 1.767225599e+09`,
		`noderefit_host_command_seconds_bucket{outcome="done",verb="status",le="0.05"} 1`,
		`noderefit_host_command_seconds_count{outcome="refused",verb="apply"} 1`,
		`mcd_kubelet_state 0`, `mcd_reboots_failed_total 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	for _, stale := range []string{`state="Working"`, "something new"} {
		if strings.Contains(text, stale) {
			t.Errorf("still %s", stale)
		}
	}
	scrape(t, m, "/healthz")
}

func TestOnlyALoopThatGotStuckIsUnhealthy(t *testing.T) {
	m := NewMetrics()
	health := func() int {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		return w.Code
	}
	if got := health(); got != http.StatusOK {
		t.Errorf("before the first turn: %d", got)
	}
	m.expect(time.Minute)
	if got := health(); got != http.StatusOK {
		t.Errorf("while it waits: %d", got)
	}
	m.expect(-time.Second)
	if got := health(); got != http.StatusServiceUnavailable {
		t.Errorf("when it is overdue: %d", got)
	}
	m.expect(time.Minute)
	if got := health(); got != http.StatusOK {
		t.Errorf("when it goes on: %d", got)
	}
}
