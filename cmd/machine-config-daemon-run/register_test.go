// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestTheFirstAndTheLastFailureToRegisterAreLogged(t *testing.T) {
	for _, c := range []struct {
		what                string
		fails, tries, lines int
	}{
		{"a host that takes the agent", 0, 1, 0},
		{"a host that is slow to start", 2, 3, 1},
		{"a host that knows no drivers", registerTries, registerTries, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			core, seen := observer.New(zapcore.WarnLevel)
			tries, began := 0, time.Now()
			register(t.Context(), func(context.Context) error {
				if tries++; tries > c.fails {
					return nil
				}
				return errors.New("busy")
			}, zap.New(core))
			if took := time.Since(began); tries != c.tries || seen.Len() != c.lines || took != time.Duration(c.tries-1)*registerPause {
				t.Errorf("%s: %d attempts in %s, and %v", c.what, tries, took, seen.All())
			}
		})
	}
}
