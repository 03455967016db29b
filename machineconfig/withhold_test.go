// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// hiddenWord is the secret of these tests.
const hiddenWord = "c0ffee-never-to-be-said"

func TestContentsThatMayBeASecretAreWithheld(t *testing.T) {
	for _, test := range []struct {
		name string
		file File
		want string // part of the reason; empty: they are shown
	}{
		{"a file of root's", File{Path: "/etc/a", Mode: 0o600, Contents: []byte("x")}, "its mode 0600"},
		{"one of a group's", File{Path: "/etc/a", Mode: 0o640, Contents: []byte("x")}, "its mode 0640"},
		{"the pull secret", File{Path: "/var/lib/kubelet/config.json", Contents: []byte("{}")}, "programs keep"},
		{"a key by its name", File{Path: "/etc/x/tls.key", Contents: []byte("x")}, "programs keep"},
		{"a file of passwords", File{Path: "/etc/nginx/.htpasswd", Contents: []byte("x")}, "programs keep"},
		{"a kubeconfig by its name", File{Path: "/etc/kubernetes/kubeconfig", Contents: []byte("x")}, "programs keep"},
		{"IPsec's", File{Path: "/etc/ipsec.secrets", Contents: []byte("x")}, "programs keep"},
		{"more of them", File{Path: "/etc/ipsec.d/site.secrets", Contents: []byte("x")}, "programs keep"},
		{"PPP's", File{Path: "/etc/ppp/chap-secrets", Contents: []byte("* * x *")}, "programs keep"},
		{"more of those", File{Path: "/etc/ppp/pap-secrets", Contents: []byte("* * x *")}, "programs keep"},
		{"a wireless network's", File{Path: "/etc/wpa_supplicant/wlan0.conf", Contents: []byte("x")}, "programs keep"},
		{"NetworkManager's", File{Path: "/etc/NetworkManager/system-connections/a.nmconnection", Contents: []byte("x")},
			"programs keep"},
		{"iwd's", File{Path: "/var/lib/iwd/home.psk", Contents: []byte("x")}, "programs keep"},
		{"a tunnel's", File{Path: "/etc/wireguard/wg0.conf", Contents: []byte("x")}, "programs keep"},
		{"Ceph's", File{Path: "/etc/ceph/ceph.client.admin.keyring", Contents: []byte("x")}, "programs keep"},
		{"mail's", File{Path: "/etc/postfix/sasl_passwd", Contents: []byte("h me:x")}, "programs keep"},
		{"netrc", File{Path: "/root/.netrc", Contents: []byte("x")}, "programs keep"},
		{"a registry's", File{Path: "/run/containers/0/auth.json", Contents: []byte("x")}, "programs keep"},
		{"an administrator's", File{Path: "/etc/kubernetes/admin.conf", Contents: []byte("x")}, "programs keep"},
		{"a user's", File{Path: "/root/.kube/config", Contents: []byte("x")}, "programs keep"},
		{"a user's key", File{Path: "/root/.ssh/deploy_ed25519", Contents: []byte("x")}, "programs keep"},
		{"and its public half", File{Path: "/root/.ssh/deploy_ed25519.pub", Contents: []byte("x")}, ""},
		{"who is on the host", File{Path: "/etc/passwd", Contents: []byte("core:x:1000:1000::/home/core:/bin/bash\n")}, ""},
		{"what is private", File{Path: "/etc/ssl/private/a.pem", Contents: []byte("x")}, "programs keep"},
		{"in a directory that others can't enter", File{Path: "/etc/shut/deep/a", Contents: []byte("x")},
			"the mode 0700 of /etc/shut"},
		{"beside one", File{Path: "/etc/shutter", Contents: []byte("x")}, ""},
		{"a private key", File{Path: "/etc/a", Contents: []byte("-----BEGIN EC PRIVATE KEY-----\n")}, "private key"},
		{"a file of settings", File{Path: "/etc/chrony.conf", Contents: []byte(
			"pool 2.example.org iburst\nkeyfile /etc/chrony.keys\n")}, ""},
		{"the kubelet's", File{Path: "/etc/kubernetes/kubelet.conf", Contents: []byte("authentication:\n  x509:\n" +
			"    clientCAFile: /etc/kubernetes/kubelet-ca.crt\n  anonymous:\n    enabled: false\nserializeImagePulls: false\n" +
			"tlsMinVersion: VersionTLS12\nrotateCertificates: true\n")}, ""},
		{"mirrors", File{Path: "/etc/containers/registries.conf", Contents: []byte(
			"unqualified-search-registries = [\"r.example.org\"]\n[[registry]]\n  prefix = \"\"\n  location = \"a/b\"\n")}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.file.Mode == 0 {
				test.file.Mode = 0o644
			}
			c := &Config{Directories: []Directory{{Path: "/etc/open", Mode: 0o755}, {Path: "/etc/shut", Mode: 0o700}}}
			if got := c.Withheld(&test.file); (got != "") != (test.want != "") || !strings.Contains(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// secretTexts are texts that hold the hidden word as a secret, and those of which a part is none.
var secretTexts = map[string]string{
	"an assignment":           "db_password=" + hiddenWord,
	"a setting":               "  client_secret = \"" + hiddenWord + "\"",
	"YAML":                    "a:\n  bindPassword: " + hiddenWord,
	"YAML on the next line":   "password:\n  " + hiddenWord,
	"a block of YAML":         "token: |\n  " + hiddenWord,
	"JSON":                    `{"apiToken" : "` + hiddenWord + `"}`,
	"XML":                     "<password>" + hiddenWord + "</password>",
	"Ruby":                    "'api_key' => '" + hiddenWord + "'",
	"what looks like a path":  "TOKEN=/" + hiddenWord,
	"or like a variable":      "TOKEN=$" + hiddenWord,
	"or like a placeholder":   "TOKEN=<" + hiddenWord,
	"a short name":            "DB_PASS=" + hiddenWord,
	"a flag":                  "ExecStart=/bin/x --token " + hiddenWord,
	"LDAP":                    "bindpw " + hiddenWord,
	"netrc":                   "machine m login me password " + hiddenWord,
	"a header":                "X: y\nAuthorization: Token " + hiddenWord,
	"a bearer":                "curl -H 'x: Bearer " + hiddenWord + "'",
	"a user of curl":          "ExecStart=/usr/bin/curl -s -u me:" + hiddenWord + " https://h/x",
	"a hook for messages":     "URL=https://hooks.slack.com/services/T0/B0/" + hiddenWord,
	"Redis":                   "port 6379\nrequirepass " + hiddenWord,
	"SNMP":                    "rocommunity " + hiddenWord + " 10.0.0.0/8",
	"a registry's":            `{"auths": {"r": {"x":"` + hiddenWord + `"}}}`,
	"a URL":                   "proxy http://me:<" + hiddenWord + "@h",
	"a signed URL":            "curl https://h/x?sig=" + hiddenWord,
	"an Amazon URL":           "https://h/x?X-Amz-Signature=" + hiddenWord,
	"a hash":                  "core:$6$salt$" + strings.ReplaceAll(hiddenWord, "-", ""),
	"a JSON web token":        "eyJhbGciOiJSUzI1NiIs.eyJ" + hiddenWord,
	"GitHub's":                "x ghp_" + hiddenWord,
	"OpenShift's":             "sha256~" + hiddenWord,
	"a private key":           "-----BEGIN PRIVATE KEY-----\n" + hiddenWord,
	"a tunnel's":              "[Interface]\nPrivateKey = " + hiddenWord,
	"a kubeconfig's":          "users:\n- user:\n    token: " + hiddenWord,
	"a client's key":          "client-key-data: " + hiddenWord,
	"what encrypts":           "encryption_key: " + hiddenWord,
	"a cookie":                "Cookie: " + hiddenWord,
	"a wireless network's":    "psk=" + hiddenWord,
	"wpa_supplicant's":        "network={\n  ssid=\"a\"\n  psk=\"" + hiddenWord + "\"\n}",
	"NetworkManager's":        "[wifi-security]\nkey-mgmt=wpa-psk\npsk=" + hiddenWord,
	"a WEP key":               "wep-key0=" + hiddenWord,
	"a modem's":               "[gsm]\npin=" + hiddenWord,
	"IPsec's":                 "10.0.0.1 : PSK \"" + hiddenWord + "\"",
	"a variable":              "    - name: DB_PASSWORD\n      value: " + hiddenWord,
	"one in quotes":           "  - \"name\": 'API_KEY'\n    \"value\": '" + hiddenWord + "'",
	"one with a remark":       "- name: DB_PASS # of old\n  # not read from a Secret\n  value: |\n    " + hiddenWord,
	"one the other way round": "- value: " + hiddenWord + "\n  name: SESSION_TOKEN",
	"one of a line":           "- {name: AUTH_STRING, value: " + hiddenWord + "}",
	"one of JSON":             `[{"name":"A","value":"b"},{"name":"DB_PASSWORD","value":"` + hiddenWord + `"}]`,
	"one of JSON, turned":     `{"value": "` + hiddenWord + `", "name": "AWS_SECRET_ACCESS_KEY"}`,
	"one of JSON on lines":    "{\n  \"name\": \"DB_PASSWORD\",\n  \"value\": \"" + hiddenWord + "\"\n}",
	"one with a number":       "DB_PASSWORD2=" + hiddenWord,
	"the base of keys":        "SECRET_KEY_BASE=" + hiddenWord,
	"a property":              "<name>fs.s3a.secret.key</name>\n<value>" + hiddenWord + "</value>",
	"a flag in a list":        `command: ["x", "--token", "` + hiddenWord + `"]`,
	"a flag in YAML":          "- --password\n- " + hiddenWord,
	"a neighbour's":           "router bgp 1\n neighbor 10.0.0.1 password " + hiddenWord, //nolint:misspell // FRR's word
	"a kickstart's":           "rootpw --plaintext " + hiddenWord,
	"Ceph's":                  "[client.admin]\n\tkey = " + strings.ReplaceAll(hiddenWord, "-", "") + "==",
	"a Secret":                "apiVersion: v1\nkind: Secret\ndata:\n  a: " + hiddenWord,
	"OpenVPN's":               "-----BEGIN OpenVPN Static key V1-----\n" + hiddenWord,
	"netrc on lines":          "machine m\n  login me\n  password " + hiddenWord,
	"a boot loader's":         "password_pbkdf2 root grub.pbkdf2.sha512.10000." + hiddenWord,
	"a credential of systemd": "SetCredential=x:" + hiddenWord,
}

func TestTextsThatMayHoldASecretAreWithheld(t *testing.T) {
	for name, text := range secretTexts {
		for _, around := range [][2]string{{"", ""}, {"# first\nx=1\n", "\nlast\n"}} {
			got := WithheldText(around[0] + text + around[1])
			if got == "" || strings.Contains(got, hiddenWord) {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
	for name, text := range map[string]string{
		"nothing":          "",
		"a unit":           "[Unit]\nDescription=a\n[Service]\nExecStart=/usr/bin/a --config /etc/a --token-file=/etc/t\n",
		"an environment":   "[Service]\nEnvironmentFile=-/etc/sysconfig/crio\nLoadCredential=a:/etc/a\n",
		"a public key":     "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIK0wmN/Cr3JXqmLW7u+g9pTh+wyqDHpSQEIQczXkVx9q core@example",
		"a certificate":    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
		"another user":     "ExecStart=/usr/bin/podman run --user 1000:1000 quay.io/x/curl\nExecStop=/usr/bin/curl -f http://h:80/\n",
		"settings of sshd": "PasswordAuthentication no\nPermitRootLogin no\n",
		"PAM":              "password    requisite     pam_pwquality.so try_first_pass\nauth  required pam_env.so\n",
		"an image":         "image: quay.io/x/y@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n",
		"variables": "env:\n- name: TZ\n  value: UTC\n- name: NODE_NAME\n  valueFrom:\n    fieldRef:\n      fieldPath: spec.nodeName\n" +
			"volumeMounts:\n- name: kubernetes-secrets\n  mountPath: /etc/kubernetes/pki\n",
		"variables of JSON": `{"env":[{"name":"A","value":"b"},{"name":"DB_PASSWORD","valueFrom":{"x":{"name":"c"}}}]}`,
		"a connection":      "[connection]\nid=eth0\ntype=ethernet\n[ipv4]\nmethod=auto\n",
		"sysctl":            "net.ipv4.ip_forward = 1\nvm.max_map_count=262144\n",
	} {
		if got := WithheldText(text); got != "" {
			t.Errorf("%s is withheld: %s", name, got)
		}
	}
}

func TestOfAKernelArgumentWithASecretItsNameIsLeft(t *testing.T) {
	for argument, want := range map[string]string{
		"quiet":                            "quiet",
		"console=ttyS0,115200n8":           "console=ttyS0,115200n8",
		"rd.luks.name=0-1=root":            "rd.luks.name=0-1=root",
		"ip=10.0.0.2::10.0.0.1::h:e0:none": "ip=10.0.0.2::10.0.0.1::h:e0:none",
		"rd.iscsi.password=" + hiddenWord:  "rd.iscsi.password=(masked)",
		`"x.secret=a ` + hiddenWord + `"`:  "x.secret=(masked)",
		"netroot=iscsi:u:" + hiddenWord + "@10.0.0.1::3260:1:iqn.x": "netroot=(masked)",
		"ignition.config.url=https://x/?token=" + hiddenWord:        "ignition.config.url=(masked)",
		"https://me:" + hiddenWord + "@h/?a=b":                      "(masked)",
		"ghp_" + hiddenWord:                                         "(masked)",
		"ghp_" + strings.ReplaceAll(hiddenWord, "-", "") + "=x":     "(masked)",
	} {
		if got := MaskArgument(argument); got != want {
			t.Errorf("%s: %s, want %s", argument, got, want)
		}
	}
}

// FuzzASecretIsWithheldWhateverIsAroundIt: what stands before it and after it makes no secret less of one.
func FuzzASecretIsWithheldWhateverIsAroundIt(f *testing.F) {
	f.Add("a: b", "c: d")
	f.Add("[Unit]\nX=", "\x00\xff")
	f.Add("${", "}")
	f.Fuzz(func(t *testing.T, before, after string) {
		for name, text := range secretTexts {
			if WithheldText(before+"\n"+text+"\n"+after) == "" {
				t.Errorf("%s is shown after %q, before %q", name, before, after)
			}
		}
	})
}

// plainly is WithheldText by the expressions alone, without words, hints and places.
func plainly(text string) string {
	for _, c := range []struct {
		is  bool
		why string
	}{
		{privateKey.matchString(text), "there is a private key in it"},
		{kubeconfig.matchString(text) && credentialField.matchString(text), "the text is a kubeconfig with credentials"},
		{packedKey.matchString(text), "there is a private key in it, in base64"},
		{wireGuard.matchString(text), "there is the key of a tunnel in it"},
		{header.matchString(text), "there is an Authorization with credentials in it"},
		{registryAuth.matchString(text) || tomlAuth.matchString(text), "there are credentials of a registry in it"},
		{password.matchString(text) || userToken.matchString(text), "there is a URL with a password in it"},
		{assigned.matchString(text), namedLikeSecret},
	} {
		if c.is {
			return c.why
		}
	}
	for _, l := range likely {
		if l.pattern.matchString(text) {
			return l.why
		}
	}
	return ""
}

// logLines are lines with words of secrets, and without one.
var logLines = []string{
	"2026-11-26T05:34:50Z info the token has expired\n", `{"msg":"listed","key":"default/worker-1","name":"a","value":"b"}` + "\n",
	"\n", " \t\n", "- name: TZ\n", "  value: UTC\n", "task-0123456789abc is a disk-0123456789abc\n", "  # a remark\n",
	"password\n", "kind:\n", "  Secret\n", "login me\n", "curl\n", " -u a:b\n", "10.0.0.1 :\n", " PSK\n", "\u212aey = \u017fecret\n",
	"worker-0.17f3a4b2c3d4e5f6 Normal Pulled\n", "https://10.96.0.1:443/api/v1/nodes me@example.com\n", "bearer\n",
	"\"naïve\" – „quoted“\n", "the private", "key", ":", "=", " ", "x", "\r\n", "users:\n", "kind: Config\n",
}

// FuzzAFastSearchFindsTheSame: words, hints and places save time, and change no answer.
func FuzzAFastSearchFindsTheSame(f *testing.F) {
	for seed := range uint64(12) {
		f.Add(seed, "")
	}
	f.Add(uint64(1), "\u212a\u023a\u023atoken: x")
	names := slices.Sorted(maps.Keys(secretTexts))
	f.Fuzz(func(t *testing.T, seed uint64, more string) {
		chance := rand.New(rand.NewPCG(seed, 7))
		var out strings.Builder
		for range 1 + chance.IntN(400) {
			switch chance.IntN(60) {
			case 0:
				out.WriteString(more)
			case 1, 2: // a secret, or a part of one
				text := secretTexts[names[chance.IntN(len(names))]]
				out.WriteString(text[chance.IntN(2)*chance.IntN(len(text)):])
			default:
				out.WriteString(logLines[chance.IntN(len(logLines))])
			}
		}
		text := out.String()
		if got, want := WithheldText(text), plainly(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		lines := strings.SplitAfter(text, "\n")
		reasons := WithheldLines(lines)
		for i, line := range lines {
			if want := plainly(line); reasons[i] != want {
				t.Errorf("line %q: %q, want %q", line, reasons[i], want)
			}
		}
	})
}
