// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// The document that status prints.
type (
	document struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Metadata   metadata `json:"metadata"`
		Spec       spec     `json:"spec"`
		Status     status   `json:"status"`
	}
	metadata struct {
		Name string `json:"name"`
	}
	spec struct {
		Image     *reference `json:"image"`
		BootOrder string     `json:"bootOrder"`
	}
	status struct {
		Staged         *entry   `json:"staged"`
		Booted         *entry   `json:"booted"`
		Rollback       *entry   `json:"rollback"`
		Others         []*entry `json:"otherDeployments,omitempty"`
		RollbackQueued bool     `json:"rollbackQueued"`
		Type           *string  `json:"type"`
	}
	entry struct {
		Image             *imageStatus `json:"image"`
		CachedUpdate      *imageStatus `json:"cachedUpdate"`
		Incompatible      bool         `json:"incompatible"`
		Pinned            bool         `json:"pinned"`
		SoftRebootCapable bool         `json:"softRebootCapable"`
		DownloadOnly      bool         `json:"downloadOnly"`
		Store             string       `json:"store"`
		OSTree            entryOSTree  `json:"ostree"`
		Composefs         *struct{}    `json:"composefs"`
	}
	entryOSTree struct {
		Stateroot string `json:"stateroot"`
		Checksum  string `json:"checksum"`
		Serial    int    `json:"deploySerial"`
	}
	imageStatus struct {
		Image        reference `json:"image"`
		Version      *string   `json:"version"`
		Timestamp    *string   `json:"timestamp"`
		Digest       string    `json:"imageDigest"`
		Architecture string    `json:"architecture"`
	}
	// reference is an image with its transport; Signature is "containerPolicy" or missing.
	reference struct {
		Image     string `json:"image"`
		Transport string `json:"transport"`
		Signature string `json:"signature,omitempty"`
	}
)

const byPolicy = "containerPolicy"

func (r reference) signedIf(enforce bool) reference {
	if enforce {
		r.Signature = byPolicy
	}
	return r
}

func (r reference) signed() bool { return r.Signature == byPolicy }

// tagged is a reference with a tag and a digest.
var tagged = regexp.MustCompile(`^([^@]+):[^/:@]+@(.+)$`)

// canonical leaves the tag out of a reference that has a digest as well.
func (r reference) canonical() reference {
	if parts := tagged.FindStringSubmatch(r.Image); parts != nil && r.Transport == "registry" {
		r.Image = parts[1] + "@" + parts[2]
	}
	return r
}

// String is the reference as an origin file has it.
func (r reference) String() string {
	from, scheme := r.Transport+":", "ostree-unverified-image:"
	if r.Transport == "registry" {
		from = "docker://"
		if !r.signed() {
			return "ostree-unverified-registry:" + r.Image
		}
	}
	if r.signed() {
		scheme = "ostree-image-signed:"
	}
	return scheme + from + r.Image
}

// shown is the reference as messages have it.
func (r reference) shown() string {
	if r.Transport == "registry" && !r.signed() {
		return r.Image
	}
	return r.String()
}

// host is the booted host as ostree has it, and what bootc makes of it.
type host struct {
	deployments []ostree.Deployment // in ostree's order
	booted      ostree.Deployment
	document    document
	entries     map[string]*entry // by deployment
}

// incompatible are the groups of an origin that only rpm-ostree understands.
var incompatible = []string{"[rpmostree]", "[packages]", "[overrides]", "[modules]"}

func readHost(ctx context.Context) (*host, error) {
	deployments, err := ostree.NewPlain(ostree.Exec, "/").Status(ctx)
	if err != nil {
		return nil, err
	}
	h := &host{deployments: deployments, entries: map[string]*entry{}}
	at := slices.IndexFunc(deployments, func(d ostree.Deployment) bool { return d.Booted })
	if at < 0 {
		return nil, errors.New("no deployment is booted")
	}
	h.booted = deployments[at]
	for _, d := range deployments {
		if h.entries[d.ID], err = readEntry(ctx, d); err != nil {
			return nil, failf("Reading deployment metadata: %w", err)
		}
	}
	h.document = document{APIVersion: "org.containers.bootc/v1", Kind: "BootcHost", Metadata: metadata{"host"},
		Spec: spec{BootOrder: "default"}}
	s := &h.document.Status
	s.Booted = h.entries[h.booted.ID]
	var others []*entry
	for _, d := range deployments {
		e := h.entries[d.ID]
		switch {
		case d.Booted:
		case d.OS != h.booted.OS:
			others = append(others, e)
		case d.Staged:
			s.Staged = e
		case s.Rollback == nil:
			s.Rollback, s.RollbackQueued = e, d.Index < h.booted.Index
		default:
			s.Others = append(s.Others, e)
		}
	}
	s.Others = append(s.Others, others...)
	// What will be, or is: that bootc deals with.
	next := s.Booted
	if s.Staged != nil {
		next = s.Staged
	}
	if next.Image != nil {
		h.document.Spec.Image = &next.Image.Image
		if s.RollbackQueued {
			h.document.Spec.BootOrder = "rollback"
		}
	}
	if s.Booted.Image != nil {
		kind := "bootcHost"
		s.Type = &kind
	}
	return h, nil
}

// readEntry reads what a deployment is from its origin and from its commit.
func readEntry(ctx context.Context, d ostree.Deployment) (*entry, error) {
	e := &entry{Store: "ostreeContainer", Pinned: d.Pinned, OSTree: entryOSTree{d.OS, d.Checksum, d.Serial}}
	origin, err := os.ReadFile(d.Dir + ".origin")
	if err != nil {
		return nil, err
	}
	name := ""
	for line := range strings.Lines(string(origin)) {
		line = strings.TrimSpace(line)
		if slices.Contains(incompatible, line) {
			e.Incompatible = true
		}
		if value, ok := strings.CutPrefix(line, "container-image-reference="); ok {
			name = value
		}
	}
	if e.Incompatible || name == "" {
		return e, nil
	}
	image, err := osimage.ParseImage(name)
	if err != nil {
		return nil, err
	}
	transport, target, enforce, err := image.Bootc()
	if err != nil {
		return nil, err
	}
	f, err := query(ctx, d.Checksum)
	if err != nil {
		return nil, err
	}
	e.Image = f.status(reference{Image: target, Transport: transport}.signedIf(enforce))
	return e, nil
}

func (f *fetched) status(r reference) *imageStatus {
	i := &imageStatus{Image: r, Digest: f.digest, Architecture: f.config.Architecture}
	if version := f.config.Config.Labels["org.opencontainers.image.version"]; version != "" {
		i.Version = &version
	}
	if f.config.Created != "" {
		i.Timestamp = &f.config.Created
	}
	return i
}

// print prints the status, of the booted deployment alone if that is asked for.
func (h *host) print(out io.Writer, booted bool) error {
	if booted {
		h.document.Status.Staged, h.document.Status.Rollback = nil, nil
	}
	text, err := json.Marshal(h.document)
	if err == nil {
		_, err = fmt.Fprintln(out, string(text))
	}
	return err
}
