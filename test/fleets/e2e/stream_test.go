// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/fleet"
	"github.com/noderefit/noderefit/test/standin/bootc"
)

// asksEvery is the interval at which the stream's source is asked: the shortest that an OSStream can have.
const asksEvery = 10 * time.Second

const tagStream = `apiVersion: noderefit.dev/v1alpha1
kind: OSStream
metadata:
  name: os
spec:
  pools: [worker]
  intervalSeconds: %d
  source:
    tag:
      image: %s
`

// tagPolicy has a canary, an approval of what was staged, and a window that opens at the time given by minute and hour.
const tagPolicy = `apiVersion: noderefit.dev/v1alpha1
kind: RolloutPolicy
metadata:
  name: releases
spec:
  pools: [worker]
  stages:
  - name: canary
    nodes: 1
  staging:
    maxConcurrent: 100%%
  approval: {}
  windows:
    open:
    - cron: "%s"
      durationMinutes: 240
`

// opening is the policy whose window opens so much later than now, each day.
func opening(later time.Duration) string {
	return fmt.Sprintf(tagPolicy, time.Now().UTC().Add(later).Format("4 15 * * *"))
}

// releases is a fleet whose hosts have bootc, a registry that hosts and controllers reach at one address, and the tag
// that its OSStream follows.
type releases struct {
	*fleet.Fleet
	ctx      context.Context //nolint:containedctx // the test's own
	t        *testing.T
	registry *lab.Registry
	images   *bootc.Registry // as the first host has it
	name     string
}

func newReleases(t *testing.T) *releases {
	t.Helper()
	registry := lab.NeedRegistry(t)
	front := httptest.NewServer(registry)
	t.Cleanup(front.Close)
	// A release that breaks the kubelet is found out when the time for the verdict is over.
	f := joined(t, fleet.Options{Hosts: []string{"w0", "w1"}, Verdict: 40 * time.Second})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*patience, errors.New("the scenario takes too long"))
	t.Cleanup(cancel)
	r := &releases{Fleet: f, ctx: ctx, t: t, registry: registry}
	program, err := bootc.Build(ctx, t.TempDir())
	must(t, err)
	for _, n := range f.Nodes {
		at, err := bootc.RegistryAt(n.Host, strings.TrimPrefix(front.URL, "http://"))
		must(t, err, bootc.Install(ctx, n.Host, program))
		if r.images == nil {
			r.images = at
		}
	}
	r.name = r.images.Repository("os/lab")
	return r
}

// push pushes a release of the OS to the tag, and returns its image by digest. Every release has its version in a file.
// The stand-in's images name commits of a host's repository, so each host has the commit.
func (r *releases) push(version string, files map[string]string) string {
	r.t.Helper()
	tree, commits := "/var/tmp/release-"+version, map[string]bool{}
	for _, n := range r.Nodes {
		for name, text := range files {
			at := n.HostPath(tree + name)
			must(r.t, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644))
		}
		at := n.HostPath(tree + "/usr/lib/testos/release")
		must(r.t, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(version), 0o644))
		commit, err := n.Output(r.ctx, "ostree", "commit", "--branch=test/"+version, "--bootable", "--no-bindings", "--owner-uid=0",
			"--owner-gid=0", "--timestamp=2026-01-01T00:00:00Z", "--tree=ref="+lab.RefV2, "--tree=dir="+tree)
		must(r.t, err)
		commits[strings.TrimSpace(commit)] = true
	}
	if len(commits) != 1 {
		r.t.Fatalf("release %s is not the same on every host: %v", version, commits)
	}
	digest, err := r.images.Push(r.ctx, "test/"+version, version, r.name+":stable")
	must(r.t, err)
	return r.name + "@" + digest
}

// chosen waits until the pool is to have a release, and returns the configuration with it.
func (r *releases) chosen(image string) (config string) {
	r.t.Helper()
	must(r.t, fleet.Until(r.ctx, "the pool is to have "+image, func(ctx context.Context) (bool, string, error) {
		name, err := r.Configuration(ctx, "worker")
		if err != nil || name == "" {
			return false, name, err
		}
		url, err := r.Kubectl(ctx, "get", "machineconfig", name, "-o", "jsonpath={.spec.osImageURL}")
		config = name
		return url == image, name + " has " + url, err
	}))
	return config
}

// stagedEverywhere waits until every node has staged a configuration and waits for an approval, and approves.
func (r *releases) stagedEverywhere(config string) {
	r.t.Helper()
	for _, n := range r.Nodes {
		must(r.t, r.WaitNodeSays(r.ctx, n.Name, "has staged "+config, func(says api.Node, o *corev1.Node) bool {
			return says.Staged.Is(config) && !o.Spec.Unschedulable
		}))
	}
	explains(r.ctx, r.t, r.Fleet, "worker", progress.NeedsApproval, "")
	text, exit, err := r.Refit(r.ctx, "approve", "worker", "--why", "tested in the lab")
	if must(r.t, err); exit != 0 {
		r.t.Fatal(text)
	}
}

// arrives waits until the whole pool runs a release.
func (r *releases) arrives(config, version string) {
	r.t.Helper()
	must(r.t, r.WaitAt(r.ctx, config, names(r.Fleet)...), r.WaitPool(r.ctx, "worker", "updated", fleet.Updated(2)))
	for _, n := range r.Nodes {
		if text, err := n.Output(r.ctx, "cat", "/usr/lib/testos/release"); err != nil || text != version {
			r.t.Errorf("%s runs release %q: %v", n.Name, text, err)
		}
	}
}

func (r *releases) status() (s api.OSStreamStatus) {
	r.t.Helper()
	text, err := r.Kubectl(r.ctx, "get", "osstream", "os", "-o", "json")
	var o api.OSStream
	if err == nil {
		err = json.Unmarshal([]byte(text), &o)
	}
	must(r.t, err)
	return o.Status
}

// Hosts boot the release that a tag names: staged ahead, approved, in a window. The next release breaks the kubelet, and
// the hosts take the release after that again.
func TestATagIsFollowedFromItsPushToRebootedHosts(t *testing.T) {
	r := newReleases(t)
	first := r.push("1", nil)
	begin(r.ctx, t, r.Fleet, "2", fmt.Sprintf(tagStream, int(asksEvery.Seconds()), r.name+":stable"))
	r.arrives(r.chosen(first), "1")
	must(t, r.Pool(r.ctx, "worker", "1"), r.Apply(r.ctx, opening(12*time.Hour)))

	booted := boots(r.Fleet)
	second := r.push("2", nil)
	config := r.chosen(second)
	r.stagedEverywhere(config)
	explains(r.ctx, t, r.Fleet, "worker", progress.OutsideWindow, "")
	must(t, rebootsOf(r.Fleet, booted, map[string]int{}), r.Apply(r.ctx, opening(-time.Minute)))
	r.arrives(config, "2")
	bootedOnce(t, r.Fleet, booted, names(r.Fleet)...)

	booted = boots(r.Fleet)
	third := r.push("3", map[string]string{
		"/usr/lib/systemd/system/kubelet.service.d/90-broken.conf": "[Service]\nExecStartPre=/bin/false\n"})
	bad := r.chosen(third)
	r.stagedEverywhere(bad)
	r.arrives(r.comesBack(bad, second, booted), "2")
	if status := r.status(); len(status.Pools) != 1 || len(status.Pools[0].Quarantined) != 1 ||
		status.Pools[0].Quarantined[0].Image != third || status.Pools[0].Version != "2" {
		t.Errorf("the stream says %+v", status)
	}
	said, _, err := r.Refit(r.ctx, "streams", "os")
	if err != nil || !strings.Contains(said, "not 3: 3 failed on node w") {
		t.Errorf("kubectl refit streams: %v: %s", err, said)
	}

	fourth := r.push("4", nil)
	config = r.chosen(fourth)
	r.stagedEverywhere(config)
	r.arrives(config, "4")
	r.polls()
}

// comesBack waits until the first node has come back from a configuration, and the pool is to have an image again. It
// returns the configuration with the image.
func (r *releases) comesBack(bad, image string, booted map[string]int) (good string) {
	r.t.Helper()
	must(r.t, fleet.Until(r.ctx, "a node comes back", func(ctx context.Context) (bool, string, error) {
		last := ""
		for _, n := range r.Nodes {
			says, o, err := r.Says(ctx, n.Name)
			if err != nil {
				return false, "", err
			}
			if len(says.Quarantined) == 1 && says.Quarantined[0].Config == bad && !o.Spec.Unschedulable {
				return true, "", nil
			}
			last += fmt.Sprintf("%s: %+v ", n.Name, says)
		}
		return false, last, nil
	}))
	good = r.chosen(image)
	must(r.t, r.WaitPool(r.ctx, "worker", "updated", fleet.Updated(2)))
	var went []int
	for _, n := range r.Nodes {
		went = append(went, n.Boots()-booted[n.Name])
	}
	slices.Sort(went)
	if !slices.Equal(went, []int{0, 2}) {
		r.t.Errorf("for a release that fails, and back, the nodes have booted %v times", went)
	}
	return good
}

// polls checks the requests to the registry: while nothing changes, one conditional request an interval at most.
func (r *releases) polls() {
	r.t.Helper()
	asked := slices.DeleteFunc(r.registry.Asked(), func(a lab.Asked) bool {
		return !strings.Contains(a.Agent, api.Controller) || a.Path != "/v2/os/lab/manifests/stable"
	})
	var unchanged int
	for i, a := range asked {
		if a.Status == http.StatusNotModified {
			unchanged++
		}
		if a.Method != http.MethodHead || a.Conditional != (i > 0) || i > 0 && a.At.Sub(asked[i-1].At) < asksEvery-time.Second {
			r.t.Errorf("request %d for the tag: %+v", i, a)
		}
	}
	// The tag was pushed to three times, after the first request.
	if changed := len(asked) - unchanged; changed != 4 || unchanged == 0 {
		r.t.Fatalf("of %d requests for the tag, %d have found something new", len(asked), changed)
	}
	r.t.Logf("the registry was asked %d times in %s", len(asked), asked[len(asked)-1].At.Sub(asked[0].At).Round(time.Second))
}
