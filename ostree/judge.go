// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// The files that say how the root of a deployment is set up. The one in /etc, as a whole, comes before the image's own.
// The initramfs of an image has a copy of the image's own file.
const (
	ownRootConfig   = "/usr/lib/ostree/prepare-root.conf"
	etcRootConfig   = "/etc/ostree/prepare-root.conf"
	givenRootConfig = "/usr/etc/ostree/prepare-root.conf" // what a new /etc begins with
)

// groups are the groups of a GLib key file, each with its keys.
type groups map[string]map[string]string

// Unfit is why a deployment of a commit must not boot: from there this host could not be taken back.
type Unfit struct {
	file, option string // option may be empty; without a file it is a kernel argument
	why, do      string
}

func (e *Unfit) Error() string {
	at := "the image's " + e.file
	switch {
	case e.file == "":
		at = "the kernel argument " + e.option
	case e.option != "":
		at = e.option + " in " + at
	}
	return fmt.Sprintf("%s: %s; %s", at, e.why, e.do)
}

// Judge refuses, with an Error of the class Invalid, a commit from which this host could not be taken back: the commit
// makes /etc transient, has a root that this host can't set up, has no kernel for the boot loader's entries, or lacks
// ostree. The commit's own files and the kernel arguments of its deployment decide. Four forks, and one more for a
// signed root. CheckRoot decides what only the deployment itself shows.
func (p *Plain) Judge(ctx context.Context, checksum string, arguments []string) error {
	doing := "judging " + checksum
	own, err := p.configIn(ctx, doing, checksum, ownRootConfig)
	if err != nil {
		return err
	}
	given, err := p.configIn(ctx, doing, checksum, givenRootConfig)
	if err != nil {
		return err
	}
	here, err := p.rootHere(ctx)
	if err != nil {
		return err
	}
	demand, refusal := demanded(own, arguments)
	if refusal == nil {
		refusal = errors.Join(judgeEtc(own, given, here), judgeComposefs(demand, here))
	}
	if refusal != nil {
		return &Error{Class: Invalid, Doing: doing, Err: refusal}
	}
	if demand.level == composefsSigned {
		if err := p.judgeSignature(ctx, doing, checksum); err != nil {
			return err
		}
	}
	if here.transient {
		if err := p.judgeWakers(ctx, doing, checksum); err != nil {
			return err
		}
	}
	return p.judgePrograms(ctx, doing, checksum)
}

// rootHere is what the running host shows about roots.
type rootHere struct {
	own       groups // ownRootConfig of the booted deployment
	etc       groups // the running /etc's, nil if there is none
	kept      bool   // the running /etc's differs from what that /etc began with, so that a new /etc has it too
	version   string // of ostree
	composefs bool   // ostree can make the image of a composefs root
	unasked   bool   // ostree makes one only where the configuration of the repository asks, which it does not
	verity    bool   // the file system of the repository has fs-verity
	transient bool   // the running /etc is transient
}

func (p *Plain) rootHere(ctx context.Context) (here rootHere, err error) {
	read := func(at string) (text []byte, parsed groups, err error) {
		text, err = os.ReadFile(p.host(at))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, &Error{Class: Failed, Doing: "reading the configuration of ostree", Err: err}
		}
		return text, ParseKeyFile(string(text)), nil
	}
	if _, here.own, err = read(ownRootConfig); err != nil {
		return here, err
	}
	text, etc, err := read(etcRootConfig)
	if err != nil {
		return here, err
	}
	before, _, err := read(givenRootConfig)
	if err != nil {
		return here, err
	}
	here.etc, here.kept = etc, text != nil && string(text) != string(before)
	if here.version, err = p.Version(ctx); err != nil {
		return here, err
	}
	here.composefs = slices.Contains(*p.features.Load(), "composefs")
	if older(here.version, needsVersionComposefs) {
		repo, err := p.keyFile("/ostree/repo/config")
		if err != nil {
			return here, err
		}
		wanted := repo["ex-integrity"]["composefs"]
		here.unasked = !isTrue(wanted) && wanted != "maybe"
	}
	here.verity = hasVerity(p.host("/ostree/repo/config"))
	here.transient, err = p.TransientEtc()
	return here, err
}

// judgeEtc returns why an image's /etc is not of the same kind as the host's: each deployment's own, or transient. own
// and given are the two files of the commit.
func judgeEtc(own, given groups, here rootHere) error {
	const lost = "no deployment keeps an /etc of its own, so this host could not be taken back to a configuration"
	const option, do = "etc.transient", "use an image without it"
	if here.transient {
		if !isTrue(own["etc"]["transient"]) || given["etc"]["transient"] != "" && !isTrue(given["etc"]["transient"]) {
			return &Unfit{ownRootConfig, option, "the host's /etc is transient and the image's would not be, so " +
				"the two could not be each other's way back", "use an image with it, or install the host anew"}
		}
		return nil
	}
	if isTrue(given["etc"]["transient"]) && !here.kept {
		return &Unfit{givenRootConfig, option, lost, do}
	}
	// A file in /etc reaches the initramfs only where somebody has seen to that. A host on which it takes effect shows it.
	overridden := here.etc != nil && !isTrue(here.etc["etc"]["transient"]) && isTrue(here.own["etc"]["transient"])
	if isTrue(own["etc"]["transient"]) && !overridden {
		return &Unfit{ownRootConfig, option, lost, do}
	}
	return nil
}

// judgeSignature refuses a commit that a signed root would not boot. Commits that are made on the host are not signed.
func (p *Plain) judgeSignature(ctx context.Context, doing, checksum string) error {
	const key = "ostree.sign.ed25519"
	output, err := p.run(ctx, "ostree", "show", "--print-detached-metadata-key="+key, checksum)
	if command, ok := errors.AsType[*CommandError](err); ok && strings.Contains(command.Stderr, "No such metadata key") {
		return &Error{Class: Invalid, Doing: doing, Err: &Unfit{ownRootConfig, "composefs.enabled=" + composefsSigned,
			"the commit has no " + key + ", so a deployment of the commit would not boot",
			"use a signed commit, without packages that are layered on the host"}}
	}
	return Failing(doing, output, err)
}

// judgePrograms refuses a commit that lacks a kernel for the boot loader's entries, or the tool that takes a host back.
func (p *Plain) judgePrograms(ctx context.Context, doing, checksum string) error {
	const tool = "/usr/bin/ostree"
	there, err := p.filesIn(ctx, doing, checksum, tool)
	if err == nil && len(there) == 0 {
		err = &Error{Class: Invalid, Doing: doing, Err: &Unfit{tool, "",
			"the program is missing, and without ostree the host could not be taken back", "install ostree into the image"}}
	}
	if err != nil {
		return err
	}
	names, err := p.kernelsIn(ctx, doing, checksum)
	if err != nil {
		return err
	}
	unified := ""
	for _, name := range names {
		if strings.HasPrefix(path.Base(name), "vmlinuz") {
			return nil
		}
		if path.Ext(name) == ".efi" && strings.Contains(name, "/EFI/Linux/") {
			unified = name
		}
	}
	refusal := &Unfit{"/usr/lib/modules/VERSION/vmlinuz", "",
		"the kernel is missing, and the boot loader's entries of this host need one there", "use an image with a kernel"}
	if unified != "" {
		refusal.why, refusal.do = "the image is sealed: "+unified+" has its kernel, for which this host's boot loader has "+
			"no entries", "use an image that is not sealed, or install the host anew from it"
	}
	return &Error{Class: Invalid, Doing: doing, Err: refusal}
}

// kernelsIn returns the paths in the directories of a commit where kernels may be. The modules below a kernel are too
// many to be listed. Two forks where the kernel is in its usual place.
func (p *Plain) kernelsIn(ctx context.Context, doing, checksum string) (names []string, err error) {
	const modules = "/usr/lib/modules"
	versions, err := p.filesIn(ctx, doing, checksum, modules)
	if err != nil {
		return nil, err
	}
	dirs := []string{"/usr/lib/ostree-boot", "/boot", "/boot/EFI/Linux"}
	for _, dir := range slices.Backward(versions) {
		if path.Dir(dir) == modules {
			dirs = slices.Insert(dirs, 0, dir)
		}
	}
	for _, dir := range dirs {
		there, err := p.filesIn(ctx, doing, checksum, dir)
		if err != nil {
			return nil, err
		}
		names = append(names, there...)
		if slices.ContainsFunc(there, func(name string) bool { return strings.HasPrefix(path.Base(name), "vmlinuz") }) {
			break
		}
	}
	return names, nil
}

// missing are what ostree says of a path that a commit does not have.
var missing = []string{"No such file or directory", "No such path"}

// Lacks reports whether ostree failed because a commit does not have a path.
func Lacks(err error) bool {
	command, ok := errors.AsType[*CommandError](err)
	return ok && slices.ContainsFunc(missing, func(text string) bool { return strings.Contains(command.Stderr, text) })
}

// configIn reads a key file of a commit, nil if the commit has none. One fork.
func (p *Plain) configIn(ctx context.Context, doing, checksum, at string) (groups, error) {
	text, err := p.run(ctx, "ostree", "cat", checksum, at)
	if Lacks(err) {
		return nil, nil
	}
	if err != nil {
		return nil, Failing(doing, text, err)
	}
	return ParseKeyFile(string(text)), nil
}

// filesIn returns a path of a commit and what is in that directory, none if the commit does not have it. One fork.
func (p *Plain) filesIn(ctx context.Context, doing, checksum, at string) ([]string, error) {
	output, err := p.run(ctx, "ostree", "ls", "--nul-filenames-only", checksum, at)
	if Lacks(err) {
		return nil, nil
	}
	if err != nil {
		return nil, Failing(doing, output, err)
	}
	return strings.FieldsFunc(string(output), func(r rune) bool { return r == 0 }), nil
}
