// SPDX-License-Identifier: Apache-2.0

// Package sshkeys knows the effect of managed users on a host: the files with their authorised keys (Wants) and their
// lines in /etc/shadow (Shadow). Accounts belong to the host; this package makes and removes none.
package sshkeys

import (
	"fmt"
	"path"
	"strings"

	"github.com/noderefit/noderefit/files"
)

// User is an account whose keys and password a configuration manages.
type User struct {
	Name string
	Keys []string // authorized_keys lines
	// PasswordHash is nil where the configuration does not set the password. "" is a password that no login can match, as
	// in Ignition.
	PasswordHash *string
}

// Accounts are the host's users.
type Accounts interface {
	User(name string) (files.Account, bool)
}

// Wants returns the key files that users want, and Absent for those of previous that are no longer needed. These are
// the files of users who had keys and have none now, and of users who have left the configuration. For each user the
// parents come before the file. A user that the host does not have is an error, unless that user has left the
// configuration.
//
// Keys are in <home>/.ssh/authorized_keys.d/ignition, so that a person's own authorized_keys is never touched. A home
// is an exposed place, see files.ExposedError: obstacles that its owner makes are that user's drift.
func Wants(accounts Accounts, users, previous []User) ([]files.Want, error) {
	var missing []string
	for _, u := range users {
		if _, ok := accounts.User(u.Name); !ok {
			missing = append(missing, fmt.Sprintf("passwd.users: user %q does not exist on this host", u.Name))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s", strings.Join(missing, "; "))
	}

	var wants []files.Want
	hadKeys := map[string]bool{}
	for _, p := range previous {
		hadKeys[p.Name] = len(p.Keys) > 0
	}
	stays := map[string]bool{}
	for _, u := range users {
		stays[u.Name] = true
		account, _ := accounts.User(u.Name)
		data := keyLines(u.Keys)
		if len(data) == 0 && !hadKeys[u.Name] {
			continue
		}
		ssh, dir, err := keyDirs(account)
		if err != nil {
			return nil, err
		}
		if len(data) == 0 {
			wants = append(wants, absent(dir, u.Name))
			continue
		}
		node := files.Node{Type: files.Directory, Mode: 0o700, UID: account.UID, GID: account.GID}
		for _, d := range []string{ssh, dir} {
			wants = append(wants, files.Want{Path: d, Node: node, Kind: "sshkeys", Name: u.Name, Exists: true})
		}
		node = files.Node{Type: files.Regular, Mode: 0o600, UID: account.UID, GID: account.GID, Data: data}
		wants = append(wants, files.Want{Path: dir + "/" + keyFile, Node: node, Kind: "sshkeys", Name: u.Name})
	}
	for _, p := range previous {
		account, exists := accounts.User(p.Name)
		if stays[p.Name] || !exists {
			continue
		}
		_, dir, err := keyDirs(account)
		if err != nil {
			continue // without a home the user never had keys of ours
		}
		wants = append(wants, absent(dir, p.Name))
	}
	return wants, nil
}

const keyFile = "ignition"

func absent(dir, user string) files.Want {
	return files.Want{Path: dir + "/" + keyFile, Node: files.Node{Type: files.Absent}, Kind: "sshkeys", Name: user}
}

func keyDirs(a files.Account) (ssh, dir string, err error) {
	home := path.Clean(a.Home)
	if !path.IsAbs(home) || home == "/" {
		return "", "", fmt.Errorf("passwd.users: user %q has no home directory of its own on this host (%q)", a.Name, a.Home)
	}
	ssh = home + "/.ssh"
	return ssh, ssh + "/authorized_keys.d", nil
}

// keyLines returns the keys, one on each line, and nothing else.
func keyLines(keys []string) []byte {
	var b strings.Builder
	for _, k := range keys {
		if k = strings.Trim(k, "\r\n"); k != "" {
			b.WriteString(k + "\n")
		}
	}
	return []byte(b.String())
}
