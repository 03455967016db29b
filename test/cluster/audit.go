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

// auditPolicy logs what was asked, by whom and how it ended, once.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
`

// Request is one request to the API server, logged when it has been answered. A watch is one when it ends.
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

// Requests are all that the API server has answered so far, in the order of their answers. Options.Audit has to be set.
func (c *Cluster) Requests() ([]Request, error) {
	text, err := os.ReadFile(c.path(auditLog))
	if err != nil {
		return nil, fmt.Errorf("reading the API server's log of requests: %w", err)
	}
	// The last line may just be being written.
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
