// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"
)

// Account is a user of the host.
type Account struct {
	Name string
	UID  int
	GID  int
	Home string
}

// Accounts are a host's users and groups by name: /etc first, then the image's own in /usr/lib (nss-altfiles). Users of
// a directory service are not among them: they are not there when a node boots without its network.
type Accounts struct {
	users  map[string]Account
	groups map[string]int
}

// User returns the user of that name.
func (a *Accounts) User(name string) (Account, bool) {
	u, ok := a.users[name]
	return u, ok
}

// Group returns the id of the group of that name.
func (a *Accounts) Group(name string) (int, bool) {
	g, ok := a.groups[name]
	return g, ok
}

// Accounts reads the host's users and groups. Lines that make no sense are passed over, as the C library does.
func (r *Root) Accounts() (*Accounts, error) {
	a := &Accounts{users: map[string]Account{}, groups: map[string]int{}}
	for _, dir := range []string{"/etc", "/usr/lib"} {
		err := r.eachRecord(dir+"/passwd", 7, func(f []string) {
			uid, err1 := strconv.Atoi(f[2])
			gid, err2 := strconv.Atoi(f[3])
			if _, seen := a.users[f[0]]; err1 == nil && err2 == nil && !seen {
				a.users[f[0]] = Account{Name: f[0], UID: uid, GID: gid, Home: f[5]}
			}
		})
		if err != nil {
			return nil, err
		}
		err = r.eachRecord(dir+"/group", 4, func(f []string) {
			gid, err := strconv.Atoi(f[2])
			if _, seen := a.groups[f[0]]; err == nil && !seen {
				a.groups[f[0]] = gid
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (r *Root) eachRecord(name string, fields int, do func([]string)) error {
	data, err := r.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Split(strings.TrimRight(line, "\n"), ":"); len(f) == fields && f[0] != "" {
			do(f)
		}
	}
	return nil
}
