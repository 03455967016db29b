// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// loaderInfo is where a boot loader says its name to the OS, in UTF-16.
const loaderInfo = "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// triedPattern matches the name of a boot entry whose boots a boot loader has counted, as ostree-2+1-2.conf: one is
// left, and two were.
var triedPattern = regexp.MustCompile(`\+[0-9]+-[1-9][0-9]*\.conf$`)

// Tries returns after how many boots the boot loader gives an entry up, where ostree has that written into the names of
// entries; 0 where ostree does not. An error is why nobody counts: no boot loader that does has booted the host. GRUB
// does not. No fork.
func (p *Plain) Tries() (int, error) {
	const option = "sysroot.boot-counting-tries in /ostree/repo/config"
	repo, err := p.KeyFile("/ostree/repo/config")
	if err != nil {
		return 0, err
	}
	text := repo["sysroot"]["boot-counting-tries"]
	tries, err := strconv.Atoi(text)
	if text == "" || err != nil || tries < 1 {
		return 0, nil //nolint:nilerr // ostree takes it for 0 too
	}
	info, _ := os.ReadFile(p.host(loaderInfo)) // most hosts have none
	if bytes.Contains(bytes.ReplaceAll(info, []byte{0}, nil), []byte("systemd-boot")) {
		return tries, nil
	}
	names, err := filepath.Glob(p.host("/boot/loader/entries/*.conf"))
	if err != nil {
		return 0, err
	}
	if slices.ContainsFunc(names, triedPattern.MatchString) {
		return tries, nil
	}
	return 0, fmt.Errorf("%s is %d, and the host's boot loader has counted none", option, tries)
}
