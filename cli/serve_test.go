// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

func TestAServerEndsWithItsCauseAndFinishesItsAnswers(t *testing.T) {
	t.Parallel()
	cause := errors.New("the end")
	for what, c := range map[string]struct {
		leave time.Duration
		want  error // of the group
		text  string
	}{
		"an answer has the time to finish": {time.Hour, cause, "whole"},
		"an answer takes too long":         {time.Nanosecond, context.DeadlineExceeded, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			asked, goOn := make(chan struct{}), make(chan struct{})
			h := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				close(asked)
				<-goOn
				_, _ = io.WriteString(w, "whole")
			})}
			parent, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			group, ctx := errgroup.WithContext(parent)
			Serve(ctx, group, h, c.leave, func() error { return h.Serve(listener) })
			said := make(chan string, 1)
			go func() {
				answer, err := http.Get("http://" + listener.Addr().String())
				if err != nil {
					said <- err.Error()
					return
				}
				defer answer.Body.Close()
				text, _ := io.ReadAll(answer.Body)
				said <- string(text)
			}()
			<-asked
			stop(cause)
			if c.text != "" {
				close(goOn)
			} else {
				defer close(goOn)
			}
			if err := group.Wait(); !errors.Is(err, c.want) {
				t.Errorf("the server ends with %v, want %v", err, c.want)
			}
			if c.text != "" {
				if got := <-said; got != c.text {
					t.Errorf("the answer is %q", got)
				}
			}
		})
	}
}

func TestAServerThatCannotServeEndsTheGroup(t *testing.T) {
	t.Parallel()
	group, ctx := errgroup.WithContext(t.Context())
	broken := errors.New("the listener is gone")
	Serve(ctx, group, &http.Server{ReadHeaderTimeout: time.Minute}, time.Minute, func() error { return broken })
	if err := group.Wait(); !errors.Is(err, broken) {
		t.Error(err)
	}
}
