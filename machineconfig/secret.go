// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_6/types"
)

// Secrets returns the parts of the configuration that not every reader may see. Each is the field, its subject and the
// reason, never a part of the contents. The list is empty where every reader may see the configuration. SSH keys of
// users are public.
//
// A secret is one of these: a file that the host itself keeps from other users by a mode without read for others; a
// file in which programs are known to keep secrets; a text that looks like a secret whatever its mode (a private key, a
// kubeconfig or URL with credentials); the hash of a password; credentials for a download.
func (s *Served) Secrets() []string {
	f := finder{prefix: s.p.doc.prefix(), contents: s.p.contents}
	cfg := &s.p.cfg
	f.ignition(&cfg.Ignition)
	f.storage(&cfg.Storage)
	for i := range cfg.Systemd.Units {
		u := &cfg.Systemd.Units[i]
		f.unit([]byte(value(u.Contents)), "systemd.units[%d] (%s)", i, u.Name)
		for j := range u.Dropins {
			d := &u.Dropins[j]
			f.unit([]byte(value(d.Contents)), "systemd.units[%d].dropins[%d] (%s of %s)", i, j, d.Name, u.Name)
		}
	}
	for i := range cfg.Passwd.Users {
		u := &cfg.Passwd.Users[i]
		f.hash(u.PasswordHash, "passwd.users[%d].passwordHash (%s)", i, u.Name)
	}
	for i := range cfg.Passwd.Groups {
		g := &cfg.Passwd.Groups[i]
		f.hash(g.PasswordHash, "passwd.groups[%d].passwordHash (%s)", i, g.Name)
	}
	for i, a := range cfg.KernelArguments.ShouldExist {
		f.argument(string(a), "kernelArguments.shouldExist[%d]", i)
	}
	f.prefix = "spec."
	for i, a := range s.p.spec.KernelArguments {
		f.argument(a, "kernelArguments[%d]", i)
	}
	return f.found
}

type finder struct {
	prefix   string
	contents contents
	found    []string
}

func (f *finder) add(why, field string, args ...any) {
	f.found = append(f.found, f.prefix+fmt.Sprintf(field, args...)+": "+why)
}

func (f *finder) ignition(ign *types.Ignition) {
	f.urls(value(ign.Proxy.HTTPProxy), "ignition.proxy.httpProxy")
	f.urls(value(ign.Proxy.HTTPSProxy), "ignition.proxy.httpsProxy")
	for i := range ign.Security.TLS.CertificateAuthorities {
		f.source(&ign.Security.TLS.CertificateAuthorities[i], "ignition.security.tls.certificateAuthorities[%d]", i)
	}
}

func (f *finder) storage(s *types.Storage) {
	for i := range s.Files {
		file := &s.Files[i]
		at := fmt.Sprintf("storage.files[%d] (%s)", i, file.Path)
		mode := 0o644
		if file.Mode != nil {
			mode = *file.Mode
		}
		if why := secretFile(mode, file.Path); why != "" {
			f.add(why, "%s", at)
			continue
		}
		// The parts of an appended file are one text on the host.
		var whole []byte
		for _, r := range append([]types.Resource{file.Contents}, file.Append...) {
			whole = append(whole, f.contents[r.Source]...)
		}
		f.text(whole, "%s", at)
	}
	for i := range s.Directories {
		if d := &s.Directories[i]; d.Mode != nil && *d.Mode&readByOthers == 0 {
			f.add(keptBy(*d.Mode), "storage.directories[%d] (%s)", i, d.Path)
		}
	}
	for i := range s.Luks {
		l := &s.Luks[i]
		if l.KeyFile.Source != nil {
			f.add("a disk is opened with it", "storage.luks[%d].keyFile (%s)", i, l.Name)
		}
	}
}

const readByOthers = 0o004

// secretFile returns the reason why a file holds a secret, by its mode and path alone.
func secretFile(mode int, name string) string {
	switch {
	case mode&readByOthers == 0:
		return keptBy(mode)
	case secretPath(name):
		return "programs keep credentials there"
	}
	return ""
}

func keptBy(mode int) string {
	return fmt.Sprintf("its mode %#o keeps other users from reading it", mode)
}

// credentialPaths matches the ends of the paths in which programs keep credentials.
var credentialPaths = newPattern(`(?:` + strings.Join([]string{
	`^/var/lib/kubelet/config\.json`, `/\.dockercfg`, `/\.docker/config\.json`, `/auth\.json`, `/pull-secret(?:\.json)?`,
	`/\.netrc`, `/\.pgpass`, `/\.git-credentials`, `/\.aws/credentials`, `/etc/g?shadow-?`, `\.keytab`, `\.kdbx`,
	`/ssh_host_\w+_key`, `/\.ssh/id_\w+`, `/bootstrap-kubelet\.conf`, `/bootstrap-token`, `\.nmconnection`,
	`/NetworkManager/system-connections/[^/]+`, `/credstore/.+`, `\.p12`, `\.pfx`, `\.jks`,
}, "|") + `)$`)

func secretPath(p string) bool { return credentialPaths.matchString(path.Clean(p)) }

var (
	privateKey = newNearPattern(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY`)
	// kubeconfig matches a kubeconfig in YAML or JSON. credentialField matches a credential in it, but not a reference to
	// another file.
	kubeconfig = newPattern(
		`(?m)(?:^|[\s{,"'])(?:kind["']?\s*:\s*["']?Config["']?\s*(?:$|[,}#])|users["']?\s*:)`)
	credentialField = newNearPattern(`(?m)(?:^|[\s{,"'])(?:token|client-key-data|password)["']?\s*:\s*["']?[^\s"',}#]`).
			hinted(assigns)
	// registryAuth matches a pull secret, in any file.
	registryAuth = newNearPattern(`"(?:auth|identitytoken|registrytoken)"\s*:\s*"[^"]`).hinted(assigns)
	// credentialURL matches what password and userToken match, and more. They are slow.
	credentialURL = newNearPattern(`://[^/\s@"']+@`)
	// password matches a password in a URL. A variable or a placeholder is no password: its value comes from elsewhere.
	password = newNearPattern(`[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@"']*:` +
		`(?:[^/\s@"'$<{%][^/\s@"']*|\$[^/\s@"'{]*[^/\s@"'{A-Za-z0-9_][^/\s@"']*|` +
		`\$[a-z0-9][^/\s@"']*|%[0-9A-Fa-f]{2}[^/\s@"']*)@`)
	// userToken matches a token in place of the user's name in a URL, by the prefixes of well-known issuers.
	userToken = newNearPattern(`://(?:gh[a-z]_|github_pat_|glpat-|gldt-|hvs\.|xox[a-z]-)[^/\s@"']+@`)
	// packedKey matches base64 of a PEM with a private key, at each of the three offsets of "PRIVATE KEY".
	packedKey = newNearPattern(`LS0tLS1CRUdJTi[A-Za-z0-9+/]*(?:UFJJVkFURSBLRV|BSSVZBVEUgS0VZ|QUklWQVRFIEtFW)`)
	// header matches a header of a request that identifies the client.
	header = newNearPattern(`(?i)authorization["']?\s*[:=]\s*\[?\s*["']?(?:basic|bearer)\s+[^\s"'$<{]`).
		hinted(assigns)
	// tomlAuth matches the credentials of a registry in containerd's config.toml.
	tomlAuth = newPattern(`(?s)\.auth\]\s[^\[]*\b(?:password|auth|identitytoken)\s*=\s*["'][^"'$<{]`)
	// wireGuard matches the key of a tunnel.
	wireGuard = newNearPattern(`(?m)^\s*(?:PrivateKey|PresharedKey)\s*=\s*\S`).hinted(assignedLine)
	// assigned matches a variable of a unit with the name of a secret, or a credential in a unit. A path, a variable or an
	// empty value is no secret.
	assigned = newNearPattern(`(?im)(?:^\s*SetCredential\s*=\s*[^:\s]+:\s*\S|` +
		`[\s="'][\w.-]*(?:password|passwd|secret|token|api_?key|access_?key)\s*=\s*["']?[^\s"'$<{/%])`).hinted(assigns)
)

// text checks the text of a file.
func (f *finder) text(text []byte, field string, args ...any) {
	if why := secretText(search(string(text))); why != "" {
		f.add(why, field, args...)
	}
}

// secretText returns the reason why a text holds a secret.
func secretText(t *searched) string {
	switch {
	case privateKey.match(t):
		return "there is a private key in it"
	case credentialField.match(t) && kubeconfig.match(t):
		return "the text is a kubeconfig with credentials"
	case packedKey.match(t):
		return "there is a private key in it, in base64"
	case wireGuard.match(t):
		return "there is the key of a tunnel in it"
	case header.match(t):
		return "there is an Authorization with credentials in it"
	case registryAuth.match(t), tomlAuth.match(t):
		return "there are credentials of a registry in it"
	case credentialURL.match(t) && (password.match(t) || userToken.match(t)):
		return "there is a URL with a password in it"
	}
	return ""
}

// unit checks a unit or drop-in. Every user on the host can read a unit, and nearly all its words are settings.
func (f *finder) unit(text []byte, field string, args ...any) {
	before := len(f.found)
	if f.text(text, field, args...); len(f.found) == before && assigned.match(search(string(text))) {
		f.add("there is a variable or credential in it that is named like a secret", field, args...)
	}
}

// harmless are the headers of a request that do not identify the client. All others might do so.
var harmless = map[string]bool{
	"accept": true, "accept-encoding": true, "accept-language": true, "cache-control": true, "user-agent": true,
}

// source checks how a resource is fetched. Files with credentials in their source are refused before.
func (f *finder) source(r *types.Resource, field string, args ...any) {
	for _, h := range r.HTTPHeaders {
		if value(h.Value) != "" && !harmless[strings.ToLower(h.Name)] {
			f.add("the fetch has credentials in its httpHeaders", field, args...)
			return
		}
	}
	f.urls(value(r.Source), field, args...)
}

func (f *finder) urls(text, field string, args ...any) {
	if text == "" || strings.HasPrefix(text, "data:") {
		return
	}
	u, err := url.Parse(text)
	if err != nil {
		return
	}
	if u.User != nil {
		f.add("there are credentials in its URL", field, args...)
		return
	}
	for key := range u.Query() {
		if signature.matchString(key) {
			f.add("there are credentials in its URL", field, args...)
			return
		}
	}
}

// signature matches the parameters of a URL that grant access to every holder of the URL.
var signature = newPattern(`(?i)token|signature|secret|password|credential|api.?key|^sig$|^key$`)

// hash checks a password. A hash that no password can match locks the account, and is no secret.
func (f *finder) hash(hash *string, field string, args ...any) {
	if strings.Trim(value(hash), "!*x") != "" {
		f.add("the hash of a password", field, args...)
	}
}

var secretArgument = newPattern(`(?i)^"?(?:[\w.-]*(?:password|passwd|secret|token)=.` +
	`|systemd\.set_credential(?:_binary)?=.|(?:netroot|root)=iscsi:[^@]*:[^@]*@)`)

// argument checks a kernel argument, or several on one line.
func (f *finder) argument(line, field string, args ...any) {
	if slices.ContainsFunc(splitArguments(line), hasPassword) {
		f.add("a kernel argument with a password", field, args...)
	}
}

// hasPassword reports whether one kernel argument holds a password or token.
func hasPassword(a string) bool {
	_, at, _ := strings.Cut(a, "=")
	u, err := url.Parse(strings.Trim(at, `"`))
	signed := err == nil && u.Scheme != "" &&
		slices.ContainsFunc(slices.Collect(maps.Keys(u.Query())), signature.matchString)
	return signed || secretArgument.matchString(a) || password.matchString(a) || userToken.matchString(a)
}
