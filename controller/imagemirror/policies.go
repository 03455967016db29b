// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	configv1 "github.com/openshift/api/config/v1"

	"github.com/noderefit/noderefit/registries"
)

// namespacedDir has the policies of namespaces, a file each, which CRI-O uses instead of policy.json for the pods of
// that namespace.
const namespacedDir = "/etc/crio/policies"

// demand is the signature that a policy demands of the images of scopes. The note of accepted objects has the
// same form.
type demand struct {
	// Namespace is empty for a demand of all namespaces.
	Namespace   string                 `json:"namespace,omitempty"`
	Scopes      []string               `json:"scopes"`
	Requirement registries.Requirement `json:"requirement"`
}

const kindClusterPolicy, kindPolicy = "ClusterImagePolicy", "ImagePolicy"

func clusterPolicy(o *configv1.ClusterImagePolicy) *origin {
	return policy(&origin{object: o, kind: kindClusterPolicy}, o.Spec.Scopes, o.Spec.Policy)
}

func namespacedPolicy(o *configv1.ImagePolicy) *origin {
	out := policy(&origin{object: o, kind: kindPolicy}, o.Spec.Scopes, o.Spec.Policy)
	if out.demand.Namespace = o.Namespace; o.Namespace == "" {
		out.wrong("metadata.namespace", "is required: the policy is for the pods of one namespace")
	}
	return out
}

func (o *origin) wrong(field, format string, args ...any) {
	o.err = errors.Join(o.err, fmt.Errorf(field+": "+format, args...))
}

// policy reads a policy. The schema of the kinds checks the form of scopes. The keys are checked here further than
// there: a host refuses the whole file if it can't read one of them.
func policy(o *origin, scopes []configv1.ImageScope, p configv1.ImageSigstoreVerificationPolicy) *origin {
	o.demand = &demand{}
	for i, scope := range scopes {
		if s := string(scope); !wildcard.MatchString(s) && !location.MatchString(registries.Repository(s)) {
			o.wrong(fmt.Sprintf("spec.scopes[%d]", i), "%q is neither host[:port][/namespace][/repository][:tag][@digest] nor "+
				"*.host", s)
		}
		o.demand.Scopes = append(o.demand.Scopes, string(scope))
	}
	r := registries.Requirement{"type": "sigstoreSigned"}
	o.root(r, p.RootOfTrust)
	r["signedIdentity"] = o.identity(p.SignedIdentity)
	o.demand.Requirement = r
	return o
}

const publicKey, certificate = "PUBLIC KEY", "CERTIFICATE"

// root adds the keys or authorities by which a signature is verified.
func (o *origin) root(r registries.Requirement, root configv1.PolicyRootOfTrust) {
	const field = "spec.policy.rootOfTrust"
	switch key, fulcio, pki := root.PublicKey, root.FulcioCAWithRekor, root.PKI; {
	case root.PolicyType == configv1.PublicKeyRootOfTrust && key != nil:
		r["keyData"] = o.pem(field+".publicKey.keyData", publicKey, key.KeyData)
		if len(key.RekorKeyData) > 0 {
			r["rekorPublicKeyData"] = o.pem(field+".publicKey.rekorKeyData", publicKey, key.RekorKeyData)
		}
	case root.PolicyType == configv1.FulcioCAWithRekorRootOfTrust && fulcio != nil:
		r["fulcio"] = map[string]any{
			"caData":     o.pem(field+".fulcioCAWithRekor.fulcioCAData", certificate, fulcio.FulcioCAData),
			"oidcIssuer": fulcio.FulcioSubject.OIDCIssuer, "subjectEmail": fulcio.FulcioSubject.SignedEmail,
		}
		r["rekorPublicKeyData"] = o.pem(field+".fulcioCAWithRekor.rekorKeyData", publicKey, fulcio.RekorKeyData)
	case root.PolicyType == configv1.PKIRootOfTrust && pki != nil:
		by := map[string]any{"caRootsData": o.pem(field+".pki.caRootsData", certificate, pki.CertificateAuthorityRootsData)}
		if len(pki.CertificateAuthorityIntermediatesData) > 0 {
			by["caIntermediatesData"] = o.pem(field+".pki.caIntermediatesData", certificate,
				pki.CertificateAuthorityIntermediatesData)
		}
		if pki.PKICertificateSubject.Email != "" {
			by["subjectEmail"] = pki.PKICertificateSubject.Email
		}
		if pki.PKICertificateSubject.Hostname != "" {
			by["subjectHostname"] = pki.PKICertificateSubject.Hostname
		}
		r["pki"] = by
	default:
		o.wrong(field+".policyType", "%q is not one of %s, %s and %s, or its field is missing", root.PolicyType,
			configv1.PublicKeyRootOfTrust, configv1.FulcioCAWithRekorRootOfTrust, configv1.PKIRootOfTrust)
	}
}

// pem returns PEM data as policy.json has it. All of the data has to be blocks of that type.
func (o *origin) pem(field, kind string, data []byte) string {
	if len(data) == 0 {
		o.wrong(field, "has no %s", kind)
	}
	for n, rest := 1, data; len(rest) > 0; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != kind {
			o.wrong(field, "block %d is not a %s in PEM", n, kind)
			break
		}
	}
	return base64.StdEncoding.EncodeToString(data)
}

// identity returns the names that a signature may be for.
func (o *origin) identity(p *configv1.PolicyIdentity) map[string]any {
	const field = "spec.policy.signedIdentity"
	if p == nil {
		return map[string]any{"type": "matchRepoDigestOrExact"}
	}
	switch exact, remap := p.PolicyMatchExactRepository, p.PolicyMatchRemapIdentity; {
	case p.MatchPolicy == configv1.IdentityMatchPolicyMatchRepoDigestOrExact:
		return map[string]any{"type": "matchRepoDigestOrExact"}
	case p.MatchPolicy == configv1.IdentityMatchPolicyMatchRepository:
		return map[string]any{"type": "matchRepository"}
	case p.MatchPolicy == configv1.IdentityMatchPolicyExactRepository && exact != nil:
		return map[string]any{"type": "exactRepository", "dockerRepository": string(exact.Repository)}
	case p.MatchPolicy == configv1.IdentityMatchPolicyRemapIdentity && remap != nil:
		return map[string]any{
			"type": "remapIdentity", "prefix": string(remap.Prefix), "signedPrefix": string(remap.SignedPrefix),
		}
	}
	o.wrong(field+".matchPolicy", "%q is not one of %s, %s, %s and %s, or its field is missing", p.MatchPolicy,
		configv1.IdentityMatchPolicyMatchRepoDigestOrExact, configv1.IdentityMatchPolicyMatchRepository,
		configv1.IdentityMatchPolicyExactRepository, configv1.IdentityMatchPolicyRemapIdentity)
	return nil
}

// contradict notes an error in each policy of the cluster that demands signatures of images which the Image does not
// allow, and in the Image.
func contradict(origins []*origin) {
	i := slices.IndexFunc(origins, func(o *origin) bool { return o.settings != nil && o.err == nil })
	if i < 0 {
		return
	}
	image := origins[i]
	for _, o := range origins {
		if o.demand == nil || o.tenant() {
			continue
		}
		for i, scope := range o.demand.Scopes {
			if why := image.settings.closed(scope); why != "" {
				o.wrong(fmt.Sprintf("spec.scopes[%d]", i), "%s %s of %s", scope, why, theImage)
				image.wrong("spec.registrySources", "%s of %s %s", scope, o, why)
			}
		}
	}
}

// spaces makes the policies of namespaces, each on top of that of the cluster. A namespace can demand more, and not
// less: a scope of which the cluster demands something is left out, and the object says so.
func (w *want) spaces(
	origins []*origin, cluster *registries.Policy,
) (files map[string]*registries.Policy, scopes []string) {
	files = map[string]*registries.Policy{}
	for _, c := range w.counts {
		d := c.Demand
		if d == nil || d.Namespace == "" {
			continue
		}
		at := path.Join(namespacedDir, d.Namespace+".json")
		for _, scope := range d.Scopes {
			if by := cluster.Demands(scope); by != "" {
				overridden(origins, c.Object, scope, by)
				continue
			}
			if files[at] == nil {
				files[at] = cluster.Clone()
			}
			files[at].Require(scope, d.Requirement)
			scopes = append(scopes, scope)
		}
	}
	return files, scopes
}

// overridden notes in an object that one of its scopes has no effect.
func overridden(origins []*origin, object, scope, by string) {
	for _, o := range origins {
		if o.String() != object {
			continue
		}
		at := slices.Index(o.demand.Scopes, scope)
		said := fmt.Sprintf("spec.scopes[%d]: %s has no effect: the policy of the cluster has a demand of its own for %s", at,
			scope, by)
		if at >= 0 && (o.beside == nil || !slices.Contains(strings.Split(o.beside.Error(), "\n"), said)) {
			o.beside = errors.Join(o.beside, errors.New(said))
		}
	}
}
