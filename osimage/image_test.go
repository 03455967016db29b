// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/ostree"
)

const (
	digestA   = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB   = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	checksumC = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
)

func TestReferenceIsReadAsTheToolsReadIt(t *testing.T) {
	registry := func(verify Verification, name, tag, digest string) Image {
		return Image{Kind: ContainerImage, Verify: verify, Transport: Registry, Name: name, Tag: tag, Digest: digest}
	}
	local := func(verify Verification, transport Transport, name, tag string) Image {
		return Image{Kind: ContainerImage, Verify: verify, Transport: transport, Name: name, Tag: tag}
	}
	for _, c := range []struct {
		text    string
		want    Image
		refspec string // "" if it is the text
	}{
		{"quay.io/os/rhcos@" + digestA, registry(VerifyUnsaid, "quay.io/os/rhcos", "", digestA),
			"ostree-unverified-registry:quay.io/os/rhcos@" + digestA},
		{"quay.io/os/rhcos:9.6@" + digestA, registry(VerifyUnsaid, "quay.io/os/rhcos", "9.6", digestA),
			"ostree-unverified-registry:quay.io/os/rhcos@" + digestA},
		{"quay.io/os/rhcos:9.6", registry(VerifyUnsaid, "quay.io/os/rhcos", "9.6", ""),
			"ostree-unverified-registry:quay.io/os/rhcos:9.6"},
		{"registry:5000/os", registry(VerifyUnsaid, "registry:5000/os", "", ""),
			"ostree-unverified-registry:registry:5000/os"},
		{"localhost/os", registry(VerifyUnsaid, "localhost/os", "", ""), "ostree-unverified-registry:localhost/os"},
		{"[fd00::1]:5000/os:a", registry(VerifyUnsaid, "[fd00::1]:5000/os", "a", ""),
			"ostree-unverified-registry:[fd00::1]:5000/os:a"},
		{"fedora/os@" + digestA, registry(VerifyUnsaid, "fedora/os", "", digestA),
			"ostree-unverified-registry:fedora/os@" + digestA},
		{"ostree-unverified-registry:quay.io/os/fcos:stable",
			registry(VerifyNothing, "quay.io/os/fcos", "stable", ""), ""},
		{"ostree-unverified-registry:fedora", registry(VerifyNothing, "fedora", "", ""), ""},
		{"ostree-unverified-image:docker://quay.io/os/fcos", registry(VerifyNothing, "quay.io/os/fcos", "", ""),
			"ostree-unverified-registry:quay.io/os/fcos"},
		{"ostree-unverified-image:registry:quay.io/os/fcos", registry(VerifyNothing, "quay.io/os/fcos", "", ""),
			"ostree-unverified-registry:quay.io/os/fcos"},
		{"ostree-image-signed:docker://quay.io/os/fcos@" + digestA,
			registry(VerifyPolicy, "quay.io/os/fcos", "", digestA), ""},
		{"ostree-image-signed:registry:quay.io/os/fcos:1", registry(VerifyPolicy, "quay.io/os/fcos", "1", ""),
			"ostree-image-signed:docker://quay.io/os/fcos:1"},
		{"ostree-unverified-image:containers-storage:localhost/os:next",
			local(VerifyNothing, ContainersStorage, "localhost/os", "next"), ""},
		{"ostree-unverified-image:containers-storage:[overlay@/srv/c+/run/c]localhost:5000/os:next",
			local(VerifyNothing, ContainersStorage, "[overlay@/srv/c+/run/c]localhost:5000/os", "next"), ""},
		{"ostree-unverified-image:containers-storage:@" + checksumC,
			local(VerifyNothing, ContainersStorage, "@"+checksumC, ""), ""},
		{"ostree-unverified-image:oci:/var/tmp/os", local(VerifyNothing, OCIDirectory, "/var/tmp/os", ""), ""},
		{"ostree-unverified-image:oci:/var/tmp/os:a/b:c", local(VerifyNothing, OCIDirectory, "/var/tmp/os", "a/b:c"), ""},
		{"ostree-image-signed:oci-archive:/os.oci", local(VerifyPolicy, OCIArchive, "/os.oci", ""), ""},
		{"ostree-unverified-image:docker-archive:/os.tar:os:1",
			local(VerifyNothing, DockerArchive, "/os.tar", "os:1"), ""},
		{"ostree-unverified-image:dir:/srv/os:1", local(VerifyNothing, PlainDirectory, "/srv/os:1", ""), ""},
		{"ostree-remote-registry:fedora:quay.io/os/fcos:stable", Image{Kind: ContainerImage, Verify: VerifyByRemote,
			Remote: "fedora", Transport: Registry, Name: "quay.io/os/fcos", Tag: "stable"},
			"ostree-remote-image:fedora:docker://quay.io/os/fcos:stable"},
		{"ostree-remote-image:fedora:oci:/os", Image{Kind: ContainerImage, Verify: VerifyByRemote,
			Remote: "fedora", Transport: OCIDirectory, Name: "/os"}, ""},

		{checksumC, Image{Kind: OSTreeCommit, Checksum: checksumC}, ""},
		{"fedora:" + checksumC, Image{Kind: OSTreeCommit, Remote: "fedora", Checksum: checksumC}, ""},
		{"fedora:fedora/x86_64/coreos/stable",
			Image{Kind: OSTreeCommit, Remote: "fedora", Ref: "fedora/x86_64/coreos/stable"}, ""},
		{"fedora/x86_64/coreos/stable", Image{Kind: OSTreeCommit, Ref: "fedora/x86_64/coreos/stable"}, ""},
	} {
		got, err := ParseImage(c.text)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if got != c.want {
			t.Errorf("%s: %+v instead of %+v", c.text, got, c.want)
		}
		want := c.refspec
		if want == "" {
			want = c.text
		}
		if got.Refspec() != want {
			t.Errorf("%s: rpm-ostree gets %s instead of %s", c.text, got.Refspec(), want)
		}
		if again, err := ParseImage(got.String()); err != nil || again != got {
			t.Errorf("%s: its text %s is read as %+v, %v", c.text, got, again, err)
		}
	}
}

func TestBareReferenceIsAContainerImageByItsHostOrDigestAlone(t *testing.T) {
	for text, want := range map[string]ImageKind{
		"quay.io/os":                ContainerImage,
		"quay.io:443/os":            ContainerImage,
		"registry:5000/os":          ContainerImage,
		"localhost/os":              ContainerImage,
		"localhost:5000/os":         ContainerImage,
		"fedora:5000/stable":        ContainerImage, // a port, although 5000/stable could be a ref of the remote fedora
		"os.stable/x86_64":          ContainerImage, // a dot, although it could be a local ref
		"os@" + digestA:             ContainerImage,
		"fedora/os@" + digestA:      ContainerImage,
		"quay.io/os:tag@" + digestA: ContainerImage,

		"fedora/os":              OSTreeCommit,
		"fedora":                 OSTreeCommit,
		"quay.io":                OSTreeCommit, // no slash, so no host
		"quay.io:stable":         OSTreeCommit,
		"fedora:stable":          OSTreeCommit,
		"fedora:5000":            OSTreeCommit,
		"fedora:os/stable.1":     OSTreeCommit,
		"my.remote:os/stable":    OSTreeCommit, // what follows the colon is no port
		"localhost:os/stable":    OSTreeCommit,
		"localhost:" + checksumC: OSTreeCommit,
	} {
		if got, err := ParseImage(text); err != nil || got.Kind != want {
			t.Errorf("%s is read as %q (%v) instead of %q", text, got.Kind, err, want)
		}
	}
}

func TestWrongReferenceIsRefusedByItsPart(t *testing.T) {
	for text, part := range map[string]string{
		"":                                       "empty",
		strings.Repeat("a", 5000):                "longer",
		"quay.io/os tag":                         "' '",
		"quay.io/os\n":                           `'\n'`,
		"fedora:os\\x":                           `'\\'`,
		"quay.io/os@sha256:abc":                  `digest "sha256:abc"`,
		"quay.io/os@" + digestA + "0":            "digest",
		"quay.io/os@md5:abc":                     "digest",
		"fedora/os@":                             "digest",
		"quay.io/os:" + strings.Repeat("a", 129): "tag",
		"quay.io/os:":                            "tag",
		"quay.io/OS":                             `"OS"`,
		"quay.io/":                               `name "quay.io/"`,
		"quay.io//os":                            `""`,
		"quay.io/-os":                            `"-os"`,
		"ostree-unverified-registry:":            `name ""`,
		"ostree-unverified-registry:-x":          `"-x"`,
		"ostree-unverified-registry://quay.io/os":                "name",
		"ostree-unverified-repo:quay.io/os":                      "scheme ostree-unverified-repo",
		"ostree-unverified-image:quay.io/os":                     "transport",
		"ostree-unverified-image:quay.io:443/os":                 `transport "quay.io"`,
		"ostree-unverified-image:docker:quay.io/os":              "//",
		"ostree-unverified-image:docker-daemon:os:1":             `transport "docker-daemon"`,
		"ostree-unverified-image:oci:os":                         "not absolute",
		"ostree-unverified-image:oci:/os:":                       "tag",
		"ostree-unverified-image:dir:--help":                     "not absolute",
		"ostree-unverified-image:containers-storage:[overlay@/x": "closing bracket",
		"ostree-unverified-image:containers-storage:--help":      "name",
		"ostree-remote-registry:quay.io/os":                      "remote",
		"ostree-remote-image::docker://quay.io/os":               "remote",
		"docker://quay.io/os":                                    "transport docker",
		"containers-storage:localhost/os":                        "transport containers-storage",
		"oci:/srv/os":                                            "transport oci",
		"--os=evil":                                              "neither",
		"fedora::x":                                              "neither",
		"a:b:c":                                                  "neither",
		"/srv/repo:os":                                           "neither",
	} {
		_, err := ParseImage(text)
		if err == nil {
			t.Errorf("%q was taken", text)
			continue
		}
		if ostree.ClassOf(err) != ostree.Invalid || !strings.Contains(err.Error(), "osImageURL") || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is refused with %s: %v; want invalid, osImageURL and %s", text, ostree.ClassOf(err), err, part)
		}
		if len(err.Error()) > 700 {
			t.Errorf("the error about %.20q is %d bytes long", text, len(err.Error()))
		}
	}
}

func TestDigestAloneDecidesWhetherAnImageIsTheOneAskedFor(t *testing.T) {
	const signed, unverified = "ostree-image-signed:docker://", "ostree-unverified-registry:"
	for _, c := range []struct {
		name, want, have, reported string
		satisfied                  bool
	}{
		{"reported digest", "quay.io/os@" + digestA, unverified + "quay.io/os:stable", digestA, true},
		{"from a mirror", "quay.io/os@" + digestA, unverified + "mirror.example/os@" + digestA, digestA, true},
		{"from the host's storage", "quay.io/os@" + digestA,
			"ostree-unverified-image:containers-storage:quay.io/os@" + digestA, "", true},
		{"verified otherwise", "quay.io/os@" + digestA, signed + "quay.io/os@" + digestA, digestA, true},
		{"list of architectures", "quay.io/os@" + digestA, unverified + "quay.io/os@" + digestA, digestB, true},
		{"tag beside the digest", "quay.io/os:1@" + digestA, unverified + "quay.io/os:2", digestA, true},
		{"another digest", "quay.io/os@" + digestA, unverified + "quay.io/os@" + digestB, digestB, false},
		{"tag that has moved", "quay.io/os:1@" + digestA, unverified + "quay.io/os:1", digestB, false},
		{"unknown digest", "quay.io/os:1@" + digestA, unverified + "quay.io/os:1", "", false},
		{"tag", "quay.io/os:1", unverified + "quay.io/os:1", digestA, true},
		{"another tag", "quay.io/os:1", unverified + "quay.io/os:2", digestA, false},
		{"tag that is not written", "quay.io/os", unverified + "quay.io/os:latest", "", true},
		{"registry that is not written", "docker.io/library/os", unverified + "os", "", true},
		{"another transport", "localhost/os:1", "ostree-unverified-image:containers-storage:localhost/os:1", "", false},
		{"path", "ostree-unverified-image:oci:/a:1", "ostree-image-signed:oci:/a:1", "", true},
		{"another path", "ostree-unverified-image:oci:/a", "ostree-unverified-image:oci:/b", "", false},
		{"checksum", "fedora:" + checksumC, checksumC, "", true},
		{"checksum of a ref", checksumC, "fedora:os", checksumC, true},
		{"another checksum", checksumC, "fedora:os", strings.Repeat("d", 64), false},
		{"ref", "fedora:os", "fedora:os", checksumC, true},
		{"ref of another remote", "fedora:os", "other:os", checksumC, false},
		{"commit for an image", "quay.io/os:1", "fedora:os", digestA, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, have := mustParseImage(t, c.want), mustParseImage(t, c.have)
			if got := want.SatisfiedBy(have, c.reported); got != c.satisfied {
				t.Errorf("%s (%s) satisfies %s: %t", c.have, c.reported, c.want, got)
			}
		})
	}
}

func TestBootcGetsTheTransportTheTargetAndTheFlag(t *testing.T) {
	for _, c := range []struct {
		text, transport, target string
		enforce                 bool
		err                     string
	}{
		{text: "quay.io/os:1@" + digestA, transport: "registry", target: "quay.io/os@" + digestA},
		{text: "ostree-unverified-registry:quay.io/os:1", transport: "registry", target: "quay.io/os:1"},
		{text: "ostree-image-signed:docker://quay.io/os", transport: "registry", target: "quay.io/os", enforce: true},
		{text: "ostree-unverified-image:oci-archive:/os:1", transport: "oci-archive", target: "/os:1"},
		{text: "ostree-remote-registry:fedora:quay.io/os", err: "keys of an ostree remote"},
		{text: "fedora:os", err: "ostree commit"},
	} {
		transport, target, enforce, err := mustParseImage(t, c.text).Bootc()
		if c.err != "" {
			if ostree.ClassOf(err) != ostree.Invalid || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "osImageURL") {
				t.Errorf("%s: %v instead of an error about osImageURL and %s", c.text, err, c.err)
			}
			continue
		}
		if err != nil || transport != c.transport || target != c.target || enforce != c.enforce {
			t.Errorf("%s: %s %s %t %v", c.text, transport, target, enforce, err)
		}
	}
}

func TestRegistryHostIsThatOfAPullFromARegistry(t *testing.T) {
	for text, want := range map[string]string{
		"quay.io:8443/a/b@" + digestA:                           "quay.io:8443",
		"ostree-unverified-registry:fedora/os":                  "docker.io",
		"ostree-unverified-registry:index.docker.io/fedora/os":  "docker.io",
		"ostree-unverified-image:containers-storage:quay.io/os": "",
		"fedora:os": "",
	} {
		if got := mustParseImage(t, text).registryHost(); got != want {
			t.Errorf("%s is pulled from %q instead of %q", text, got, want)
		}
	}
}

func mustParseImage(t *testing.T, text string) Image {
	t.Helper()
	image, err := ParseImage(text)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func FuzzParseImage(f *testing.F) {
	for _, seed := range []string{
		"quay.io/os:1@" + digestA, "fedora:fedora/stable", checksumC, "localhost:5000/os",
		"ostree-image-signed:docker://quay.io/os", "ostree-unverified-image:containers-storage:[a@/b]c:d@" + digestA,
		"ostree-remote-image:r:oci:/a:b", "ostree-remote-registry:r:[::1]:1/a", "ostree-unverified-image:dir:/a@b:c",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		image, err := ParseImage(text)
		if err != nil {
			if ostree.ClassOf(err) != ostree.Invalid {
				t.Fatalf("%q is refused with %v, which is not invalid", text, err)
			}
			return
		}
		again, err := ParseImage(image.String())
		if err != nil || again != image {
			t.Fatalf("%q is %+v, whose text %s is %+v, %v", text, image, image, again, err)
		}
		pulled, err := ParseImage(image.Refspec())
		if err != nil || !image.SatisfiedBy(pulled, "") {
			t.Fatalf("%q becomes %s for rpm-ostree, which is something else: %+v, %v", text, image.Refspec(), pulled, err)
		}
		if transport, target, _, err := image.Bootc(); err == nil && (transport == "" || strings.HasPrefix(target, "-")) {
			t.Fatalf("%q becomes the arguments %q, %q for bootc", text, transport, target)
		}
	})
}

func TestSourceOfPackagesIsAnImageInARegistry(t *testing.T) {
	for text, ok := range map[string]bool{
		"quay.io/a/extensions@" + digestA: true, "quay.io/a/extensions:1": true,
		"ostree-unverified-registry:quay.io/a/extensions:1":   false,
		"ostree-image-signed:docker://quay.io/a/extensions:1": false,
		"ostree-unverified-image:oci:/var/extensions":         false,
		"fedora:fedora/x86_64/extensions":                     false,
		"quay.io/a/extensions@sha256:1":                       false,
		"docker://quay.io/a/extensions:1":                     false,
		"":                                                    false,
	} {
		_, err := ParseSource(text)
		if (err == nil) != ok || err != nil && (ostree.ClassOf(err) != ostree.Invalid ||
			!strings.HasPrefix(err.Error(), "parsing baseOSExtensionsContainerImage ")) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
