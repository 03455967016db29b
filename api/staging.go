// SPDX-License-Identifier: Apache-2.0

package api

import (
	"crypto/sha256"
	"crypto/sha512"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// RolloutStaging says how nodes stage a pool's configuration ahead: its OS comes to their disks while they serve, and
// nothing of it boots.
// +kubebuilder:object:generate=true
type RolloutStaging struct {
	// maxConcurrent is how many of a pool's nodes stage at once: a number, or a percentage of the pool's nodes, rounded
	// down, at least 1. It is 10% where nothing is said.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 5000 : self.matches('^([1-9]|[1-9][0-9]|100)%$')",message="has to be a number from 1 to 5000 or a percentage from 1% to 100%"
	// +optional
	MaxConcurrent *intstr.IntOrString `json:"maxConcurrent,omitempty"`
	// windows are when nodes may stage ahead. Without them: at any time. Nodes that are still at it when a window closes
	// let go of it, and begin anew in the next one; with onClose Finish they finish.
	// +optional
	Windows *RolloutWindows `json:"windows,omitempty"`
	// minFreeMebibytes is what staging leaves free on the disk: a node that has less does not begin, and one that comes
	// below it on the way stops and lets go of what it has pulled.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16777216
	// +optional
	MinFreeMebibytes int32 `json:"minFreeMebibytes,omitempty"`
	// ioWeight is the share of the disk that the unit which stages gets where others want it too (systemd's IOWeight):
	// 100 is that of any other unit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +optional
	IOWeight int32 `json:"ioWeight,omitempty"`
	// cpuWeight is the same of the processors (systemd's CPUWeight).
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +optional
	CPUWeight int32 `json:"cpuWeight,omitempty"`
	// bandwidth is how many bytes a second the fetches of one node may take, as in 20Mi: at least 16Ki. It is kept for
	// contents by reference, and for what bootc, podman and ostree fetch. A host whose rpm-ostree would have to fetch
	// refuses to stage, and says so.
	// +optional
	Bandwidth *resource.Quantity `json:"bandwidth,omitempty"`
	// waitForPinnedImages has a node wait for the images of its pool's PinnedImageSets before it is sent. Without it no
	// node waits for them.
	// +optional
	WaitForPinnedImages *RolloutPinnedImages `json:"waitForPinnedImages,omitempty"`
}

// RolloutPinnedImages says how long a node waits for pinned images.
// +kubebuilder:object:generate=true
type RolloutPinnedImages struct {
	// timeoutSeconds is how long a node waits at most, from when it was told of its present sets. It goes without the
	// images then.
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// LeastBandwidth is the smallest bandwidth of staging, in bytes a second: with less, registries give up waiting.
const LeastBandwidth = 16 << 10

// RolloutApproval has a pool's configuration wait until somebody approves what was staged of it.
// +kubebuilder:object:generate=true
type RolloutApproval struct {
	// required is true where nothing is said.
	// +kubebuilder:default=true
	// +optional
	Required *bool `json:"required,omitempty"`
}

// StageOrder has a node stage a configuration, and not go there.
type StageOrder struct {
	Config string `json:"config"`
	// Digest is what was approved: a node goes to nothing else of that configuration. Empty: nothing was, or it has none.
	Digest string `json:"digest,omitempty"`
	// The limits are those of RolloutStaging; 0: none.
	MinFreeMebibytes int32 `json:"minFreeMebibytes,omitempty"`
	IOWeight         int32 `json:"ioWeight,omitempty"`
	CPUWeight        int32 `json:"cpuWeight,omitempty"`
	// Bandwidth is in bytes a second.
	Bandwidth int64 `json:"bandwidth,omitempty"`
}

// StagedKey is the annotation of a Node that holds a Staged: what came of the latest StageOrder. The daemon writes it.
const StagedKey = ownPrefix + "staged"

// Staged is a configuration that a node has staged ahead, or could not.
type Staged struct {
	Config string `json:"config"`
	// Digest of what was staged: of the container image, or of the ostree commit. Empty: the configuration brings no OS.
	Digest string `json:"digest,omitempty"`
	// Error is why it could not be staged; empty: it is staged. Tries counts how often that was tried.
	Error string    `json:"error,omitempty"`
	Tries int       `json:"tries,omitempty"`
	Since time.Time `json:"since"`
}

// Is says that the node has staged that content.
func (s *Staged) Is(config string) bool {
	return s != nil && s.Error == "" && SameContent(s.Config, config)
}

// Failed says that the node could not stage that content.
func (s *Staged) Failed(config string) bool {
	return s != nil && s.Error != "" && SameContent(s.Config, config)
}

// isOSDigest reports whether a text is the digest of a container image, or the checksum of an ostree commit.
func isOSDigest(text string) bool {
	length := sha256.Size * 2
	sum, long := strings.CutPrefix(text, "sha512:")
	if long {
		length = sha512.Size * 2
	} else {
		sum = strings.TrimPrefix(text, "sha256:")
	}
	return len(sum) == length && strings.Trim(sum, "0123456789abcdef") == ""
}

// believed is what is taken from a Node. One that has staged what is no digest has staged nothing that can be approved:
// it could not.
func (s *Staged) believed() *Staged {
	if s == nil || len(s.Config) > longestName {
		return nil
	}
	if s.Digest != "" && !isOSDigest(s.Digest) {
		s.Digest, s.Error = "", "what the node says of the OS that it has staged is no digest"
	}
	s.Error = shorten(ShortReason(s.Error), quarantineReason)
	return s
}

// ApprovedKey is the annotation of a MachineConfigPool that holds an Approval. People write it, by kubectl refit, and
// so do CI jobs.
const ApprovedKey = ownPrefix + "approved"

// Approval lets a pool's nodes go to a configuration that they have staged.
type Approval struct {
	Config string `json:"config"`
	// Digest is that of what was staged, empty where the configuration brings no OS.
	Digest string    `json:"digest,omitempty"`
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
	Why    string    `json:"why,omitempty"`
}

// PoolApproved is the condition of a MachineConfigPool that somebody approved its present configuration as it was
// staged.
const PoolApproved = "Approved"

// StageRetry is how long after a failure it is tried again to stage ahead: a minute, doubled each time, an hour at
// most.
func StageRetry(tries int) time.Duration {
	return min(time.Minute<<min(max(tries-1, 0), 6), time.Hour)
}
