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
	var policy *Policy
	file, err := os.ReadFile(filepath.Join(root, PolicyPath))
	if err == nil {
		policy, err = ParsePolicy(file)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Image{}, &ostree.Error{Class: ostree.NeedsAdmin, Doing: "reading the policy for signatures", Err: err}
	}
	return policy.Admit(image)
}
