// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/ostree"
)

// credentialTexts are the answers of a registry that does not know the caller, or refuses the caller an image.
var credentialTexts = []string{
	"unauthorized", "authentication required", //nolint:misspell // a registry's own word
	"requested access to the resource is denied", "403 (Forbidden)", "403 Forbidden",
}

// knownFailures are messages of bootc, of skopeo, which bootc calls, and of registries. The first text that fits
// decides.
var knownFailures = []struct {
	class ostree.Class
	parts []string
}{
	{ostree.NeedsAdmin, credentialTexts},
	{ostree.NeedsAdmin, []string{lostLayerText}},
	{ostree.NeedsAdmin, []string{
		"local rpm-ostree modifications", "requires a booted host system", "requires full root privileges",
		"No space left on device", "no space left on device", "Insufficient free space", "would be exceeded, at least",
		"x509: ", "refusing usage", "bootc: not found",
	}},
	{ostree.Invalid, []string{
		"manifest unknown", "name unknown", "404 (Not Found)", "invalid reference format", "no such file or directory",
		"does not resolve to an image ID", "no image found in", "does not have ostree.bootable label",
		// Messages about a signature policy.
		"Source image rejected", "signature was required", "cryptographic signature verification failed",
		"Cannot currently verify layered containers via ostree remote",
	}},
	{ostree.Retryable, []string{
		"connection refused", "connection reset by peer", "no route to host", "network is unreachable", "i/o timeout",
		"no such host", "Temporary failure in name resolution", "server misbehaving", "TLS handshake timeout",
		"unexpected EOF", ": EOF", "Client.Timeout exceeded", "context deadline exceeded", "retryable error: ",
		"toomanyrequests", "408 Request Timeout", "429 Too Many Requests", "500 Internal Server Error", "502 Bad Gateway",
		"503 Service Unavailable", "504 Gateway Timeout", "received unexpected HTTP status: 5",
	}},
}

// lostLayerText is what bootc says of a deployment whose first layer is gone, whatever it was asked for.
const lostLayerText = "Missing base image ref"

// WithHint adds to a failure what the host's files have about credentials for the image, if credentials were the cause.
func WithHint(err error, image Image, read func(path string) ([]byte, error)) error {
	typed, ok := errors.AsType[*ostree.Error](err)
	text := err.Error()
	if !ok || !slices.ContainsFunc(credentialTexts, func(part string) bool { return strings.Contains(text, part) }) {
		return err
	}
	hint := credentialsHint(image, read)
	if hint == "" {
		return err
	}
	return &ostree.Error{Class: typed.Class, Doing: typed.Doing, Err: fmt.Errorf("%w; %s", typed.Err, hint)}
}

// Failing makes an Error of a tool's error, as ostree.Failing does. Failing knows the messages of bootc as well.
func Failing(doing string, output []byte, err error) error {
	command, ok := errors.AsType[*ostree.CommandError](err)
	if !ok || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return ostree.Failing(doing, output, err)
	}
	if errors.Is(err, exec.ErrNotFound) {
		return &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: err}
	}
	for _, known := range knownFailures {
		if slices.ContainsFunc(known.parts, func(part string) bool { return strings.Contains(command.Stderr, part) }) {
			if strings.Contains(command.Stderr, lostLayerText) {
				err = fmt.Errorf("%w; bootc works again once the deployment that it names is gone: `ostree admin status` lists "+
					"it, `ostree admin undeploy NUMBER` removes it", err)
			}
			return &ostree.Error{Class: known.class, Doing: doing, Err: err}
		}
	}
	if bytes.HasSuffix(bytes.TrimSpace(output), []byte(ostree.WaitingForLock+"...")) {
		return &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	}
	return ostree.Failing(doing, output, err)
}
