// SPDX-License-Identifier: Apache-2.0

// Command pod is the one program of the images of the tests: the sandbox of each pod, and pods that take their time to
// end.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	linger := flag.Duration("linger", 0, "how long to go on after the signal to end")
	note := flag.String("note", "", "a file that gets a line when the program starts, gets the signal, and ends")
	hold := flag.String("hold", "", "a file that is held open")
	say := flag.String("say", "", "a line for the note; the program says it, waits for -linger, and ends")
	flag.Parse()
	if err := run(*linger, *note, *hold, *say); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(linger time.Duration, note, hold, say string) error {
	tell := func(what string) error {
		fmt.Fprintln(os.Stdout, what)
		if note == "" {
			return nil
		}
		file, err := os.OpenFile(note, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(file, what)
		if err != nil {
			return err
		}
		return file.Close()
	}
	if say != "" {
		if err := tell(say); err != nil {
			return err
		}
		<-time.After(linger)
		return nil
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	if hold != "" {
		file, err := os.Create(hold)
		if err != nil {
			return err
		}
		defer file.Close()
	}
	if err := tell("started"); err != nil {
		return err
	}
	reap()
	<-ended
	if err := tell("asked to end"); err != nil {
		return err
	}
	<-time.After(linger)
	return tell("ended")
}

// reap reaps the children that become those of the first process.
func reap() {
	dead := make(chan os.Signal, 16)
	signal.Notify(dead, syscall.SIGCHLD)
	go func() {
		for range dead {
			for {
				var status syscall.WaitStatus
				if pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}()
}
