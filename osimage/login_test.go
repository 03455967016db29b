// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"encoding/base64"
	"io/fs"
	"strings"
	"testing"
)

func TestCredentialsAreThoseOfTheLongestName(t *testing.T) {
	t.Parallel()
	auth := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	files := map[string]string{KubeletAuthPath: `{"auths":{"quay.io":{"auth":"` + auth("all:1") + `"},
		"quay.io/team":{"auth":"` + auth("team:2:3") + `"},"https://index.docker.io/v1/":{"auth":"` + auth("hub:4") + `"},
		"https://registry.example.com:5000/":{"username":"u","password":"p"},"quay.io/team/none":{}}}`}
	read := func(path string) ([]byte, error) {
		if text, is := files[path]; is {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}
	for repository, want := range map[string]string{
		"quay.io/other/a":             "all 1",
		"quay.io/team/a":              "team 2:3",
		"quay.io/team/none":           "team 2:3",
		"quay.io/teams/a":             "all 1",
		"docker.io/library/a":         "hub 4",
		"registry.example.com:5000/x": "u p",
		"registry.example.com/x":      " ",
		"my.quay.io/team/a":           " ",
	} {
		for name, login := range map[string]func(func(string) ([]byte, error), string) (string, string, error){
			"the kubelet's": KubeletLogin, "the host's": Login,
		} {
			if user, password, err := login(read, repository); err != nil || user+" "+password != want {
				t.Errorf("%s: %s: %s %s, %v", repository, name, user, password, err)
			}
		}
	}
	for _, c := range []struct{ keys, repository, kubelet, tools string }{
		{"https://quay.io/team", "quay.io/team/a", "https://quay.io/team", "https://quay.io/team"},
		{"https://quay.io/team", "quay.io/other/a", "", "https://quay.io/team"},
		{"quay.io https://quay.io/team", "quay.io/team/a", "https://quay.io/team", "quay.io"},
		{"quay.io https://quay.io/team", "quay.io/other/a", "quay.io", "quay.io"},
		{"http://quay.io https://quay.io https://quay.io/v2/", "quay.io/a", "http://quay.io", "http://quay.io"},
		{"https://quay.io quay.io", "quay.io/a", "quay.io", "quay.io"},
		{"r.example.com:5000/", "r.example.com:5000/a", "r.example.com:5000/", ""},
		{"r.example.com/team/", "r.example.com/team/a", "r.example.com/team/", ""},
		{"r.example.com/v2/", "r.example.com/a", "r.example.com/v2/", "r.example.com/v2/"},
		{"https://r.example.com/v1/team", "r.example.com/team/a", "https://r.example.com/v1/team",
			"https://r.example.com/v1/team"},
		{"https://r.example.com/v1/team", "r.example.com/a", "", "https://r.example.com/v1/team"},
		{"https://index.docker.io/v1/ docker.io", "docker.io/a/b", "docker.io", "docker.io"},
		{"index.docker.io", "docker.io/a/b", "index.docker.io", ""},
		{"*.example.com r.example.com", "r.example.com/a", "r.example.com", "r.example.com"},
		{"*.example.com", "r.example.com/a", "*.example.com", ""},
		{"*.example.com", "a.r.example.com/a", "", ""},
		{"*.example.*", "r.example.com:5000/a", "", ""},
		{"*.example.*:5000/team", "r.example.com:5000/team/a", "*.example.*:5000/team", ""},
		{"r[.example.com", "r.example.com/a", "", ""},
		{"r[^0-9]*.example.com", "r.evil.example.com/a", "", ""},
		{"r[!-/]evil.example.com", "r.evil.example.com/a", "", ""},
	} {
		var entries []string
		for key := range strings.FieldsSeq(c.keys) {
			// Without padding, which the kubelet takes too.
			entries = append(entries, `"`+key+`":{"auth":"`+strings.TrimRight(auth(":"+key), "=")+`"}`)
		}
		text := []byte(`{"auths":{` + strings.Join(entries, ",") + `}}`)
		for at, want := range map[string]string{KubeletAuthPath: c.kubelet, AuthPaths[0]: c.tools} {
			for range 50 { // the order of a map is another each time
				user, password, err := Login(func(path string) ([]byte, error) {
					if path == at {
						return text, nil
					}
					return nil, fs.ErrNotExist
				}, c.repository)
				if user != "" || password != want || err != nil {
					t.Errorf("%s in %s of %s: %q %q, %v", c.repository, at, c.keys, user, password, err)
					break
				}
			}
		}
	}
	// What the tools for the OS have does not count for pods.
	files[AuthPaths[0]] = `{"auths":{"quay.io":{"username":"os","password":"5"}}}`
	if user, _, err := Login(read, "quay.io/team/a"); user != "os" || err != nil {
		t.Errorf("for the OS the user is %q, %v", user, err)
	}
	if user, _, err := KubeletLogin(read, "quay.io/team/a"); user != "team" || err != nil {
		t.Errorf("for pods the user is %q, %v", user, err)
	}
	files[KubeletAuthPath] = "{secret"
	if _, _, err := KubeletLogin(read, "quay.io/a"); err == nil || !strings.Contains(err.Error(), KubeletAuthPath) ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("a file that is no JSON: %v", err)
	}
}
