// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
)

// Deployments are the deployments of an ostree host, which has rpm-ostree or not. They are read once, and again after
// each change of ours: every answer costs a fork.
type Deployments struct {
	*ostree.Plain
	// Driver is nil on a host without rpm-ostree.
	Driver *Driver

	known []ostree.Deployment
}

// Status lists the deployments.
func (d *Deployments) Status(ctx context.Context) ([]ostree.Deployment, error) {
	if d.known != nil {
		return d.known, nil
	}
	var err error
	d.known, err = d.Plain.Status(ctx)
	return d.known, err
}

// Changed makes the next Status read the deployments again, because others changed them: the OS manager stages some and
// removes some.
func (d *Deployments) Changed() {
	if d != nil {
		d.known = nil
	}
}

// BootSpace refuses a commit whose kernel does not fit into /boot.
func (d *Deployments) BootSpace(ctx context.Context, osName, checksum string) error {
	all, err := d.Status(ctx)
	if err != nil {
		return fmt.Errorf("checking /boot for %s: %w", checksum, err)
	}
	return d.Plain.BootSpace(ctx, all, osName, checksum)
}

// Current returns the content of the booted deployment: the refspec of its origin, or its commit where it has none.
func (d *Deployments) Current(ctx context.Context) (osimage.System, error) {
	all, err := d.Status(ctx)
	for _, one := range all {
		if one.Booted {
			return osimage.System{Image: cmp.Or(one.Refspec, one.Checksum), Reported: one.Checksum}, nil
		}
	}
	return osimage.System{}, cmp.Or(err, errors.New("none of the deployments is the booted one"))
}

// Materialise makes a deployment.
func (d *Deployments) Materialise(ctx context.Context, r ostree.Request) (ostree.Deployment, error) {
	d.known = nil
	return d.Plain.Materialise(ctx, r)
}

// SetDefault makes a deployment the one that the next boot uses.
func (d *Deployments) SetDefault(ctx context.Context, id string) error {
	d.known = nil
	if d.Driver != nil {
		if can, err := d.CanSetDefault(ctx); err != nil {
			return err
		} else if !can {
			return d.Driver.MakeDefault(ctx, id)
		}
	}
	return d.Plain.SetDefault(ctx, id)
}

// Stage stages a commit with exactly these kernel arguments. The deployment stays locked where it would not boot.
func (d *Deployments) Stage(ctx context.Context, checksum string, arguments []string) (ostree.Deployment, error) {
	d.known = nil
	staged, err := d.Driver.Stage(ctx, checksum, arguments)
	if err != nil {
		return staged, err
	}
	return staged, d.CheckRoot(staged, arguments)
}

// Release lets the staged deployment boot after the next orderly shutdown.
func (d *Deployments) Release(ctx context.Context, id string) error {
	d.known = nil
	return d.Plain.Release(ctx, id)
}

// PrepareSoftReboot makes the next soft reboot lead to a deployment.
func (d *Deployments) PrepareSoftReboot(ctx context.Context, id string) error {
	d.known = nil
	return d.Plain.PrepareSoftReboot(ctx, id)
}

// ResetSoftReboot takes the target of the next soft reboot away.
func (d *Deployments) ResetSoftReboot(ctx context.Context) error {
	d.known = nil
	return d.Plain.ResetSoftReboot(ctx)
}

// Discard removes a deployment.
func (d *Deployments) Discard(ctx context.Context, id string) error {
	d.known = nil
	return d.Plain.Discard(ctx, id)
}

// Compose stages the image of s, which can have no packages. A checksum does not name the OS's source, so a commit
// named by its checksum has no origin of its own.
func (d *Deployments) Compose(ctx context.Context, s osimage.System) (osimage.Composed, error) {
	if len(s.Packages)+len(s.Removed) > 0 {
		return osimage.Composed{}, &ostree.Error{Class: ostree.Invalid, Doing: "composing " + s.Image,
			Err: errors.New("packages can't be layered on plain ostree deployments")}
	}
	checksum, err := d.Plain.Stage(ctx, s.Image)
	if err != nil {
		return osimage.Composed{}, err
	}
	c := osimage.Composed{Checksum: checksum, Base: checksum}
	if s.Image != checksum {
		c.Origin = "[origin]\nrefspec=" + s.Image + "\n"
	}
	return c, nil
}

// Present reports whether the result of Compose is still complete. The check forks no process.
func (d *Deployments) Present(_ context.Context, s osimage.System, c osimage.Composed) (bool, error) {
	there, err := d.Complete(c.Checksum)
	if err != nil {
		return false, &ostree.Error{Class: ostree.Failed, Doing: "looking for the staged " + s.Image, Err: err}
	}
	return there, nil
}

// Drop has nothing to do: the refs that a pull has written hold the composed commit, and the next pull reuses them.
func (d *Deployments) Drop(context.Context) error { return nil }

// Foreign returns the staged deployment if somebody else has staged it, nil otherwise. What we have rpm-ostree stage is
// locked, and marked until it is dropped.
func (d *Deployments) Foreign(ctx context.Context) (*ostree.Deployment, error) {
	all, err := d.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("looking for deployments that others have staged: %w", err)
	}
	at := slices.IndexFunc(all, func(one ostree.Deployment) bool { return one.Staged })
	if at < 0 {
		return nil, nil
	}
	if d.Driver != nil && all[at].Locked {
		_, err := os.Stat(d.Driver.host(composingMark))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return &all[at], nil
}

// Describe returns a deployment in words for people, with what makes it another than the booted one. On a host with
// rpm-ostree the answer costs a fork.
func (d *Deployments) Describe(ctx context.Context, one ostree.Deployment) string {
	var words []string
	if one.Refspec != "" {
		words = append(words, one.Refspec)
	}
	if one.Version != "" || one.Refspec == "" {
		words = append(words, "version "+cmp.Or(one.Version, "unknown"))
	}
	if d.Driver != nil {
		if system, local, err := d.Driver.read(ctx, one.ID); err == nil {
			words = append([]string{describe(system.Image, system.Packages, system.Removed)}, local.words()...)
			if one.Version != "" {
				words = slices.Insert(words, 1, "version "+one.Version)
			}
		}
	}
	what := strings.Join(words, ", ")
	booted := slices.IndexFunc(d.known, func(other ostree.Deployment) bool { return other.Booted })
	if booted >= 0 && len(one.KernelArguments) > 0 &&
		!slices.Equal(one.KernelArguments, d.known[booted].KernelArguments) {
		what += ", and other kernel arguments"
	}
	return one.ID + ": " + what
}
