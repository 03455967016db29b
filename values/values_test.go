// SPDX-License-Identifier: Apache-2.0

package values

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v2"
)

func TestAValueIsQuotedForWhereItStands(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		place             Place
		text, value, want string // want is "" where the value is refused
	}{
		"a host name in a file":        {File, "@{hostname:values/v}\n", "web-1.example.com", "web-1.example.com\n"},
		"a capital in a host name":     {File, "@{hostname:values/v}\n", "Web", ""},
		"a prefix in a file":           {File, "ip=@{prefix:values/v}", "10.0.0.7/24", "ip=10.0.0.7/24"},
		"no prefix":                    {File, "ip=@{prefix:values/v}", "10.0.0.7", ""},
		"an address":                   {File, "@{address:values/v}", "fd00::7", "fd00::7"},
		"an address with a zone":       {File, "@{address:values/v}", "fe80::1%eth0", ""},
		"a number":                     {File, "@{number:values/v}", "9000", "9000"},
		"a number with a plus":         {File, "@{number:values/v}", "+9", ""},
		"a word":                       {File, "@{word:values/v}", "rack-7/b", "rack-7/b"},
		"a word with a space":          {File, "@{word:values/v}", "a b", ""},
		"a word for a shell":           {File, "@{word:values/v}", "$(reboot)", ""},
		"a word that goes up":          {File, "@{word:values/v}", "a/../b", ""},
		"an option":                    {File, "@{word:values/v}", "-rf", ""},
		"a newline":                    {File, "@{word:values/v}", "a\nb", ""},
		"a NUL":                        {Unit, "Description=@{text:values/v}", "a\x00b", ""},
		"a path":                       {File, "@{path:values/v}", "/dev/disk/by-id/wwn-0x5", "/dev/disk/by-id/wwn-0x5"},
		"a path that is not clean":     {File, "@{path:values/v}", "/dev/../etc", ""},
		"one part of a path":           {Path, "/etc/@{word:values/v}.conf", "eth0", "/etc/eth0.conf"},
		"two parts of a path":          {Path, "/etc/@{word:values/v}.conf", "a/b", ""},
		"up in a path":                 {Path, "/etc/@{word:values/v}", "..", ""},
		"a specifier in a unit":        {Unit, "Description=@{text:values/v}\n", "50% done", "Description=50%% done\n"},
		"a variable in ExecStart":      {Unit, `ExecStart=/bin/echo "@{text:values/v}"`, "$HOME %h", `ExecStart=/bin/echo "$$HOME %%h"`},
		"two words in ExecStart":       {Unit, "ExecStart=/bin/echo @{text:values/v}", "a b", ""},
		"a quote in a unit":            {Unit, `Environment="A=@{text:values/v}"`, `a" B="c`, ""},
		"a line that goes on":          {Unit, "Description=@{text:values/v}\n", `a\`, ""},
		"an argument":                  {Argument, "ip=@{address:values/v}::", "10.0.0.7", "ip=10.0.0.7::"},
		"two arguments":                {Argument, "a=@{text:values/v}", "b init=/bin/sh", ""},
		"a quoted argument":            {Argument, `a="@{text:values/v}"`, "b c", `a="b c"`},
		"the end of a quoted argument": {Argument, `a="@{text:values/v}"`, `b" init=/bin/sh "`, ""},
		"a byte that parts arguments":  {Argument, "a=@{text:values/v}", "xàinit=/bin/sh", ""},
		"the end of the arguments":     {Argument, "@{text:values/v}", "--", ""},
		"an argument by a word":        {Argument, "@{word:values/v}", "init=/bin/sh", ""},
		"an argument by a host name":   {Argument, "@{hostname:values/v}", "rescue", ""},
		"a second argument":            {Argument, "a=1 @{word:values/v}", "init=/bin/sh", ""},
		"a part of a quoted argument":  {Argument, `a="1 @{word:values/v}"`, "b=c", `a="1 b=c"`},
		"a part of an argument's name": {Argument, "net.@{interface:values/v}.mtu=9", "eth0", "net.eth0.mtu=9"},
		"the name of a setting":        {Unit, "[Service]\n@{word:values/v}=/bin/true\n", "ExecStart", ""},
		"a whole setting":              {Unit, "[Service]\n@{word:values/v}\n", "ExecStart=/bin/sh", ""},
		"a comment in a unit":          {Unit, "# of @{hostname:values/v}\n", "a", "# of a\n"},
		"a line that went on":          {Unit, "ExecStart=/bin/echo \\\n \"A=@{text:values/v}\"\n", "$B", "ExecStart=/bin/echo \\\n \"A=$$B\"\n"},
		"the name of a key":            {KeyFile, "@{word:values/v}=1\n", "method", ""},
		"a key that is there":          {YAML, "a: 1\n\"@{word:values/v}\": 2\n", "a", ""},
		"a key file":                   {KeyFile, "id=@{text:values/v}\n", `a\b `, `id=a\\b\s` + "\n"},
		"a list in a key file":         {KeyFile, "addresses=@{text:values/v}\n", "a;b", ""},
		"a scalar of YAML":             {YAML, "ip: @{address:values/v}\n", "::1", "ip: \"::1\"\n"},
		"a number of YAML":             {YAML, "prefix-length: @{number:values/v}\n", "24", "prefix-length: 24\n"},
		"in quotes":                    {YAML, "a: \"x @{text:values/v}\"\n", `b" c: "d`, "a: \"x b\\\" c: \\\"d\"\n"},
		"in single quotes":             {YAML, "a: 'x @{text:values/v}'\n", `it's`, "a: 'x it''s'\n"},
		"a flow":                       {YAML, "a: [@{text:values/v}, 2]\n", "x, y", "a: [\"x, y\", 2]\n"},
		"a number that was a text":     {YAML, "a: 1@{number:values/v}\n", "2", ""},
		"a comment in plain YAML":      {YAML, "a: x @{text:values/v}\n", "b #c", ""},
		"a key in plain YAML":          {YAML, "a: x@{text:values/v}\n", "b: c", ""},
		"a key of YAML":                {YAML, "\"@{word:values/v}\": 1\n", "a", "\"a\": 1\n"},
		"YAML with an alias":           {YAML, "a: &b 1\nc: @{text:values/v}\n", "*b", "a: &b 1\nc: \"*b\"\n"},
		"JSON":                         {YAML, `{"a": "@{text:values/v}"}`, `"`, `{"a": "\""}`},
		"a block of YAML":              {YAML, "a: |\n  x @{text:values/v}\nb: 1\n", "y: z", "a: |\n  x y: z\nb: 1\n"},
		"a placeholder in a value":     {YAML, "a: @{text:values/v}\n", "@{hostname:name}", "a: \"@{hostname:name}\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Expand(c.text, c.place, map[string]string{"values/v": c.value})
			if c.want == "" && err == nil {
				t.Fatalf("%q was accepted: %q", c.value, got)
			}
			if c.want != "" && (err != nil || got != c.want) {
				t.Fatalf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestWhatAPlaceholderMayBe(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain":               "",
		"@@{not one}":         "",
		"@{hostname:name}":    "",
		"@{word:labels/rack}": "",
		"@{interface:host/interfaces/52:54:00:12:34:56}": "",
		"@{}":             "the type is none of address, hostname",
		"@{name}":         "the type is none of",
		"@{word:}":        "the key is no key",
		"@{word:labels/}": "the key is none of",
		"@{word:secret}":  "the key is none of name, zone, addresses/NAME",
		"@{word:na\nme}":  "has no end on its line",
		"@{word:name":     "has no end on its line",
		"@{text:name}":    "use the type word",
	} {
		_, err := In(text, File)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := In("@{text:name}=1\n", KeyFile); err == nil {
		t.Error("a text may be the name of a key")
	}
	got, err := Expand("@@{x} @{hostname:name}", File, map[string]string{"name": "a"})
	if err != nil || got != "@{x} a" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAllMissingValuesAreNamed(t *testing.T) {
	t.Parallel()
	_, err := Expand("@{word:zone} @{word:labels/b} @{word:labels/a} @{word:zone}", File, map[string]string{"labels/b": "x"})
	missing, is := errors.AsType[*MissingError](err)
	if !is || !slices.Equal(missing.Keys, []string{"labels/a", "zone"}) {
		t.Errorf("%v", err)
	}
}

func TestADigestIsOfWhatTheClusterTells(t *testing.T) {
	t.Parallel()
	one := Digest(map[string]string{"name": "a"})
	if len(one) != 8 || one != Digest(map[string]string{"name": "a", "host/interfaces/x": "eth0"}) ||
		one == Digest(map[string]string{"name": "b"}) || Digest(nil) != Digest(map[string]string{}) {
		t.Error(one)
	}
}

// FuzzExpand looks for a value that gets out of its place.
func FuzzExpand(f *testing.F) {
	for _, v := range []string{"a", "a\nb", `"`, "'", "x: y", "- a", "#", "$(x)", "%i", "\\", ";", "a b", "{{.}}", "@{word:name}",
		"../..", "\u2028", "*a", "!!int 1"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		given := map[string]string{"values/v": v}
		if out, err := Expand("a\n@{word:values/v}\nb", File, given); err == nil && strings.Count(out, "\n") != 2 {
			t.Errorf("file: %q", out)
		}
		if out, err := Expand("/etc/@{word:values/v}.d/x", Path, given); err == nil &&
			(strings.Count(out, "/") != 3 || slices.Contains(strings.Split(out, "/"), "..")) {
			t.Errorf("path: %q", out)
		}
		if out, err := Expand("a=@{text:values/v}", Argument, given); err == nil && len(strings.Fields(out)) != 1 {
			t.Errorf("argument: %q", out)
		}
		if out, err := Expand("[a]\nb=@{text:values/v}\n[c]\n", KeyFile, given); err == nil &&
			(strings.Count(out, "\n") != 3 || strings.Contains(out, ";")) {
			t.Errorf("key file: %q", out)
		}
		if out, err := Expand("[Unit]\nDescription=@{text:values/v}\n", Unit, given); err == nil &&
			(strings.Count(out, "\n") != 2 || strings.HasSuffix(out, "\\\n")) {
			t.Errorf("unit: %q", out)
		}
		for _, text := range []string{"a: @{text:values/v}\nb: 1\n", "a: \"@{text:values/v}\"\nb: 1\n",
			"a: '@{text:values/v}'\nb: 1\n", "a: x@{text:values/v}\nb: 1\n"} {
			out, err := Expand(text, YAML, given)
			if err != nil {
				continue
			}
			var read map[string]any
			if err := yaml.Unmarshal([]byte(out), &read); err != nil || len(read) != 2 ||
				strings.TrimPrefix(read["a"].(string), "x") != strings.TrimPrefix(v, "x") &&
					read["a"] != "x"+v {
				t.Errorf("YAML: %q: %v, %v", out, read, err)
			}
		}
	})
}
