// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

func TestWhatHoldsASecretIsKnown(t *testing.T) {
	const hidden = "c0ffee-never-to-be-said"
	file := func(path, more, text string) string {
		return fmt.Sprintf(`{"storage":{"files":[{"path":%q%s,"contents":{"source":"data:;base64,%s"}}]}}`, path, more,
			base64.StdEncoding.EncodeToString([]byte(text)))
	}
	text := func(text string) string { return file("/etc/a", "", text) }
	fetched := func(source, more string) string {
		return fmt.Sprintf(`{"ignition":{"version":"3.5.0","security":{"tls":{"certificateAuthorities":[{"source":%q%s}]}}}}`,
			source, more)
	}
	unit := func(text string) string {
		return fmt.Sprintf(`{"systemd":{"units":[{"name":"a.service","contents":%q}]}}`, text)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte("-----BEGIN PRIVATE KEY-----\n" + hidden)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	const users = "kind: Config\nusers:\n- name: a\n  user:\n    "
	for _, test := range []struct {
		name, ignition string
		arguments      []string
		want           string // part of the answer; empty: there is none
	}{
		{name: "nothing", ignition: `{}`},
		{name: "a file without a mode, which others can read", ignition: text("hello")},
		{name: "a file that others can read", ignition: file("/etc/a", `,"mode":420`, "hello")},
		{name: "a file that others can only execute", ignition: file("/etc/a", `,"mode":489`, "hello"),
			want: "storage.files[0] (/etc/a): its mode 0751"},
		{name: "a file of its owner", ignition: file("/etc/a", `,"mode":384`, hidden), want: "mode 0600"},
		{name: "a file of a group", ignition: file("/etc/a", `,"mode":416`, hidden), want: "mode 0640"},
		{name: "a file without any right", ignition: file("/etc/a", `,"mode":0`, hidden), want: "(/etc/a): its mode 0 "},
		{name: "a directory that others can read", ignition: `{"storage":{"directories":[{"path":"/etc/a"},
			{"path":"/etc/b","mode":493}]}}`},
		{name: "a directory of its owner", ignition: `{"storage":{"directories":[{"path":"/etc/a","mode":448}]}}`,
			want: "storage.directories[0] (/etc/a): its mode 0700"},
		{name: "a link", ignition: `{"storage":{"links":[{"path":"/etc/a","target":"/etc/shadow"}]}}`},
		{name: "SSH keys", ignition: `{"passwd":{"users":[{"name":"core","sshAuthorizedKeys":["ssh-ed25519 AAAA x"]}]}}`},
		{name: "a password", ignition: `{"passwd":{"users":[{"name":"core","passwordHash":"$6$` + hidden + `"}]}}`,
			want: "passwd.users[0].passwordHash (core)"},
		{name: "a locked password, which can be unlocked",
			ignition: `{"passwd":{"users":[{"name":"core","passwordHash":"!$6$` + hidden + `"}]}}`, want: "passwordHash"},
		{name: "no password", ignition: `{"passwd":{"users":[{"name":"a","passwordHash":"*"},{"name":"b",
			"passwordHash":"!!"},{"name":"c","passwordHash":""}]}}`},
		{name: "a group's password", ignition: `{"passwd":{"groups":[{"name":"g","passwordHash":"$6$` + hidden + `"}]}}`,
			want: "passwd.groups[0].passwordHash (g)"},
		{name: "fetched from anywhere", ignition: fetched("https://example.com/a?version=2", "")},
		{name: "fetched as a user", ignition: fetched("https://me:"+hidden+"@example.com/a", ""),
			want: "ignition.security.tls.certificateAuthorities[0]: there are credentials in its URL"},
		{name: "fetched with a signature", ignition: fetched("https://example.com/a?X-Amz-Signature="+hidden, ""),
			want: "URL"},
		{name: "fetched with a header", want: "httpHeaders",
			ignition: fetched("https://example.com/a", `,"httpHeaders":[{"name":"Authorization","value":"Basic `+hidden+`"}]`)},
		{name: "fetched with a header of the site's own", want: "httpHeaders",
			ignition: fetched("https://example.com/a", `,"httpHeaders":[{"name":"X-Key","value":"`+hidden+`"}]`)},
		{name: "fetched with a header that says nothing of who asks",
			ignition: fetched("https://example.com/a", `,"httpHeaders":[{"name":"Accept","value":"text/plain"}]`)},
		{name: "a proxy with a user", ignition: `{"ignition":{"version":"3.5.0","proxy":{"httpProxy":"http://me:` + hidden +
			`@proxy:1"}}}`, want: "ignition.proxy.httpProxy"},
		{name: "a proxy", ignition: `{"ignition":{"version":"3.5.0","proxy":{"httpsProxy":"https://proxy:1"}}}`},
		{name: "the key of a disk", ignition: `{"storage":{"luks":[{"name":"data","device":"/dev/vdb","keyFile":{"source":
			"data:,` + hidden + `"}}]}}`, want: "storage.luks[0].keyFile (data)"},
		{name: "the pull secret", ignition: file("/var/lib/kubelet/config.json", "", "{}"), want: "programs keep credentials"},
		{name: "the kubelet's configuration", ignition: file("/var/lib/kubelet/config.yaml", "", "a: b")},
		{name: "docker's credentials", ignition: file("/root/.docker/config.json", "", "{}"), want: "/root/.docker"},
		{name: "podman's", ignition: file("/etc/ostree/auth.json", "", "{}"), want: "/etc/ostree/auth.json"},
		{name: "what a kubelet joins with", ignition: file("/etc/kubernetes/bootstrap-kubelet.conf", "", ""),
			want: "bootstrap-kubelet.conf"},
		{name: "a host's private key, whatever is in it", ignition: file("/etc/ssh/ssh_host_rsa_key", "", "x"), want: "ssh_host"},
		{name: "a host's public key", ignition: file("/etc/ssh/ssh_host_rsa_key.pub", "", "ssh-rsa AAAA")},
		{name: "a credential of a registry at another path", ignition: text(`{"auths": {"r.example.com": {"auth": "` +
			hidden + `"}}}`), want: "registry"},
		{name: "a private key", ignition: text("x\n-----BEGIN EC PRIVATE KEY-----\n" + hidden), want: "private key"},
		{name: "OpenSSH's", ignition: text("-----BEGIN OPENSSH PRIVATE KEY-----\n" + hidden), want: "private key"},
		{name: "a compressed one", ignition: `{"storage":{"files":[{"path":"/etc/a","contents":{"compression":"gzip",
			"source":"data:;base64,` + base64.StdEncoding.EncodeToString(packed.Bytes()) + `"}}]}}`, want: "private key"},
		{name: "one in two parts", ignition: `{"storage":{"files":[{"path":"/etc/a","append":[{"source":"data:,-----BEGIN%20"},
			{"source":"data:,PRIVATE%20KEY-----` + hidden + `"}]}]}}`, want: "private key"},
		{name: "one in a unit", ignition: unit("[Service]\nEnvironment=KEY=-----BEGIN RSA PRIVATE KEY-----"),
			want: "systemd.units[0] (a.service): there is a private key"},
		{name: "a certificate", ignition: text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")},
		{name: "a public key", ignition: text("-----BEGIN PUBLIC KEY-----\nAAAA\n")},
		{name: "a kubeconfig with a token", ignition: text(users + "token: " + hidden), want: "kubeconfig"},
		{name: "one with a key", ignition: text(users + "client-key-data: " + hidden), want: "kubeconfig"},
		{name: "one in JSON", ignition: text(`{"kind":"Config","users":[{"name":"a","user":{"token":"` + hidden + `"}}]}`),
			want: "kubeconfig"},
		{name: "a kubeconfig that refers to files", ignition: text(users + "client-key: /var/lib/kubelet/pki/k.pem\n    tokenFile: /x")},
		{name: "another document with a token", ignition: text("kind: KubeletConfiguration\ntoken: none")},
		{name: "a URL with a password", ignition: unit("[Service]\nEnvironment=HTTP_PROXY=http://me:" + hidden + "@proxy:3128"),
			want: "URL with a password"},
		{name: "a drop-in with one", ignition: `{"systemd":{"units":[{"name":"a.service","dropins":[{"name":"10-p.conf",
			"contents":"[Service]\nEnvironment=P=http://me:` + hidden + `@proxy"}]}]}}`,
			want: "systemd.units[0].dropins[0] (10-p.conf of a.service)"},
		{name: "a URL with a variable for a password", ignition: unit("[Service]\nEnvironment=P=http://${USER}:${PASS}@proxy")},
		{name: "a URL with a user, a port, and an address behind them", ignition: text("ssh://git@example.com:22/a, http://h:80/b@c")},
		{name: "containerd's credentials", want: "registry", ignition: text(
			"[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"r\".auth]\n  username = \"u\"\n  password = \"" + hidden + "\"\n")},
		{name: "containerd's header", want: "Authorization",
			ignition: text("[host.\"https://r\".header]\n  Authorization = \"Basic " + hidden + "\"\n")},
		{name: "containerd without any", ignition: text("[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"/etc/x\"\n")},
		{name: "docker's old credentials", ignition: text(`{"https://r": {"auth":"` + hidden + `"}}`), want: "registry"},
		{name: "a kubeconfig with a remark", want: "kubeconfig",
			ignition: text("kind: Config # of the kubelet\nusers:\n- user:\n    token: " + hidden)},
		{name: "a kubeconfig without a kind", ignition: text("users:\n- user:\n    token: " + hidden), want: "kubeconfig"},
		{name: "a variable in a unit", ignition: unit("[Service]\nEnvironment=DB_PASSWORD=" + hidden), want: "named like a secret"},
		{name: "a quoted one", ignition: unit("[Service]\nEnvironment=\"A=b\" \"VAULT_TOKEN=" + hidden + "\""), want: "named like"},
		{name: "an argument in a unit", ignition: unit("[Service]\nExecStart=/bin/x --token=" + hidden), want: "named like"},
		{name: "a credential in a unit", ignition: unit("[Service]\nSetCredential=tok:" + hidden), want: "named like"},
		{name: "a header in a unit", want: "Authorization",
			ignition: unit("[Service]\nExecStart=/bin/curl -H 'Authorization: Bearer " + hidden + "' https://x")},
		{name: "units that say where a secret is", ignition: unit("[Service]\nEnvironment=TOKEN=$OTHER A_PASSWORD=/etc/p X=\n" +
			"ExecStart=/bin/x --token-file=/etc/t --secret=${S}\nLoadCredential=a:/etc/a\nTokenize=no")},
		{name: "a credential on the command line", ignition: `{}`, want: "kernel argument",
			arguments: []string{"systemd.set_credential_binary=x:" + hidden}},
		{name: "iSCSI's password", ignition: `{}`, arguments: []string{"netroot=iscsi:u:" + hidden + "@10.0.0.1::3260:1:iqn.x"},
			want: "kernel argument"},
		{name: "iSCSI without", ignition: `{}`, arguments: []string{"netroot=iscsi:10.0.0.1::3260:1:iqn.x"}},
		{name: "a signed URL on the command line", ignition: `{}`, want: "kernel argument",
			arguments: []string{"ignition.config.url=https://x/?token=" + hidden}},
		{name: "systemd's credentials", ignition: file("/etc/credstore/x", "", "x"), want: "programs keep"},
		{name: "a WireGuard key", ignition: text("[WireGuard]\nPrivateKey = " + hidden), want: "tunnel"},
		{name: "a WireGuard key's file", ignition: text("[WireGuard]\nPrivateKeyFile=/etc/k")},
		{name: "PKCS 12", ignition: file("/etc/pki/node.p12", "", "x"), want: "programs keep"},
		{name: "a connection without an extension", want: "programs keep",
			ignition: file("/etc/NetworkManager/system-connections/wifi", "", "x")},
		{name: "a packed key", want: "in base64", ignition: text("tls.key: " +
			base64.StdEncoding.EncodeToString([]byte("-----BEGIN RSA PRIVATE KEY-----\n"+hidden)))},
		{name: "a packed key of another kind", want: "in base64", ignition: text("tls.key: " +
			base64.StdEncoding.EncodeToString([]byte("-----BEGIN PRIVATE KEY-----\n"+hidden)))},
		{name: "a third kind", want: "in base64", ignition: text("tls.key: " +
			base64.StdEncoding.EncodeToString([]byte("-----BEGIN EC PRIVATE KEY-----\n"+hidden)))},
		{name: "a packed certificate", ignition: text("tls.crt: " +
			base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\nAAAA")))},
		{name: "a password that begins with a dollar", ignition: text("http://me:$" + hidden + "@proxy:1"), want: "URL"},
		{name: "a variable", ignition: text("http://me:$PASSWORD@proxy:1 http://me:${p}@proxy")},
		{name: "a token for a user", ignition: text("https://ghp_" + hidden + "@example.com/x"), want: "URL"},
		{name: "a user", ignition: text("https://git@example.com/x")},
		{name: "kernel arguments", ignition: `{"kernelArguments":{"shouldExist":["quiet"]}}`, arguments: []string{"a=b", "token"}},
		{name: "a kernel argument with a password", ignition: `{}`, arguments: []string{"a=b rd.iscsi.password=" + hidden},
			want: "spec.kernelArguments[0]"},
		{name: "one of Ignition's", ignition: `{"kernelArguments":{"shouldExist":["rd.luks.secret=` + hidden + `"]}}`,
			want: "spec.config.kernelArguments.shouldExist[0]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ignition := test.ignition
			if !strings.Contains(ignition, `"version"`) {
				ignition = strings.Replace(`{"ignition":{"version":"3.5.0"},`+ignition[1:], ",}", "}", 1)
			}
			mc := newObject("x")
			mc.Spec.Config.Raw, mc.Spec.KernelArguments = []byte(ignition), test.arguments
			s, err := Serve(mc)
			if err != nil {
				t.Fatal(err)
			}
			got := s.Secrets()
			if test.want == "" {
				if len(got) > 0 {
					t.Errorf("%q, want none", got)
				}
				return
			}
			if len(got) != 1 || !strings.Contains(got[0], test.want) || !strings.HasPrefix(got[0], "spec.") {
				t.Errorf("%q, want one with %s", got, test.want)
			}
			if strings.Contains(strings.Join(got, ""), hidden) {
				t.Errorf("contents are told: %q", got)
			}
		})
	}
}
