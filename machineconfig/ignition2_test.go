// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"errors"
	"slices"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/coreos/vcontext/path"
	"github.com/coreos/vcontext/report"
)

func TestErrorsOfIgnition2NameTheirField(t *testing.T) {
	for name, c := range map[string]struct{ raw, want string }{
		"a field too far left, as YAML has it": {`{"ignition":{"version":"2.2.0"},"storage":{"files":[
			{"filesystem":"root","path":"/etc/a","mode":420},
			{"contents":{"source":"data:,a"}}
		], "directories": [{"filesystem":"root","path":"/x"}]}}`,
			"storage.files[1].filesystem: no filesystem specified\nstorage.files[1].path: path not absolute"},
		"a link": {`{"ignition":{"version":"2.2.0"},"storage":{"links":[{"filesystem":"root","path":"x","target":"/y"}]}}`,
			"storage.links[0].path (x): path not absolute"},
		"a mode": {`{"ignition":{"version":"2.2.0"},"storage":{"files":[{"filesystem":"root","path":"/etc/a","mode":420000}]}}`,
			"storage.files[0].mode (/etc/a): illegal file mode"},
		"a unit": {`{"ignition":{"version":"2.2.0"},"systemd":{"units":[{"name":"a.service","contents":"[Unit"},{"name":"b"}]}}`,
			"systemd.units[0].contents (a.service): invalid unit content: unable to find end of section\n" +
				"systemd.units[1].name (b): invalid systemd unit extension"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := convertIgnition2([]byte(c.raw), offered)
			if err == nil {
				t.Fatal("it is taken")
			}
			if got := err.Error(); got != c.want {
				t.Errorf("error is\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestWarningsDoNotShowTheInternalsOfIgnition(t *testing.T) {
	var rpt report.Report
	at := path.New("json", "storage", "files", 0, "contents")
	rpt.AddOnWarn(at, errors.New("context tree does not match content tree at "+at.String()+". Line and column reporting "+
		"may be inconsistent. Unused keys may not be reported"))
	rpt.AddOnWarn(path.New("json", "storage", "files", 0, "mode"), errors.New("unused key"))
	warnings, err := judge(&types.Config{}, rpt, nil, offered)
	if want := []string{"storage.files[0].mode: there is no such field; did you mean mode?"}; err != nil || !slices.Equal(warnings, want) {
		t.Errorf("warnings are %q, want %q; %v", warnings, want, err)
	}
}
