// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestImageReferences(t *testing.T) {
	const digest = "sha256:0123"
	for _, c := range []struct{ text, written, name, tag string }{
		{"ostree-unverified-registry:r.example/a/b", "", "docker://r.example/a/b", "latest"},
		{"ostree-unverified-registry:r.example:5000/a", "", "docker://r.example:5000/a", "latest"},
		{"ostree-unverified-image:docker://r.example/a:v1", "ostree-unverified-registry:r.example/a:v1", "docker://r.example/a", "v1"},
		{"ostree-image-signed:docker://r.example/a@" + digest, "", "docker://r.example/a", digest},
		{"ostree-image-signed:registry:r.example/a", "ostree-image-signed:docker://r.example/a", "docker://r.example/a", "latest"},
		{"ostree-remote-image:fedora:docker://r.example/a", "", "docker://r.example/a", "latest"},
		{"ostree-remote-registry:fedora:r.example/a", "ostree-remote-image:fedora:docker://r.example/a", "docker://r.example/a", "latest"},
		{"ostree-unverified-image:containers-storage:r.example/a:v1", "", "containers-storage:r.example/a", "v1"},
		{"ostree-unverified-image:oci:/var/tmp/a", "", "oci:/var/tmp/a", "latest"},
		{"ostree-unverified-image:oci-archive:/var/tmp/a.tar:v1", "", "oci-archive:/var/tmp/a.tar", "v1"},
	} {
		r, ok := parseImage(c.text)
		name, tag := r.split()
		if c.written == "" {
			c.written = c.text
		}
		if !ok || r.String() != c.written || name != c.name || tag != c.tag {
			t.Errorf("%s is %s, %s of %s, %t", c.text, r, tag, name, ok)
		}
	}
	for _, text := range []string{"os/test", "lab:os/test", ":0123", ""} {
		if _, ok := parseImage(text); ok {
			t.Errorf("%q counts as an image", text)
		}
	}
}

func TestOriginKeepsWhatItDoesNotKnow(t *testing.T) {
	const text = "[origin]\nrefspec=lab:os/test\nunconfigured-state=x\n\n[libostree-transient]\npinned=true\n"
	o := parseOrigin(text)
	if o.String() != text {
		t.Errorf("unchanged it is %q", o)
	}
	o.Requested = append(o.Requested, "a", "b")
	o.Removed = append(o.Removed, "kernel")
	want := "[origin]\nunconfigured-state=x\nbaserefspec=lab:os/test\n\n[libostree-transient]\npinned=true\n\n" +
		"[packages]\nrequested=a;b;\n\n[overrides]\nremove=kernel;\n"
	if o.String() != want {
		t.Errorf("with packages it is %q", o)
	}
	o.Requested, o.Removed = nil, nil
	if got := parseOrigin(o.String()); got.Refspec != "lab:os/test" || got.assembled() || got.file.get("origin", "baserefspec") != "" {
		t.Errorf("without them again it is %q", o)
	}
}
