// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/contents"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/transaction"
)

// The record doesn't know the configuration of an apply until that is committed, and the apply needs its contents.
func TestStageSparesTheContentsOfAnApplyAtWork(t *testing.T) {
	dir := t.TempDir()
	first, second := openTree(t, dir), openTree(t, dir)
	kept := contents.Dir + "/sha256-" + strings.Repeat("b", 64)
	if err := first.root.MkdirAll(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := first.Lock(t.Context(), agent.ApplyVerb.Name); err != nil {
		t.Fatal(err)
	}
	stage := func() {
		t.Helper()
		a := &attempt{verb: agent.StageVerb.Name, record: &transaction.Record{}, cfg: nowhere(), options: ApplyOptions{SkipOS: true}}
		if err := second.fetchContents(ended(t), a); err == nil {
			t.Error("contents were fetched from nowhere")
		}
	}
	if stage(); !first.exists(kept) {
		t.Error("stage removed the contents of an apply that is at work")
	}
	first.unlock()
	if stage(); first.exists(kept) {
		t.Error("stage left contents that no configuration has")
	}
	if err := first.Lock(t.Context(), agent.ApplyVerb.Name); err != nil {
		t.Errorf("after stage: %v", err)
	}
}

// A fetch appends to the file that another fetch of the same contents may be writing.
func TestRepairFetchesNothingWhileAnotherStages(t *testing.T) {
	dir := t.TempDir()
	first, second := openTree(t, dir), openTree(t, dir)
	release, err := first.lockStaging(t.Context(), agent.StageVerb.Name, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := second.fetch(ended(t), agent.RepairVerb.Name, nowhere()); !isRefused(err) {
		t.Errorf("while another process stages: %v", err)
	}
}

// nowhere is a configuration whose contents are nowhere.
func nowhere() *machineconfig.Config {
	return &machineconfig.Config{Name: configB, Digest: digestOfB, Files: []machineconfig.File{{Path: "/etc/c",
		Reference: &machineconfig.Reference{Source: "https://127.0.0.1:1/c", Hash: "sha256-" + strings.Repeat("c", 64)}}}}
}

func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
