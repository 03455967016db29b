// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/transaction"
)

func TestErrorSurvivesTheWayBackToTheHead(t *testing.T) {
	plain := errors.New("reading /x: it is gone")
	drift := &host.DriftError{Config: "a",
		Drift: []host.Drift{{Kind: "file", Path: "/etc/x", What: "mode", Expected: "0644", Found: "0600"}}}
	for _, err := range []error{
		plain,
		&host.Refused{Err: plain},
		fmt.Errorf("staging: %w", &host.Refused{Err: plain}),
		&host.UnreachableError{Err: plain},
		drift,
		&transaction.BadConfig{Config: "b", Err: plain},
		&ostree.Error{Class: ostree.Retryable, Doing: "pulling", Err: plain},
	} {
		exit := host.ExitCode(err)
		data, wrong := json.Marshal(reportOf(exit, err))
		var r report
		if wrong = errors.Join(wrong, json.Unmarshal(data, &r)); wrong != nil {
			t.Fatal(wrong)
		}
		got := r.err()
		if got == nil || got.Error() != err.Error() || host.ExitCode(got) != exit {
			t.Errorf("%T %v became %T %v", err, err, got, got)
			continue
		}
		if errors.As(err, new(*transaction.BadConfig)) != errors.As(got, new(*transaction.BadConfig)) ||
			ostree.ClassOf(err) != ostree.ClassOf(got) {
			t.Errorf("%T became %T", err, got)
		}
		if d, is := errors.AsType[*host.DriftError](got); errors.Is(err, drift) && (!is || !reflect.DeepEqual(d, drift)) {
			t.Errorf("%+v", got)
		}
	}
	if err := reportOf(0, nil).err(); err != nil {
		t.Error(err)
	}
}

func TestSameRequestIsKnownHoweverItIsWritten(t *testing.T) {
	doc := func(metadata, contents string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig",
"metadata":{"name":"a"%s},"spec":{"config":{"ignition":{"version":"3.2.0"},"storage":{"files":[
{"path":"/etc/x","contents":{"source":"data:%s"}}]}}}}`, metadata, contents)
	}
	a := noteOf(&Request{Name: "a", Config: doc("", ",x")})
	for what, r := range map[string]Request{
		"other metadata":         {Name: "a", Config: doc(`,"resourceVersion":"7"`, ",x")},
		"another way to say it":  {Name: "a", Config: doc("", ";base64,eA==")},
		"the same configuration": {Name: "a", Config: doc("", ",x")},
		"an order of what it is to be": {Name: "a", Config: doc("", ",x"),
			Order: &api.StageOrder{Config: "a", Digest: "x", IOWeight: 1, CPUWeight: 1}},
	} {
		if noteOf(&r) != a {
			t.Errorf("%s: is another request", what)
		}
	}
	for what, r := range map[string]Request{
		"other contents":  {Name: "a", Config: doc("", ",y")},
		"another name":    {Name: "b", Config: doc("", ",x")},
		"a policy":        {Name: "a", Config: doc("", ",x"), Policy: []byte("{}")},
		"a lift":          {Name: "a", Config: doc("", ",x"), Lift: true},
		"no document":     {Name: "a"},
		"a document of x": {Name: "a", Config: []byte("x")},
		"a floor":         {Name: "a", Config: doc("", ",x"), Order: &api.StageOrder{Config: "a", MinFreeMebibytes: 1}},
	} {
		if noteOf(&r) == a {
			t.Errorf("%s: is the same request", what)
		}
	}
}

func TestWritingAPolicyAnewIsNoOtherRequest(t *testing.T) {
	note := func(policy string) note { return noteOf(&Request{Name: "a", Policy: []byte(policy)}) }
	const spec = `"nodeDisruptionPolicy":{"files":[{"path":"/etc/x","actions":[{"type":"None"}]}]}`
	a := note(`{"metadata":{"resourceVersion":"1"},"spec":{` + spec + `}}`)
	for what, policy := range map[string]string{
		"another version":      `{"metadata":{"resourceVersion":"2","managedFields":[{}]},"spec":{` + spec + `}}`,
		"a status":             `{"metadata":{},"spec":{` + spec + `},"status":{"observedGeneration":7}}`,
		"what no node reads":   `{"spec":{"logLevel":"Debug",` + spec + `}}`,
		"another way to write": `{"spec":{"nodeDisruptionPolicy":{"files":[{"actions":[{"type":"None"}],"path":"/etc/x"}]}}}`,
	} {
		if note(policy) != a {
			t.Errorf("%s: is another request", what)
		}
	}
	for what, policy := range map[string]string{
		"another action": `{"spec":{"nodeDisruptionPolicy":{"files":[{"path":"/etc/x","actions":[{"type":"Drain"}]}]}}}`,
		"an override":    `{"spec":{` + spec + `,"irreconcilableValidationOverrides":{"storage":["Disks"]}}}`,
		"none":           "",
		"no document":    "spec: {}",
	} {
		if note(policy) == a {
			t.Errorf("%s: is the same request", what)
		}
	}
}

func TestDocumentOfTheHeadIsGoneOnceItIsRead(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := filepath.Join(dir, "config.json"), filepath.Join(t.TempDir(), "config.json")
	for _, name := range []string{ours, theirs} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := &Handover{dir: dir}
	var nobody *Handover
	err := errors.Join(h.Taken(ours), h.Taken(ours), h.Taken(theirs), nobody.Taken(ours), nobody.Report(0, nil))
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(ours); !os.IsNotExist(err) {
		t.Error("it is still there")
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Error("a person's file is gone")
	}
}
