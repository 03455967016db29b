// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

const (
	// filesAtMost is how many files a machine may have.
	filesAtMost = 200
	// refusedAtMost is how many refusals are remembered, and askedAtMost how many nodes whose machines asked.
	refusedAtMost = 100
	askedAtMost   = 500
)

// record is what is known of a pool's MachineConfig beside its content.
type record struct {
	// Of is whose machines the MachineConfig is for.
	Of string `json:"of"`
	// Paths are those that were ever changed in place. No other is carried.
	Paths []string `json:"paths,omitempty"`
	// Digest is of the files that were asked for last; empty if the MachineConfig has what was given back.
	Digest string `json:"digest,omitempty"`
	// Asked are the nodes whose machines asked for these files and were not told yet that they are done.
	Asked []string `json:"asked,omitempty"`
	// Sound is what the MachineConfig goes back to when files fail: what a node proved last.
	Sound json.RawMessage `json:"sound,omitempty"`
	// Left has the digest of each content that may not be in the pool's configuration when a new machine is made.
	Left    map[string]string `json:"left,omitempty"`
	Refused []refusal         `json:"refused,omitempty"`
}

// refusal is of files that are not taken: by any node as long as the configuration that failed with them is in
// quarantine, or by one node that the pool has passed by.
type refusal struct {
	Digest string `json:"digest"`
	Config string `json:"config,omitempty"`
	Node   string `json:"node,omitempty"`
}

func (r *record) refuse(f refusal) {
	if !slices.Contains(r.Refused, f) {
		r.Refused = append(r.Refused, f)
	}
	r.Refused = r.Refused[max(0, len(r.Refused)-refusedAtMost):]
}

// ask notes that a node's machine asks for the present files, and reports whether that is new.
func (r *record) ask(node string) bool {
	if slices.Contains(r.Asked, node) || len(r.Asked) >= askedAtMost {
		return false
	}
	r.Asked = append(r.Asked, node)
	return true
}

// forget forgets that a node's machine asked, and reports whether it had.
func (r *record) forget(node string) bool {
	before := len(r.Asked)
	r.Asked = slices.DeleteFunc(r.Asked, func(name string) bool { return name == node })
	return len(r.Asked) < before
}

// passBy notes that the nodes which asked for the present files get other ones.
func (r *record) passBy() {
	for _, node := range r.Asked {
		r.refuse(refusal{Digest: r.Digest, Node: node})
	}
	r.Asked, r.Digest = nil, ""
}

// widen adds paths that are changed in place, and reports whether one is new.
func (r *record) widen(paths []string) bool {
	before := len(r.Paths)
	r.Paths = append(r.Paths, paths...)
	slices.Sort(r.Paths)
	r.Paths = slices.Compact(r.Paths)
	return len(r.Paths) > before
}

// forgive forgets that nodes were passed by for these files: Cluster API wants them anew. It reports whether one was.
func (r *record) forgive(digest string) bool {
	before := len(r.Refused)
	r.Refused = slices.DeleteFunc(r.Refused, func(f refusal) bool { return f.Digest == digest && f.Node != "" })
	return len(r.Refused) < before
}

func (t *target) labels() map[string]string { return map[string]string{api.Role: t.pool} }

// made returns the MachineConfig with a content and the record as it is.
func (t *target) made(config []byte) *mcfgv1.MachineConfig {
	mc := &mcfgv1.MachineConfig{ObjectMeta: metav1.ObjectMeta{Name: prefix + t.pool}}
	if t.present != nil {
		mc = t.present.DeepCopy()
	}
	mc.Labels = t.labels()
	mc.Annotations = map[string]string{api.ClusterAPIKey: api.Encode(t.record)}
	mc.Spec.Config.Raw = config
	return mc
}

// carriedBy returns the files of the MachineConfig; none where it is nil, or can't be read.
func carriedBy(mc *mcfgv1.MachineConfig) []held {
	if mc == nil {
		return nil
	}
	c, err := machineconfig.Parse(mc)
	if err != nil {
		return nil // no node can have contents that cannot be read
	}
	out := make([]held, 0, len(c.Files))
	for _, f := range c.Files {
		out = append(out, heldOf(f))
	}
	return out
}

// released returns what the MachineConfig may have once new machines boot with the given files, and the digests of the
// contents that leave it; none if nothing has to. A content that such a machine has otherwise is no longer given: the
// bytes of each host stay. A path that such a machine has not, or has in a way that only cloud-init knows, goes.
func released(carried []held, files map[string]file) (kept []held, left map[string]string) {
	left = map[string]string{}
	for _, h := range carried {
		f, there := files[h.path]
		want, err := f.express()
		switch {
		case there && err == nil && h.released && h.mode == want.mode, there && err == nil && h.equal(want):
			kept = append(kept, h)
			continue
		case there && err == nil:
			kept = append(kept, held{path: h.path, mode: want.mode, released: true})
		}
		left[h.path] = digestOf(h.contents)
	}
	return kept, left
}

func digestOf(contents []byte) string {
	sum := sha256.Sum256(contents)
	return hex.EncodeToString(sum[:])
}

// gone returns a path whose content a configuration still has although it has left the MachineConfig; empty if none.
func gone(c *machineconfig.Config, left map[string]string) string {
	for _, path := range slices.Sorted(maps.Keys(left)) {
		if slices.ContainsFunc(c.Files, func(f machineconfig.File) bool {
			return f.Path == path && !f.NoContents && digestOf(f.Contents) == left[path]
		}) {
			return path
		}
	}
	return ""
}
