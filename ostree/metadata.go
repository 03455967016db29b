// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// CommitTexts returns the texts in the metadata of a commit of the host's repository, by their keys. No fork.
func (p *Plain) CommitTexts(checksum string) (map[string]string, error) {
	if !IsChecksum(checksum) {
		return nil, fmt.Errorf("reading commit %q: it is no checksum", checksum)
	}
	data, err := os.ReadFile(p.host(objectPath(checksum)))
	if err != nil {
		return nil, fmt.Errorf("reading commit %s: %w", checksum, err)
	}
	texts, err := commitTexts(data)
	if err != nil {
		return nil, fmt.Errorf("reading commit %s: %w", checksum, err)
	}
	return texts, nil
}

// objectPath returns where the repository has a commit.
func objectPath(checksum string) string {
	return "/ostree/repo/objects/" + checksum[:2] + "/" + checksum[2:] + ".commit"
}

// commitTexts reads the metadata of a commit, a GVariant of the type (a{sv}aya(say)sstayay). The metadata come first.
// The places where they and the next members end are at the end of the commit, the first member's place last.
func commitTexts(data []byte) (map[string]string, error) {
	width := placeWidth(len(data))
	end := place(data, len(data)-width, width)
	if end < 0 || end > len(data)-width {
		return nil, errors.New("it is no commit")
	}
	dictionary, err := readDictionary(data[:end])
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for key, v := range dictionary {
		if v.kind == "s" {
			texts[key] = strings.TrimSuffix(string(v.value), "\x00")
		}
	}
	return texts, nil
}

// RefCommit returns the commit that a local ref names, or "" if there is no such ref. No fork.
func (p *Plain) RefCommit(ref string) (string, error) {
	text, err := os.ReadFile(p.host("/ostree/repo/refs/heads/" + ref))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(text)), err
}
