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
		UsrOverlay     *string  `json:"usrOverlay"`
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
	unlock      func() // gives back the lock of the sysroot
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
		h.entries[d.ID] = &entry{}
	}
	h.document = document{APIVersion: "org.containers.bootc/v1", Kind: "BootcHost", Metadata: metadata{"host"},
		Spec: spec{BootOrder: "default"}}
	if err := h.readEntries(ctx); err != nil {
		return nil, failf("Computing status: %w", err)
	}
	s := &h.document.Status
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

// readEntries reads what each deployment is, and sorts them.
func (h *host) readEntries(ctx context.Context) error {
	s := &h.document.Status
	kinds := map[string]string{}
	var others []*entry
	for _, d := range h.deployments {
		e := h.entries[d.ID]
		switch kinds[d.ID] = "Other deployments"; {
		case d.Booted:
			s.Booted, kinds[d.ID] = e, "Booted deployment"
		case d.OS != h.booted.OS:
			others = append(others, e)
		case d.Staged:
			s.Staged, kinds[d.ID] = e, "Staged deployment"
		case s.Rollback == nil:
			s.Rollback, s.RollbackQueued, kinds[d.ID] = e, d.Index < h.booted.Index, "Rollback deployment"
		default:
			s.Others = append(s.Others, e)
		}
	}
	s.Others = append(s.Others, others...)
	for _, kind := range []string{"Staged deployment", "Booted deployment", "Rollback deployment", "Other deployments"} {
		for _, d := range h.deployments {
			if kinds[d.ID] != kind {
				continue
			}
			e, err := readEntry(ctx, d)
			if err != nil {
				return failf("%s: Reading deployment metadata: %w", kind, err)
			}
			*h.entries[d.ID] = *e
		}
	}
	return nil
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
	f, err := query(ctx, d.Checksum)
	if err != nil {
		return nil, err
	}
	e.Image = f.status(parseOrigin(name))
	return e, nil
}

// parseOrigin is the reverse of String.
func parseOrigin(name string) (r reference) {
	if image, ok := strings.CutPrefix(name, "ostree-unverified-registry:"); ok {
		return reference{Image: image, Transport: "registry"}
	}
	scheme, rest, _ := strings.Cut(name, ":")
	r = reference{}.signedIf(scheme == "ostree-image-signed")
	r.Transport, r.Image, _ = strings.Cut(rest, ":")
	if image, ok := strings.CutPrefix(r.Image, "//"); ok && r.Transport == "docker" {
		r.Transport, r.Image = "registry", image
	}
	return r
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
