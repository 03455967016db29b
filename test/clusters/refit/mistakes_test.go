// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// The programs, as the rows name them.
const (
	plugin     = "kubectl-refit"
	controller = "machine-config-controller"
	daemon     = "machine-config-daemon"
	server     = "machine-config-server"
)

// unprivileged begins the command of a user without rights.
const unprivileged = "unprivileged "

// allPrograms builds the programs beside the plugin, once for all rows.
var allPrograms = sync.OnceValue(func() error {
	for _, name := range []string{controller, daemon, server} {
		if _, err := programs.Build(context.Background(), suite.Dir(), "cmd/"+name); err != nil {
			return err
		}
	}
	return nil
})

// mistake is what people type or write, and what they are told. Every row says what went wrong and what to do or what
// there is instead: none is silent, and none names something that is not the cause.
type mistake struct {
	name string
	// command is the program and its arguments. $EMPTY and the like stand for a kubeconfig of another cluster.
	command string
	files   map[string]string
	code    int
	// says are parts of the error line, or of a warning and the output where the mistake is no error.
	says []string
}

// config writes a MachineConfig for the role worker with a storage, systemd or passwd section and the like.
func config(section string) string {
	return configOf("3.5.0", "config: {ignition: {version: VERSION}, "+section+"}")
}

func configOf(version, spec string) string {
	return document("MachineConfig", "50-x", strings.ReplaceAll(spec, "VERSION", version))
}

func document(kind, name, spec string) string {
	return "apiVersion: machineconfiguration.openshift.io/v1\nkind: " + kind + "\nmetadata: {name: " + name +
		", labels: {machineconfiguration.openshift.io/role: worker}}\nspec: {" + spec + "}\n"
}

func aFile(more string) string { return config("storage: {files: [{path: /etc/x, " + more + "}]}") }

const (
	good     = `contents: {source: "data:,x"}`
	rendered = controller + " render --pool worker a.yaml"
)

func one(text string) map[string]string { return map[string]string{"a.yaml": text} }

func butane(text string) map[string]string { return map[string]string{"a.bu": text} }

const butaneMeta = "metadata: {name: a, labels: {machineconfiguration.openshift.io/role: worker}}\n"

// documents are mistakes in files.
var documents = []mistake{
	{"a decimal mode", rendered, one(aFile("mode: 644, " + good)), 1, []string{"storage.files[0].mode (/etc/x): 644 is decimal", "for 0644 write 420"}},
	{"a decimal mode with setuid", rendered, one(aFile("mode: 4755, " + good)), 1, []string{"4755 is decimal", "for 04755 write 2541"}},
	{"a decimal mode of a directory", rendered, one(config("storage: {directories: [{path: /etc/x, mode: 755}]}")), 1, []string{"755 is decimal", "for 0755 write 493"}},
	{"a decimal mode that is one", rendered, one(aFile("mode: 400, " + good)), 0, []string{"warning: ", "400 is decimal, and 0620 in octal", "for 0400 write 256"}},
	{"a decimal mode that is one, strictly", rendered + " --strict", one(aFile("mode: 400, " + good)), 1, []string{"flag --strict: ", "for 0400 write 256"}},
	{"a mode as a string", rendered, one(aFile(`mode: "0644", ` + good)), 1, []string{"storage.files[0].mode: should be an integer, is string"}},
	{"a negative mode", rendered, one(aFile("mode: -1, " + good)), 1, []string{"storage.files[0].mode (/etc/x)", "illegal file mode"}},
	{"Butane's inline", rendered, one(aFile("contents: {inline: hello}")), 1, []string{"contents.inline (/etc/x): inline is a field of Butane", "data:,text"}},
	{"Butane's local", rendered, one(aFile("contents: {local: motd}")), 1, []string{"contents.local (/etc/x): local is a field of Butane", "data:,text"}},
	{"Butane's inline, appended", rendered, one(aFile("append: [{inline: hello}]")), 1, []string{"append[0].inline (/etc/x): inline is a field of Butane"}},
	{"source misspelt", rendered, one(aFile(`contents: {sorce: "data:,x"}`)), 1, []string{"contents.sorce (/etc/x): there is no such field, so the file would be empty"}},
	{"text as the source", rendered, one(aFile("contents: {source: hello}")), 1, []string{"contents.source (/etc/x)", "as a data URL: data:,text"}},
	{"contents elsewhere", rendered, one(aFile(`contents: {source: "https://a/b"}`)), 1, []string{"contents.source (/etc/x)", "must be in the document itself"}},
	{"contents as text", rendered, one(aFile("contents: hello")), 1, []string{"storage.files[0].contents: should be an object, is string"}},
	{"base64 that is none", rendered, one(aFile(`contents: {source: "data:;base64,???"}`)), 1, []string{"storage.files[0].contents.source (/etc/x)", "invalid data character"}},
	{"storage.file", rendered, one(config("storage: {file: []}")), 0, []string{"warning: ", "spec.config.storage.file: there is no such field; did you mean files?"}},
	{"storage.file, strictly", rendered + " --strict", one(config("storage: {file: []}")), 1, []string{"flag --strict: ", "did you mean files?"}},
	{"systemd misspelt", rendered + " --strict", one(config("sytemd: {units: []}")), 1, []string{"spec.config.sytemd", "did you mean systemd?"}},
	{"enable of a unit", rendered + " --strict", one(config(`systemd: {units: [{name: a.service, enable: true}]}`)), 1, []string{"units[0].enable (a.service)", "did you mean enabled?"}},
	{"content of a unit", rendered + " --strict", one(config(`systemd: {units: [{name: a.service, content: "[Unit]"}]}`)), 1, []string{"units[0].content (a.service)", "did you mean contents?"}},
	{"a relative path", rendered, one(config("storage: {files: [{path: etc/x, " + good + "}]}")), 1, []string{"storage.files[0].path (etc/x)", "not absolute"}},
	{"a path twice", rendered, one(config("storage: {files: [{path: /etc/x, " + good + "}, {path: /etc/x, " + good + "}]}")), 1, []string{"storage.files[1]", "/etc/x", "duplicate"}},
	{"a file below a file", rendered, one(config("storage: {files: [{path: /etc/x, " + good + "}, {path: /etc/x/y, " + good + "}]}")), 1, []string{"(/etc/x/y): lies below /etc/x, which is a file"}},
	{"a link without target", rendered, one(config("storage: {links: [{path: /etc/x}]}")), 1, []string{"storage.links[0].target (/etc/x)"}},
	{"a unit without a kind", rendered, one(config(`systemd: {units: [{name: a, contents: "[Unit]"}]}`)), 1, []string{"systemd.units[0].name (a)"}},
	{"a unit that does not parse", rendered, one(config(`systemd: {units: [{name: a.service, contents: "[Unit"}]}`)), 1, []string{"systemd.units[0].contents (a.service)"}},
	{"a user without a name", rendered, one(config("passwd: {users: [{sshAuthorizedKeys: []}]}")), 1, []string{"passwd.users[0].name", "is required"}},
	{"a merge from elsewhere", rendered, one(configOf("3.5.0", `config: {ignition: {version: VERSION, config: {merge: [{source: "https://a/b"}]}}}`)), 1, []string{"ignition.config.merge[0].source", "must be in the document itself"}},
	{"a version of the future", rendered, one(configOf("3.9.0", "config: {ignition: {version: VERSION}}")), 1, []string{"ignition.version: 3.9.0 is not supported", "3.0.0 to 3.6.0"}},
	{"a version as a number", rendered, one(configOf("3.5", "config: {ignition: {version: VERSION}}")), 1, []string{"ignition.version: should be a string, is number"}},
	{"no version", rendered, one(document("MachineConfig", "50-x", "config: {storage: {}}")), 1, []string{`spec.config.ignition.version: is required: write 3.5.0`}},
	{"a kernel type that is none", rendered, one(document("MachineConfig", "50-x", "kernelType: rt")), 1, []string{`spec.kernelType: "rt" is not one of default, realtime, 64k-pages`}},
	{"an extension that is none", rendered, one(document("MachineConfig", "50-x", "extensions: [usbgard]")), 1, []string{`spec.extensions[0]: "usbgard" is not one of`, "usbguard"}},
	{"kernel arguments as text", rendered, one(document("MachineConfig", "50-x", "kernelArguments: a=1 b=2")), 1, []string{"spec.kernelArguments: should be a list, is string"}},
	{"a quote that stays open", rendered, one(document("MachineConfig", "50-x", `kernelArguments: ['a="1']`)), 1, []string{"spec.kernelArguments[0]: unbalanced quote"}},
	{"a field of spec misspelt", rendered, one(document("MachineConfig", "50-x", "kernelArgument: [a]")), 1, []string{`unknown field "spec.kernelArgument"`}},
	{"kind misspelt", rendered, one(document("MachineConfg", "50-x", "")), 1, []string{"a.yaml: kind: there is no MachineConfg; did you mean MachineConfig?"}},
	{"kind in small letters", rendered, one(document("machineconfig", "50-x", "")), 1, []string{"there is no machineconfig; did you mean MachineConfig?"}},
	{"kind of a pool misspelt", rendered, one(document("MachineConfigPol", "worker", "")), 1, []string{"there is no MachineConfigPol; did you mean MachineConfigPool?"}},
	{"no kind", rendered, one("metadata: {name: x}\n"), 1, []string{"a.yaml: kind: is required"}},
	{"another kind", rendered, one("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n" + "---\n" + aFile(good)), 0, []string{"warning: ", "passed over, as its kind is ConfigMap"}},
	{"another version of the API", rendered, one(strings.Replace(aFile(good), "io/v1\n", "io/v1beta1\n", 1)), 1, []string{"apiVersion: of a MachineConfig must be machineconfiguration.openshift.io/v1"}},
	{"a name that is none", rendered, one(document("MachineConfig", "50_x", "")), 1, []string{`metadata.name: "50_x" is not a name`}},
	{"the same name twice", rendered, one(aFile(good) + "---\n" + aFile(good)), 1, []string{"document 2): metadata.name: the same name as MachineConfig/50-x (a.yaml, document 1)"}},
	{"YAML that is none", rendered, one("kind: [\n"), 1, []string{"reading a.yaml: yaml: line"}},
	{"a key twice", rendered, one("kind: a\nkind: b\n"), 1, []string{"reading a.yaml", `key "kind" already set`}},
	{"a list", rendered, one("- a\n"), 1, []string{"reading a.yaml: a document must be an object"}},
	{"JSON that is none", controller + " render --pool worker a.json", map[string]string{"a.json": "{"}, 1, []string{"reading a.json, document 1", "unexpected"}},
	{"a variant of Butane misspelt", controller + " render --pool worker a.bu", butane("variant: openshfit\nversion: 4.14.0\n" + butaneMeta), 1, []string{"Butane config a.bu", "openshfit", "variants are fcos", "openshift (4.8.0 to"}},
	{"a version of Butane", controller + " render --pool worker a.bu", butane("variant: openshift\nversion: 4.99.0\n" + butaneMeta), 1, []string{"4.99.0", "openshift (4.8.0 to 4."}},
	{"Butane without a variant", controller + " render --pool worker a.bu", butane("version: 4.14.0\n"), 1, []string{"variant; must be specified", "variants are fcos"}},
	{"Butane with a wrong field", controller + " render --pool worker --strict a.bu", butane("variant: openshift\nversion: 4.14.0\n" + butaneMeta + "storage: {file: []}\n"), 1, []string{"flag --strict: Butane config a.bu", "$.storage.file", "unused key file"}},
	{"Butane with a file that is not there", controller + " render --pool worker a.bu", butane("variant: openshift\nversion: 4.14.0\n" + butaneMeta + "storage: {files: [{path: /etc/x, contents: {local: gone}}]}\n"), 1, []string{"a.bu", "gone", "no such file"}},
	{"Butane as YAML of another kind", controller + " render --pool worker a.bu", butane("kind: MachineConfig\n"), 1, []string{"a.bu", "variant; must be specified"}},
	{"a pool misspelt", controller + " render --pool wroker a.yaml", one(aFile(good)), 1, []string{"pool wroker: ", "neither a MachineConfigPool of that name nor a MachineConfig with that role", "pools are: none; roles are: worker; did you mean worker?", "If not, give the MachineConfigPool wroker as well"}},
	{"a pool misspelt that is meant", controller + " render --pool wroker a.yaml", one(aFile(good) + "---\n" + document("MachineConfigPool", "wroker", "machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}")), 0, []string{"name: rendered-wroker-"}},
	{"a pool misspelt beside an Ignition config", controller + " render --pool mastre a.ign", map[string]string{"a.ign": `{"ignition":{"version":"3.5.0"}}`}, 1, []string{"pool mastre: ", "did you mean master?"}},
	{"a pool named like another", controller + " render --pool worker2 a.yaml", one(aFile(good)), 0, []string{"warning: pool worker2: there is neither", "it gets what the role worker gets"}},
	{"a pool that no file names", controller + " render --pool gpu a.yaml", one(aFile(good)), 0, []string{"warning: pool gpu: there is neither", "roles are: worker; it gets what the role worker gets"}},
	{"a pool that no file names, strictly", controller + " render --strict --pool gpu a.yaml", one(aFile(good)), 1, []string{"flag --strict: pool gpu: there is neither"}},
	{"a pool whose selector finds nothing", controller + " render --pool infra a.yaml", one(aFile(good) + "---\n" + document("MachineConfigPool", "infra", "machineConfigSelector: {matchLabels: {a: b}}")), 1, []string{"no document matches, of 1", "a=b"}},
	{"a selector that is none", controller + " render --pool infra a.yaml", one(document("MachineConfigPool", "infra", "machineConfigSelector: {matchExpressions: [{key: a, operator: Is}]}")), 1, []string{"spec.machineConfigSelector", `"Is" is not a valid label selector operator`}},
	{"a label misspelt", rendered, one(strings.Replace(aFile(good), "io/role: worker", "io/rol: worker", 1)), 1, []string{"no document matches, of 1", "machineconfiguration.openshift.io/role in (worker)"}},
	{"no files", controller + " render --pool worker", nil, 2, []string{"at least one file or directory is required"}},
	{"no pool", controller + " render a.yaml", one(aFile(good)), 2, []string{"--pool is required"}},
	{"a name of a pool that is none", controller + " render --pool Worker a.yaml", one(aFile(good)), 2, []string{`"Worker" is not a name`}},
	{"a file that is not there", rendered, nil, 1, []string{"a.yaml: no such file or directory"}},
	{"a suffix that is none", controller + " render --pool worker .", map[string]string{"a.txt": aFile(good), "b.yaml": aFile(good)}, 0, []string{"warning: a.txt: passed over, as it ends with none of .yaml"}},
	{"a command misspelt", controller + " rendr", nil, 2, []string{`unknown command "rendr"`}},
	{"a flag misspelt", controller + " render --pol worker a.yaml", one(aFile(good)), 2, []string{"unknown flag: --pol"}},
	{"a base of two documents", controller + " render --pool worker --base a.yaml a.yaml", one(aFile(good) + "---\n" + strings.Replace(aFile(good), "50-x", "60-x", 1)), 1, []string{"there should be exactly one"}},
	{"templates of another kind", controller + " templates a.yaml", one(aFile(good)), 1, []string{"a.yaml"}},
	{"a policy with a wrong field", controller + " simulate --nodes 3 --policy a.yaml", one("apiVersion: noderefit.dev/v1alpha1\nkind: RolloutPolicy\nmetadata: {name: a}\nspec: {pool: [worker]}\n"), 1, []string{`unknown field "spec.pool"`, "pools or poolSelector is needed"}},
	{"a policy with a wrong type", controller + " simulate --nodes 3 --policy a.yaml", one("apiVersion: noderefit.dev/v1alpha1\nkind: RolloutPolicy\nmetadata: {name: a}\nspec: {pools: worker}\n"), 1, []string{"spec.pools", "must be of type array"}},
	{"a policy of nothing", controller + " simulate --nodes 3 --policy a.yaml", one("apiVersion: noderefit.dev/v1alpha1\nkind: RolloutPolicy\nmetadata: {name: a}\n"), 1, []string{"RolloutPolicy/a: spec: Required value"}},
	{"a configuration as text", rendered, one(document("MachineConfig", "50-x", "config: hello")), 1, []string{"MachineConfig/50-x (a.yaml): spec.config: should be an object, is string"}},
	{"a file's user as text", rendered, one(aFile("user: root, " + good)), 1, []string{"storage.files[0].user: should be an object, is string"}},
	{"a compression that is none", rendered, one(aFile(`contents: {compression: gz, source: "data:,x"}`)), 1, []string{"contents.compression (/etc/x): invalid compression method; write gzip, or leave compression out"}},
	{"a compression of nothing", rendered, one(aFile(`contents: {compression: gzip, source: "data:,x"}`)), 1, []string{"contents.compression (/etc/x)", "the contents are no gzip", "leave compression out"}},
	{"permissions for mode", rendered + " --strict", one(aFile("permissions: 420, " + good)), 1, []string{"storage.files[0].permissions (/etc/x): there is no such field"}},
	{"enabled as text", rendered, one(config(`systemd: {units: [{name: a.service, enabled: "yes"}]}`)), 1, []string{"systemd.units[0].enabled: should be a boolean, is string"}},
	{"a drop-in without .conf", rendered, one(config(`systemd: {units: [{name: a.service, dropins: [{name: x, contents: "[Service]"}]}]}`)), 1, []string{"dropins[0].name (a.service)", "let the name end with .conf"}},
	{"dropin for dropins", rendered + " --strict", one(config(`systemd: {units: [{name: a.service, dropin: []}]}`)), 1, []string{"units[0].dropin (a.service)", "did you mean dropins?"}},
	{"a path with a slash at its end", rendered, one(config("storage: {files: [{path: /etc/x/, " + good + "}]}")), 1, []string{"storage.files[0].path (/etc/x/)", "leave out a slash at the end"}},
	{"a file without a path", rendered, one(config("storage: {files: [{" + good + "}]}")), 1, []string{"storage.files[0].path: path not specified"}},
	{"one key as text", rendered, one(config("passwd: {users: [{name: core, sshAuthorizedKeys: ssh-ed25519 AAAA}]}")), 1, []string{"passwd.users[0].sshAuthorizedKeys: should be a list, is string"}},
	{"a key that is none", rendered, one(config("passwd: {users: [{name: core, sshAuthorizedKeys: [~/.ssh/id_ed25519.pub]}]}")), 0, []string{"warning: ", "passwd.users[0].sshAuthorizedKeys[0] (core): is no public key", "ssh-ed25519 AAAA"}},
	{"a key that is none, strictly", rendered + " --strict", one(config("passwd: {users: [{name: core, sshAuthorizedKeys: [hello]}]}")), 1, []string{"flag --strict: ", "is no public key"}},
	{"Butane's spelling of keys", rendered + " --strict", one(config("passwd: {users: [{name: core, ssh_authorized_keys: []}]}")), 1, []string{"users[0].ssh_authorized_keys (core)", "did you mean sshAuthorizedKeys?"}},
	{"a password as it is typed", rendered, one(config("passwd: {users: [{name: core, passwordHash: secret}]}")), 0, []string{"warning: ", "passwd.users[0].passwordHash (core): is no hash", "mkpasswd"}},
	{"storage outside of config", rendered, one(document("MachineConfig", "50-x", "storage: {files: []}")), 1, []string{`unknown field "spec.storage"`}},
	{"files outside of storage", rendered + " --strict", one(config("files: []")), 1, []string{"spec.config.files: there is no such field"}},
	{"an extension as text", rendered, one(document("MachineConfig", "50-x", "extensions: usbguard")), 1, []string{"spec.extensions: should be a list, is string"}},
	{"FIPS as text", rendered, one(document("MachineConfig", "50-x", `fips: "yes"`)), 1, []string{"spec.fips: should be a boolean, is string"}},
	{"a path below /usr", rendered, one(config("storage: {files: [{path: /usr/lib/x, " + good + "}]}")), 0, []string{"warning: storage.files: file /usr/lib/x: /usr is part of the OS image", "/usr/local it can"}},
	{"a path below /usr, strictly", rendered + " --strict", one(config("storage: {files: [{path: /usr/lib/x, " + good + "}]}")), 1, []string{"flag --strict: storage.files: file /usr/lib/x"}},
	{"a path below /usr of an OS image", rendered, one(configOf("3.5.0", "osImageURL: quay.io/a/b, config: {ignition: {version: VERSION}, storage: {files: [{path: /usr/lib/x, "+good+"}]}}")), 3, []string{"no node can have it: ", "/usr is part of the OS image", "below /etc and /usr/local it can"}},
	{"a path of the agent", rendered, one(config("storage: {files: [{path: /var/lib/machine-config-daemon/boot.json, " + good + "}]}")), 3, []string{"MachineConfig/50-x (a.yaml): storage.files: file /var/lib/machine-config-daemon/boot.json: /var/lib/machine-config-daemon belongs to the agent; leave it out"}},
	{"a program of the agent", rendered, one(config("storage: {files: [{path: /var/lib/machine-config-daemon/bin/machine-config-daemon, " + good + "}]}")), 3, []string{"belongs to the agent"}},
	{"a unit of the agent", rendered, one(config(`systemd: {units: [{name: machine-config-daemon-prove.service, mask: true}]}`)), 3, []string{"MachineConfig/50-x (a.yaml): systemd.units: unit machine-config-daemon-prove.service: the agent needs this"}},
	{"tabs", rendered, one("kind: MachineConfig\n\tspec: {}\n"), 1, []string{"reading a.yaml", "indented by spaces, not by tabs"}},
	{"no name", rendered, one(strings.Replace(aFile(good), "name: 50-x, ", "", 1)), 1, []string{"(a.yaml): metadata.name: is required"}},
	{"no version of the API", rendered, one("kind: MachineConfig\nmetadata: {name: x}\n"), 1, []string{`a.yaml: apiVersion: of a MachineConfig must be machineconfiguration.openshift.io/v1, is ""`}},
	{"a label that is a list", rendered, one(strings.Replace(aFile(good), "role: worker", "role: [worker]", 1)), 1, []string{"metadata.labels.machineconfiguration.openshift.io/role: should be a string"}},
	{"an empty file", rendered, one(""), 1, []string{"there is no MachineConfig at all"}},
	{"a binary file", rendered, one("\xff\xfe\x00"), 1, []string{"reading a.yaml"}},
	{"an empty directory", controller + " render --pool worker root/etc", nil, 1, []string{"there is no MachineConfig at all"}},
	{"a file twice", rendered + " a.yaml", one(aFile(good)), 1, []string{"metadata.name: the same name as MachineConfig/50-x (a.yaml)"}},
	{"a pool as an argument", controller + " render worker a.yaml", one(aFile(good)), 2, []string{"--pool is required; see machine-config-controller render --help"}},
	{"several pools", controller + " render --pool worker,infra a.yaml", one(aFile(good)), 2, []string{`--pool: "worker,infra" is not a name: write small letters`}},
	{"a base that is not there", rendered + " --base gone.yaml", one(aFile(good)), 1, []string{"gone.yaml: no such file or directory"}},
	{"strict and not", rendered + " --strict=maybe", one(aFile(good)), 2, []string{`flag --strict: "maybe" is neither true nor false`}},
	{"a format that render has not", rendered + " -o json", one(aFile(good)), 2, []string{"unknown shorthand flag: 'o'", "see machine-config-controller render --help"}},
	{"no program's command", controller, nil, 2, []string{"a command is needed; see machine-config-controller --help"}},
	{"a controller that is none", controller + " run --controllers=pol", nil, 2, []string{`there is no controller "pol" here`, "pool, render"}},
	{"a controller without a kubeconfig", controller + " run --kubeconfig gone", nil, 1, []string{"reading the kubeconfig", "gone: no such file or directory"}},
	{"no ControllerConfig", controller + " templates", nil, 2, []string{"a file with a ControllerConfig is required"}},
	{"a policy that is not there", controller + " simulate --nodes 3 --policy gone.yaml", nil, 1, []string{"reading the RolloutPolicy", "gone.yaml: no such file or directory"}},
	{"a policy whose kind is misspelt", controller + " simulate --nodes 3 --policy a.yaml", one("apiVersion: noderefit.dev/v1alpha1\nkind: RolloutPolice\nmetadata: {name: a}\n"), 1, []string{"a.yaml: there has to be a RolloutPolicy of noderefit.dev/v1alpha1"}},
	{"nodes that are no number", controller + " simulate --nodes ten", nil, 1, []string{"--nodes: neither a number nor a file"}},
	{"fewer nodes than one", controller + " simulate --nodes 0", nil, 2, []string{"--nodes: 0 is not from 1 to 20000"}},
	{"a share of nodes that is none", controller + " simulate --nodes 3 --max-unavailable lots", nil, 2, []string{`--max-unavailable: "lots" is neither a number of nodes nor a percentage`}},
	{"a time without a unit", controller + " simulate --nodes 3 --node-time 10", nil, 2, []string{`flag --node-time: "10" is no duration; write, for example, 90s or 4h`}},
	{"no nodes to simulate", controller + " simulate", nil, 2, []string{"--nodes"}},
}

// hosts are mistakes on one host, here a directory.
var hosts = []mistake{
	{"no configuration", daemon + " apply --root root", nil, 2, []string{"flag --config is required"}},
	{"a configuration that is not there", daemon + " apply --root root --config a.yaml", nil, 1, []string{"open a.yaml: no such file or directory"}},
	{"a directory that is not there", daemon + " status --root gone", nil, 1, []string{"gone", "no such file or directory"}},
	{"an OS that is none", daemon + " apply --root root --os fedora --config a.yaml", one(aFile(good)), 2, []string{`flag --os: "fedora" is not one of auto`}},
	{"a format that is none", daemon + " status --root root -o yaml", nil, 2, []string{`"yaml" is neither text nor json`}},
	{"an argument too many", daemon + " apply a.yaml --root root", one(aFile(good)), 2, []string{`unexpected argument "a.yaml"`}},
	{"a command misspelt", daemon + " aply", nil, 2, []string{`"aply"`}},
	{"the agent's own file", daemon + " plan --root root --desired a.yaml", one(config("storage: {files: [{path: /var/lib/machine-config-daemon/boot.json, " + good + "}]}")), 3, []string{"/var/lib/machine-config-daemon belongs to the agent"}},
	{"the agent's own file, applied", daemon + " apply --root root --config a.yaml", one(config("storage: {files: [{path: /var/lib/machine-config-daemon/boot.json, " + good + "}]}")), 3, []string{"/var/lib/machine-config-daemon belongs to the agent"}},
	{"the agent's own unit", daemon + " plan --root root --desired a.yaml", one(config("systemd: {units: [{name: machine-config-daemon-prove.service, mask: true}]}")), 3, []string{"systemd.units: unit machine-config-daemon-prove.service", "leave it out"}},
	{"an argument on a directory", daemon + " apply --root root --config a.yaml", one(document("MachineConfig", "50-x", "kernelArguments: [a]")), 3, []string{"kernelArguments", "--skip-os applies the rest"}},
	{"two configurations", daemon + " apply --root root --config a.yaml", one(aFile(good) + "---\n" + strings.Replace(aFile(good), "50-x", "60-x", 1)), 1, []string{"there should be exactly one"}},
	{"Butane's inline", daemon + " apply --root root --config a.yaml", one(aFile("contents: {inline: hello}")), 1, []string{"inline is a field of Butane"}},
	{"a user who is not there", daemon + " apply --root root --config a.yaml", one(aFile("user: {name: nobody-here}, " + good)), 1, []string{"nobody-here"}},
	{"a rollback to nothing", daemon + " rollback --root root", nil, 1, []string{"no previous"}},
	{"a verification of nothing", daemon + " verify --root root", nil, 1, []string{"no committed configuration", "--config"}},
	{"a timeout of nothing", daemon + " apply --root root --verdict-timeout 0s --config a.yaml", one(aFile(good)), 2, []string{"--verdict-timeout"}},
	{"a policy of another kind", daemon + " plan --root root --desired a.yaml --policy a.yaml", one(aFile(good)), 1, []string{"a.yaml", "MachineConfiguration"}},
	{"certificates of another kind", daemon + " deliver --root root --config a.yaml", one(aFile(good)), 1, []string{"ControllerConfig", "MachineConfig"}},
	{"both of two that exclude each other", daemon + " stage --drop --config a.yaml", one(aFile(good)), 2, []string{"--config and --drop exclude each other"}},
	{"a host that is a file", daemon + " apply --root a.yaml --config a.yaml", one(aFile(good)), 1, []string{"opening root", "a.yaml: not a directory"}},
	{"an OS manager on a directory", daemon + " apply --root root --os rpm-ostree --config a.yaml", one(aFile(good)), 1, []string{"using --os rpm-ostree", "root is not a booted ostree host"}},
	{"a flag of another command", daemon + " plan --root root --config a.yaml", one(aFile(good)), 2, []string{"unknown flag: --config", "see machine-config-daemon plan --help"}},
	{"a flag misspelt", daemon + " apply --config a.yaml --roto root", one(aFile(good)), 2, []string{"unknown flag: --roto; did you mean --root?"}},
	{"a plan of nothing", daemon + " plan --root root", nil, 2, []string{"flag --desired is required; see machine-config-daemon plan --help"}},
	{"a plan from what is not there", daemon + " plan --root root --desired a.yaml --current gone.yaml", one(aFile(good)), 1, []string{"gone.yaml: no such file or directory"}},
	{"a directory as the configuration", daemon + " apply --root root --config root", nil, 1, []string{"root: is a directory"}},
	{"an empty configuration", daemon + " apply --root root --config a.yaml", one(""), 1, []string{"reading a.yaml: there should be exactly one", "there are 0"}},
	{"a policy that is not there", daemon + " plan --root root --desired a.yaml --policy gone.yaml", one(aFile(good)), 1, []string{"reading policy", "gone.yaml: no such file or directory"}},
	{"a timeout that is none", daemon + " apply --root root --config a.yaml --verdict-timeout soon", one(aFile(good)), 2, []string{`flag --verdict-timeout: "soon" is no duration; write, for example, 90s or 4h`}},
	{"keys of a user who is not there", daemon + " apply --root root --config a.yaml", one(config(`passwd: {users: [{name: bob, sshAuthorizedKeys: ["ssh-ed25519 AAAA"]}]}`)), 1, []string{`passwd.users: user "bob" does not exist on this host`}},
	{"disks on a host that is configured", daemon + " plan --root root --current a.yaml --desired b.yaml", map[string]string{"a.yaml": aFile(good), "b.yaml": config("storage: {disks: [{device: /dev/x}]}")}, 3, []string{"storage.disks", "only provisioning a new machine can do that"}},
	{"an image on a directory", daemon + " apply --root root --config a.yaml", one(document("MachineConfig", "50-x", "osImageURL: quay.io/a/b")), 3, []string{"osImageURL", "this host can't change its operating system; --skip-os applies the rest"}},
	{"no program's command", daemon, nil, 2, []string{"a command is needed; see machine-config-daemon --help"}},
	{"certificates of nothing", daemon + " deliver --root root", nil, 2, []string{"flag --config is required"}},
	{"a record that is damaged", daemon + " apply --root root --config a.yaml", map[string]string{"a.yaml": aFile(good), "root/var/lib/machine-config-daemon/boot.json": "{"}, 1, []string{"boot record", "boot.json"}},
	{"somebody who is not root", unprivileged + daemon + " status --root root", map[string]string{"root/var/lib/machine-config-daemon/boot.json": ""}, 1, []string{"permission denied", "run it as root"}},
	{"a server without a certificate", server + " --cert gone --key gone", nil, 1, []string{"reading the certificate gone and its key, which --cert and --key name", "no such file or directory"}},
	{"an argument of the server", server + " x", nil, 2, []string{`unexpected argument "x"; see machine-config-server --help`}},
	{"a port beyond all", server + " --secure-port 99999", nil, 2, []string{"--secure-port: 99999 is not a port"}},
	{"a directory without pools", server + " --dir .", nil, 1, []string{"reading what is to be served: . has no document"}},
	{"a port that is none", server + " --secure-port ten", nil, 2, []string{"--secure-port", "ten"}},
}

// people are mistakes at the plugin.
var people = []mistake{
	{"no command", plugin, nil, 2, []string{"a command is needed; see kubectl refit --help"}},
	{"a command misspelt", plugin + " statsu", nil, 2, []string{`unknown command "statsu"`}},
	{"a flag misspelt", plugin + " status --outptu json", nil, 2, []string{"unknown flag: --outptu"}},
	{"a pool misspelt", plugin + " status slpi", nil, 1, []string{"there is no MachineConfigPool slpi; there are: ", "slip"}},
	{"a pool misspelt, explained", plugin + " explain slpi", nil, 1, []string{"no Node and no MachineConfigPool slpi; pools are: "}},
	{"a node misspelt", plugin + " explain node/slpi-1", nil, 1, []string{"there is no Node slpi-1"}},
	{"a kind that is none", plugin + " explain deployment/slip", nil, 2, []string{`"deployment/slip" is neither node/NAME nor pool/NAME`}},
	{"a pool misspelt, watched", plugin + " watch slpi", nil, 1, []string{"there is no MachineConfigPool slpi"}},
	{"a pool misspelt, paused", plugin + " pause slpi", nil, 1, []string{"there is no MachineConfigPool slpi"}},
	{"a pool misspelt, planned", plugin + " plan slpi -f a.yaml", one(aFile(good)), 1, []string{"there is no MachineConfigPool slpi"}},
	{"no pool", plugin + " pause", nil, 2, []string{"POOL is needed"}},
	{"two pools", plugin + " pause slip stopped", nil, 2, []string{`unexpected argument "stopped"`}},
	{"a format that is none", plugin + " status -o yml", nil, 2, []string{`unknown output format "yml": use text, json, yaml, wide, name or jsonpath`}},
	{"another namespace", plugin + " explain slip -n shop", nil, 0, []string{"warning: whether daemons run: not known: namespace shop has none", "-n names the namespace of these Pods", "MachineConfigPool slip: Updating"}},
	{"a plan of nothing", plugin + " plan slip -f", nil, 2, []string{"flag needs an argument", "-f"}},
	{"a plan of a file that is not there", plugin + " plan slip -f gone.yaml", nil, 1, []string{"gone.yaml: no such file or directory"}},
	{"a prune without files", plugin + " plan slip --prune", nil, 2, []string{"flag --prune: needs the files that stay, by -f"}},
	{"a selector without a prune", plugin + " plan slip -f a.yaml -l a=b", one(aFile(good)), 2, []string{"flag --selector", "--prune"}},
	{"a deletion of nothing", plugin + " plan slip --delete 99-gone", nil, 1, []string{"the pool has no MachineConfig 99-gone"}},
	{"a diff that is none", plugin + " plan slip -f a.yaml --diff full", one(aFile(good)), 2, []string{`flag --diff: "full" is not one of short, all, none`}},
	{"a plan with a decimal mode", plugin + " plan slip -f a.yaml", one(forSlip(aFile("mode: 644, " + good))), 1, []string{"644 is decimal"}},
	{"a plan with Butane's inline", plugin + " plan slip -f a.yaml", one(forSlip(aFile("contents: {inline: hello}"))), 1, []string{"inline is a field of Butane"}},
	{"a plan with an unknown field", plugin + " plan slip -f a.yaml", one(forSlip(config("storage: {file: []}"))), 0, []string{"warning: ", "did you mean files?"}},
	{"a plan with an unknown field, strictly", plugin + " plan slip --strict -f a.yaml", one(forSlip(config("storage: {file: []}"))), 1, []string{"flag --strict: ", "did you mean files?"}},
	{"a plan below /usr", plugin + " plan slip -f a.yaml", one(forSlip(config("storage: {files: [{path: /usr/lib/x, " + good + "}]}"))), 3, []string{"file /usr/lib/x: /usr is part of the OS image", "/usr/local"}},
	{"a plan of the agent's own", plugin + " plan slip -f a.yaml", one(forSlip(config("storage: {files: [{path: /run/machine-config-daemon/lock, " + good + "}]}"))), 3, []string{"/run/machine-config-daemon belongs to the agent"}},
	{"a plan of a unit of the agent", plugin + " plan slip -f a.yaml", one(forSlip(config(`systemd: {units: [{name: machine-config-daemon-prove.service, mask: true}]}`))), 3, []string{"unit machine-config-daemon-prove.service: the agent needs this"}},
	{"a plan of a KubeletConfig", plugin + " plan slip -f a.yaml", one(document("KubeletConfig", "a", "")), 0, []string{"warning: a.yaml: passed over, as its kind is KubeletConfig"}},
	{"a plan while nodes go elsewhere", plugin + " plan slip -f a.yaml", one(forSlip(aFile(good))), 0, []string{"3 of 3 nodes would go", "slip-2, slip-1, slip-3"}},
	{"a plan below /usr where no host has reported", plugin + " plan first -f a.yaml", one(strings.Replace(config("storage: {files: [{path: /usr/lib/x, "+good+"}]}"), "role: worker", "role: first", 1)), 0, []string{"file /usr/lib/x: /usr is part of the OS image", "hosts that boot an image refuse it"}},
	{"a plan of a pool and its new name", plugin + " plan slip -f a.yaml --delete 50-slip --delete 50-x", one(forSlip(aFile(good))), 2, []string{"flag --delete: MachineConfig 50-x is in a file as well"}},
	{"a timeout without a unit", plugin + " watch slip --timeout 10", nil, 2, []string{`flag --timeout: "10" is no duration; write, for example, 90s or 4h`}},
	{"a diff of nothing", plugin + " diff", nil, 2, []string{"see kubectl refit diff --help"}},
	{"a node misspelt, compared", plugin + " diff slpi-1", nil, 1, []string{"slpi-1"}},
	{"a release of a node misspelt", plugin + " release slpi-1", nil, 1, []string{"slpi-1"}},
	{"a skip without a reason", plugin + " skip slip-2", nil, 2, []string{"--why"}},
	{"nodes by labels that none has", plugin + " hold -l a=b --why x", nil, 1, []string{"no node has the labels a=b"}},
	{"nodes by labels that are none", plugin + " hold -l a=(b --why x", nil, 2, []string{"--selector"}},
	{"a port that is taken by nobody", plugin + " page --port ten", nil, 2, []string{`flag --port: "ten" is no number`}},
	{"a shell that is none", plugin + " completion tcsh", nil, 2, []string{`unknown command "tcsh"`, "see kubectl refit completion --help"}},
	{"a template that is none", plugin + " status -o jsonpath={.items", nil, 2, []string{"jsonpath"}},
	{"a format without its template", plugin + " status -o jsonpath", nil, 2, []string{"jsonpath"}},
	{"a server by name only", plugin + " status --server nowhere.invalid", nil, 1, []string{"nowhere.invalid"}},
	{"a value that the chart does not have", plugin + " install --dry-run --set page.enable=true", nil, 2, []string{"reading the values: at '/page': additional properties 'enable' not allowed", "see kubectl refit install --help"}},
	{"a value of nothing", plugin + " install --dry-run --set page", nil, 2, []string{`flag --set: "page": key "page" has no value`}},
	{"values that are not there", plugin + " install --dry-run --values gone.yaml", nil, 1, []string{"flag --values: open gone.yaml: no such file or directory"}},
	{"an installation of what", plugin + " install worker", nil, 2, []string{`unexpected argument "worker"; see kubectl refit install --help`}},
	{"a check of what", plugin + " check worker", nil, 2, []string{`unexpected argument "worker"; see kubectl refit check --help`}},
	{"a check where no cluster is", plugin + " check --pre --kubeconfig gone", nil, 1, []string{"reading the kubeconfig", "gone: no such file or directory"}},
	{"a version in another format", plugin + " version -o xml", nil, 2, []string{`unknown output format "xml": use text, json, yaml or jsonpath=TEMPLATE`}},
	{"a bypass without a reason", plugin + " bypass slip", nil, 2, []string{"one of --why TEXT and --end is needed"}},
	{"a bypass of nothing", plugin + " bypass slip --why fire", nil, 1, []string{"nothing is to be bypassed: no RolloutPolicy is in force for pool slip"}},
	{"an end of no bypass", plugin + " bypass slip --end", nil, 0, []string{"pool slip has no bypass"}},
	{"an approval of nothing", plugin + " approve slip", nil, 1, []string{"pool slip asks for no approval"}},
	{"an approval again", plugin + " approve careful --why again", nil, 0, []string{"was approved already, by jane at 2026-03-01T12:00:00Z; that record stays", "why     tested"}},
	{"an approval of another digest", plugin + " approve careful --digest sha256:y", nil, 1, []string{"the nodes have staged no OS, and not sha256:y"}},
	{"a reason without end", plugin + " approve careful --why " + strings.Repeat("x", 501), nil, 2, []string{"--why: 501 bytes"}},
	{"a bundle of what", plugin + " bundle", nil, 2, []string{"a command is needed: save, load or mirrors"}},
	{"a bundle saved nowhere", plugin + " bundle save", nil, 2, []string{"DIR is needed", "see kubectl refit bundle save --help"}},
	{"a bundle from no registry", plugin + " bundle save b", nil, 2, []string{"flag --registry: this program is of no release", "--registry registry.of.yours/noderefit"}},
	{"a bundle with an image that nothing tells apart", plugin + " bundle save b --registry 127.0.0.1:9/x --image 127.0.0.1:9/os", nil, 1, []string{"image 127.0.0.1:9/os: neither a tag nor a digest says which one"}},
	{"a bundle over other files", plugin + " bundle save . --registry 127.0.0.1:9/x", nil, 1, []string{". has root, which is of no bundle: name an empty directory"}},
	{"a bundle loaded nowhere", plugin + " bundle load b", nil, 2, []string{"flag --registry: a registry that nodes reach is needed"}},
	{"a bundle that is none", plugin + " bundle load root --registry 127.0.0.1:9", nil, 1, []string{"root is no bundle, or one that was not saved to its end: save it again"}},
	{"mirrors of a bundle that is none", plugin + " bundle mirrors root --registry 127.0.0.1:9", nil, 1, []string{"root is no bundle"}},
	{"a hold without a reason", plugin + " hold slip-1", nil, 2, []string{"--why"}},
	{"a reboot of what", plugin + " reboot --why x", nil, 2, []string{"NODE|POOL is needed", "see kubectl refit reboot --help"}},
	{"a reboot without a reason", plugin + " reboot slip-1", nil, 2, []string{"--why", "reason is needed"}},
	{"a reason for a reboot without end", plugin + " reboot slip-1 --why " + strings.Repeat("x", 501), nil, 2, []string{"--why: 501 bytes"}},
	{"a reboot of a node misspelt", plugin + " reboot slpi-1 --why x", nil, 1, []string{"slpi-1", "did you mean slip-1?"}},
	{"a reboot of two nodes", plugin + " reboot slip-1 slip-3 --why x", nil, 2, []string{`unexpected argument "slip-3"`, "see kubectl refit reboot --help"}},
	{"a reboot that is taken back for a reason", plugin + " reboot slip-1 --cancel --why x", nil, 2, []string{"flag --cancel: goes without --why, --soft and --bypass"}},
	{"a reboot of a node that nobody ordered, taken back", plugin + " reboot slip-1 --cancel", nil, 0, []string{"node slip-1 has no order to reboot by a person"}},
	{"a reboot of a pool that nobody ordered, taken back", plugin + " reboot slip --cancel", nil, 0, []string{"pool slip is not to reboot"}},
	{"a reboot of a node on its way", plugin + " reboot slip-2 --why x", nil, 1, []string{"node slip-2 is on its way to rendered-slip-", "order the reboot when it has arrived (kubectl refit explain node/slip-2)"}},
	{"a reboot of a paused pool", plugin + " reboot stopped --why x", nil, 1, []string{"pool stopped is paused, so no node of it reboots: kubectl refit resume stopped comes first"}},
	{"a reboot of a node of a paused pool", plugin + " reboot stopped-1 --why x", nil, 1, []string{"kubectl refit resume stopped comes first"}},
	{"a reboot that a policy never makes", plugin + " reboot never-1 --why x", nil, 2, []string{"RolloutPolicy never has reboots: Never; with --bypass the order is carried out all the same"}},
	{"a reboot by somebody without rights", plugin + " reboot slip-1 --why x --as nobody", nil, 1, []string{"not allowed"}},
	{"a hold of a node misspelt", plugin + " hold slpi-1 --why x", nil, 1, []string{"slpi-1"}},
	{"a hold for a time that is none", plugin + " hold slip-1 --why x --for soon", nil, 2, []string{"--for", "soon"}},
	{"a release of nothing", plugin + " release slip-1", nil, 0, []string{"slip-1"}},
	{"a retry of nothing", plugin + " retry slip-1", nil, 1, []string{"slip-1"}},
	{"a pause again", plugin + " pause stopped", nil, 0, []string{"pool stopped is paused already"}},
	{"a resumption of nothing", plugin + " resume slip", nil, 0, []string{"pool slip is neither paused nor held by a rollback"}},
	{"a rollback to nothing", plugin + " rollback first", nil, 1, []string{"had no other configuration", "name one with --to"}},
	{"a rollback to another pool's", plugin + " rollback slip --to rendered-stopped-0123456789abcdef0123456789abcdef", nil, 2, []string{"is not a rendered configuration of pool slip (it had: rendered-slip-"}},
	{"a rollback to one that is gone", plugin + " rollback slip --to rendered-slip-0123456789abcdef0123456789abcdef", nil, 1, []string{"there is no MachineConfig rendered-slip-0123456789abcdef0123456789abcdef in the cluster"}},
	{"a rollback of a paused pool", plugin + " rollback stopped", nil, 0, []string{"but the pool is paused, so no node goes back yet: kubectl refit rollback stopped --resume"}},
	{"and what that names", plugin + " rollback stopped --resume", nil, 0, []string{"pool stopped is no longer paused"}},
	{"a lift of nothing", plugin + " quarantine lift slip", nil, 1, []string{"slip"}},
	{"a quarantine of what", plugin + " quarantine", nil, 2, []string{"quarantine list or quarantine lift is needed"}},
	{"a watch of no pools", plugin + " watch --kubeconfig $EMPTY", nil, 1, []string{"the cluster has no MachineConfigPools", "kubectl config current-context"}},
	{"a status of no pools", plugin + " status --kubeconfig $EMPTY", nil, 0, []string{"There are no MachineConfigPools. kubectl refit check says"}},
	{"a cluster without Noderefit", plugin + " status --kubeconfig $BARE", nil, 1, []string{"Noderefit is not installed here"}},
	{"a login that is over", plugin + " status --kubeconfig $LOGIN", nil, 1, []string{http.StatusText(http.StatusUnauthorized)}},
	{"a server that is down", plugin + " status --kubeconfig $DOWN", nil, 1, []string{"connection refused"}},
	{"somebody without rights", plugin + " status --as nobody", nil, 1, []string{`not allowed: User "nobody" cannot list resource`}},
	{"a kubeconfig that is not there", plugin + " status --kubeconfig gone", nil, 1, []string{"reading the kubeconfig", "gone"}},
	{"a context that is not there", plugin + " status --context gone", nil, 1, []string{"reading the kubeconfig", `context "gone" does not exist`}},
	{"a kubeconfig that is none", plugin + " status --kubeconfig a.yaml", one("- a\n"), 1, []string{"reading the kubeconfig", "a.yaml", "is no kubeconfig"}},
	{"a kubeconfig of nothing", plugin + " status --kubeconfig a.yaml", one(""), 1, []string{"names no cluster", "--kubeconfig or KUBECONFIG"}},
}

// forSlip puts a document into pool slip of the cluster.
func forSlip(text string) string { return strings.Replace(text, "role: worker", "role: slip", 1) }

// otherCluster writes a kubeconfig of a cluster without objects, which answers requests for our kinds with a code, and
// all others with another. With code 0 it is down.
func otherCluster(t *testing.T, ours, others int) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code := others
		if strings.Contains(r.URL.Path, mcfgv1.GroupName) || strings.Contains(r.URL.Path, api.GroupVersion.Group) {
			code = ours
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if code == http.StatusOK {
			kind := lists[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
			fmt.Fprintf(w, `{%s,"metadata":{"resourceVersion":"1"},"items":[]}`, kind)
			return
		}
		reason := strings.ReplaceAll(http.StatusText(code), " ", "")
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":%q,"code":%d}`, reason, reason, code)
	}))
	t.Cleanup(s.Close)
	if ours == 0 {
		s.Close()
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: '" + s.URL +
		"'}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// lists are the kinds and versions of the lists that an empty cluster answers with.
var lists = map[string]string{
	"machineconfigpools": `"kind":"MachineConfigPoolList","apiVersion":"machineconfiguration.openshift.io/v1"`,
	"machineconfignodes": `"kind":"MachineConfigNodeList","apiVersion":"machineconfiguration.openshift.io/v1"`,
	"machineconfigs":     `"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1"`,
	"rolloutpolicies":    `"kind":"RolloutPolicyList","apiVersion":"noderefit.dev/v1alpha1"`,
	"nodes":              `"kind":"NodeList","apiVersion":"v1"`,
	"pods":               `"kind":"PodList","apiVersion":"v1"`,
}

// scene makes the pools that the rows name.
func (l *lab) scene() {
	for _, pool := range []string{"slip", "stopped", "first", "careful", "never"} {
		was := l.config(pool, "50-"+pool, "/etc/motd", "a")
		now := l.config(pool, "50-"+pool, "/etc/motd", "b")
		a, b := l.render(pool, was), l.render(pool, now)
		l.source(now)
		had := a
		if pool == "first" {
			had = b
		}
		l.pool(pool, b, had, func(p *mcfgv1.MachineConfigPool) {
			p.Spec.Paused = pool == "stopped"
			if pool == "careful" {
				p.Annotations[api.ApprovedKey] = api.Encode(api.Approval{
					Config: b, By: "jane", Why: "tested", Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
				})
			}
		})
		l.node(pool+"-1", pool, a, a, api.Done, func(n *corev1.Node) {
			if pool == "slip" {
				n.Annotations[api.OSKey] = "ostree"
			}
			n.Annotations[api.OrdersKey] = api.Encode(api.Orders{Stage: &api.StageOrder{Config: b}})
			n.Annotations[api.StagedKey] = api.Encode(api.Staged{Config: b, Since: time.Now()})
		})
		if pool == "slip" {
			l.node("slip-2", pool, a, b, api.Working, nil) // on its way
			l.node("slip-3", pool, a, a, api.Done, nil)
		}
	}
	for name, spec := range map[string]string{"careful": `"approval":{}`, "never": `"reboots":"Never"`} {
		policy := `{"apiVersion":"noderefit.dev/v1alpha1","kind":"RolloutPolicy","metadata":{"name":"` + name +
			`"},"spec":{"pools":["` + name + `"],` + spec + `}}`
		l.must(l.Client.CoreV1().RESTClient().Post().AbsPath("/apis/noderefit.dev/v1alpha1/rolloutpolicies").
			SetHeader("Content-Type", "application/json").Body([]byte(policy)).Do(l.ctx).Error())
		l.t.Cleanup(func() {
			l.must(l.Client.CoreV1().RESTClient().Delete().AbsPath("/apis/noderefit.dev/v1alpha1/rolloutpolicies/" + name).
				Do(context.Background()).Error())
		})
	}
}

// internals are words that say something only to those who know the source.
var internals = regexp.MustCompile(`cannot unmarshal|\.go:|%!|<nil>|goroutine|0x[0-9a-f]{6}|reflect\.|runtime error|panic`)

// Mistakes, as people make them. What they are told names the field, the object or the flag, and what to
// do about it or what there is; the exit code is the one that the documentation has.
func TestMistakesAreNamed(t *testing.T) {
	l := newLab(t)
	l.must(allPrograms())
	l.scene()
	clusters := strings.NewReplacer(
		"$EMPTY", otherCluster(t, http.StatusOK, http.StatusOK), "$BARE", otherCluster(t, http.StatusNotFound, http.StatusOK),
		"$LOGIN", otherCluster(t, http.StatusUnauthorized, http.StatusUnauthorized), "$DOWN", otherCluster(t, 0, 0),
	)
	count := 0
	var wait sync.WaitGroup
	for part, rows := range map[string][]mistake{"documents": documents, "hosts": hosts, "people": people} {
		seen := map[string]bool{}
		for _, m := range rows {
			if seen[m.name] {
				t.Errorf("%s: %q is there twice", part, m.name)
			}
			seen[m.name] = true
		}
		count += len(rows)
		wait.Go(func() {
			for _, m := range rows { // a row may follow upon the one before it
				l.check(part+": "+m.name, m, clusters)
			}
		})
	}
	wait.Wait()
	if t.Logf("%d mistakes", count); count < 230 {
		t.Error("there were more once")
	}
}

// check makes a mistake in a directory of its own.
func (l *lab) check(name string, m mistake, clusters *strings.Replacer) {
	l.t.Helper()
	dir := l.t.TempDir()
	files := map[string]string{"root/etc/hostname": "here\n", "root/var/lib/dbus/machine-id": "", "root/run/utmp": ""}
	maps.Copy(files, m.files)
	for file, text := range files {
		path := filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			l.t.Error(err)
			return
		}
	}
	command, unprivileged := strings.CutPrefix(clusters.Replace(m.command), unprivileged)
	args := strings.Split(command, " ")
	args[0] = filepath.Join(suite.Dir(), args[0])
	if unprivileged {
		state := filepath.Join(dir, "root/var/lib/machine-config-daemon")
		l.must(os.Chmod(state, 0))
		l.t.Cleanup(func() { l.must(os.Chmod(state, 0o700)) })
	}
	if unprivileged && os.Geteuid() == 0 {
		l.must(errors.Join(os.Chmod(filepath.Dir(dir), 0o711), os.Chmod(suite.Dir(), 0o711)))
		args = append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}, args...)
	}
	cmd := exec.CommandContext(l.ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "KUBECONFIG="+l.Kubeconfig)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code says it
	all := stderr.String() + stdout.String()
	where := all
	if m.code != 0 {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		where = lines[len(lines)-1]
		if strings.Count(stderr.String(), "error: ") != 1 || !strings.HasPrefix(where, "error: ") {
			l.t.Errorf("%s: there should be one line that begins with error:\n%s", name, all)
		}
	}
	if code := cmd.ProcessState.ExitCode(); code != m.code {
		l.t.Errorf("%s: exit code %d, want %d\n%s", name, code, m.code, all)
	}
	for _, says := range m.says {
		if !strings.Contains(where, says) {
			l.t.Errorf("%s: %q is not in\n%s", name, says, where)
		}
	}
	if found := internals.FindString(where); found != "" {
		l.t.Errorf("%s: %q says nothing to people\n%s", name, found, where)
	}
}
