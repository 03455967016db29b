// SPDX-License-Identifier: Apache-2.0

package sshkeys

import (
	"bytes"
	"fmt"
	"strings"
)

// noPassword is a password field that no password matches, and that is not a locked hash.
const noPassword = "*"

// Shadow returns /etc/shadow with the passwords of users, and the names of those whose field it changed. previous are
// the users of the configuration before.
//
//   - A hash of the configuration is set: only its field changes in the line. A user without a line gets one; the user
//     must exist.
//   - A hash that only the configuration before had, with its user or without, locks the password: "!" is put before
//     the field, as by usermod -L. A field that is locked or unusable stays.
//   - A password that neither configuration sets belongs to others and stays, even when the user's keys change. Only an
//     empty password, with which any person could log in, is locked when its user leaves the configuration.
//
// All other bytes stay unchanged, including those of malformed lines. The day of the last change stays too. It belongs
// to the ageing that an admin set for people who choose their passwords, and a configuration renews no password. With
// today's date in it, the same configuration would make different files from node to node.
//
// An error names the user and never the hash.
func Shadow(current []byte, users, previous []User) (edited []byte, touched []string, err error) {
	lines := bytes.SplitAfter(current, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	had := map[string]bool{}
	for _, p := range previous {
		had[p.Name] = had[p.Name] || p.PasswordHash != nil
	}
	stays := map[string]bool{}
	for _, u := range users {
		stays[u.Name] = true
		if strings.ContainsAny(u.Name, ":/\r\n\x00") || u.Name == "" {
			return nil, nil, fmt.Errorf("passwd.users: %q is not a user's name", u.Name)
		}
		i := find(lines, u.Name)
		switch {
		case u.PasswordHash != nil:
			field, err := passwordField(u)
			if err != nil {
				return nil, nil, err
			}
			if i < 0 {
				if n := len(lines); n > 0 && !bytes.HasSuffix(lines[n-1], []byte("\n")) {
					lines[n-1] = append(bytes.Clone(lines[n-1]), '\n')
				}
				lines = append(lines, []byte(u.Name+":"+field+":::::::\n"))
			} else if !replace(lines, i, field) {
				continue
			}
			touched = append(touched, u.Name)
		case had[u.Name] && i >= 0 && lock(lines, i):
			touched = append(touched, u.Name)
		}
	}
	for _, p := range previous {
		if stays[p.Name] {
			continue
		}
		stays[p.Name] = true
		i := find(lines, p.Name)
		if i < 0 || !had[p.Name] && password(lines[i]) != "" {
			continue
		}
		if lock(lines, i) {
			touched = append(touched, p.Name)
		}
	}
	return bytes.Join(lines, nil), touched, nil
}

// PasswordDrift returns the names of those users whose password field in /etc/shadow is not the configured one.
func PasswordDrift(current []byte, users []User) []string {
	lines := bytes.SplitAfter(current, []byte("\n"))
	var drifted []string
	for _, u := range users {
		if u.PasswordHash == nil {
			continue
		}
		field, err := passwordField(u)
		if i := find(lines, u.Name); err != nil || i < 0 || password(lines[i]) != field {
			drifted = append(drifted, u.Name)
		}
	}
	return drifted
}

// passwordField returns the form of a configured hash in the file.
func passwordField(u User) (string, error) {
	if *u.PasswordHash == "" {
		return noPassword, nil
	}
	if strings.ContainsAny(*u.PasswordHash, ":\r\n\x00") {
		return "", fmt.Errorf("passwd.users: user %q: passwordHash holds a colon or a line break", u.Name)
	}
	return *u.PasswordHash, nil
}

// find returns the index of the user's line, -1 without one. Of several lines the first counts, as for the C library.
func find(lines [][]byte, user string) int {
	for i, l := range lines {
		if rest, ok := bytes.CutPrefix(l, []byte(user)); ok && len(user) > 0 && len(rest) > 0 && rest[0] == ':' {
			return i
		}
	}
	return -1
}

// split cuts a line around its second field.
func split(line []byte) (before, field, after []byte) {
	start := bytes.IndexByte(line, ':') + 1
	end := bytes.IndexAny(line[start:], ":\r\n")
	if end < 0 {
		end = len(line) - start
	}
	return line[:start], line[start : start+end], line[start+end:]
}

func password(line []byte) string {
	_, field, _ := split(line)
	return string(field)
}

func replace(lines [][]byte, i int, field string) bool {
	before, old, after := split(lines[i])
	if string(old) == field {
		return false
	}
	lines[i] = bytes.Join([][]byte{before, []byte(field), after}, nil)
	return true
}

func lock(lines [][]byte, i int) bool {
	p := password(lines[i])
	if strings.HasPrefix(p, "!") || p == noPassword {
		return false
	}
	return replace(lines, i, "!"+p)
}
