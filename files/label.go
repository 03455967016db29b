// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const labelXattr = "security.selinux"

// procPath names the entry base of an open directory for the calls that have no *at form; it does not leave the
// directory, and the l-forms that it is used with do not follow base.
func procPath(dir *os.File, base string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + base
}

func labelAt(dir *os.File, base string) (string, error) {
	buf := make([]byte, 512)
	n, err := unix.Lgetxattr(procPath(dir, base), labelXattr, buf)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		return "", nil
	case err != nil:
		return "", err
	}
	return strings.TrimRight(string(buf[:n]), "\x00"), nil
}

func setLabelAt(dir *os.File, base, label string) error {
	if label == "" {
		return nil
	}
	return unix.Lsetxattr(procPath(dir, base), labelXattr, append([]byte(label), 0), 0)
}

// Labels answers which SELinux context a path should have, from the host's own policy (selabel_file(5)).
type Labels struct {
	specs []labelSpec // in rising precedence
	subs  [][2]string // prefix -> the prefix that the specs are written for
}

type labelSpec struct {
	stem    string // literal start of every path that can match
	expr    string
	re      *regexp.Regexp // made when the stem first matches: a policy has thousands of specs, an update few paths
	bad     bool
	typ     Type // "" any
	context string
}

// Labels reads the host's file contexts. It is nil on a host without a policy, or with SELinux disabled: then nothing
// is labelled.
func (r *Root) Labels() (*Labels, error) {
	conf, err := r.ReadFile("/etc/selinux/config")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(conf)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(k, "#") {
			settings[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	if settings["SELINUX"] == "disabled" || settings["SELINUXTYPE"] == "" {
		return nil, nil
	}
	base := path.Join("/etc/selinux", settings["SELINUXTYPE"], "contexts/files/file_contexts")
	l := &Labels{}
	var exact []labelSpec
	for _, suffix := range []string{"", ".homedirs", ".local"} {
		data, err := r.ReadFile(base + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			spec, ok := parseLabelSpec(line)
			switch {
			case !ok:
			case spec.stem == spec.expr:
				exact = append(exact, spec)
			default:
				l.specs = append(l.specs, spec)
			}
		}
	}
	l.specs = append(l.specs, exact...) // a path without metacharacters beats every pattern
	for _, suffix := range []string{".subs", ".subs_dist"} {
		data, err := r.ReadFile(base + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) == 2 && !strings.HasPrefix(f[0], "#") {
				l.subs = append(l.subs, [2]string{f[0], f[1]})
			}
		}
	}
	if len(l.specs) == 0 {
		return nil, nil
	}
	return l, nil
}

func parseLabelSpec(line string) (labelSpec, bool) {
	f := strings.Fields(line)
	if len(f) < 2 || strings.HasPrefix(f[0], "#") {
		return labelSpec{}, false
	}
	s := labelSpec{expr: f[0], context: f[len(f)-1]}
	if len(f) > 2 {
		switch f[1] {
		case "--":
			s.typ = Regular
		case "-d":
			s.typ = Directory
		case "-l":
			s.typ = Symlink
		default:
			s.typ = Other
		}
	}
	if s.context == "<<none>>" {
		s.context = ""
	}
	s.stem = s.expr
	if i := strings.IndexAny(s.expr, `.^$?*+|[({\`); i >= 0 {
		s.stem = s.expr[:i]
		if i > 0 && strings.ContainsRune("?*{", rune(s.expr[i])) {
			s.stem = s.expr[:i-1] // the character before may be missing
		}
	}
	return s, true
}

// Of returns the context for what stands at name, a path with its parents' links resolved; "" where the policy says
// nothing.
func (l *Labels) Of(name string, t Type) string {
	if l == nil {
		return ""
	}
	for _, s := range l.subs {
		if name == s[0] || strings.HasPrefix(name, s[0]+"/") {
			name = path.Clean(s[1] + strings.TrimPrefix(name, s[0]))
			break
		}
	}
	for i := len(l.specs) - 1; i >= 0; i-- {
		s := &l.specs[i]
		if s.typ != "" && s.typ != t || !strings.HasPrefix(name, s.stem) || s.bad {
			continue
		}
		if s.re == nil {
			re, err := regexp.Compile("^(?:" + s.expr + ")$")
			if err != nil {
				s.bad = true // a PCRE construct that policies do not use; the next spec decides, as if it were absent
				continue
			}
			s.re = re
		}
		if s.re.MatchString(name) {
			return s.context
		}
	}
	return ""
}
