// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestRefusedPullIsToldWhereCredentialsAreMissing(t *testing.T) {
	const (
		secret = "c2VjcmV0OnNlY3JldA=="
		quay   = `{"auths":{"quay.io":{"auth":"` + secret + `"}}}`
		run    = "/run/ostree/auth.json"
		etc    = "/etc/ostree/auth.json"
	)
	for _, c := range []struct {
		name, image string
		files       map[string]string
		want        []string
	}{
		{"no file", "quay.io/os:1", nil, []string{"no credentials for quay.io", run, etc, "/usr/lib/ostree/auth.json"}},
		{"the kubelet's alone", "quay.io/os:1", map[string]string{KubeletAuthPath: quay},
			[]string{"no credentials for quay.io", KubeletAuthPath, "link " + run}},
		{"the kubelet's of another registry", "other.example/os:1", map[string]string{KubeletAuthPath: quay},
			[]string{"no credentials for other.example", "is there"}},
		{"of the registry", "quay.io/a/os:1", map[string]string{run: quay}, []string{run + " has credentials for quay.io"}},
		{"of the namespace", "quay.io/a/os:1", map[string]string{etc: strings.Replace(quay, "quay.io", "quay.io/a", 1)},
			[]string{etc + " has credentials for quay.io"}},
		{"of another namespace", "quay.io/a/os:1", map[string]string{etc: strings.Replace(quay, "quay.io", "quay.io/b", 1)},
			[]string{etc, "the only file", "no credentials for quay.io"}},
		{"of the beginning of a namespace", "quay.io/ab/os:1",
			map[string]string{etc: strings.Replace(quay, "quay.io", "quay.io/a", 1)}, []string{"no credentials"}},
		{"of another port", "quay.io:8443/os:1", map[string]string{run: quay}, []string{"no credentials for quay.io:8443"}},
		{"in a file that another hides", "quay.io/os:1", map[string]string{run: `{"auths":{}}`, etc: quay},
			[]string{run + ", the only file"}},
		{"of an old docker", "docker.io/a/os:1",
			map[string]string{run: strings.Replace(quay, "quay.io", "https://index.docker.io/v1/", 1)},
			[]string{run + " has credentials for docker.io"}},
		{"left empty", "quay.io/os:1", map[string]string{run: `{"auths":{"quay.io":{}}}`}, []string{"no credentials"}},
		{"with a helper", "quay.io/os:1", map[string]string{run: `{"credHelpers":{"quay.io":"ecr-login"}}`},
			[]string{"helper program"}},
		{"broken", "quay.io/os:1", map[string]string{run: secret, KubeletAuthPath: quay},
			[]string{run, "is no auth.json", "link " + run}},
		{"unreadable", "quay.io/os:1", map[string]string{run: "\x00"}, []string{run, "can't be read"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := credentialsHint(mustParseImage(t, c.image), func(path string) ([]byte, error) {
				text, there := c.files[path]
				if !there {
					return nil, fs.ErrNotExist
				}
				if text == "\x00" {
					return nil, errors.New("input/output error")
				}
				return []byte(text), nil
			})
			for _, part := range c.want {
				if !strings.Contains(got, part) {
					t.Errorf("%q says nothing of %q", got, part)
				}
			}
			if strings.Contains(got, secret) {
				t.Errorf("%q tells the secret", got)
			}
			if !strings.Contains(strings.Join(c.want, " "), KubeletAuthPath) && !strings.Contains(c.name, "broken") &&
				strings.Contains(got, KubeletAuthPath) {
				t.Errorf("%q names a file that does not help", got)
			}
		})
	}
	for _, other := range []string{"fedora:os", "ostree-unverified-image:oci:/os"} {
		if got := credentialsHint(mustParseImage(t, other), nil); got != "" {
			t.Errorf("%s needs credentials: %s", other, got)
		}
	}
}
