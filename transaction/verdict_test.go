// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/noderefit/noderefit/files"
)

var errNo = errors.New("no")

// answers is a check that gives these answers one after the other, and the last one for ever.
func answers(name string, patient bool, yes ...bool) Check {
	n := 0
	return Check{Name: name, Patient: patient, Run: func(context.Context) error {
		answer := yes[min(n, len(yes)-1)]
		n++
		if answer {
			return nil
		}
		return errNo
	}}
}

func TestVerdict(t *testing.T) {
	late := slices.Concat(make([]bool, 100), []bool{true}) // says no for a hundred rounds
	after := func(c Check) Check {
		c.After = BootCheck
		return c
	}
	started := false // a boot that takes its time, and a script that asks for what it starts
	slow := []Check{
		{Name: BootCheck, Patient: true, Run: func(context.Context) error {
			if started = time.Now().Second() > 30; started {
				return nil
			}
			return errNo
		}},
		after(Check{Name: "script", Run: func(context.Context) error {
			if started {
				return nil
			}
			return errNo
		}}),
	}
	made := false // something that is there only once a hook has run
	chain := []Check{
		answers(BootCheck, true, late...),
		after(Check{Name: "hook", Run: func(context.Context) error {
			made = true
			return nil
		}}),
		{Name: "service", After: "hook", Run: func(context.Context) error {
			if made {
				return nil
			}
			return errNo
		}},
	}
	for name, c := range map[string]struct {
		checks []Check
		limit  time.Duration
		good   bool
		within time.Duration
		says   string
	}{
		"what comes after what was not asked": {checks: chain, limit: time.Hour, good: true, within: time.Hour},
		"nothing to ask":                      {limit: time.Minute, good: true, within: soak},
		"all say yes, and still do":           {checks: []Check{answers("a", false, true), answers("b", true, true)}, limit: time.Minute, good: true, within: soak},
		"a service that dies just after":      {checks: []Check{answers("units", false, true, false)}, limit: time.Minute, within: 15 * time.Second, says: "units: no"},
		"a hiccup is asked again":             {checks: []Check{answers("a", false, false, true)}, limit: time.Minute, good: true, within: 6 * time.Second},
		"a clear no does not wait":            {checks: []Check{answers("script", false, false)}, limit: time.Hour, within: 10 * time.Second, says: "script: no"},
		"a late kubelet is waited for":        {checks: []Check{answers("kubelet", true, late...)}, limit: time.Hour, good: true, within: time.Hour},
		"but not for ever":                    {checks: []Check{answers("kubelet", true, false)}, limit: 10 * time.Minute, within: 10*time.Minute + time.Second, says: "deadline"},
		"what says yes too late is a no":      {checks: []Check{answers("kubelet", true, late...)}, limit: 10 * time.Second, within: 11 * time.Second, says: "kubelet: no"},
		"every no is told, not the first":     {checks: []Check{answers("one", false, false), answers("two", false, false)}, limit: time.Minute, within: 10 * time.Second, says: "two: no"},
		"scripts wait for the boot":           {checks: slow, limit: time.Hour, good: true, within: time.Minute},
		"and are asked then":                  {checks: []Check{answers(BootCheck, true, true), after(answers("script", false, false))}, limit: time.Hour, within: 10 * time.Second, says: "script: no"},
		"and at once without one":             {checks: []Check{after(answers("script", false, false))}, limit: time.Hour, within: 10 * time.Second, says: "script: no"},
		"patience with one, not the other":    {checks: []Check{answers("kubelet", true, false), answers("script", false, false)}, limit: time.Hour, within: 10 * time.Second, says: "script: no"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				err := Verdict(t.Context(), c.checks, began.Add(c.limit), func(string, string) {})
				if took := time.Since(began); took > c.within {
					t.Errorf("took %s", took)
				}
				if (err == nil) != c.good {
					t.Fatalf("verdict %v", err)
				}
				if err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("it says %q", err)
				}
			})
		})
	}
}

// Some checks compare all bytes of a configuration. Another check that takes its time does not multiply that work.
func TestAYesCountsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		dear := Check{Name: "configuration", Run: func(context.Context) error {
			asked++
			return nil
		}}
		late := answers("kubelet", true, append(make([]bool, 20), true)...)
		began := time.Now()
		err := Verdict(t.Context(), []Check{dear, late}, began.Add(time.Hour), func(string, string) {})
		if most := int(time.Since(began)/soak) + 1; err != nil || asked < 2 || asked > most {
			t.Errorf("asked %d times, more than %d, %v", asked, most, err)
		}
	})
}

func TestCheckScripts(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string, perm os.FileMode) {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), perm)); err != nil {
			t.Fatal(err)
		}
	}
	put("/etc/greenboot/check/required.d/10-good", "#!/bin/sh\nexit 0\n", 0o755)
	put("/etc/greenboot/check/required.d/20-bad.sh", "#!/bin/sh\necho first\necho the disk is gone >&2\nexit 3\n", 0o644)
	put("/etc/greenboot/check/required.d/README", "not a script", 0o644)
	put("/usr/lib/greenboot/check/required.d/00-vendor", "#!/bin/sh\nexit 0\n", 0o755)
	put("/etc/greenboot/check/wanted.d/10-wish", "#!/bin/sh\necho would be nice\nexit 1\n", 0o755)
	root, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	var said []string
	noted := map[string]string{}
	checks, err := Scripts(root, func(_, what string) { said = append(said, what) }, func(script string, no error) {
		noted[script] = fmt.Sprint(no)
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, c := range checks {
		text := "yes"
		if err := c.Run(t.Context()); err != nil {
			text = err.Error()
		}
		got[strings.TrimPrefix(c.Name, "check script ")] = text
	}
	want := map[string]string{
		"/etc/greenboot/check/required.d/10-good":       "yes",
		"/etc/greenboot/check/required.d/20-bad.sh":     "exit status 3: the disk is gone",
		"/usr/lib/greenboot/check/required.d/00-vendor": "yes",
		"/etc/greenboot/check/wanted.d/10-wish":         "yes",
	}
	equal(t, got, want)
	equal(t, noted, map[string]string{
		"/etc/greenboot/check/required.d/10-good":       "<nil>",
		"/etc/greenboot/check/required.d/20-bad.sh":     "exit status 3: the disk is gone",
		"/usr/lib/greenboot/check/required.d/00-vendor": "<nil>",
		"/etc/greenboot/check/wanted.d/10-wish":         "exit status 1: would be nice",
	})
	if len(said) != 1 || !strings.Contains(said[0], "would be nice") {
		t.Errorf("said %q", said)
	}
}

func TestScriptThatHangsIsEndedWithItsChildren(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "/etc/greenboot/check/required.d/10-hang")
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755),
		os.WriteFile(at, []byte("#!/bin/sh\nsleep 1000 &\nwait\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	root, err := files.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	checks, err := Scripts(root, func(string, string) {}, func(string, error) {})
	if err != nil || len(checks) != 1 {
		t.Fatal(checks, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := checks[0].Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestWhatTheDeadlineCutsShortDoesNotHideWhatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		slow := Check{Name: "slow", Patient: true, Run: func(ctx context.Context) error {
			if asked++; asked == 1 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		bad := Check{Name: "node", Patient: true, Run: func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return errors.New("the pod is not ready")
		}}
		err := Verdict(t.Context(), []Check{slow, bad}, time.Now().Add(3*time.Second), func(string, string) {})
		if err == nil || asked != 2 || !strings.Contains(err.Error(), "the pod is not ready") ||
			!strings.Contains(err.Error(), "by the deadline") {
			t.Errorf("asked %d times, %v", asked, err)
		}
	})
}
