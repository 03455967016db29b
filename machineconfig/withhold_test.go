// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
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
		"sysctl":           "net.ipv4.ip_forward = 1\nvm.max_map_count=262144\n",
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
