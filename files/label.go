// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const labelXattr = "security.selinux"

// labelOf returns the SELinux context of the node that h refers to, "" where the file system or the kernel has no
// contexts.
func labelOf(h *os.File) (string, error) {
	buf := make([]byte, 4096) // the kernel's own limit for a context is a page
	n, err := unix.Getxattr(procPath(h), labelXattr, buf)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
		return "", nil
	case err != nil:
		return "", err
	}
	return strings.TrimRight(string(buf[:n]), "\x00"), nil
}

// Labels finds the SELinux context that a path should have, by the host's own policy (selabel_file(5)). It must not be
// used by two goroutines at a time.
type Labels struct {
	specs     []labelSpec // in rising precedence
	local     [][2]string // the admin's substitutions: a prefix, and the prefix that the specs are written for
	distSubst [][2]string // the policy's substitutions, applied after the admin's
}

type labelSpec struct {
	stem    string // literal start of every path that can match
	exact   bool   // expr is not a pattern
	expr    string
	re      *regexp.Regexp // compiled when the stem first matches: a policy has thousands of specs, an update few paths
	bad     bool
	typ     Type // "": any
	context string
}

// Labels reads the host's file contexts. It returns nil on a host without a policy, or with SELinux disabled: then
// nothing is labelled.
func (r *Root) Labels() (*Labels, error) {
	conf, err := r.ReadFile("/etc/selinux/config")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	settings := map[string]string{"SELINUXTYPE": "targeted"}
	for line := range strings.Lines(string(conf)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(k, "#") {
			settings[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	if strings.EqualFold(settings["SELINUX"], "disabled") {
		return nil, nil
	}
	base := path.Join("/etc/selinux", settings["SELINUXTYPE"], "contexts/files/file_contexts")
	l := &Labels{}
	var exact []labelSpec
	for _, suffix := range []string{"", ".homedirs", ".local"} {
		err := r.eachLine(base+suffix, func(line string) {
			spec, ok := parseLabelSpec(line)
			switch {
			case !ok:
			case spec.exact:
				exact = append(exact, spec)
			default:
				l.specs = append(l.specs, spec)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	l.specs = append(l.specs, exact...) // a path without metacharacters has precedence over every pattern
	if len(l.specs) == 0 {
		return nil, nil
	}
	if l.local, err = r.substitutions(base + ".subs"); err != nil {
		return nil, err
	}
	l.distSubst, err = r.substitutions(base + ".subs_dist")
	return l, err
}

// substitutions reads pairs of prefixes. The last line that matches counts, so the pairs are returned in reverse order.
func (r *Root) substitutions(name string) ([][2]string, error) {
	var out [][2]string
	err := r.eachLine(name, func(line string) {
		if f := strings.Fields(line); len(f) >= 2 && !strings.HasPrefix(f[0], "#") {
			out = append(out, [2]string{f[0], f[1]})
		}
	})
	slices.Reverse(out)
	return out, err
}

// eachLine calls do for each line of the file name. It does nothing where the file does not exist.
func (r *Root) eachLine(name string, do func(string)) error {
	data, err := r.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		do(strings.TrimSuffix(line, "\n"))
	}
	return nil
}

// parseLabelSpec reads "pattern [type] context". It skips lines for which libselinux would refuse the whole policy.
func parseLabelSpec(line string) (labelSpec, bool) {
	f := strings.Fields(line)
	if len(f) < 2 || strings.HasPrefix(f[0], "#") ||
		strings.ContainsFunc(f[0], func(c rune) bool { return c >= utf8.RuneSelf }) {
		return labelSpec{}, false
	}
	s := labelSpec{expr: f[0], context: f[1]}
	if len(f) > 2 {
		s.context = f[2]
		switch f[1] {
		case "--":
			s.typ = Regular
		case "-d":
			s.typ = Directory
		case "-l":
			s.typ = Symlink
		case "-b", "-c", "-p", "-s":
			s.typ = Other
		default:
			return labelSpec{}, false
		}
	}
	if s.context == "<<none>>" {
		s.context = ""
	}
	s.stem, s.exact = literalStart(s.expr)
	return s, true
}

// literalStart returns the literal start of every path that expr matches, and whether expr has nothing else.
func literalStart(expr string) (string, bool) {
	var b []byte
	for i := 0; i < len(expr); i++ {
		c := expr[i]
		switch {
		case c == '\\' && i+1 < len(expr) && !isAlphanumeric(expr[i+1]):
			i++
			b = append(b, expr[i])
			continue
		case strings.IndexByte(`.^$?*+|[({\`, c) < 0:
			b = append(b, c)
			continue
		case strings.ContainsRune("?*{", rune(c)) && len(b) > 0:
			b = b[:len(b)-1] // the character before may be missing
		}
		if strings.Contains(expr[i:], "|") {
			// An alternative may replace all text before it, except for the directory: libselinux itself looks up specs by
			// directory.
			b = b[:1+bytes.LastIndexByte(b, '/')]
		}
		return string(b), false
	}
	return string(b), true
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// Of returns the context for the node at name, a path with its parents' links resolved. It returns "" where the policy
// has no context.
func (l *Labels) Of(name string, t Type) string {
	if l == nil {
		return ""
	}
	name = substitute(l.distSubst, substitute(l.local, name))
	for i := len(l.specs) - 1; i >= 0; i-- {
		s := &l.specs[i]
		if s.typ != "" && s.typ != t || !strings.HasPrefix(name, s.stem) || s.bad {
			continue
		}
		if s.exact {
			if name == s.stem {
				return s.context
			}
			continue
		}
		if s.re == nil {
			re, err := regexp.Compile("(?s)^(?:" + s.expr + ")$")
			if err != nil {
				s.bad = true // policies do not use such constructs of PCRE; the spec is skipped as if it were absent
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

func substitute(prefixes [][2]string, name string) string {
	for _, s := range prefixes {
		if rest, ok := strings.CutPrefix(name, s[0]); ok && (rest == "" || rest[0] == '/') {
			return path.Clean(s[1] + rest)
		}
	}
	return name
}
