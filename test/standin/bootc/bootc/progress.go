// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"syscall"

	"github.com/spf13/cobra"
)

// progress is where bootc writes what it has done, nil for nowhere.
var progress *os.File

// tellProgress gives a command the option of progress, which its help does not show.
func tellProgress(cmd *cobra.Command) {
	const name = "progress-fd"
	fd := cmd.Flags().Uint32(name, 0, "")
	if err := cmd.Flags().MarkHidden(name); err != nil {
		panic(err) // the flag is there
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed(name) {
			return run(cmd, args)
		}
		if *fd <= 2 {
			return failf("invalid value '%d' for '--progress-fd <PROGRESS_FD>': Cannot use fd %[1]d for progress JSON", *fd)
		}
		progress = os.NewFile(uintptr(*fd), name)
		info, err := progress.Stat()
		if err != nil {
			return err
		}
		if info.Mode()&os.ModeNamedPipe == 0 {
			return errors.New("not a pipe")
		}
		// Its children do not have it.
		syscall.CloseOnExec(int(*fd))
		tell(map[string]any{"type": "Start", "version": "0.1.0"})
		return run(cmd, args)
	}
}

// tell writes an event. From the first that can't be written on nothing is.
func tell(event map[string]any) {
	if progress == nil {
		return
	}
	line, err := json.Marshal(event)
	if err == nil {
		_, err = progress.Write(append(line, '\n'))
	}
	if err != nil {
		os.Stderr.WriteString("Failed to write to jsonl: " + err.Error() + "\n")
		progress = nil
	}
}

// pulling is how far the layer of an image has come, which has 0 or 1 of itself.
func pulling(digest string, layer descriptor, done int) map[string]any {
	return map[string]any{"type": "ProgressBytes", "task": "pulling", "description": "Pulling Image: " + digest,
		"id": digest, "bytesCached": 0, "bytes": done * layer.Size, "bytesTotal": layer.Size,
		"stepsCached": 0, "steps": done, "stepsTotal": 1, "subtasks": []map[string]any{{"subtask": "ostree_chunk",
			"description": "ostree chunk: " + layer.Digest, "id": layer.Digest, "bytesCached": 0,
			"bytes": done * layer.Size, "bytesTotal": layer.Size}}}
}

// steps is how many of the subtasks of a task are done.
func steps(task, description, digest string, done int, subtasks ...string) map[string]any {
	var list []map[string]any
	for i, name := range subtasks[:min(done+1, len(subtasks))] {
		list = append(list, map[string]any{"subtask": name, "description": described[name], "id": name,
			"completed": i < done})
	}
	return map[string]any{"type": "ProgressSteps", "task": task, "description": description, "id": digest,
		"stepsCached": 0, "steps": done, "stepsTotal": len(subtasks), "subtasks": list}
}

// described are the subtasks in words.
var described = map[string]string{"importing": "Importing Image", "merging": "Merging Image",
	"deploying": "Deploying Image", "bound_images": "Pulling Bound Images"}

func staging(digest string, done int) map[string]any {
	return steps("staging", "Deploying Image", digest, done, "merging", "deploying", "bound_images")
}
