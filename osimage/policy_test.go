// SPDX-License-Identifier: Apache-2.0

package osimage

import (
	"strings"
	"testing"

	"github.com/noderefit/noderefit/ostree"
)

const accepts, rejects, sigstore, gpg = `[{"type":"insecureAcceptAnything"}]`, `[{"type":"reject"}]`,
	`[{"type":"sigstoreSigned","keyPath":"/k.pub","signedIdentity":{"type":"matchRepository"}}]`,
	`[{"type":"signedBy","keyType":"GPGKeys","keyPaths":["/a.gpg","/b.gpg"]}]`

func TestMostSpecificScopeOfThePolicyApplies(t *testing.T) {
	policy := mustParsePolicy(t, `{"default": `+rejects+`, "transports": {
		"docker": {
			"quay.io": `+accepts+`,
			"quay.io/os": `+sigstore+`,
			"quay.io/os/rhcos:9.6": `+gpg+`,
			"quay.io/os/rhcos@`+digestA+`": `+accepts+`,
			"quay.io/os/scos:latest": `+gpg+`,
			"mirror.example:5000": `+accepts+`,
			"*.example": `+gpg+`,
			"docker.io/library/os": `+sigstore+`
		},
		"containers-storage": {
			"[overlay@/var/lib/containers/storage]localhost/os": `+accepts+`,
			"[/srv/other]": `+gpg+`,
			"[overlay@/srv/other]localhost/os/signed": `+accepts+`,
			"": `+sigstore+`
		},
		"oci": {"/var/tmp": `+accepts+`, "/var/tmp/signed": `+gpg+`},
		"docker-archive": {"": `+accepts+`}
	}}`)
	const unverified = "ostree-unverified-image:"
	for _, c := range []struct {
		image string
		want  Requirement
		scope string
	}{
		{"quay.io/other/os:1", AcceptAnything, `transports.docker["quay.io"]`},
		{"quay.io/os/fcos", SigstoreSigned, `transports.docker["quay.io/os"]`},
		{"quay.io/os/scos", SignedBy, `transports.docker["quay.io/os/scos:latest"]`},
		{"quay.io/os2/fcos", AcceptAnything, `transports.docker["quay.io"]`},
		{"quay.io/os/rhcos:9.6", SignedBy, `transports.docker["quay.io/os/rhcos:9.6"]`},
		{"quay.io/os/rhcos:9.7", SigstoreSigned, `transports.docker["quay.io/os"]`},
		{"quay.io/os/rhcos:9.6@" + digestA, AcceptAnything, `transports.docker["quay.io/os/rhcos@` + digestA + `"]`},
		{"quay.io/os/rhcos:9.6@" + digestB, SigstoreSigned, `transports.docker["quay.io/os"]`},
		{"quay.io:8443/os/rhcos", Reject, "default"},
		{"mirror.example:5000/os", AcceptAnything, `transports.docker["mirror.example:5000"]`},
		{"mirror.example:5001/os", SignedBy, `transports.docker["*.example"]`},
		{"a.b.example/os", SignedBy, `transports.docker["*.example"]`},
		{"ostree-unverified-registry:os", SigstoreSigned, `transports.docker["docker.io/library/os"]`},
		{unverified + "containers-storage:localhost/os:1", AcceptAnything,
			`transports.containers-storage["[overlay@/var/lib/containers/storage]localhost/os"]`},
		{unverified + "containers-storage:[/srv/other+/run/x]localhost/os:1", SignedBy,
			`transports.containers-storage["[/srv/other]"]`},
		{unverified + "containers-storage:[/srv/other]localhost/os/signed/a", AcceptAnything,
			`transports.containers-storage["[overlay@/srv/other]localhost/os/signed"]`},
		{unverified + "containers-storage:@" + checksumC, SigstoreSigned, `transports.containers-storage[""]`},
		{unverified + "oci:/var/tmp/os:1", AcceptAnything, `transports.oci["/var/tmp"]`},
		{unverified + "oci:/var/tmp/signed/:1", SignedBy, `transports.oci["/var/tmp/signed"]`},
		{unverified + "oci:/var/tmpfs/os", Reject, "default"},
		{unverified + "oci-archive:/var/tmp/os", Reject, "default"},
		{unverified + "docker-archive:/var/tmp/os", AcceptAnything, `transports.docker-archive[""]`},
	} {
		if got := policy.Verdict(mustParseImage(t, c.image)); got != (Verdict{c.want, c.scope}) {
			t.Errorf("%s: %+v instead of %s by %s", c.image, got, c.want, c.scope)
		}
	}
}

func TestStrictestRequirementOfAScopeCounts(t *testing.T) {
	for list, want := range map[string]Requirement{
		`[{"type":"insecureAcceptAnything"},{"type":"signedBy"}]`: SignedBy,
		`[{"type":"sigstoreSigned"},{"type":"signedBy"}]`:         SigstoreSigned,
		`[{"type":"reject"},{"type":"signedBy"}]`:                 Reject,
	} {
		if got := mustParsePolicy(t, `{"default":`+list+`}`).Verdict(mustParseImage(t, "quay.io/os")); got.Requirement != want {
			t.Errorf("%s demands %s instead of %s", list, got.Requirement, want)
		}
	}
}

func TestImageIsPulledAsThePolicyDemandsOrNotAtAll(t *testing.T) {
	const (
		bare, signed, unverified = "quay.io/os:1", "ostree-image-signed:docker://quay.io/os:1",
			"ostree-unverified-registry:quay.io/os:1"
		remote = "ostree-remote-image:fedora:docker://quay.io/os:1"
		scope  = `transports.docker["quay.io/os"]`
	)
	policy := func(fallback, scope string) string {
		return `{"default":` + fallback + `,"transports":{"docker":{"quay.io/os":` + scope + `}}}`
	}
	for _, c := range []struct {
		name, policy, image string
		want                string   // what rpm-ostree gets, "" if it is refused
		err                 []string // what the refusal names
	}{
		{name: "nothing demanded", policy: `{"default":` + accepts + `}`, image: bare, want: unverified},
		{name: "nothing demanded of unverified", policy: `{"default":` + accepts + `}`, image: unverified, want: unverified},
		{name: "signed, nothing demanded", policy: `{"default":` + accepts + `}`, image: signed,
			err: []string{"default", "accepts anything"}},
		{name: "signed, the scope accepts anything", policy: policy(rejects, accepts), image: signed,
			err: []string{scope, "accepts anything"}},

		{name: "signature demanded", policy: policy(rejects, sigstore), image: bare, want: signed},
		{name: "GPG signature demanded", policy: policy(rejects, gpg), image: bare, want: signed},
		{name: "signature demanded by default", policy: `{"default":` + gpg + `}`, image: bare, want: signed},
		{name: "signed, signature demanded", policy: policy(rejects, sigstore), image: signed, want: signed},
		{name: "unverified, signature demanded", policy: policy(rejects, sigstore), image: unverified,
			err: []string{scope, "sigstoreSigned", "unverified"}},
		{name: "by a remote, signature demanded", policy: policy(rejects, sigstore), image: remote, want: remote},

		// The default is what the tools refuse signed references for; the scope is held up by skopeo.
		{name: "signature demanded, lax default", policy: policy(accepts, sigstore), image: bare, want: unverified},
		{name: "signed, lax default", policy: policy(accepts, sigstore), image: signed,
			err: []string{"default", "ostree-image-signed", scope, "sigstoreSigned"}},
		{name: "unverified, signature demanded, lax default", policy: policy(accepts, sigstore), image: unverified,
			err: []string{scope, "sigstoreSigned"}},

		{name: "rejected", policy: policy(accepts, rejects), image: bare, err: []string{scope, "rejects"}},
		{name: "signed, rejected", policy: policy(accepts, rejects), image: signed, err: []string{scope, "rejects"}},
		{name: "unverified, rejected", policy: policy(accepts, rejects), image: unverified, err: []string{scope, "rejects"}},
		{name: "by a remote, rejected by default", policy: `{"default":` + rejects + `}`, image: remote,
			err: []string{"default", "rejects"}},

		{name: "no policy", image: bare, want: unverified},
		{name: "unverified, no policy", image: unverified, want: unverified},
		{name: "signed, no policy", image: signed, err: []string{"no policy"}},
		{name: "commit", policy: `{"default":` + rejects + `}`, image: "fedora:os", want: "fedora:os"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p *Policy
			if c.policy != "" {
				p = mustParsePolicy(t, c.policy)
			}
			got, err := p.Admit(mustParseImage(t, c.image))
			if c.err == nil {
				if err != nil || got.Refspec() != c.want {
					t.Errorf("%s is pulled as %s (%v) instead of %s", c.image, got.Refspec(), err, c.want)
				}
				return
			}
			if ostree.ClassOf(err) != ostree.Invalid {
				t.Fatalf("%s is pulled as %s; error: %v", c.image, got.Refspec(), err)
			}
			for _, part := range append(c.err, "osImageURL", PolicyPath) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not name %s", err, part)
				}
			}
		})
	}
}

func TestPolicyThatTheToolsRefuseIsRefused(t *testing.T) {
	for text, part := range map[string]string{
		``:                              "unexpected end",
		`{}`:                            "default has no requirement",
		`{"default":[]}`:                "default has no requirement",
		`{"default":` + accepts + `} x`: "after top-level value",
		`{"default":` + accepts + `,"defaults":1}`:                            "defaults",
		`{"default":` + accepts + `,"default":` + rejects + `}`:               "default",
		`{"default":[{"type":"signedByAll"}]}`:                                `"signedByAll"`,
		`{"default":[{}]}`:                                                    `""`,
		`{"default":` + accepts + `,"transports":{"docker":{"quay.io":[]}}}`:  `transports.docker["quay.io"]`,
		`{"default":` + accepts + `,"transports":{"docker":` + rejects + `}}`: "transports",
		`{"Default":` + accepts + `}`:                                         "Default",
	} {
		if _, err := ParsePolicy(PolicyPath, []byte(text)); err == nil || !strings.Contains(err.Error(), part) ||
			!strings.Contains(err.Error(), PolicyPath) || ostree.ClassOf(err) != ostree.NeedsAdmin {
			t.Errorf("%s: %v instead of an error about %s and %s", text, err, PolicyPath, part)
		}
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add(`{"default":`+accepts+`,"transports":{"docker":{"":`+gpg+`,"*.io":`+rejects+`}}}`, "quay.io/os")
	f.Add(`{"default":`+sigstore+`}`, "ostree-unverified-image:containers-storage:[x@/y]os@"+digestA)
	f.Add(`{"default":`+rejects+`}`, "ostree-image-signed:dir:/")
	f.Fuzz(func(t *testing.T, text, reference string) {
		policy, err := ParsePolicy(PolicyPath, []byte(text))
		if err != nil {
			return
		}
		image, err := ParseImage(reference)
		if err != nil || image.Kind != ContainerImage {
			return
		}
		verdict := policy.Verdict(image)
		got, err := policy.Admit(image)
		switch {
		case err == nil && (got.Verify == VerifyUnsaid || verdict.Requirement == Reject):
			t.Fatalf("%s is pulled as %+v under %+v", reference, got, verdict)
		case err == nil && got.Verify == VerifyPolicy && !verdict.signed():
			t.Fatalf("%s is to be signed, which %+v does not demand", reference, verdict)
		case err == nil && !got.SatisfiedBy(image, ""):
			t.Fatalf("%s became %s", reference, got)
		}
	})
}

func mustParsePolicy(t *testing.T, text string) *Policy {
	t.Helper()
	policy, err := ParsePolicy(PolicyPath, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return policy
}
