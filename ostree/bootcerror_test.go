// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"github.com/noderefit/noderefit/systemd"
)

var errStatusI = errors.New("exit status 1")

func TestFailureOfBootcIsClassed(t *testing.T) {
	const open = "error: Switching: Pulling: Creating importer: failed to invoke method OpenImage: "
	said := func(stderr string) error { return &CommandError{Stderr: stderr, Err: errStatusI} }
	for _, c := range []struct {
		name   string
		output string
		err    error
		want   Class
	}{
		{"name server", "", said(open + "dial tcp: lookup quay.io on [::1]:53: no such host"), Retryable},
		{"broken off", "", said("error: Switching: Pulling: Importing: Unencapsulating base: unexpected EOF"), Retryable},
		{"server in trouble", "", said(open + "received unexpected HTTP status: 503 Service Unavailable"), Retryable},
		{"too many", "", said(open + "toomanyrequests: You have reached your pull rate limit."), Retryable},
		{"no such tag", "", said(open + "reading manifest x in quay.io/os: manifest unknown"), Invalid},
		{"forbidden", "", said(open + "invalid status code from registry 403 (Forbidden)"), NeedsAdmin},
		{"certificate", "", said(open + "tls: failed to verify certificate: x509: certificate signed by unknown authority"), NeedsAdmin},
		{"policy without signatures", "", said("error: Switching: containers-policy.json specifies a default of " +
			"`insecureAcceptAnything`; refusing usage"), NeedsAdmin},
		{"unsigned", "", said(open + "A signature was required, but no signature exists"), Invalid},
		{"rejected", "", said(open + "Source image rejected: Running image docker://quay.io/os:9 is rejected by policy."), Invalid},
		{"no bootable image", "", said("error: Switching: Pulling: Target image does not have ostree.bootable label"), Invalid},
		{"full disk", "", said("error: Switching: Insufficient free space for quay.io/os (available: 1 GB required: 2 GB)"), NeedsAdmin},
		{"lock", "Waiting for sysroot lock...\n", said(""), Retryable},
		{"no bootc", "", &CommandError{Argv: []string{"bootc"}, Err: &exec.Error{Name: "bootc", Err: exec.ErrNotFound}}, NeedsAdmin},
		{"no bootc for systemd", "", func() error {
			_, err := (&Tools{Root: t.TempDir()}).in("x", systemd.Command{})(t.Context(), "bootc", "switch")
			return err
		}(), NeedsAdmin},
		{"stopped", "", &CommandError{Err: context.Canceled}, Retryable},
		{"anything else", "", said("error: Switching: something"), Failed},
		{"no tool's", "", errors.New("x"), Failed},
	} {
		if err := bootcFailing("doing", []byte(c.output), c.err); ClassOf(err) != c.want {
			t.Errorf("%s: class %s: %v", c.name, ClassOf(err), err)
		}
	}
	if err := bootcFailing("doing", nil, nil); err != nil {
		t.Errorf("no failure is %v", err)
	}
}
