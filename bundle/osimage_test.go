// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/osimage"
)

// FuzzRegistryImageIsThatOfOSImage holds registryImage to the parser that hosts have, which is of Linux alone.
func FuzzRegistryImageIsThatOfOSImage(f *testing.F) {
	sum := strings.Repeat("a", 64)
	for _, seed := range []string{
		"quay.io/os/node@sha256:" + sum, "quay.io/os/node:9.6@sha256:" + sum, "quay.io/os/node:9.6", "registry:5000/os",
		"localhost/os", "[fd00::1]:5000/os:a", "fedora/os@sha256:" + sum, "fedora:5000/stable", "my.remote/stable",
		"ostree-unverified-registry:quay.io/os/fcos:stable", "ostree-unverified-registry:fedora",
		"ostree-unverified-image:docker://quay.io/os/fcos", "ostree-unverified-image:registry:quay.io/os/fcos",
		"ostree-image-signed:docker://quay.io/os/fcos@sha256:" + sum, "ostree-image-signed:registry:quay.io/os/fcos:1",
		"ostree-unverified-image:containers-storage:localhost/os:next", "ostree-unverified-image:oci:/var/tmp/os:a/b:c",
		"ostree-unverified-image:containers-storage:@" + sum, "ostree-image-signed:oci-archive:/os.oci",
		"ostree-remote-registry:fedora:quay.io/os/fcos:stable", "ostree-remote-image:fedora:docker://quay.io/os/fcos",
		"ostree-remote-image:fedora:oci:/os", "fedora:fedora/x86_64/coreos/stable", "fedora/stable", sum, "fedora:" + sum,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		image, err := osimage.ParseImage(text)
		if err != nil {
			return // a host refuses the text
		}
		want := ""
		if image.Kind == osimage.ContainerImage && image.Transport == osimage.Registry {
			want = image.Target()
		}
		if got := registryImage(text); got != want {
			t.Errorf("%q is the image %q, and hosts pull %q", text, got, want)
		}
	})
}
