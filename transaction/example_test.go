// SPDX-License-Identifier: Apache-2.0

package transaction_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/transaction"
)

// An update of a tree is cut short right after its commit. The next start of the agent decides from the boot record, and
// finishes the update from the journal.
func ExampleEngine_Recover() {
	dir, err := os.MkdirTemp("", "tree")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	root, err := files.Open(dir)
	if err != nil {
		panic(err)
	}
	defer root.Close()
	store := transaction.NewStore(root)
	start := func() (*transaction.Engine, *transaction.Record) {
		record, err := store.Load()
		if err != nil {
			panic(err)
		}
		return &transaction.Engine{Root: root, BootID: "boot-1", Now: time.Now,
			Uptime: func() time.Duration { return time.Minute }, Say: func(string, string) {}}, record
	}

	engine, record := start()
	update := engine.NewLive(record, transaction.Update{
		Revision: transaction.Revision{Config: "rendered-worker-b", Digest: "b"},
		Document: []byte("{}"),
		Wants: []files.Want{{Path: "/etc/motd", Kind: "file",
			Node: files.Node{Type: files.Regular, Mode: 0o644, Data: []byte("hello\n")}}},
	}, transaction.RoadTree)
	if err := errors.Join(update.Stage(context.Background()), update.Commit(context.Background())); err != nil {
		panic(err)
	}
	_, err = os.Stat(filepath.Join(dir, "etc/motd"))
	fmt.Println("after the commit, the file is there:", err == nil)
	// The power fails here. Another process starts:
	engine, record = start()
	outcome, err := engine.Recover(context.Background(), record)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s: %s\n", outcome.Do, outcome.Why)
	_, err = os.Stat(filepath.Join(dir, "etc/motd"))
	fmt.Println("after recovery, the file is there:", err == nil)
	// Output:
	// after the commit, the file is there: false
	// roll forward: update to rendered-worker-b was interrupted after its commit
	// after recovery, the file is there: true
}
