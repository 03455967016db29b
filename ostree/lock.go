// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// StagedState is the file where ostree describes the staged deployment, from the staging to the shutdown.
	StagedState = "/run/ostree/staged-deployment"
	// StagedLock is the lock file of older versions. It locks the staged deployment as well.
	StagedLock = "/run/ostree/staged-deployment-locked"
)

// WithLock is an option of every transaction, so that what the transaction stages cannot boot before it is released.
// rpm-ostree does not copy the lock from the deployment that it builds on.
const WithLock = "--lock-finalization" //nolint:misspell // rpm-ostree's own word

// StagedLocked reports whether the staged deployment of a host is locked, which keeps it from booting after the next
// shutdown. StagedLocked reads the files that ostree reads then. rpm-ostree's status does not have the lock, and
// ostree's status does not have it in every release. If nothing is staged, StagedLocked returns false.
func StagedLocked(root string) (bool, error) {
	staged, err := readStaged(root)
	return staged.locked, err
}

// stagedState is what ostree keeps of a staged deployment until the shutdown.
type stagedState struct {
	arguments []string // kernel arguments, without ostree=
	extra     Extra
	locked    bool
}

// readStaged reads what ostree keeps of a host's staged deployment.
func readStaged(root string) (staged stagedState, err error) {
	state, err := os.ReadFile(filepath.Join(root, StagedState))
	if errors.Is(err, fs.ErrNotExist) {
		return staged, nil
	}
	if err != nil {
		return staged, err
	}
	dictionary, err := readDictionary(state)
	if err == nil {
		staged.arguments, err = readStrings(dictionary["kargs"])
	}
	if err == nil {
		staged.extra, err = readPairs(dictionary["bootconfig-extra"])
	}
	if err != nil {
		return stagedState{}, fmt.Errorf("reading %s: %w", StagedState, err)
	}
	staged.arguments = slices.DeleteFunc(staged.arguments, func(a string) bool { return strings.HasPrefix(a, "ostree=") })
	if _, err := os.Stat(filepath.Join(root, StagedLock)); err == nil {
		staged.locked = true
		return staged, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return stagedState{}, err
	}
	lock := dictionary["locked"]
	staged.locked = lock.kind == "b" && bytes.Equal(lock.value, []byte{1})
	return staged, nil
}

// variant is a value of a GVariant dictionary, still encoded.
type variant struct {
	kind  string // GVariant's type string
	value []byte
}

// readStrings reads an array of strings, and returns none if v is empty. Each string ends in a zero byte. After the
// last string follow the places where each string ends.
func readStrings(v variant) ([]string, error) {
	if v.kind == "" || len(v.value) == 0 {
		return nil, nil
	}
	width := placeWidth(len(v.value))
	end := place(v.value, len(v.value)-width, width)
	if v.kind != "as" || end < 0 || end > len(v.value)-width || (len(v.value)-end)%width != 0 {
		return nil, errNoStrings
	}
	var all []string
	start := 0
	for at := end; at < len(v.value); at += width {
		until := place(v.value, at, width)
		if until <= start || until > end || v.value[until-1] != 0 {
			return nil, errNoStrings
		}
		all = append(all, string(v.value[start:until-1]))
		start = until
	}
	return all, nil
}

var errNoStrings = errors.New("its kernel arguments are no strings")

// Texts reads a GVariant of the type a{sv}, and returns the values that are strings.
func Texts(data []byte) (map[string]string, error) {
	entries, err := readDictionary(data)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for key, v := range entries {
		if text, is := bytes.CutSuffix(v.value, []byte{0}); is && v.kind == "s" {
			texts[key] = string(text)
		}
	}
	return texts, nil
}

var errNoDictionary = errors.New("it is no dictionary of variants")

// readDictionary reads a GVariant of the type a{sv}. The entries come first, each at a multiple of eight. Then follow
// the places where each entry ends. An entry begins with a key that a zero byte ends. From the next multiple of eight
// on follow a value, a zero byte, the type of the value, and the place where the key ends. Places are little-endian.
// The length of the container decides their width.
func readDictionary(data []byte) (map[string]variant, error) {
	entries := map[string]variant{}
	if len(data) == 0 {
		return entries, nil
	}
	width := placeWidth(len(data))
	end := place(data, len(data)-width, width)
	if end < 0 || end > len(data)-width || (len(data)-end)%width != 0 {
		return nil, errNoDictionary
	}
	start := 0
	for at := end; at < len(data); at += width {
		start = (start + 7) &^ 7
		until := place(data, at, width)
		if until < start || until > end {
			return nil, errNoDictionary
		}
		key, value, err := readEntry(data[start:until])
		if err != nil {
			return nil, err
		}
		entries[key] = value
		start = until
	}
	return entries, nil
}

// readEntry reads one entry of a dictionary.
func readEntry(entry []byte) (string, variant, error) {
	width := placeWidth(len(entry))
	keyEnd := place(entry, len(entry)-width, width)
	valueStart := (keyEnd + 7) &^ 7
	if keyEnd < 1 || valueStart > len(entry)-width || entry[keyEnd-1] != 0 {
		return "", variant{}, errNoDictionary
	}
	content := entry[valueStart : len(entry)-width]
	zero := bytes.LastIndexByte(content, 0)
	if zero < 0 {
		return "", variant{}, errNoDictionary
	}
	return string(entry[:keyEnd-1]), variant{kind: string(content[zero+1:]), value: content[:zero]}, nil
}

// placeWidth returns how many bytes a place takes in a container of that length.
func placeWidth(length int) int {
	switch {
	case length <= 0xff:
		return 1
	case length <= 0xffff:
		return 2
	}
	return 4
}

// place reads a place at an offset. place returns -1 if data has no place there.
func place(data []byte, at, width int) int {
	if at < 0 || at+width > len(data) {
		return -1
	}
	value := 0
	for i := width - 1; i >= 0; i-- {
		value = value<<8 | int(data[at+i])
	}
	return value
}

// releaseVersion is the first ostree with a command that unlocks a staged deployment. In older versions the lock is a
// file.
const releaseVersion = "2023.8"

// Release unlocks the staged deployment, so that it boots after the next orderly shutdown. A nil error means that the
// result was read back. At most four forks, or three if the version is known.
func (p *Plain) Release(ctx context.Context, id string) error {
	doing := "releasing " + id
	for _, again := range []bool{false, true} {
		all, err := p.Status(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		at := slices.IndexFunc(all, ByID(id))
		switch {
		case at < 0 || !all[at].Staged:
			return &Error{Class: Failed, Doing: doing, Err: errors.New("it is not staged any more")}
		case !all[at].Locked:
			return nil
		case again:
			return &Error{Class: Failed, Doing: doing, Err: errors.New("it is locked still")}
		}
		version, err := p.Version(ctx)
		if err != nil {
			return err
		}
		if older(version, releaseVersion) {
			if err := os.Remove(p.host(StagedLock)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return &Error{Class: Failed, Doing: doing, Err: err}
			}
			continue
		}
		output, err := p.run(ctx, "ostree", "admin", strings.TrimPrefix(WithLock, "--"), "--unlock")
		if err != nil {
			return Failing(doing, output, err)
		}
	}
	return nil
}
