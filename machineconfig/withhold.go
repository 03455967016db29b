// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"fmt"
	"slices"
	"strings"
)

// Withheld returns the reason why the contents of a file of the configuration must not be printed, "" where they may
// be. Of a change of such contents only the sizes are reported. Withheld covers all that Served.Secrets reports, and
// much more that may be a secret. A server that refuses too much makes no machines. A reader who is shown too little
// can look at the document.
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
	if f.Reference != nil {
		return "" // only the reference is shown
	}
	return WithheldText(string(f.Contents))
}

const enterByOthers = 0o001

// WithheldText is Withheld for a text that every user of a host may read, such as a unit or an authorized key. It looks
// only at the text.
func WithheldText(text string) string {
	t := search(text)
	if why := secretText(t); why != "" {
		return why
	}
	if assigned.match(t) {
		return namedLikeSecret
	}
	for _, l := range likely {
		if l.pattern.match(t) {
			return l.why
		}
	}
	return ""
}

// MaskArgument returns a kernel argument for printing. Of an argument that may hold a secret only the name is left.
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

// likelyPaths matches files that usually hold a secret, by the ends of their paths. They are files of Kubernetes; of
// web and mail servers, databases and clocks; of tunnels and networks; of users' tools.
var likelyPaths = newPattern(`(?i)(?:` + strings.Join([]string{
	`\.key`, `\.keys`, `\.keystore`, `\.keyring`, `\.ppk`, `\.psk`, `\.8021x`, `[.-]secrets?`,
	`/private/.+`, `/secrets?/.+`, `\.kubeconfig`, `/kubeconfig`, `/\.kube/config`,
	`/etc/kubernetes/(?:super-)?admin\.conf`, `\.dockerconfigjson`, `[^/]passwd`, `/passwd\.client`, `/authkey`,
	`/krb5\.keytab`, `/\.my\.cnf`, `/\.?rndc\.conf`, `/wpa_supplicant[^/]*\.conf`, `/wpa_supplicant/.+`,
	`/wireguard/.+`, `/psk\.txt`, `/[._]?netrc`, `/\.vault-token`, `/\.?smbcredentials`, `/\.gnupg/.+`,
	`/\.ssh/[^/.]*(?:rsa|dsa|ed25519)[^/.]*`,
}, "|") + `)$`)

// Parts of the patterns for a named value: words in the name of a secret, the text between name and value, and the
// value.
const (
	secretWord = `[\w.-]*(?:pass|pwd|secret|token|credential|cookie|psk|auth|[\w.-]key)[\w.-]*`
	aside      = `(?:[\s,]|#[^\n]*\n)+`
	anyValue   = `["']?value["']?\s*:[ \t]*`
	given      = `(?:[_-]?(?:hash|value|data|base64|b64|base|prod|dev|old|new|\d+))?["']?\s*[:=>]+\s*["']*[^\s"']`
)

// keyOwners are what keys that are secrets are named after.
var keyOwners = []string{
	"api", "access", "secret", "private", "auth", "encryption", "shared", "signing", "account", "client",
}

// namesKey reports whether the text, in lower case, has a word key right behind one of keyOwners.
func namesKey(text string) bool {
	const key, gap = "key", 2
	for at := 0; ; at += len(key) {
		next := strings.Index(text[at:], key)
		if next < 0 {
			return false
		}
		at += next
		before := text[:at]
		for range gap + 1 {
			if slices.ContainsFunc(keyOwners, func(owner string) bool { return strings.HasSuffix(before, owner) }) {
				return true
			}
			before = before[:max(0, len(before)-1)]
		}
	}
}

// likely are texts that may well be a secret. The patterns match too much rather than too little. The value may be on
// the line after its name.
var likely = []struct {
	pattern *pattern
	why     string
}{
	{newNearPattern(`(?i)(?:password|passwd|passphrase|passcode|pwd|secret|token|signature|cookie|psk)` + given),
		namedLikeSecret},
	{newNearPattern(`(?i)(?:` + strings.Join(keyOwners, "|") + `)[\w.-]{0,2}key(?:-data)?` + given).hinted(namesKey),
		namedLikeSecret},
	// A variable of a container, in any order; and a property of XML.
	{newPattern(`(?i)["']?name["']?\s*:\s*["']?` + secretWord + `["']?` + aside + anyValue + `["']*[^\s"']`),
		namedLikeSecret},
	{newPattern(`(?i)` + anyValue + `[^\n]+?` + aside + `["']?name["']?\s*:\s*["']?` + secretWord),
		namedLikeSecret},
	{newPattern(`(?i)<name>\s*` + secretWord + `\s*</name>\s*<value>\s*[^\s<]`), namedLikeSecret},
	{newNearPattern(`(?i)-(?:password|passwd|passphrase|secret|token|api-?key)["']\s*,\s*["'][^"']`),
		namedLikeSecret},
	// Words of their own only: LoadCredential of a unit has a path.
	{newNearPattern(`(?i)(?:^|[^a-z])(?:pass|auth|credentials?)["']?\s*[:=]\s*["']*[^\s"']`), namedLikeSecret},
	{newNearPattern(`(?im)-(?:password|passwd|passphrase|secret|token|api-?key)\s+["']*[^\s"']`), namedLikeSecret},
	{newNearPattern(`(?im)^\s*(?:bindpw|rootpw|password|passwd|secret|token)\s+\S+\s*$`), namedLikeSecret},
	{newPattern(`(?im)^\s*(?:rootpw\s|neighbou?r\s+\S+\s+password\s)`), namedLikeSecret},
	// Networks and tunnels: WEP, the PIN of a modem, IPsec, PPP.
	{newPattern(`(?im)(?:^|\s)(?:wep[_-]?key\d?|pin)\s*=\s*["']*[^\s"']`), namedLikeSecret},
	{newPattern(`(?m)(?:^|\s):\s*(?:PSK|RSA|ECDSA|EAP|XAUTH|NTLM|PIN|P12|PKCS8|BLISS)\s+\S`),
		"there is a key of IPsec in it"},
	// Ceph, and a Secret of Kubernetes.
	{newNearPattern(`(?m)^\s*key\s*=\s*[\w+/]{16,}`), namedLikeSecret},
	{newPattern(`(?m)kind["']?\s*:\s*["']?Secret\b`), "the text is a Secret of Kubernetes"},
	{newPattern(`BEGIN [\w ]*(?:PRIVATE KEY|Static key)|PuTTY-User-Key-File|AGE-SECRET-KEY-`),
		"there is a private key in it"},
	{newPattern(`\bgrub\.pbkdf2\.`), "there is the hash of a password in it"},
	{newPattern(`(?i)\blogin\s+\S+\s+password\s+\S`), namedLikeSecret},
	// Redis, SNMP, keepalived.
	{newPattern(`(?im)^\s*(?:requirepass|masterauth|r[ow]community6?|createUser|auth_pass)\s+\S`),
		namedLikeSecret},
	{newPattern(`(?i)\b(?:curl|wget)\b.*\s(?:-u|--user|--proxy-user|-U)[\s=]*["']?[^\s:]+:\S`),
		"there is a user with a password in it"},
	{newNearPattern(`(?i)authorization["']?\s*[:=]`), "there is an Authorization in it"},
	{newPattern(`(?i)\b(?:bearer|basic)\s+[\w+/.=-]{8,}`), "there is an Authorization in it"},
	{newPattern(`"auths"\s*:`), "there are credentials of a registry in it"},
	{newNearPattern(`://[^/\s@"']*:[^/\s@"']+@`), "there is a URL with a password in it"},
	{newPattern(`[?&](?:sig|key)=[\w%]`), "there is a URL with credentials in it"},
	{newPattern(`\bhooks\.[\w.-]+/(?:services|workflows|hooks)/\w`), "there is a URL with credentials in it"},
	{newPattern(`\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|sha1|md5|sm3|scrypt|pbkdf2[\w-]*|argon2\w*)\$[\w./=,$+-]{8,}`),
		"there is the hash of a password in it"},
	{newPattern(`\{S?SHA(?:256|512)?\}[\w+/=]{8,}`), "there is the hash of a password in it"},
	{newPattern(`\beyJ[\w-]{8,}\.[\w-]{8,}`), "there is a token in it"},
	{newPattern(`\b(?:gh[a-z]_|github_pat_|glpat-|gldt-|hvs\.|xox[a-z]-|sk-|npm_|AKIA|ASIA|AIza|sha256~)` +
		`[\w-]{10,}`), "there is a token in it"},
	// The token with which a kubelet joins: kubeadm's bootstrap token.
	{newPattern(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`).hinted(joinsNodes), "there is a token in it"},
}

// joinsNodes reports whether a point in the text has the letters and digits of a bootstrap token on both sides.
func joinsNodes(text string) bool {
	const before, after = 6, 16
	for at := 0; ; at++ {
		next := strings.IndexByte(text[at:], '.')
		if next < 0 {
			return false
		}
		at += next
		if at >= before && len(text)-at > after && alphanumeric(text[at-before:at]) && alphanumeric(text[at+1:at+1+after]) {
			return true
		}
	}
}

// alphanumeric reports whether a text has only digits and small letters.
func alphanumeric(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
