// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"maps"
	"slices"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
)

// etcdAgain is after how long the API server is asked again whether it reaches etcd. No watch reports that.
const etcdAgain = 10 * time.Second

// etcd holds the nodes of the control plane that can't be spared now. A bypass changes nothing here: an emergency is no
// reason to lose etcd.
func (j *judge) etcd() {
	if !progress.ControlPlane(j.pool.Name) || j.pool.Etcd == nil ||
		j.spec.ControlPlane != nil && j.spec.ControlPlane.Etcd == api.EtcdIgnored {
		return
	}
	var nodes []string
	for _, name := range slices.Sorted(maps.Keys(j.all)) {
		if !progress.ControlPlane(name) {
			continue
		}
		for i := range j.all[name].Nodes {
			nodes = append(nodes, j.all[name].Nodes[i].Name)
		}
	}
	all := true
	for i := range j.pool.Nodes {
		n := &j.pool.Nodes[i]
		all = all && n.Updated(j.pool.Target)
		stays := n.Updated(j.pool.Target) && !j.pool.GoesBack()
		if stays && n.Trial == nil {
			continue
		}
		hold := j.pool.Etcd.Hold(n.Name, nodes)
		if hold == nil {
			continue
		}
		j.lookAgain(j.now.Add(etcdAgain))
		if j.rules.Etcd == nil {
			j.rules.Etcd = map[string]*progress.Hold{}
		}
		j.rules.Etcd[n.Name] = hold
		if stays || j.rules.Holds[n.Name] != nil {
			continue
		}
		j.holdNode(n.Name, hold)
	}
	// The rollout ends only when etcd is whole after the last node as well.
	if all && j.asks() && j.rules.Unproved == nil {
		if j.rules.Unproved = j.pool.Etcd.Hold("", nodes); j.rules.Unproved != nil {
			j.lookAgain(j.now.Add(etcdAgain))
		}
	}
}

// FollowReported is Follow for callers that watch neither etcd nor definitions. FollowReported reads the pool
// controller's findings about them from a condition of the pool.
func (b *Book) FollowReported(pools []*progress.Pool, now time.Time, self string) {
	b.Lose(LostAsReported)
	b.Follow(pools, now, self)
	for _, p := range pools {
		r := p.Reported
		if p.Rules.Policy == "" || p.Rules.Hold != nil || r == nil || r.Verdict != progress.EtcdUnhealthy {
			continue
		}
		hold := &progress.Hold{Verdict: r.Verdict, Because: r.Because, Do: "repair the named member of etcd"}
		if p.Complete() {
			p.Rules.Unproved = hold
		} else {
			p.Rules.Hold = hold
		}
	}
}
