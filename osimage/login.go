// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Login returns the credentials that the host has for a repository, all "" where it has none: those of the first of
// AuthPaths that exists, and then the kubelet's. read reads a file of the host. Errors name files, and quote nothing
// from them.
func Login(read func(path string) ([]byte, error), repository string) (user, password string, err error) {
	paths := slices.Clone(AuthPaths)
	for i, path := range paths {
		if _, err := read(path); !errors.Is(err, fs.ErrNotExist) {
			paths = paths[i : i+1]
			break
		}
	}
	for _, path := range append(paths, KubeletAuthPath) {
		if user, password, err = loginIn(read, path, repository); err != nil || user != "" || password != "" {
			return user, password, err
		}
	}
	return "", "", nil
}

// KubeletLogin returns the credentials that the kubelet has for a repository, all "" where it has none. read and errors
// are as in Login.
func KubeletLogin(read func(path string) ([]byte, error), repository string) (user, password string, err error) {
	return loginIn(read, KubeletAuthPath, repository)
}

// loginIn returns the credentials that a file has for a repository: those of the longest name that the repository
// begins with. A file that is missing has none.
func loginIn(read func(path string) ([]byte, error), path, repository string) (user, password string, err error) {
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("reading credentials: %w", err)
	}
	var file struct {
		Auths map[string]struct {
			Auth     string `json:"auth"` // username:password in base64
			Username string `json:"username"`
			Password string `json:"password"`
		} `json:"auths"`
	}
	if json.Unmarshal(data, &file) != nil {
		return "", "", fmt.Errorf("reading credentials: %s is no auth.json", path)
	}
	for _, want := range parents(repository) {
		for key, entry := range file.Auths {
			switch {
			case key != want && hostOfKey(key) != want:
			case entry.Auth != "":
				plain, err := base64.StdEncoding.DecodeString(entry.Auth)
				if err != nil {
					return "", "", fmt.Errorf("reading credentials: the entry of %s in %s is not base64", key, path)
				}
				user, password, _ := strings.Cut(string(plain), ":")
				return user, password, nil
			case entry.Username != "":
				return entry.Username, entry.Password, nil
			}
		}
	}
	return "", "", nil
}
