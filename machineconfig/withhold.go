// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"fmt"
	"strings"
)

// Withheld says why the contents of a file of the configuration are not to be printed, so that of a change of them only
// the sizes are told; "" where they may be. That is so for all that Served.Secrets reports, and for much else that may
// be a secret: a server that refuses too much makes no machines, but who is shown too little can look at the document.
func (c *Config) Withheld(f *File) string {
	if why := secretFile(int(f.Mode), f.Path); why != "" {
		return why
	}
	if likelyPaths.matchString(f.Path) {
		return "programs keep credentials there"
	}
	for i := range c.Directories {
		d := &c.Directories[i]
		if d.Mode&enterByOthers == 0 && strings.HasPrefix(f.Path, strings.TrimSuffix(d.Path, "/")+"/") {
			return fmt.Sprintf("the mode %#o of %s keeps other users out", d.Mode, d.Path)
		}
	}
	return WithheldText(string(f.Contents))
}

const enterByOthers = 0o001

// WithheldText is Withheld for what everybody on a host may read, such as a unit or an authorized key: it goes by what
// the text says.
func WithheldText(text string) string {
	if why := secretText([]byte(text)); why != "" {
		return why
	}
	if assigned.matchString(text) {
		return namedLikeSecret
	}
	for _, l := range likely {
		if l.pattern.matchString(text) {
			return l.why
		}
	}
	return ""
}

// MaskArgument is a kernel argument as it may be printed: of one that may hold a secret only the name is left.
func MaskArgument(argument string) string {
	if !hasPassword(argument) && WithheldText(argument) == "" {
		return argument
	}
	name, _, _ := strings.Cut(strings.Trim(argument, `"`), "=")
	if !plainName.matchString(name) || WithheldText(name) != "" {
		return "(masked)"
	}
	return name + "=(masked)"
}

var plainName = newPattern(`^[\w.-]{1,64}$`)

const namedLikeSecret = "there is a value in it that is named like a secret"

// likelyPaths are files that more often than not have a secret in them: by their endings; of Kubernetes; of web and
// mail servers, databases and clocks; of tunnels and networks; of people's own tools.
var likelyPaths = newPattern(`(?i)(?:` + strings.Join([]string{
	`\.key`, `\.keys`, `\.keystore`, `\.keyring`, `\.ppk`, `\.psk`, `\.8021x`, `[.-]secrets?`,
	`/private/.+`, `/secrets?/.+`, `\.kubeconfig`, `/kubeconfig`, `/\.kube/config`,
	`/etc/kubernetes/(?:super-)?admin\.conf`, `\.dockerconfigjson`, `[^/]passwd`, `/passwd\.client`, `/authkey`,
	`/krb5\.keytab`, `/\.my\.cnf`, `/\.?rndc\.conf`, `/wpa_supplicant[^/]*\.conf`, `/wpa_supplicant/.+`,
	`/wireguard/.+`, `/psk\.txt`, `/[._]?netrc`, `/\.vault-token`, `/\.?smbcredentials`, `/\.gnupg/.+`,
	`/\.ssh/[^/.]*(?:rsa|dsa|ed25519)[^/.]*`,
}, "|") + `)$`)

// Of what is named and has a value: words in the name of what is a secret; what may be between the two; and the value.
const (
	secretWord = `[\w.-]*(?:pass|pwd|secret|token|credential|cookie|psk|auth|[\w.-]key)[\w.-]*`
	aside      = `(?:[\s,]|#[^\n]*\n)+`
	anyValue   = `["']?value["']?\s*:[ \t]*`
)

// likely are texts that may well be a secret. They are taken too widely rather than too narrowly, and what a name
// is before may be on the next line.
var likely = []struct {
	pattern *pattern
	why     string
}{
	{newPattern(`(?i)(?:password|passwd|passphrase|passcode|pwd|secret|token|signature|cookie|psk|` +
		`(?:api|access|secret|private|auth|encryption|shared|signing|account|client)[\w.-]{0,2}key(?:-data)?)` +
		`(?:[_-]?(?:hash|value|data|base64|b64|base|prod|dev|old|new|\d+))?["']?\s*[:=>]+\s*["']*[^\s"']`),
		namedLikeSecret},
	// A variable of a container, in whatever order; and a property of XML.
	{newPattern(`(?i)["']?name["']?\s*:\s*["']?` + secretWord + `["']?` + aside + anyValue + `["']*[^\s"']`),
		namedLikeSecret},
	{newPattern(`(?i)` + anyValue + `[^\n]+?` + aside + `["']?name["']?\s*:\s*["']?` + secretWord),
		namedLikeSecret},
	{newPattern(`(?i)<name>\s*` + secretWord + `\s*</name>\s*<value>\s*[^\s<]`), namedLikeSecret},
	{newPattern(`(?i)-(?:password|passwd|passphrase|secret|token|api-?key)["']\s*,\s*["'][^"']`),
		namedLikeSecret},
	// In a word of its own: LoadCredential of a unit has a path.
	{newPattern(`(?i)(?:^|[^a-z])(?:pass|auth|credentials?)["']?\s*[:=]\s*["']*[^\s"']`), namedLikeSecret},
	{newPattern(`(?im)-(?:password|passwd|passphrase|secret|token|api-?key)\s+["']*[^\s"']`), namedLikeSecret},
	{newPattern(`(?im)^\s*(?:bindpw|rootpw|password|passwd|secret|token)\s+\S+\s*$`), namedLikeSecret},
	{newPattern(`(?im)^\s*(?:rootpw\s|neighbou?r\s+\S+\s+password\s)`), namedLikeSecret},
	// Of networks and tunnels: WEP, the PIN of a modem, IPsec, PPP.
	{newPattern(`(?im)(?:^|\s)(?:wep[_-]?key\d?|pin)\s*=\s*["']*[^\s"']`), namedLikeSecret},
	{newPattern(`(?m)(?:^|\s):\s*(?:PSK|RSA|ECDSA|EAP|XAUTH|NTLM|PIN|P12|PKCS8|BLISS)\s+\S`),
		"there is a key of IPsec in it"},
	// Of Ceph, and of a Secret of Kubernetes.
	{newPattern(`(?m)^\s*key\s*=\s*[\w+/]{16,}`), namedLikeSecret},
	{newPattern(`(?m)kind["']?\s*:\s*["']?Secret\b`), "it is a Secret of Kubernetes"},
	{newPattern(`BEGIN [\w ]*(?:PRIVATE KEY|Static key)|PuTTY-User-Key-File|AGE-SECRET-KEY-`),
		"there is a private key in it"},
	{newPattern(`\bgrub\.pbkdf2\.`), "there is the hash of a password in it"},
	{newPattern(`(?i)\blogin\s+\S+\s+password\s+\S`), namedLikeSecret},
	// Of Redis, SNMP, keepalived.
	{newPattern(`(?im)^\s*(?:requirepass|masterauth|r[ow]community6?|createUser|auth_pass)\s+\S`),
		namedLikeSecret},
	{newPattern(`(?i)\b(?:curl|wget)\b.*\s(?:-u|--user|--proxy-user|-U)[\s=]*["']?[^\s:]+:\S`),
		"there is a user with a password in it"},
	{newPattern(`(?i)authorization["']?\s*[:=]`), "there is an Authorization in it"},
	{newPattern(`(?i)\b(?:bearer|basic)\s+[\w+/.=-]{8,}`), "there is an Authorization in it"},
	{newPattern(`"auths"\s*:`), "there are credentials of a registry in it"},
	{newPattern(`://[^/\s@"']*:[^/\s@"']+@`), "there is a URL with a password in it"},
	{newPattern(`[?&](?:sig|key)=[\w%]`), "there is a URL with credentials in it"},
	{newPattern(`\bhooks\.[\w.-]+/(?:services|workflows|hooks)/\w`), "there is a URL with credentials in it"},
	{newPattern(`\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|sha1|md5|sm3|scrypt|pbkdf2[\w-]*|argon2\w*)\$[\w./=,$+-]{8,}`),
		"there is the hash of a password in it"},
	{newPattern(`\{S?SHA(?:256|512)?\}[\w+/=]{8,}`), "there is the hash of a password in it"},
	{newPattern(`\beyJ[\w-]{8,}\.[\w-]{8,}`), "there is a token in it"},
	{newPattern(`\b(?:gh[a-z]_|github_pat_|glpat-|gldt-|hvs\.|xox[a-z]-|sk-|npm_|AKIA|ASIA|AIza|sha256~)` +
		`[\w-]{10,}`), "there is a token in it"},
	// What a kubelet joins with: kubeadm's bootstrap token.
	{newPattern(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), "there is a token in it"},
}
