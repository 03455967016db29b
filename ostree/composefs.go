// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// composefsArgument is the key of the kernel argument that outvotes composefs.enabled of an image.
const composefsArgument = "ostree.prepare-root.composefs"

// needsVersionComposefs is the first ostree that makes the image of a composefs root because the commit demands one.
// Before, the configuration of the repository alone decides.
const needsVersionComposefs = "2024.3"

// composefsImage is the image of a composefs root, in the directory of its deployment.
const composefsImage = "/.ostree.cfs"

// What a boot demands of composefs.
const (
	composefsOn     = "yes"
	composefsVerity = "verity"
	composefsSigned = "signed"
)

// rootDemand is what a boot demands of composefs, and where that is said.
type rootDemand struct {
	level        string // "" if the boot does without composefs where that is not there
	file, option string // as in Unfit
}

// demanded returns what the boot of a deployment demands of composefs. own is the image's file. Of several kernel
// arguments the first counts, and one that ostree can't read fails the boot.
func demanded(own groups, arguments []string) (rootDemand, error) {
	d := rootDemand{file: ownRootConfig}
	switch enabled := own["composefs"]["enabled"]; {
	case enabled == composefsVerity, enabled == composefsSigned:
		d.level = enabled
	case isTrue(enabled):
		d.level = composefsOn
	}
	d.option = "composefs.enabled=" + d.level
	at := slices.IndexFunc(arguments, func(a string) bool { return strings.HasPrefix(a, composefsArgument+"=") })
	if at < 0 {
		return d, nil
	}
	switch value := strings.TrimPrefix(arguments[at], composefsArgument+"="); {
	case value == composefsSigned:
		d.level = composefsSigned
	case isTrue(value) && d.level != "" && d.level != composefsOn:
		d.level = composefsVerity // the argument takes back the signature alone
	case isTrue(value):
		d.level = composefsOn
	case composefsOptional(value):
		d.level = ""
	default:
		return d, &Unfit{"", arguments[at], "ostree can't read the argument, so the deployment would not boot",
			"leave the argument out"}
	}
	d.file, d.option = "", arguments[at]
	return d, nil
}

// composefsOptional reports whether a host boots without composefs with this value of composefsArgument.
func composefsOptional(value string) bool {
	return slices.Contains([]string{"maybe", "no", "false", "0"}, value)
}

// judgeComposefs returns why this host can't make a root as demanded, nil if nothing speaks against one.
func judgeComposefs(d rootDemand, here rootHere) error {
	const later = "go to an image that has such an ostree and does without the option, and then to this one"
	switch {
	case d.level == "":
	case !here.composefs:
		return &Unfit{d.file, d.option, "the host's ostree " + here.version + " makes no composefs roots, so a " +
			"deployment of the image would not boot", later}
	case here.unasked:
		return &Unfit{d.file, d.option, "the host's ostree " + here.version + " makes composefs roots only where the " +
			"configuration of its repository asks for them, so a deployment of the image would not boot",
			"set ex-integrity.composefs in /ostree/repo/config, or " + later}
	case d.level != composefsOn && !here.verity:
		return &Unfit{d.file, d.option, "the file system of /ostree/repo has no fs-verity, so a deployment of " +
			"the image would not boot",
			"use an image with composefs.enabled=yes, or install the host anew with fs-verity"}
	}
	return nil
}

// CheckRoot refuses, with an Error of the class Invalid around an *Unfit, a deployment that would not boot: ostree has
// not made the composefs image that its boot demands, or has not protected it. arguments are its kernel arguments.
func (p *Plain) CheckRoot(d Deployment, arguments []string) error {
	doing := "checking the root of " + d.ID
	own, err := p.keyFile(d.Dir + ownRootConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	demand, refusal := demanded(own, arguments)
	if refusal == nil && demand.level != "" {
		refusal, err = p.checkComposefs(d.Dir, demand)
		if err != nil {
			return &Error{Class: Failed, Doing: doing, Err: err}
		}
	}
	if refusal != nil {
		return &Error{Class: Invalid, Doing: doing, Err: refusal}
	}
	return nil
}

// checkComposefs returns why the deployment in dir does not have the root that is demanded, nil if it has.
func (p *Plain) checkComposefs(dir string, demand rootDemand) (refusal, err error) {
	image := p.host(dir + composefsImage)
	if _, err := os.Stat(image); errors.Is(err, fs.ErrNotExist) {
		return &Unfit{demand.file, demand.option, "the host's ostree has made no " + composefsImage[1:] +
			" for the deployment, so the deployment would not boot",
			"go by an image with a newer ostree that does without the option"}, nil
	} else if err != nil || demand.level == composefsOn {
		return nil, err
	}
	open, err := unprotected(image)
	if err == nil && open == "" {
		open, err = unprotected(p.host(dir + "/usr"))
	}
	if err != nil || open == "" {
		return nil, err
	}
	return &Unfit{demand.file, demand.option, strings.TrimPrefix(open, filepath.Clean(p.root)) +
		" is not protected by fs-verity, so the deployment would not boot",
		"use an image with composefs.enabled=yes, or install the host anew with fs-verity"}, nil
}

// unprotected returns a file at or below a path that fs-verity does not protect, "" if there is none. A composefs image
// has empty files itself.
func unprotected(at string) (found string, err error) {
	err = filepath.WalkDir(at, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st); err != nil {
			return &os.PathError{Op: "statx", Path: name, Err: err}
		}
		if st.Size > 0 && st.Attributes&unix.STATX_ATTR_VERITY == 0 {
			found = name
			return filepath.SkipAll
		}
		return nil
	})
	return found, err
}

// hasVerity reports whether the file system of a file has fs-verity, also where the file itself is not protected.
func hasVerity(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	err = unix.IoctlSetInt(int(f.Fd()), unix.FS_IOC_MEASURE_VERITY, 0)
	return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EFAULT) // the latter if the file is protected
}
