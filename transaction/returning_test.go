// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"testing"
	"time"
)

func TestReturnIsTheUpdatesUntilItIsOver(t *testing.T) {
	t.Parallel()
	e := &Engine{Root: inMemory(t), Now: time.Now, Say: func(string, string) {},
		Deployments: &restless{shelf: &shelf{{ID: "B", Booted: true, Default: true}, {ID: "A"}}}}
	r := &Record{Committed: &Revision{Config: "b", Deployment: "B"}, Previous: &Revision{Config: "a", Deployment: "A"}}
	if err := e.Root.MkdirAll(StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := e.Return(t.Context(), r, "A"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, booted, next, keeps string
	}{
		{"before the reboot", "B", "A", "A"},
		{"the default was not changed", "B", "B", ""},
		{"the committed one is gone back to", "A", "A", ""},
	} {
		now, err := e.store().Load()
		if err != nil || now.Returning != "A" {
			t.Fatalf("%s: %+v, %v", c.name, now, err)
		}
		if err := e.stays(t.Context(), now, situation{Booted: c.booted, Default: c.next}); err != nil || now.Returning != c.keeps {
			t.Errorf("%s: %q, %v", c.name, now.Returning, err)
		}
		if kept, err := e.store().Load(); err != nil || kept.Returning != c.keeps {
			t.Errorf("%s: on the disk %+v, %v", c.name, kept, err)
		}
		if err := e.store().save(r); err != nil {
			t.Fatal(err)
		}
	}
	ds, err := e.Deployments.Status(t.Context())
	if err != nil || !ds[1].Default {
		t.Errorf("%+v, %v", ds, err)
	}
}
