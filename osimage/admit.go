// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/noderefit/noderefit/ostree"
)

// Admitted parses text and returns the image, if the signature policy of the host at root admits it.
func Admitted(root, text string) (Image, error) {
	image, err := ParseImage(text)
	if err != nil {
		return Image{}, err
	}
	policy, err := readPolicy(root)
	if err != nil {
		return Image{}, &ostree.Error{Class: ostree.NeedsAdmin, Doing: "reading the policy for signatures", Err: err}
	}
	return policy.Admit(image)
}

// readPolicy returns the policy of the host at root, nil if the host has none.
func readPolicy(root string) (*Policy, error) {
	for _, path := range policyPaths {
		file, err := os.ReadFile(filepath.Join(root, path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return ParsePolicy(path, file)
	}
	return nil, nil
}
