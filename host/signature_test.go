// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/signature"
	"github.com/noderefit/noderefit/transaction"
)

// demanding is a host with a trust directory that has no key, so that it refuses all that it judges.
func demanding(t *testing.T) *Host {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, signature.Dir), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := files.OpenWritable(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return &Host{root: root, services: &services{}}
}

func TestWhatAHostHasAndTheWayBackNeedNoSignature(t *testing.T) {
	h, cfg := demanding(t), &machineconfig.Config{Name: "rendered-worker-b", Digest: "b"}
	at := func(digest string) *transaction.Revision { return &transaction.Revision{Digest: digest} }
	for name, c := range map[string]struct {
		attempt attempt
		refused bool
	}{
		"it has none":         {attempt{record: &transaction.Record{}}, true},
		"it has another":      {attempt{record: &transaction.Record{Committed: at("a")}}, true},
		"it had it before":    {attempt{record: &transaction.Record{Committed: at("a"), Previous: at("b")}}, true},
		"it has it":           {attempt{record: &transaction.Record{Committed: at("b")}}, false},
		"it goes there":       {attempt{record: &transaction.Record{Pending: &transaction.Pending{Revision: *at("b")}}}, false},
		"it goes to another":  {attempt{record: &transaction.Record{Pending: &transaction.Pending{Revision: *at("a")}}}, true},
		"a person rolls back": {attempt{record: &transaction.Record{Committed: at("a"), Previous: at("b")}, unasked: true}, false},
	} {
		c.attempt.cfg = cfg
		if _, is := errors.AsType[*UnreachableError](h.refuse(t.Context(), &c.attempt)); is != c.refused {
			t.Errorf("%s: refused: %t", name, is)
		}
	}
}

func TestAHostThatDemandsSignaturesRunsNoHookOfTheCluster(t *testing.T) {
	h := demanding(t)
	for _, when := range []api.HookWhen{api.HookBeforeDrain, api.HookAfterBoot} {
		doc := hooks.Document{Node: "n", Hooks: []api.Hook{{Name: "gate", NodeHookSpec: api.NodeHookSpec{When: when, Path: "/bin/gate"}}}}
		for what, err := range map[string]error{
			"before the drain": h.askBeforeDrain(t.Context(), &transaction.Record{}, "b", "b", doc),
			"for the boot":     h.keepHooks("b", doc),
		} {
			_, refused := errors.AsType[*Refused](err)
			no, is := errors.AsType[*hooks.Error](err)
			if !refused || !is || no.Hook != "NodeHook/gate" || no.Why != signature.NoHooks {
				t.Errorf("%s, %s: %v", when, what, err)
			}
		}
	}
	if err := errors.Join(h.root.Remove(signature.Dir), h.root.MkdirAll("/var/lib/machine-config-daemon", 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := h.keepHooks("b", hooks.Document{Node: "n", Hooks: []api.Hook{{Name: "gate"}}}); err != nil {
		t.Errorf("a host without the directory: %v", err)
	}
}
