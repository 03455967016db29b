// SPDX-License-Identifier: Apache-2.0

package bootc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// entry is a deployment, and the image that it is of. All of it is read from the origin file and from the commit's
// metadata. bootc is not asked: its status waits for the lock of the sysroot, and fails for good if one deployment has
// lost a layer.
type entry struct {
	ostree.Deployment

	origin string // the text of the origin file, without what concerns this deployment alone
	groups map[string]map[string]string
	// digest is the digest of the image's manifest, "" if bootc has not made the commit.
	digest string
}

// rpmostreeGroups are the parts of an origin that rpm-ostree alone understands. bootc does not work on a deployment
// with one of them.
var rpmostreeGroups = []string{"rpmostree", "packages", "overrides", "modules"}

// incompatible reports whether rpm-ostree has changed the deployment.
func (e *entry) incompatible() bool {
	return slices.ContainsFunc(rpmostreeGroups, func(group string) bool { return e.groups[group] != nil })
}

// image returns the text of the reference that switch was given, "" if the deployment is of no image.
func (e *entry) image() string { return e.groups["origin"]["container-image-reference"] }

// readEntry reads what a deployment is. No fork.
func (b *Driver) readEntry(d ostree.Deployment) (*entry, error) {
	e := &entry{Deployment: d}
	var err error
	if e.origin, err = b.plain.Origin(d.Dir); err != nil {
		return nil, err
	}
	e.groups = ostree.ParseKeyFile(e.origin)
	texts, err := b.plain.CommitTexts(d.Checksum)
	if err != nil {
		return nil, err
	}
	if digest := texts[metaDigest]; osimage.IsDigest(digest) {
		e.digest = digest
	}
	return e, nil
}

// booted returns the booted deployment. One fork.
func (b *Driver) booted(ctx context.Context, doing string) (*entry, error) {
	deployments, err := b.plain.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	at := slices.IndexFunc(deployments, func(d ostree.Deployment) bool { return d.Booted })
	if at < 0 {
		return nil, &ostree.Error{Class: ostree.Failed, Doing: doing,
			Err: errors.New("none of the deployments is booted")}
	}
	e, err := b.readEntry(deployments[at])
	if err != nil {
		return nil, wrapFailed(doing, err)
	}
	return e, nil
}

// reference returns the image with the digest that it was fetched with, if such a reference can have one.
func (e *entry) reference() (osimage.Image, error) {
	image, err := osimage.ParseImage(e.image())
	if err == nil && image.Transport == osimage.Registry && image.Digest == "" {
		image.Digest = e.digest
	}
	return image, err
}

// system returns what the deployment is, as Current does.
func (e *entry) system() (osimage.System, error) {
	if e.image() != "" && !e.incompatible() {
		image, err := e.reference()
		return osimage.System{Image: image.String()}, err
	}
	list := func(group, key string) []string {
		return strings.FieldsFunc(e.groups[group][key], func(r rune) bool { return r == ';' })
	}
	system := osimage.System{Packages: list("packages", "requested"), Removed: list("overrides", "remove")}
	for _, key := range []string{"container-image-reference", "refspec", "baserefspec"} {
		if system.Image == "" {
			system.Image = e.groups["origin"][key]
		}
	}
	return system, nil
}

// runs reports whether the deployment was made from the same reference, so that bootc switch would find nothing to do.
func (e *entry) runs(want osimage.Image) bool {
	if e.image() == "" || e.incompatible() {
		return false
	}
	have, err := osimage.ParseImage(e.image())
	if err != nil {
		return false
	}
	transport, target, enforce, err := have.Bootc()
	if err != nil {
		return false
	}
	wantTransport, wantTarget, wantEnforce, err := want.Bootc()
	return err == nil && transport == wantTransport && target == wantTarget && enforce == wantEnforce
}

// differs returns what about the deployment is not as wanted, in the OS of that name, and nil if nothing is.
func (e *entry) differs(want osimage.Image, osName string) error {
	if e.OS != osName {
		return fmt.Errorf("bootc has made a deployment of %s, and %s is booted", e.OS, osName)
	}
	if e.image() == "" || e.digest == "" {
		return errors.New("bootc names no image for what it has made")
	}
	have, err := osimage.ParseImage(e.image())
	if err != nil {
		return err
	}
	if !want.SatisfiedBy(have, e.digest) {
		return fmt.Errorf("bootc has made %s (%s) of it", have, e.digest)
	}
	return nil
}
