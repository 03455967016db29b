// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// policyDiffers returns an SELinux policy, as a path in a deployment, that is not the same in two deployments; "" if
// all are. A soft reboot goes on with the policy that the kernel has loaded.
func policyDiffers(before, after string) (string, error) {
	var found [2][]string
	for i, dir := range []string{before, after} {
		for _, part := range []string{"usr/etc", "etc"} {
			at, err := filepath.Glob(filepath.Join(dir, part, "selinux/*/policy/*"))
			if err != nil {
				return "", err
			}
			for _, file := range at {
				found[i] = append(found[i], strings.TrimPrefix(file, dir))
			}
		}
	}
	for _, at := range slices.Concat(found[0], found[1]) {
		if !slices.Contains(found[0], at) || !slices.Contains(found[1], at) {
			return at, nil
		}
	}
	for _, at := range found[0] {
		if same, err := sameFile(before+at, after+at); err != nil || !same {
			return at, err
		}
	}
	return "", nil
}

// sameFile reports whether two files have the same bytes. Files of one commit are one file on the disk.
func sameFile(a, b string) (bool, error) {
	left, err := os.Stat(a)
	right, other := os.Stat(b)
	if err := errors.Join(err, other); err != nil {
		return false, err
	}
	if os.SameFile(left, right) || left.Size() != right.Size() {
		return os.SameFile(left, right), nil
	}
	text, err := os.ReadFile(a)
	more, other := os.ReadFile(b)
	return bytes.Equal(text, more), errors.Join(err, other)
}

// keepsPolicy refuses a soft reboot into a deployment whose SELinux policy is another than the booted one's.
func (p *Plain) keepsPolicy(doing string, all []Deployment, next Deployment) error {
	booted := slices.IndexFunc(all, func(d Deployment) bool { return d.Booted })
	if booted < 0 {
		return nil // ostree refuses it
	}
	at, err := policyDiffers(p.host(all[booted].Dir), p.host(next.Dir))
	if err != nil {
		return &Error{Class: Failed, Doing: doing, Err: err}
	}
	if at != "" {
		return &Error{Class: Invalid, Doing: doing, Err: fmt.Errorf("the SELinux policy differs (%s)", at)}
	}
	return nil
}
