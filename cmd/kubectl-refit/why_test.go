// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/cli"
)

func TestAReasonThatIsTooLongIsRefusedBeforeAnythingIsAsked(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"approve", "worker"}, {"bypass", "worker"}} {
		cmd := root()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append(args, "--kubeconfig", "/nowhere", "--why", strings.Repeat("x", 501)))
		err := cmd.Execute()
		if _, usage := errors.AsType[cli.UsageError](err); !usage || !strings.Contains(err.Error(), "--why: 501 bytes") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
