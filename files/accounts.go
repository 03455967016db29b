// SPDX-License-Identifier: Apache-2.0

package files

import (
	"math"
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

// Accounts are a host's users and groups by name: first those of /etc, then the image's own in /usr/lib (nss-altfiles).
// Users of a directory service are left out: a node that boots without its network does not have them.
type Accounts struct {
	users  map[string]Account
	groups map[string]int
}

// User returns the user with that name.
func (a *Accounts) User(name string) (Account, bool) {
	u, ok := a.users[name]
	return u, ok
}

// Group returns the id of the group with that name.
func (a *Accounts) Group(name string) (int, bool) {
	g, ok := a.groups[name]
	return g, ok
}

// Accounts reads the host's users and groups. Malformed lines are skipped, as the C library does. Fields that are
// missing at the end of a line are empty.
func (r *Root) Accounts() (*Accounts, error) {
	a := &Accounts{users: map[string]Account{}, groups: map[string]int{}}
	for _, dir := range []string{"/etc", "/usr/lib"} {
		err := r.eachLine(dir+"/passwd", func(line string) {
			f, ok := record(line, 7)
			if !ok {
				return
			}
			uid, okUID := parseID(f[2])
			gid, okGID := parseID(f[3])
			if _, seen := a.users[f[0]]; okUID && okGID && !seen {
				a.users[f[0]] = Account{Name: f[0], UID: uid, GID: gid, Home: f[5]}
			}
		})
		if err != nil {
			return nil, err
		}
		err = r.eachLine(dir+"/group", func(line string) {
			f, ok := record(line, 4)
			if !ok {
				return
			}
			gid, okGID := parseID(f[2])
			if _, seen := a.groups[f[0]]; okGID && !seen {
				a.groups[f[0]] = gid
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// record splits a line into that many fields. It refuses names that start with + or -, which ask NIS, and comments,
// which start with #.
func record(line string, fields int) ([]string, bool) {
	f := strings.SplitN(strings.TrimLeft(line, " \t"), ":", fields)
	if f[0] == "" || strings.ContainsRune("+-#", rune(f[0][0])) {
		return nil, false
	}
	return append(f, make([]string, fields-len(f))...), true
}

// parseID refuses 4294967295, which chown takes as "leave unchanged".
func parseID(s string) (int, bool) {
	id, err := strconv.ParseUint(s, 10, 32)
	return int(id), err == nil && id != math.MaxUint32
}
