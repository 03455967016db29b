// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

const graphStream = `apiVersion: noderefit.dev/v1alpha1
kind: OSStream
metadata:
  name: os
spec:
  pools: [worker]
  intervalSeconds: %d
  source:
    cincinnati:
      url: %s/graph
`

// updateGraph serves an update graph.
type updateGraph struct {
	*httptest.Server

	mu    sync.Mutex
	body  []byte
	asked int
}

func newGraph(t *testing.T) *updateGraph {
	t.Helper()
	g := &updateGraph{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.asked++
		_, _ = w.Write(g.body)
	}))
	t.Cleanup(g.Close)
	return g
}

// offers replaces the graph: releases 1, 2 and so on by their images, an update from each to the next, and marks of
// Fedora's graphs by version.
func (g *updateGraph) offers(t *testing.T, images []string, marks map[string]string) {
	t.Helper()
	type release struct {
		Version  string            `json:"version"`
		Payload  string            `json:"payload"`
		Metadata map[string]string `json:"metadata"`
	}
	nodes, edges := []release{}, [][2]int{}
	for i, image := range images {
		one := release{fmt.Sprint(i + 1), image, map[string]string{}}
		if mark := marks[one.Version]; mark != "" {
			one.Metadata["org.fedoraproject.coreos.updates."+mark] = "true"
			one.Metadata["org.fedoraproject.coreos.updates."+mark+"_reason"] = "the lab says so"
		}
		if nodes = append(nodes, one); i > 0 {
			edges = append(edges, [2]int{i - 1, i})
		}
	}
	body, err := json.Marshal(map[string]any{"nodes": nodes, "edges": edges})
	must(t, err)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.body = body
}

func (g *updateGraph) requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// skips waits until the stream's choice for the pool is a version, and the reasons against newer ones are these.
func (r *releases) skips(version string, reasons map[string]string) {
	r.t.Helper()
	must(r.t, fleet.Until(r.ctx, "the stream explains "+version, func(context.Context) (bool, string, error) {
		s := r.status()
		if len(s.Pools) != 1 {
			return false, fmt.Sprintf("%+v", s), nil
		}
		p, left := s.Pools[0], len(reasons)
		for _, skipped := range p.Skipped {
			if reasons[skipped.Version] == skipped.Reason {
				left--
			}
		}
		return p.Version == version && left == 0 && len(p.Skipped) == len(reasons), fmt.Sprintf("%+v", p), nil
	}))
}

// Hosts go where an update graph leads: all of them boot the release that is a barrier before any goes on, and none
// goes to the dead end.
func TestAGraphIsFollowedOverItsBarrierAndNotIntoItsDeadEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes; test/clusters/pool and releases have its parts")
	}
	r, g := newReleases(t), newGraph(t)
	var images []string
	for i := range 4 {
		images = append(images, r.push(fmt.Sprint(i+1), nil))
	}
	g.offers(t, images[:1], nil)
	begin(r.ctx, t, r.Fleet, "2", fmt.Sprintf(graphStream, int(asksEvery.Seconds()), g.URL))
	r.skips("", map[string]string{"1": "UnknownVersion"})
	if text, exit, err := r.Refit(r.ctx, "streams", "approve", "os", "1", "--why", "the lab begins"); err != nil || exit != 0 {
		t.Fatal(text, err)
	}
	r.arrives(r.chosen(images[0]), "1")

	must(t, r.Pool(r.ctx, "worker", "1")) // one after the other: the first one has time to go beyond the barrier
	booted := boots(r.Fleet)
	g.offers(t, images, map[string]string{"2": "barrier", "4": "deadend"})
	barrier := r.chosen(images[1])
	r.skips("2", map[string]string{"3": "BarrierFirst", "4": "DeadEnd"})
	beyond := r.chosen(images[2])
	for _, n := range r.Nodes {
		says, _, err := r.Says(r.ctx, n.Name)
		if must(t, err); says.Current != barrier {
			t.Errorf("%s has not passed the barrier %s, and the pool goes on: %+v", n.Name, barrier, says)
		}
	}
	r.arrives(beyond, "3")
	for _, n := range r.Nodes {
		says, _, err := r.Says(r.ctx, n.Name)
		if must(t, err); says.Previous != barrier || n.Boots()-booted[n.Name] != 2 {
			t.Errorf("%s came from %s in %d boots, and not from %s", n.Name, says.Previous, n.Boots()-booted[n.Name], barrier)
		}
	}

	booted = boots(r.Fleet)
	asked := g.requests()
	must(t, fleet.Until(r.ctx, "the graph is read twice more", func(context.Context) (bool, string, error) {
		return g.requests() >= asked+2, "", nil
	}))
	r.skips("3", map[string]string{"4": "DeadEnd"})
	r.arrives(beyond, "3")
	must(t, rebootsOf(r.Fleet, booted, nil))
	held, err := r.Kubectl(r.ctx, "get", "mcp", "worker", "-o", "jsonpath={.metadata.annotations}")
	if err != nil || strings.Contains(held, api.WithheldKey) {
		t.Errorf("nodes are held: %s, %v", held, err)
	}
	said, _, err := r.Refit(r.ctx, "streams", "os")
	if err != nil || !strings.Contains(said, "not 4: it is a dead end: the lab says so") {
		t.Errorf("kubectl refit streams: %v: %s", err, said)
	}
}
