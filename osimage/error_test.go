// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
)

var errStatus = errors.New("exit status 1")

func TestFailureOfBootcIsClassed(t *testing.T) {
	const open = "error: Switching: Pulling: Creating importer: failed to invoke method OpenImage: "
	said := func(stderr string) error { return &ostree.CommandError{Stderr: stderr, Err: errStatus} }
	for _, c := range []struct {
		name   string
		output string
		err    error
		want   ostree.Class
	}{
		{"name server", "", said(open + "dial tcp: lookup quay.io on [::1]:53: no such host"), ostree.Retryable},
		{"broken off", "", said("error: Switching: Pulling: Importing: Unencapsulating base: unexpected EOF"), ostree.Retryable},
		{"server in trouble", "", said(open + "received unexpected HTTP status: 503 Service Unavailable"), ostree.Retryable},
		{"too many", "", said(open + "toomanyrequests: You have reached your pull rate limit."), ostree.Retryable},
		{"no such tag", "", said(open + "reading manifest x in quay.io/os: manifest unknown"), ostree.Invalid},
		{"forbidden", "", said(open + "invalid status code from registry 403 (Forbidden)"), ostree.NeedsAdmin},
		{"certificate", "", said(open + "tls: failed to verify certificate: x509: certificate signed by unknown authority"), ostree.NeedsAdmin},
		{"policy without signatures", "", said("error: Switching: containers-policy.json specifies a default of " +
			"`insecureAcceptAnything`; refusing usage"), ostree.NeedsAdmin},
		{"unsigned", "", said(open + "A signature was required, but no signature exists"), ostree.Invalid},
		{"rejected", "", said(open + "Source image rejected: Running image docker://quay.io/os:9 is rejected by policy."), ostree.Invalid},
		{"no bootable image", "", said("error: Switching: Pulling: Target image does not have ostree.bootable label"), ostree.Invalid},
		{"full disk", "", said("error: Switching: Insufficient free space for quay.io/os (available: 1 GB required: 2 GB)"), ostree.NeedsAdmin},
		{"lock", "Waiting for sysroot lock...\n", said(""), ostree.Retryable},
		{"no bootc", "", &ostree.CommandError{Argv: []string{"bootc"}, Err: &exec.Error{Name: "bootc", Err: exec.ErrNotFound}}, ostree.NeedsAdmin},
		{"no bootc for systemd", "", func() error {
			_, err := (&ostree.Tools{Root: t.TempDir()}).In("x", systemd.Command{})(t.Context(), "bootc", "switch")
			return err
		}(), ostree.NeedsAdmin},
		{"stopped", "", &ostree.CommandError{Err: context.Canceled}, ostree.Retryable},
		{"anything else", "", said("error: Switching: something"), ostree.Failed},
		{"no tool's", "", errors.New("x"), ostree.Failed},
	} {
		if err := Failing("doing", []byte(c.output), c.err); ostree.ClassOf(err) != c.want {
			t.Errorf("%s: class %s: %v", c.name, ostree.ClassOf(err), err)
		}
	}
	if err := Failing("doing", nil, nil); err != nil {
		t.Errorf("no failure is %v", err)
	}
}
