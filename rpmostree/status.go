// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// hostStatus is the part of rpm-ostree status --json that matters here. Missing keys are zero. Each release adds keys.
//
//nolint:tagliatelle // rpm-ostree's keys
type hostStatus struct {
	Deployments []deployment `json:"deployments"` // in boot order: a staged one first
	// Transaction is the active transaction: its method, the D-Bus name of its client, and its object.
	Transaction []string      `json:"transaction"`
	Driver      *updateDriver `json:"update-driver"`

	// listed are the same deployments in ostree's list, once settle has seen that both are the same.
	listed []ostree.Deployment
}

// updateDriver is a program that has registered itself as the program that updates the host, such as Zincati.
//
//nolint:tagliatelle // rpm-ostree's keys
type updateDriver struct {
	Name string `json:"driver-name"`
	Unit string `json:"driver-sd-unit"`
}

// deployment is one deployment in the status.
//
//nolint:tagliatelle // rpm-ostree's keys
type deployment struct {
	OS       string   `json:"osname"`
	Checksum string   `json:"checksum"`
	Serial   int      `json:"serial"`
	Booted   bool     `json:"booted"`
	Staged   bool     `json:"staged"`
	Pinned   bool     `json:"pinned"`
	Packages []string `json:"requested-packages"`
	Removed  []string `json:"requested-base-removals"`
	// Base is the commit below the layered packages, "" where nothing is layered.
	Base      string `json:"base-checksum"`
	Container string `json:"container-image-reference"`
	Digest    string `json:"container-image-reference-digest"` // of the Container, "" if rpm-ostree could not find it
	Origin    string `json:"origin"`                           // a refspec or a checksum; "" with a Container

	localChanges
}

// localChanges are changes to a deployment that a System does not describe. An admin has made them, so they stay.
//
//nolint:tagliatelle // rpm-ostree's keys
type localChanges struct {
	LocalPackages      []string        `json:"requested-local-packages"`
	LocalFileOverrides []string        `json:"requested-local-fileoverride-packages"`
	LocalReplacements  []string        `json:"requested-base-local-replacements"`
	RemoteReplacements json.RawMessage `json:"requested-base-remote-replacements"`
	Initramfs          bool            `json:"regenerate-initramfs"`
	InitramfsArguments []string        `json:"initramfs-args"`
	InitramfsFiles     []string        `json:"initramfs-etc"`
}

// words returns the changes in words for people.
func (l localChanges) words() (words []string) {
	list := func(what string, requests []string) {
		var names []string
		for _, request := range requests { // the checksum of a file of rpm, a colon, and the package
			if _, name, found := strings.Cut(request, ":"); found {
				request = name
			}
			names = append(names, request)
		}
		if len(names) > 0 {
			words = append(words, what+" "+strings.Join(sorted(names), ", "))
		}
	}
	list("the local packages", slices.Concat(l.LocalPackages, l.LocalFileOverrides))
	list("the local replacements", l.LocalReplacements)
	if remote := compact(l.RemoteReplacements); len(remote) > 0 {
		words = append(words, "the replacements "+string(remote))
	}
	if l.Initramfs || len(l.InitramfsArguments)+len(l.InitramfsFiles) > 0 {
		words = append(words, "an initramfs of its own")
	}
	return words
}

// parseStatus reads the output of rpm-ostree status --json. In the result exactly one deployment is booted.
func parseStatus(output []byte) (hostStatus, error) {
	var s hostStatus
	if err := json.Unmarshal(output, &s); err != nil {
		return hostStatus{}, err
	}
	booted := 0
	for _, d := range s.Deployments {
		if !ostree.IsChecksum(d.Checksum) || !ostree.OsPattern.MatchString(d.OS) || d.Serial < 0 ||
			d.Base != "" && !ostree.IsChecksum(d.Base) {
			return hostStatus{}, fmt.Errorf("a deployment has OS %q, checksum %q, base %q, serial %d",
				d.OS, d.Checksum, d.Base, d.Serial)
		}
		if d.Booted {
			booted++
		}
	}
	if booted != 1 {
		return hostStatus{}, fmt.Errorf("%d of %d deployments are booted", booted, len(s.Deployments))
	}
	return s, nil
}

// booted returns the booted deployment.
func (s hostStatus) booted() deployment {
	return s.Deployments[slices.IndexFunc(s.Deployments, func(d deployment) bool { return d.Booted })]
}

// first returns the deployment on which rpm-ostree builds the next one. It is the first of the booted OS in boot order,
// where a staged deployment counts as well.
func (s hostStatus) first() deployment {
	name := s.booted().OS
	return s.Deployments[slices.IndexFunc(s.Deployments, func(d deployment) bool { return d.OS == name })]
}

// pending reports whether cleanup -p would remove a deployment before the booted one.
func (s hostStatus) pending() (removable bool) {
	for _, d := range s.Deployments {
		if d.Booted {
			return false
		}
		if d.OS == s.booted().OS && !d.Pinned {
			return true
		}
	}
	return false
}

// shows reports whether rpm-ostree and ostree list the same deployments.
func (s hostStatus) shows(deployments []ostree.Deployment) bool {
	return slices.EqualFunc(s.Deployments, deployments, func(a deployment, b ostree.Deployment) bool {
		return a.id() == b.ID && a.Staged == b.Staged && a.Booted == b.Booted && a.Pinned == b.Pinned
	})
}

// id returns the deployment's name in the form of Deployment.ID.
func (d deployment) id() string { return fmt.Sprintf("%s/%s.%d", d.OS, d.Checksum, d.Serial) }

// base returns the commit below the layered packages.
func (d deployment) base() string {
	if d.Base != "" {
		return d.Base
	}
	return d.Checksum
}

// image returns the image of a deployment, and the digest or checksum of the image that is there.
func (d deployment) image() (image osimage.Image, reported string, err error) {
	switch {
	case d.Container != "":
		image, err = osimage.ParseImage(d.Container)
		return image, d.Digest, err
	case d.Origin != "":
		image, err = osimage.ParseImage(d.Origin)
		return image, d.base(), err
	}
	return osimage.Image{}, "", errors.New("the deployment has no origin")
}

// system returns the deployment as a configuration would describe it.
func (d deployment) system() osimage.System {
	s := osimage.System{Image: d.base(), Packages: sorted(d.Packages), Removed: sorted(d.Removed)}
	if image, reported, err := d.image(); err == nil {
		s.Reported = reported
		if image.Verify == osimage.VerifyNothing && image.Transport == osimage.Registry {
			image.Verify = osimage.VerifyUnsaid // a configuration names such an image like this
		}
		s.Image = image.String()
	}
	return s
}

// of returns the deployment with a commit, of those on which the next one can be built; nil if neither has the commit.
// The booted one comes first: a deployment that others have staged may have its commit too, with requests of its own.
func (s hostStatus) of(checksum string) *deployment {
	for _, d := range []deployment{s.booted(), s.first()} {
		if d.Checksum == checksum {
			return &d
		}
	}
	return nil
}

// sameContent reports whether two deployments have the same base, and the same changes to the base. Their commits
// differ all the same where packages are layered: rpm-ostree composes those anew in each transaction, even in one that
// changes nothing but kernel arguments, and the time is a part of a commit.
func sameContent(a, b deployment) bool {
	return (a.Checksum == b.Checksum || a.Base != "" && b.Base != "") && sameBase(a, b) &&
		slices.Equal(sorted(a.Packages), sorted(b.Packages)) && slices.Equal(sorted(a.Removed), sorted(b.Removed)) &&
		sameOthers(a, b)
}

// sameBase reports whether two deployments have the same base. rpm-ostree may import a container image anew, into
// another commit of the same digest.
func sameBase(a, b deployment) bool {
	return a.base() == b.base() || a.Digest != "" && a.Digest == b.Digest && a.Container == b.Container
}

// sameOthers reports whether two deployments agree in everything that a System does not describe.
func sameOthers(a, b deployment) bool {
	return slices.Equal(sorted(a.LocalPackages), sorted(b.LocalPackages)) &&
		slices.Equal(sorted(a.LocalFileOverrides), sorted(b.LocalFileOverrides)) &&
		slices.Equal(sorted(a.LocalReplacements), sorted(b.LocalReplacements)) &&
		bytes.Equal(compact(a.RemoteReplacements), compact(b.RemoteReplacements)) &&
		a.Initramfs == b.Initramfs &&
		slices.Equal(a.InitramfsArguments, b.InitramfsArguments) &&
		slices.Equal(sorted(a.InitramfsFiles), sorted(b.InitramfsFiles))
}

// compact returns JSON without white space, nothing for null or an empty value.
func compact(raw json.RawMessage) []byte {
	var out bytes.Buffer
	if json.Compact(&out, raw) != nil || slices.Contains([]string{"null", "[]", "{}"}, out.String()) {
		return nil
	}
	return out.Bytes()
}

// sorted returns a sorted copy without duplicates, nil for an empty list.
func sorted(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// who returns what the active transaction is, and its client.
func (s hostStatus) who() string {
	if len(s.Transaction) < 2 {
		return strings.Join(s.Transaction, " ")
	}
	return s.Transaction[0] + " for the client " + s.Transaction[1]
}
