// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"testing"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/transaction"
)

func TestAHostRefusesContentThatFailedWhateverItsName(t *testing.T) {
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	failed := transaction.Quarantined{Config: "bad", Digest: "b", Reason: "kubelet", Since: time.Unix(0, 0)}
	for name, c := range map[string]struct {
		committed *transaction.Revision
		config    machineconfig.Config
		refused   bool
	}{
		"the same":                {nil, machineconfig.Config{Name: "bad", Digest: "b"}, true},
		"under another name":      {nil, machineconfig.Config{Name: "good", Digest: "b"}, true},
		"other content, its name": {nil, machineconfig.Config{Name: "bad", Digest: "c"}, false},
		"what the host is on": {
			&transaction.Revision{Config: "bad", Digest: "b"}, machineconfig.Config{Name: "bad", Digest: "b"}, false,
		},
		"what the host is on, unproved": {
			&transaction.Revision{Config: "bad", Digest: "b", Unproved: true},
			machineconfig.Config{Name: "bad", Digest: "b"}, true,
		},
	} {
		r := &transaction.Record{Committed: c.committed, Quarantined: []transaction.Quarantined{failed}}
		err := (&Host{root: root}).refuse(t.Context(), &attempt{record: r, cfg: &c.config})
		if _, is := errors.AsType[*UnreachableError](err); is != c.refused || (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
