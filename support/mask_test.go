// SPDX-License-Identifier: Apache-2.0

package support

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// canary stands for a secret.
const canary = "c4n4rysecret"

func TestNoSecretOfAnObjectIsLeft(t *testing.T) {
	for name, document := range map[string]string{
		"contents of a file":         `spec: {config: {storage: {files: [{path: /etc/a, contents: {source: "data:,c4n4rysecret"}}]}}}`,
		"contents of base64":         `spec: {config: {storage: {files: [{contents: {source: "data:;base64,c4n4rysecret"}}]}}}`,
		"hash of contents":           `spec: {config: {storage: {files: [{contents: {verification: {hash: sha512-c4n4rysecret}}}]}}}`,
		"credentials of a source":    `spec: {config: {ignition: {config: {merge: [{source: "https://u:c4n4rysecret@h/x"}]}}}}`,
		"headers of a source":        `spec: {config: {a: {httpHeaders: [{name: X-Any, value: c4n4rysecret}]}}}`,
		"password of a user":         `spec: {config: {passwd: {users: [{name: core, passwordHash: c4n4rysecret}]}}}`,
		"keys of a user":             `spec: {config: {passwd: {users: [{name: core, sshAuthorizedKeys: [c4n4rysecret]}]}}}`,
		"unit with a token":          "spec: {config: {systemd: {units: [{name: a, contents: \"[Service]\\nEnvironment=TOKEN=c4n4rysecret\"}]}}}",
		"drop-in with a password":    "spec: {config: {systemd: {units: [{dropins: [{contents: \"ExecStart=x --password c4n4rysecret\"}]}]}}}",
		"kernel argument":            `spec: {kernelArguments: [quiet, "rd.luks.token=c4n4rysecret"]}`,
		"pull secret":                `spec: {internalRegistryPullSecret: c4n4rysecret}`,
		"variable of a container":    `spec: {containers: [{env: [{name: API_TOKEN, value: c4n4rysecret}]}]}`,
		"argument of a container":    `spec: {containers: [{args: ["--token=c4n4rysecret"]}]}`,
		"applied document":           `metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: c4n4rysecret}}`,
		"annotation with a password": `metadata: {annotations: {example.com/password: c4n4rysecret}}`,
		"message with a URL":         `status: {message: "pulling https://u:c4n4rysecret@registry/x: refused"}`,
		"kubelet's document":         `spec: {kubeletConfig: {staticPodURLHeader: {Authorization: [c4n4rysecret]}}}`,
	} {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := json.Marshal(maskObject(o))
		if err != nil || strings.Contains(string(text), canary) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
		if name != "applied document" && !strings.Contains(string(text), "masked") {
			t.Errorf("%s: nothing says that something is masked: %s", name, text)
		}
	}
}

func TestWhatNobodyMindsStays(t *testing.T) {
	const document = `{"kind":"MachineConfig","metadata":{"labels":{"machineconfiguration.openshift.io/role":"worker"},` +
		`"name":"50-a"},"spec":{"config":{"storage":{"files":[{"mode":420,"path":"/etc/a"}]},"systemd":{"units":` +
		`[{"contents":"[Service]\nExecStart=/bin/true","enabled":true,"name":"a.service"}]}},"kernelArguments":["quiet"],` +
		`"osImageURL":"registry.example.com/os@sha256:abc"},"status":{"conditions":[{"key":"a","message":"1 of 2 nodes"}]}}`
	var o map[string]any
	if err := json.Unmarshal([]byte(document), &o); err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(maskObject(o)); err != nil || string(text) != document {
		t.Errorf("%s, %v, want\n%s", text, err, document)
	}
}

func TestLinesOfALogAreMaskedAlone(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"one\ntwo\n", "one\ntwo\n"},
		{"one\npassword=" + canary + "\nthree\n", "one\n(masked)\nthree\n"},
		{"one\npassword=" + canary, "one\n(masked)\n"},
		{"a\nname: token\nvalue: " + canary + "\nb\n", "a\n(masked)\n(masked)\nb\n"},
		{"", ""},
	} {
		got := maskText(test.text)
		var lines strings.Builder
		for line := range strings.Lines(got) {
			if strings.HasPrefix(line, "(masked: ") && strings.HasSuffix(line, ")\n") {
				line = "(masked)\n"
			}
			lines.WriteString(line)
		}
		if lines.String() != test.want {
			t.Errorf("%q: %q, want %q", test.text, got, test.want)
		}
	}
	// A secret stays hidden wherever the text is halved.
	for n := range 40 {
		text := strings.Repeat("line\n", n) + "- name: API_TOKEN\n  value: " + canary + "\n" + strings.Repeat("line\n", 7)
		if got := maskText(text); strings.Contains(got, canary) || strings.Count(got, "line\n") < n {
			t.Errorf("after %d lines: %q", n, got)
		}
	}
}

// pieces are lines of logs, and parts of secrets that span lines.
var pieces = []string{
	"2026-11-26T05:34:50Z info phase ended\n", "the token has expired\n", `{"key":"default/worker-1","name":"a","value":"b"}` + "\n",
	"password=x\n", "password:\n", "  x\n", "- name: API_TOKEN\n", "  value: x\n", "# of old\n", "\n", "bearer\n", "0123456789\n",
	"curl\n", "-u a:b\n", "login me\n", "password\n", "kind:\n", "Secret\n", "https://a:b@c/\n", "[x.auth]\n", "auth = \"x\"\n", "last",
}

// What lines alone tell is looked for at once, and not by halving. The result is the same.
func TestALogIsMaskedAsByHalvingAlone(t *testing.T) {
	for seed := range uint64(300) {
		chance := rand.New(rand.NewPCG(seed, 17))
		var out strings.Builder
		for range chance.IntN(60) {
			out.WriteString(pieces[chance.IntN(len(pieces))])
		}
		halved := strings.SplitAfter(out.String(), "\n")
		maskLines(halved)
		if got, want := maskText(out.String()), strings.Join(halved, ""); got != want {
			t.Fatalf("%q:\n%s\nwant\n%s", out.String(), got, want)
		}
	}
}

// A log of megabytes is looked at once where nothing is to be masked.
func BenchmarkLog(b *testing.B) {
	benchmarkMask(b, `{"level":"info","ts":"2026-01-01T00:00:00Z","caller":"daemon/run.go:1","msg":"phase ended"}`+"\n")
}

// Words of secrets are in many lines, and secrets in a few.
func BenchmarkLogWithSecrets(b *testing.B) {
	lines := strings.Repeat(`{"level":"info","caller":"daemon/run.go:1","name":"rendered-worker-55fbf49d","value":"7"}`+"\n"+
		"I1126 05:34:50 1 reflector.go:357] listed url=\"https://10.96.0.1:443/api/v1/nodes\" key=\"default/worker-1\"\n"+
		"E1126 05:34:50 authentication.go:73] invalid bearer token, service account token has expired\n", 50)
	benchmarkMask(b, lines+"E1126 05:34:50 token: "+canary+"\n")
}

func benchmarkMask(b *testing.B, lines string) {
	text := strings.Repeat(lines, 1<<20/len(lines))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		maskText(text)
	}
}
