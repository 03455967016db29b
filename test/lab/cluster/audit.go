// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const auditLog = "audit.log"

// auditPolicy logs each request once: the request, its user and its result.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
`

// Request is one request to the API server, logged after its answer. A watch is one request, logged at its end.
type Request struct {
	Verb      string `json:"verb"`
	URI       string `json:"requestURI"`
	UserAgent string `json:"userAgent"`
	User      struct {
		Username string   `json:"username"`
		Groups   []string `json:"groups"`
	} `json:"user"`
	Object struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Received time.Time `json:"requestReceivedTimestamp"`
}

// Requests returns everything that the API server has answered so far, in the order of the answers. Options.Audit must
// be set.
func (c *Cluster) Requests() ([]Request, error) {
	text, err := os.ReadFile(c.path(auditLog))
	if err != nil {
		return nil, fmt.Errorf("reading the API server's log of requests: %w", err)
	}
	// The API server may be writing the last line at this moment.
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	var all []Request
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var r Request
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the API server's log of requests: %w", err)
		}
		all = append(all, r)
	}
}
