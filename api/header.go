// SPDX-License-Identifier: Apache-2.0

package api

// DocumentVersion is the version of the documents that commands print for programs. It changes when a field goes or
// means something else.
const DocumentVersion = "cli.noderefit.dev/v1"

// Header names the version and the kind of a document that a command prints for programs.
// +kubebuilder:object:generate=false
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// NewHeader returns the header of a kind of document.
func NewHeader(kind string) Header { return Header{APIVersion: DocumentVersion, Kind: kind} }
