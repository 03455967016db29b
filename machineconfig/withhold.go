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
	return withheld(search(text))
}

// WithheldLines returns the reasons why lines of a text must not be printed even alone, by their numbers, from zero. It
// tells the same as WithheldText of each line, and only looks at lines with a word of a secret.
func WithheldLines(lines []string) map[int]string {
	t := search(strings.Join(lines, ""))
	var places []int
	for _, p := range secretPatterns() {
		places = append(places, t.places(p)...)
	}
	slices.Sort(places)
	reasons := map[int]string{}
	line, end, last := -1, 0, -1
	for _, at := range places {
		for end <= at {
			next := strings.IndexByte(t.lower[end:], '\n') + 1
			if next == 0 {
				next = len(t.lower) - end
			}
			line, end = line+1, end+next
		}
		if line == last {
			continue
		}
		if last = line; lines[line] != "" {
			if why := WithheldText(lines[line]); why != "" {
				reasons[line] = why
			}
		}
	}
	return reasons
}

func withheld(t *searched) string {
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

// secretPatterns returns all patterns that are looked for in texts.
func secretPatterns() []*pattern {
	all := []*pattern{privateKey, kubeconfig, credentialField, registryAuth, credentialURL, password, userToken, packedKey,
		header, tomlAuth, wireGuard, assigned}
	for _, l := range likely {
		all = append(all, l.pattern)
	}
	return all
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

// Parts of the patterns for a named value: the name of a secret, the text between name and value, and the value.
const (
	secretWord = `[\w.-]*(?:pass|pwd|secret|token|credential|cookie|psk|auth|[\w.-]key)[\w.-]*`
	aside      = `(?:[\s,]|#[^\n]*\n)+`
	anyValue   = `["']?value["']?\s*:[ \t]*`
	given      = `(?:[_-]?(?:hash|value|data|base64|b64|base|prod|dev|old|new|\d+))?["']?\s*[:=>]+\s*["']*[^\s"']`
)

// secretWords are words in the names of secrets.
var secretWords = []string{"pass", "pwd", "secret", "token", "credential", "cookie", "psk", "auth", "key"}

// keyOwners are what keys that are secrets are named after.
var keyOwners = []string{
	"api", "access", "secret", "private", "auth", "encryption", "shared", "signing", "account", "client",
}

// Hints. Each looks at the text around a word, which is in lower case, and lets pass whatever may be a match.

// assigns lets pass a name that a value may follow: the rest of the name, a quote, space, and then a delimiter.
func assigns(lower string, at int) bool {
	rest := strings.TrimLeftFunc(lower[at:], func(r rune) bool { return r == '"' || r == '-' || wordLetter(r) })
	rest = strings.TrimLeft(strings.TrimPrefix(rest, "'"), "\"")
	rest = strings.TrimLeft(rest, blank)
	return rest != "" && strings.IndexByte(":=>", rest[0]) >= 0
}

// namesKey lets pass a word key right behind one of keyOwners.
func namesKey(lower string, at int) bool {
	const gap = 2
	before := lower[:at]
	for range gap + 1 {
		if slices.ContainsFunc(keyOwners, func(owner string) bool { return strings.HasSuffix(before, owner) }) {
			return assigns(lower, at)
		}
		before = before[:max(0, len(before)-1)]
	}
	return false
}

// namesSecret lets pass a word name that is followed by a name with one of secretWords.
func namesSecret(lower string, at int) bool {
	rest := strings.TrimLeft(lower[at+len("name"):], `"'`+blank)
	if !strings.HasPrefix(rest, ":") {
		return false
	}
	rest = strings.TrimLeft(rest[1:], `"'`+blank)
	named := rest[:len(rest)-len(strings.TrimLeftFunc(rest, func(r rune) bool {
		return r == '-' || r == '.' || wordLetter(r)
	}))]
	return slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(named, word) })
}

// beginsLine lets pass the first word of a line.
func beginsLine(lower string, at int) bool {
	return strings.TrimRight(lower[strings.LastIndexByte(lower[:at], '\n')+1:at], blank) == ""
}

// assignedLine lets pass the first word of a line, where a value may follow.
func assignedLine(lower string, at int) bool { return assigns(lower, at) && beginsLine(lower, at) }

// beginsWord lets pass what is no end of a longer word.
func beginsWord(lower string, at int) bool { return at == 0 || !wordLetter(rune(lower[at-1])) }

// bears lets pass a word that a credential follows.
func bears(lower string, at int) bool {
	const shortest = 8
	rest := strings.TrimLeftFunc(lower[at:], wordLetter)
	given := strings.TrimLeft(rest, blank)
	more := strings.TrimLeftFunc(given, func(r rune) bool { return strings.ContainsRune("+/.=-", r) || wordLetter(r) })
	return beginsWord(lower, at) && len(given) < len(rest) && len(given)-len(more) >= shortest
}

// blank is what expressions take for space.
const blank = " \t\n\f\r"

// wordLetter reports whether expressions take a letter in lower case for a part of a word.
func wordLetter(r rune) bool { return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '_' }

// likely are texts that may well be a secret. The patterns match too much rather than too little. The value may be on
// the line after its name.
var likely = []struct {
	pattern *pattern
	why     string
}{
	{newNearPattern(`(?i)(?:password|passwd|passphrase|passcode|pwd|secret|token|signature|cookie|psk)` + given).
		hinted(assigns), namedLikeSecret},
	{newNearPattern(`(?i)(?:` + strings.Join(keyOwners, "|") + `)[\w.-]{0,2}key(?:-data)?` + given).hinted(namesKey),
		namedLikeSecret},
	// A variable of a container, in any order; and a property of XML.
	{newPattern(`(?i)["']?name["']?\s*:\s*["']?` + secretWord + `["']?` + aside + anyValue + `["']*[^\s"']`).
		worded("name").hinted(namesSecret), namedLikeSecret},
	{newPattern(`(?i)` + anyValue + `[^\n]+?` + aside + `["']?name["']?\s*:\s*["']?` + secretWord).
		worded("name").hinted(namesSecret), namedLikeSecret},
	{newNearPatternFrom(2, `(?i)<name>\s*`+secretWord+`\s*</name>\s*<value>\s*[^\s<]`), namedLikeSecret},
	{newNearPattern(`(?i)-(?:password|passwd|passphrase|secret|token|api-?key)["']\s*,\s*["'][^"']`),
		namedLikeSecret},
	// Words of their own only: LoadCredential of a unit has a path.
	{newNearPattern(`(?i)(?:^|[^a-z])(?:pass|auth|credentials?)["']?\s*[:=]\s*["']*[^\s"']`).hinted(assigns),
		namedLikeSecret},
	{newNearPattern(`(?im)-(?:password|passwd|passphrase|secret|token|api-?key)\s+["']*[^\s"']`), namedLikeSecret},
	{newNearPattern(`(?im)^\s*(?:bindpw|rootpw|password|passwd|secret|token)\s+\S+\s*$`).hinted(beginsLine),
		namedLikeSecret},
	{newNearPatternFrom(2, `(?im)^\s*(?:rootpw\s|neighbou?r\s+\S+\s+password\s)`), namedLikeSecret},
	// Networks and tunnels: WEP, the PIN of a modem, IPsec, PPP.
	{newNearPattern(`(?im)(?:^|\s)(?:wep[_-]?key\d?|pin)\s*=\s*["']*[^\s"']`).hinted(assigns), namedLikeSecret},
	{newNearPatternFrom(1, `(?m)(?:^|\s):\s*(?:PSK|RSA|ECDSA|EAP|XAUTH|NTLM|PIN|P12|PKCS8|BLISS)\s+\S`).
		hinted(beginsWord), "there is a key of IPsec in it"},
	// Ceph, and a Secret of Kubernetes.
	{newNearPattern(`(?m)^\s*key\s*=\s*[\w+/]{16,}`).hinted(assignedLine), namedLikeSecret},
	{newNearPatternFrom(2, `(?m)kind["']?\s*:\s*["']?Secret\b`), "the text is a Secret of Kubernetes"},
	{newNearPattern(`BEGIN [\w ]*(?:PRIVATE KEY|Static key)|PuTTY-User-Key-File|AGE-SECRET-KEY-`),
		"there is a private key in it"},
	{newNearPattern(`\bgrub\.pbkdf2\.`), "there is the hash of a password in it"},
	{newNearPatternFrom(2, `(?i)\blogin\s+\S+\s+password\s+\S`), namedLikeSecret},
	// Redis, SNMP, keepalived.
	{newNearPattern(`(?im)^\s*(?:requirepass|masterauth|r[ow]community6?|createUser|auth_pass)\s+\S`).
		hinted(beginsLine), namedLikeSecret},
	{newNearPattern(`(?i)\b(?:curl|wget)\b.*\s(?:-u|--user|--proxy-user|-U)[\s=]*["']?[^\s:]+:\S`),
		"there is a user with a password in it"},
	{newNearPattern(`(?i)authorization["']?\s*[:=]`).hinted(assigns), "there is an Authorization in it"},
	{newNearPattern(`(?i)\b(?:bearer|basic)\s+[\w+/.=-]{8,}`).hinted(bears), "there is an Authorization in it"},
	{newNearPattern(`"auths"\s*:`), "there are credentials of a registry in it"},
	{newNearPattern(`://[^/\s@"']*:[^/\s@"']+@`), "there is a URL with a password in it"},
	{newNearPattern(`[?&](?:sig|key)=[\w%]`), "there is a URL with credentials in it"},
	{newNearPattern(`\bhooks\.[\w.-]+/(?:services|workflows|hooks)/\w`), "there is a URL with credentials in it"},
	{newNearPattern(`\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|sha1|md5|sm3|scrypt|pbkdf2[\w-]*|argon2\w*)\$[\w./=,$+-]{8,}`),
		"there is the hash of a password in it"},
	{newNearPattern(`\{S?SHA(?:256|512)?\}[\w+/=]{8,}`), "there is the hash of a password in it"},
	{newNearPattern(`\beyJ[\w-]{8,}\.[\w-]{8,}`).hinted(beginsWord), "there is a token in it"},
	{newNearPattern(`\b(?:gh[a-z]_|github_pat_|glpat-|gldt-|hvs\.|xox[a-z]-|sk-|npm_|AKIA|ASIA|AIza|sha256~)` +
		`[\w-]{10,}`).hinted(beginsWord), "there is a token in it"},
	// The token with which a kubelet joins: kubeadm's bootstrap token.
	{newNearPattern(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`).hinted(joinsNodes), "there is a token in it"},
}

// joinsNodes lets pass a point with the letters and digits of a bootstrap token on both sides.
func joinsNodes(lower string, at int) bool {
	const before, after = 6, 16
	return at >= before && len(lower)-at > after && alphanumeric(lower[at-before:at]) &&
		alphanumeric(lower[at+1:at+1+after])
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
