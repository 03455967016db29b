// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
)

func TestWhatAConfigurationHasElseThanTheMachineWasMadeWith(t *testing.T) {
	const sdb, sdc = `{"device":"/dev/sdb"}`, `{"device":"/dev/sdc","wipeTable":true}`
	long := `{"device":"/dev/` + strings.Repeat("ö", 3000) + `"}`
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf(`{"device":"/dev/disk/by-id/%032d"}`, i))
	}
	for what, c := range map[string]struct{ field, made, wanted, diff string }{
		"the same":            {"storage.disks", "[" + sdb + "]", "[" + sdb + "]", ""},
		"added":               {"storage.disks", "", "[" + sdb + "]", "+ " + sdb},
		"removed":             {"storage.raid", "[" + sdb + "]", "", "- " + sdb},
		"one of two":          {"storage.disks", "[" + sdb + "]", "[" + sdb + "," + sdc + "]", "+ " + sdc},
		"changed":             {"storage.filesystems", "[" + sdb + "]", "[" + sdc + "]", "- " + sdb + "\n+ " + sdc},
		"a key":               {"storage.luks", `[{"keyFile":{"source":"data:,a"}}]`, `[{"keyFile":{"source":"data:,b"}}]`, "- {\"keyFile\":\"(not shown)\"}\n+ {\"keyFile\":\"(not shown)\"}"},
		"not of the disks":    {"passwd.groups", "", `[{"name":"a"}]`, ""},
		"longer than allowed": {"storage.disks", "", "[" + strings.Join(many, ",") + "]", "…"},
		"one long entry":      {"storage.disks", "", "[" + long + "]", "…"},
	} {
		side := func(text string) map[string]json.RawMessage {
			if text == "" {
				return nil
			}
			return map[string]json.RawMessage{c.field: json.RawMessage(text)}
		}
		got := Compare(side(c.made), side(c.wanted))
		if c.diff == "…" {
			if len(got) != 1 || len(got[0].Diff) > 4096 ||
				!strings.Contains(got[0].Diff, "…") && !strings.HasSuffix(got[0].Diff, "more") {
				t.Errorf("%s: %d bytes: %+v", what, len(got[0].Diff), got)
			}
			continue
		}
		var want []Difference
		if c.diff != "" {
			want = []Difference{{c.field, c.diff}}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
}

type disk map[string]string

func (d disk) ReadFile(name string) ([]byte, error) {
	text, ok := d[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return []byte(text), nil
}

func (disk) MkdirAll(string, uint32) error { return nil }

func (d disk) WriteRecord(name string, data []byte, _ uint32) error {
	d[name] = string(data)
	return nil
}

func TestWhatAMachineWasMadeWithIsKept(t *testing.T) {
	with := func(device string) *machineconfig.Config {
		return &machineconfig.Config{Provision: map[string]json.RawMessage{
			"storage.disks": json.RawMessage(`[{"device":"` + device + `"}]`), "passwd.groups": json.RawMessage(`[]`)}}
	}
	const fromOpenShift = `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"m"},
		"spec":{"config":{"ignition":{"version":"3.4.0"},"storage":{"disks":[{"device":"/dev/ocp"}]}}}}`
	for what, c := range map[string]struct {
		host      disk
		old, next *machineconfig.Config
		want      string
	}{
		"no configuration":            {disk{}, nil, with("/dev/b"), ""},
		"the same again":              {disk{}, with("/dev/a"), with("/dev/a"), ""},
		"the first that differs":      {disk{}, with("/dev/a"), with("/dev/b"), `{"storage.disks":[{"device":"/dev/a"}]}`},
		"a later one":                 {disk{"/kept": "{}"}, with("/dev/a"), with("/dev/b"), "{}"},
		"a node of OpenShift":         {disk{installed: fromOpenShift}, with("/dev/a"), with("/dev/b"), `{"storage.disks":[{"device":"/dev/ocp"}]}`},
		"a file that is no document":  {disk{installed: "x"}, with("/dev/a"), with("/dev/b"), `{"storage.disks":[{"device":"/dev/a"}]}`},
		"a configuration of no disks": {disk{}, &machineconfig.Config{}, with("/dev/b"), "{}"},
	} {
		if err := KeepBefore(c.host, "/kept", c.old, c.next); err != nil || c.host["/kept"] != c.want {
			t.Errorf("%s: %v, kept %s", what, err, c.host["/kept"])
		}
	}
	machine := disk{"/kept": "{}"}
	if err := Keep(machine, "/kept", with("/dev/a")); err != nil || machine["/kept"] != `{"storage.disks":[{"device":"/dev/a"}]}` {
		t.Errorf("a machine that is made anew: %v, kept %s", err, machine["/kept"])
	}

	if got, err := Differing(disk{installed: fromOpenShift}, "/kept", with("/dev/a")); err != nil || len(got) != 1 {
		t.Errorf("a node of OpenShift: %+v, %v", got, err)
	}
	if got, err := Differing(disk{}, "/kept", with("/dev/a")); err != nil || got != nil {
		t.Errorf("nothing was kept: %+v, %v", got, err)
	}
	if got, err := Differing(disk{"/kept": `{}`}, "/kept", with("/dev/a")); err != nil || len(got) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Differing(disk{"/kept": `{`}, "/kept", with("/dev/a")); err == nil || !strings.Contains(err.Error(), "/kept") {
		t.Errorf("a damaged file: %v", err)
	}
}
