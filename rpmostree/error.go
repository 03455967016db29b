// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/ostree"
)

// failureKind is why a transaction was not done, as far as the next action depends on it.
type failureKind int

const (
	refused failureKind = iota // not done, and another attempt would not help
	network                    // may succeed later, when the network works better
	busy                       // another transaction, or another program, uses the sysroot
	lost                       // the daemon or the client went away: done, going on, or not begun
)

// knownFailures are the messages of rpm-ostree, of ostree and of the tools below them. The first match decides.
var knownFailures = []struct {
	trouble failureKind
	class   ostree.Class
	parts   []string
}{
	// The host is going down: the caller asks again after the boot.
	{refused, ostree.Retryable, []string{"Reboot initiated, cannot start new transaction"}},
	{busy, ostree.Retryable, []string{"Transaction in progress", "System transaction in progress"}},
	{network, ostree.Retryable, []string{
		"connection refused", "connection reset by peer", "no route to host", "network is unreachable", "i/o timeout",
		"no such host", "Temporary failure in name resolution", "server misbehaving", "TLS handshake timeout",
		"unexpected EOF", "context deadline exceeded", "Client.Timeout exceeded", "toomanyrequests",
		"Curl error (5)", "Curl error (6)", "Curl error (7)", "Curl error (18)", "Curl error (28)", "Curl error (35)",
		"Curl error (52)", "Curl error (55)", "Curl error (56)", "Curl error (92)",
		"Status code: 408", "Status code: 425", "Status code: 429",
		"Status code: 500", "Status code: 502", "Status code: 503", "Status code: 504",
		"408 Request Timeout", "429 Too Many Requests",
		"500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout",
	}},
	{lost, ostree.Retryable, []string{
		"org.freedesktop.DBus.Error.NoReply", "Message recipient disconnected", "Remote peer disconnected",
		"org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.ServiceUnknown",
		"Could not activate remote peer", "Failed to activate service", "Job for rpm-ostreed.service",
		"Failed to start rpm-ostreed", "Timeout was reached", "Bus owner changed, aborting",
		"Couldn't start daemon", "client disconnected before calling Start",
	}},
	{refused, ostree.NeedsAdmin, []string{
		"LockLayering=true",
		"Updates and deployments are driven by",
		"was not booted via libostree",
		"No space left on device", "would be exceeded, at least", "nsufficient free space",
		"unauthorized", "authentication required", //nolint:misspell // a registry's own word
		"requested access to the resource is denied", "(Forbidden)",
		"Unknown option", "Unknown command", "x509: ", "certificate",
	}},
	{refused, ostree.Invalid, []string{
		"Old and new refs are equal",
		"not found", "(Not Found)", "is already provided by", "is already requested", "No overrides for package",
		"Multiple packages match", "Could not depsolve transaction", "conflicting requests", "nothing provides",
		"manifest unknown", "name unknown", "invalid reference format", "No such branch", "Invalid refspec",
		"Invalid ref name", "No such metadata object", "Server returned HTTP 403", "Server returned HTTP 404",
		"Status code: 403", "Status code: 404",
		// What a signature policy reports about an image that lacks what the policy demands.
		"refusing usage", "Source image rejected", "signature was required", "cryptographic signature verification failed",
		"GPG signatures found, but none are in trusted keyring", "Can't check signature",
	}},
}

// importerSilent is how rpm-ostree reports a skopeo that did not start. It has no reason then.
const (
	importerSilent = "Creating importer: error"
	importerHint   = "rpm-ostree reads images with skopeo, as the user rpm-ostree; check that both exist, and that " +
		"the user may read the image"
)

// failing makes an Error of the error of a call of rpm-ostree, and returns what to do about it. The text is
// rpm-ostree's own line. Where that line is missing, the text is all that is known.
func failing(doing string, err error) (failureKind, error) {
	command, isCommand := errors.AsType[*ostree.CommandError](err)
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return refused, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return refused, &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: err}
	case !isCommand:
		return refused, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
	}
	if line := errorLine(command.Stderr); line != "" {
		err = &clientError{line: line, err: err}
	}
	text := command.Stderr
	if strings.HasSuffix(errorLine(text), importerSilent) {
		return refused, &ostree.Error{Class: ostree.NeedsAdmin, Doing: doing, Err: fmt.Errorf("%w: %s", err, importerHint)}
	}
	if ostree.NetworkTrouble(text) {
		return network, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	}
	for _, known := range knownFailures {
		if slices.ContainsFunc(known.parts, func(part string) bool { return strings.Contains(text, part) }) {
			return known.trouble, &ostree.Error{Class: known.class, Doing: doing, Err: err}
		}
	}
	if errorLine(text) == "" {
		// The client was killed or could not be started: a client that fails prints a line.
		return lost, &ostree.Error{Class: ostree.Retryable, Doing: doing, Err: err}
	}
	return refused, &ostree.Error{Class: ostree.Failed, Doing: doing, Err: err}
}

// clientError is an error of rpm-ostree in its own words.
type clientError struct {
	line string
	err  error
}

func (e *clientError) Error() string { return "rpm-ostree: " + e.line }
func (e *clientError) Unwrap() error { return e.err }

// errorLine returns the text after the last "error: " at the beginning of a line, with its white space as single
// spaces; "" without such a line. Where the client could not start the daemon, that line ends with an exit status and
// has no reason. The reason is in systemctl's lines before, so errorLine returns all lines.
func errorLine(stderr string) string {
	at := strings.LastIndex("\n"+stderr, "\nerror: ")
	if at < 0 {
		return ""
	}
	line := strings.Join(strings.Fields(stderr[at+len("error: "):]), " ")
	if strings.Contains(line, "exit status") {
		return strings.Join(strings.Fields(stderr), " ")
	}
	return line
}
