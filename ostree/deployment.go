// SPDX-License-Identifier: Apache-2.0

// Package ostree makes, selects and removes the deployments of an ostree host.
//
// A deployment carries the OS, its kernel arguments and an /etc of its own. One rename makes it the deployment that
// boots. This package names a deployment by its ID: indices change whenever a deployment comes or goes.
package ostree

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Deployment is one bootable system on the disk, or one that is staged to become that at shutdown.
type Deployment struct {
	ID       string // OS/CHECKSUM.SERIAL, unique on the host while the deployment exists
	OS       string // ostree: the stateroot
	Checksum string // of the commit, 64 hex digits
	Serial   int
	Index    int // present place in ostree's list
	Booted   bool
	Default  bool // the boot loader boots it next; never true for a staged deployment
	Staged   bool // it has no boot entry yet
	Pinned   bool
	Rollback bool // ostree's word for the first deployment after the booted one
	Pending  bool // ostree's word for the first deployment before the booted one
	// SoftReboot reports whether the next soft reboot leads to the deployment.
	SoftReboot bool
	Refspec    string
	Version    string
	// Locked reports whether the next shutdown leaves a staged deployment as it is.
	Locked bool
	// KernelArguments are the arguments of the boot entry, one argument an element with its quotes, without ostree=. For a
	// staged deployment they are the arguments that it was staged with. They are empty if ostree is to take those of the
	// booted deployment at the shutdown.
	KernelArguments []string
	// Extra are the keys in its boot entry that programs keep for themselves; those of a staged deployment are still to
	// become that.
	Extra Extra
	Dir   string // absolute on the host: /ostree/deploy/OS/deploy/CHECKSUM.SERIAL

	overlays []string // additional initramfs images of its boot entry, paths in /boot
	kernel   string   // directory of its kernel, a path in /boot
}

// identify sets the fields that follow from OS, Checksum and Serial.
func (d *Deployment) identify() {
	name := d.Checksum + "." + strconv.Itoa(d.Serial)
	d.ID = d.OS + "/" + name
	d.Dir = "/ostree/deploy/" + d.OS + "/deploy/" + name
}

var (
	// headPattern matches the first line about a deployment: booted or not, OS, CHECKSUM.SERIAL, and states in brackets.
	headPattern = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^([* ]) (\S+) ([0-9a-f]{64})\.(0|[1-9][0-9]{0,8})((?: \([^()]*\))*)$`)
	})
	// stagedPattern matches a staged deployment. For a staged deployment that is locked, ostree prints only the lock.
	stagedPattern = regexp.MustCompile(`\((staged|finalization locked)\)`) //nolint:misspell // ostree's own word
	// OsPattern matches what ostree allows as the name of an OS. The name goes into paths.
	OsPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
)

// IsChecksum reports whether a text is the checksum of a commit.
func IsChecksum(text string) bool {
	return len(text) == sha256.Size*2 && strings.Trim(text, "0123456789abcdef") == ""
}

// parseStatus reads the output of ostree admin status, text or JSON. The output has no boot entries.
func parseStatus(output []byte) ([]Deployment, error) {
	var deployments []Deployment
	var err error
	if bytes.HasPrefix(bytes.TrimSpace(output), []byte("{")) {
		deployments, err = parseStatusJSON(output)
	} else {
		deployments, err = parseStatusText(output)
	}
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := range deployments {
		d := &deployments[i]
		if !IsChecksum(d.Checksum) || !OsPattern.MatchString(d.OS) || d.Serial < 0 {
			return nil, fmt.Errorf("deployment %d has OS %q, checksum %q, serial %d", i, d.OS, d.Checksum, d.Serial)
		}
		d.identify()
		if seen[d.ID] {
			return nil, fmt.Errorf("deployment %s is listed twice", d.ID)
		}
		seen[d.ID] = true
		d.Index = i
	}
	return deployments, nil
}

// parseStatusJSON reads the output of ostree 2025.3 and later.
func parseStatusJSON(output []byte) ([]Deployment, error) {
	var status struct {
		Deployments []struct {
			Checksum  string `json:"checksum"`
			Stateroot string `json:"stateroot"`
			Refspec   string `json:"refspec"`
			Serial    int    `json:"serial"`
			Booted    bool   `json:"booted"`
			Pending   bool   `json:"pending"`
			Rollback  bool   `json:"rollback"`
			Staged    bool   `json:"staged"`
			Pinned    bool   `json:"pinned"`
			Version   string `json:"version"`
			Soft      bool   `json:"soft-reboot-target"` //nolint:tagliatelle // ostree's own word
		} `json:"deployments"`
	}
	if err := json.Unmarshal(output, &status); err != nil {
		return nil, err
	}
	var deployments []Deployment
	for _, d := range status.Deployments {
		deployments = append(deployments, Deployment{
			OS: d.Stateroot, Checksum: d.Checksum, Serial: d.Serial, Refspec: d.Refspec, Version: d.Version,
			Booted: d.Booted, Pending: d.Pending && !d.Staged, Rollback: d.Rollback, Staged: d.Staged, Pinned: d.Pinned,
			SoftReboot: d.Soft,
		})
	}
	return deployments, nil
}

// parseStatusText reads the output of older versions: a line for each deployment, and indented lines about it. Unknown
// indented lines are skipped.
func parseStatusText(output []byte) ([]Deployment, error) {
	var deployments []Deployment
	for line := range strings.Lines(string(output)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" || line == "No deployments." {
			continue
		}
		if head := headPattern().FindStringSubmatch(line); head != nil {
			serial, err := strconv.Atoi(head[4])
			if err != nil {
				return nil, err
			}
			deployments = append(deployments, Deployment{
				OS: head[2], Checksum: head[3], Serial: serial, Booted: head[1] == "*",
				Staged:   stagedPattern.MatchString(head[5]),
				Pending:  strings.Contains(head[5], "(pending)"),
				Rollback: strings.Contains(head[5], "(rollback)"),
			})
			continue
		}
		about, ok := strings.CutPrefix(line, "    ")
		if !ok || len(deployments) == 0 {
			return nil, fmt.Errorf("the line %q is none of a status", line)
		}
		d := &deployments[len(deployments)-1]
		if version, ok := strings.CutPrefix(about, "Version: "); ok {
			d.Version = version
		} else if refspec, ok := strings.CutPrefix(about, "origin refspec: "); ok {
			d.Refspec = refspec
		} else if about == "Pinned: yes" {
			d.Pinned = true
		}
	}
	return deployments, nil
}

// parseVersion finds the version in the output of ostree --version: a year and a number.
func parseVersion(output []byte) (string, error) {
	for line := range strings.Lines(string(output)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "Version: "); ok {
			version := strings.Trim(value, "'\"")
			if _, _, err := splitVersion(version); err != nil {
				return "", err
			}
			return version, nil
		}
	}
	return "", fmt.Errorf("no version in %.200q", output)
}

// parseFeatures returns what ostree --version lists, a feature a line, as " - composefs".
func parseFeatures(output []byte) []string {
	var features []string
	for line := range strings.Lines(string(output)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "- "); ok {
			features = append(features, name)
		}
	}
	return features
}

func splitVersion(version string) (year, release int, err error) {
	left, right, _ := strings.Cut(version, ".")
	right, _, _ = strings.Cut(right, ".")
	if year, err = strconv.Atoi(left); err == nil {
		release, err = strconv.Atoi(right)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("reading version %q: %w", version, err)
	}
	return year, release, nil
}

// older reports whether version a is before b. Both must be valid versions.
func older(a, b string) bool {
	aYear, aRelease, _ := splitVersion(a)
	bYear, bRelease, _ := splitVersion(b)
	return aYear < bYear || aYear == bYear && aRelease < bRelease
}

// SplitArguments splits a kernel command line at white space outside double quotes, as the kernel does. Quotes stay.
func SplitArguments(line string) []string {
	quoted := false
	return strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\t' || r == '\n')
	})
}

// CheckArgument returns what is wrong with a kernel argument that is to be in a boot entry as it is.
func CheckArgument(argument string) error {
	switch {
	case strings.ContainsAny(argument, "\n\r\x00"):
		return fmt.Errorf("kernel argument %q has a control character", argument)
	case strings.Count(argument, `"`)%2 != 0:
		return fmt.Errorf("kernel argument %q has an open quote", argument)
	case strings.HasPrefix(argument, "ostree="):
		return fmt.Errorf("kernel argument %q is ostree's own", argument)
	}
	if parts := SplitArguments(argument); len(parts) != 1 || parts[0] != argument {
		return fmt.Errorf("kernel argument %q is not one argument", argument)
	}
	return nil
}
