// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// hostStatus is the part of bootc's status that is used here.
type hostStatus struct {
	Kind   string `json:"kind"`
	Status struct {
		Staged *bootEntry `json:"staged"`
		Booted *bootEntry `json:"booted"`
	} `json:"status"`
}

// bootEntry is a deployment.
type bootEntry struct {
	Image *imageStatus `json:"image"` // nil if it is of no image, or not of one alone
	// Incompatible reports whether rpm-ostree has changed the deployment.
	Incompatible bool         `json:"incompatible"`
	OSTree       *ostreeEntry `json:"ostree"` // nil with bootc's other back end
}

// imageStatus is an image as it was fetched.
type imageStatus struct {
	Image  imageReference `json:"image"`
	Digest string         `json:"imageDigest"`
}

// imageReference is the reference that switch was given.
type imageReference struct {
	Image     string `json:"image"`
	Transport string `json:"transport"`
	// Signature is missing, "insecure", "containerPolicy" or {"ostreeRemote": NAME}.
	Signature json.RawMessage `json:"signature"`
}

type ostreeEntry struct {
	Checksum  string `json:"checksum"`
	Serial    int    `json:"deploySerial"`
	Stateroot string `json:"stateroot"`
}

func parseStatus(output []byte) (*hostStatus, error) {
	host := &hostStatus{}
	if err := json.Unmarshal(output, host); err != nil {
		return nil, fmt.Errorf("parsing what bootc says: %w", err)
	}
	if host.Kind != "BootcHost" {
		return nil, fmt.Errorf("parsing what bootc says: the document is a %q, not a BootcHost", host.Kind)
	}
	for _, entry := range []*bootEntry{host.Status.Staged, host.Status.Booted} {
		if entry == nil || entry.OSTree == nil {
			continue
		}
		// The names go into paths and command lines.
		o := *entry.OSTree
		if !ostree.ChecksumPattern.MatchString(o.Checksum) || !ostree.OsPattern.MatchString(o.Stateroot) || o.Serial < 0 {
			return nil, fmt.Errorf("parsing what bootc says: a deployment is %+v", o)
		}
	}
	return host, nil
}

// bootedOSTree returns the booted deployment. An error has the reason why it can't be replaced.
func (h *hostStatus) bootedOSTree() (*bootEntry, error) {
	switch {
	case h.Status.Booted == nil:
		return nil, errors.New("bootc does not know what is booted")
	case h.Status.Booted.OSTree == nil:
		return nil, errors.New("bootc runs this host with its composefs back end, which has no deployments of ostree")
	}
	return h.Status.Booted, nil
}

// dir returns where the deployment is on the host.
func (o *ostreeEntry) dir() string {
	return "/ostree/deploy/" + o.Stateroot + "/deploy/" + o.Checksum + "." + strconv.Itoa(o.Serial)
}

// signature returns how the image is verified, "" if it is not verified, and the ostree remote that verifies it, if
// any.
func (r imageReference) signature() (verify osimage.Verification, remote string, err error) {
	if len(r.Signature) == 0 || string(r.Signature) == "null" {
		return osimage.VerifyNothing, "", nil
	}
	var word string
	if json.Unmarshal(r.Signature, &word) == nil {
		switch word {
		case "insecure":
			return osimage.VerifyNothing, "", nil
		case "containerPolicy":
			return osimage.VerifyPolicy, "", nil
		}
	}
	var byRemote struct {
		Remote string `json:"ostreeRemote"`
	}
	if json.Unmarshal(r.Signature, &byRemote) == nil && byRemote.Remote != "" {
		return osimage.VerifyByRemote, byRemote.Remote, nil
	}
	return "", "", fmt.Errorf("the signature %s of image %s is unknown", r.Signature, r.Image)
}

// parse returns the reference as an Image.
func (r imageReference) parse() (osimage.Image, error) {
	verify, remote, err := r.signature()
	if err != nil {
		return osimage.Image{}, err
	}
	text := r.Transport + ":" + r.Image
	switch verify {
	case osimage.VerifyPolicy:
		text = osimage.SchemeSigned + ":" + text
	case osimage.VerifyByRemote:
		text = osimage.SchemeRemote + ":" + remote + ":" + text
	default:
		text = osimage.SchemeUnverified + ":" + text
	}
	return osimage.ParseImage(text)
}

// reference returns the image with the digest that it was fetched with, if such a reference can have one.
func (i *imageStatus) reference() (osimage.Image, error) {
	image, err := i.Image.parse()
	if err == nil && image.Transport == osimage.Registry && image.Digest == "" &&
		osimage.DigestPattern.MatchString(i.Digest) {
		image.Digest = i.Digest
	}
	return image, err
}

// runs reports whether the entry was made from the same reference, so that bootc switch would find nothing to do.
func (e *bootEntry) runs(want osimage.Image) bool {
	if e.Image == nil {
		return false
	}
	transport, target, enforce, err := want.Bootc()
	if err != nil || e.Image.Image.Transport != transport || e.Image.Image.Image != target {
		return false
	}
	verify, _, err := e.Image.Image.signature()
	return err == nil && (verify == osimage.VerifyPolicy) == enforce && verify != osimage.VerifyByRemote
}

// differs returns what about the entry is not as wanted, in the OS of that name, and nil if nothing is.
func (e *bootEntry) differs(want osimage.Image, stateroot string) error {
	if e.OSTree.Stateroot != stateroot {
		return fmt.Errorf("bootc has made a deployment of %s, and %s is booted", e.OSTree.Stateroot, stateroot)
	}
	if e.Image == nil {
		return errors.New("bootc names no image for what it has made")
	}
	have, err := e.Image.Image.parse()
	if err != nil {
		return err
	}
	if !want.SatisfiedBy(have, e.Image.Digest) {
		return fmt.Errorf("bootc has made %s (%s) of it", have, e.Image.Digest)
	}
	return nil
}
