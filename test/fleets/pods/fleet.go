// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// Start makes a fleet whose pods are containers, with the agent and the controllers of that version as they are
// installed. base is one of lab.NeedContainers.
func (i *Images) Start(
	ctx context.Context, base *lab.Base, version string, options fleet.Options,
) (*fleet.Fleet, error) {
	options.Repository = i.repository
	options.Pods = &fleet.Pods{Registry: i.Address, Pause: i.Ref(Pod, "latest"),
		Image: func(name string) string { return i.Ref(name, version) }}
	return fleet.Start(ctx, base, options)
}

// Memory is what the cgroup of a pod counts, in bytes.
type Memory struct {
	// Used has the page cache in it, and Peak is the most that it ever was.
	Used, Peak int64
	// Working is Used without the files that nobody has read twice, by which the kubelet judges.
	Working int64
}

// MemoryOf reads what the cgroup of a pod on the node counts.
func MemoryOf(ctx context.Context, n *fleet.Node, pod types.UID) (Memory, error) {
	text, err := n.Output(ctx, "sh", "-euc", `cd /run/lab/cgroup/memory/kubepods/*/pod"$0"
		cat memory.usage_in_bytes memory.max_usage_in_bytes
		sed -n "s/^total_inactive_file //p" memory.stat`, string(pod))
	if err != nil {
		return Memory{}, err
	}
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return Memory{}, fmt.Errorf("reading the memory of pod %s: %q", pod, text)
	}
	var out [3]int64
	for i, f := range fields {
		if out[i], err = strconv.ParseInt(f, 10, 64); err != nil {
			return Memory{}, fmt.Errorf("reading the memory of pod %s: %w", pod, err)
		}
	}
	return Memory{Used: out[0], Peak: out[1], Working: out[0] - out[2]}, nil
}
