// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/test/lab/snapshot"
)

// planDoc is what plan -o json prints.
type planDoc struct {
	APIVersion, Kind string
	Current, Desired string
	Changes          []changeDoc
	Actions          []actionDoc
	Drain, Reboot    bool
	Unreconcilable   []struct{ Field, Reason string }
	Skipped          []changeDoc
	Unwritten        []changeDoc
	Unread           string
	Left             []struct{ Path, Reason string }
}

type changeDoc struct {
	Kind, Path, Name, User, Op string
	What                       []string
	Delete, Append             []string
	From, To                   string
	Install, Uninstall         []string
	Packages                   map[string][]string
}

type actionDoc struct{ Type, Service, Because string }

func (c changeDoc) String() string {
	switch c.Kind {
	case "kargs":
		return fmt.Sprintf("kargs -%v +%v", c.Delete, c.Append)
	case "kernelType", "osImage":
		return fmt.Sprintf("%s %s -> %s", c.Kind, c.From, c.To)
	case "extensions":
		return fmt.Sprintf("extensions +%v -%v", c.Install, c.Uninstall)
	}
	s := fmt.Sprintf("%s %s %s", c.Op, c.Kind, c.Path+c.Name+c.User)
	if c.Op == "change" && c.Kind != "sshkeys" && c.Kind != "password" {
		s += " " + strings.Join(c.What, ",")
	}
	return s
}

func texts[T fmt.Stringer](list []T) []string {
	out := []string{}
	for _, e := range list {
		out = append(out, e.String())
	}
	return out
}

func (a actionDoc) String() string { return strings.TrimSpace(a.Type + " " + a.Service) }

func (p planDoc) fields() []string {
	out := []string{}
	for _, u := range p.Unreconcilable {
		out = append(out, u.Field)
	}
	return out
}

// plan plans between two documents; an empty current is a tree that was never configured.
func plan(t *testing.T, current, desired string, args ...string) (result, planDoc) {
	t.Helper()
	dir := write(t, map[string]string{"current.json": current, "desired.json": desired})
	args = append([]string{"plan", "-o", "json", "--desired", "desired.json"}, args...)
	if current != "" {
		args = append(args, "--current", "current.json")
	} else {
		args = append(args, "--root", t.TempDir())
	}
	r := run(t, dir, daemon, args...)
	var p planDoc
	if r.code == 0 || r.code == 3 {
		r.json(t, &p)
		complete(t, r)
	}
	return r, p
}

// complete checks that every key of a plan is there, with lists that are lists.
func complete(t *testing.T, r result) {
	t.Helper()
	var raw obj
	r.json(t, &raw)
	for _, key := range []string{"changes", "actions", "unreconcilable"} {
		if _, ok := raw[key].([]any); !ok {
			t.Errorf("%s is %v, should be a list", key, raw[key])
		}
	}
	for _, key := range []string{"drain", "reboot"} {
		if _, ok := raw[key].(bool); !ok {
			t.Errorf("%s is %v, should be true or false", key, raw[key])
		}
	}
	for _, key := range []string{"current", "desired"} {
		if _, ok := raw[key].(string); !ok {
			t.Errorf("%s is %v, should be text", key, raw[key])
		}
	}
}

// policy is a MachineConfiguration with that nodeDisruptionPolicy.
func policy(ndp string) string {
	return `{"apiVersion":"operator.openshift.io/v1","kind":"MachineConfiguration","metadata":{"name":"cluster"},` +
		`"spec":{"managementState":"Managed","nodeDisruptionPolicy":` + ndp + `}}`
}

func overrides(list string) string {
	return `{"apiVersion":"operator.openshift.io/v1","kind":"MachineConfiguration","metadata":{"name":"cluster"},` +
		`"spec":{"managementState":"Managed","irreconcilableValidationOverrides":{"storage":` + list + `}}}`
}

func TestPlanShape(t *testing.T) {
	hash := obj{"passwordHash": "$6$old"}
	current := doc("rendered-worker-a",
		withFile("/etc/chrony.conf", "a"), withFile("/etc/gone", "x"),
		withDir("/etc/d", mode(0o755)), withLink("/etc/l", "/a"),
		withUnit("kubelet.service", contents("[Service]\nA=1\n"), obj{"enabled": true}),
		withUnit("crio.service", dropin("10-x.conf", "[Service]\nA=1\n")),
		withUser("core", hash, obj{"sshAuthorizedKeys": []string{"ssh-ed25519 AAAA a"}}),
		withKargs("a=1"), withSpec("extensions", []string{"usbguard"}), withSpec("osImageURL", "old"))
	desired := doc("rendered-worker-b",
		withFile("/etc/chrony.conf", "b", mode(0o600), obj{"user": obj{"id": 5}}), withFile("/etc/new", "x"),
		withDir("/etc/d", mode(0o700)), withLink("/etc/l", "/b"),
		withUnit("kubelet.service", contents("[Service]\nA=2\n"), obj{"enabled": false, "mask": false}),
		withUnit("crio.service", dropin("10-x.conf", "[Service]\nA=2\n")),
		withUser("core", obj{"passwordHash": "$6$new", "sshAuthorizedKeys": []string{"ssh-ed25519 BBBB b"}}),
		withUser("more"),
		withKargs("b=2"), withSpec("kernelType", "realtime"), withSpec("extensions", []string{"ipsec"}), withSpec("osImageURL", "new"))
	r, _ := plan(t, current, desired)
	r.is(t, 0)
	var raw obj
	r.json(t, &raw)
	want := []any{
		obj{"kind": "file", "path": "/etc/chrony.conf", "op": "change", "what": []any{"contents", "mode", "owner"}},
		obj{"kind": "file", "path": "/etc/gone", "op": "remove"},
		obj{"kind": "file", "path": "/etc/new", "op": "add"},
		obj{"kind": "directory", "path": "/etc/d", "op": "change", "what": []any{"mode"}},
		obj{"kind": "link", "path": "/etc/l", "op": "change", "what": []any{"target"}},
		obj{"kind": "unit", "name": "kubelet.service", "op": "change", "what": []any{"contents", "enabled"}},
		obj{"kind": "dropin", "name": "crio.service/10-x.conf", "op": "change", "what": []any{"contents"}},
		obj{"kind": "sshkeys", "user": "core", "op": "change", "what": []any{"contents"}},
		obj{"kind": "password", "user": "core", "op": "change", "what": []any{"contents"}},
		obj{"kind": "kargs", "delete": []any{"a=1"}, "append": []any{"b=2"}},
		obj{"kind": "kernelType", "from": "default", "to": "realtime"},
		obj{"kind": "extensions", "install": []any{"ipsec"}, "uninstall": []any{"usbguard"}, "packages": obj{
			"ipsec":    []any{"NetworkManager-libreswan", "libreswan", "openvswitch3.5-ipsec"},
			"usbguard": []any{"usbguard"}}},
		obj{"kind": "osImage", "from": "old", "to": "new"},
	}
	if diff := cmp.Diff(want, raw["changes"]); diff != "" {
		t.Errorf("changes (-should be, +is):\n%s", diff)
	}
	delete(raw, "changes")
	actions, _ := raw["actions"].([]any)
	for _, a := range actions {
		if because, _ := at(a, "because").(string); because == "" {
			t.Errorf("action %v has no reason", a)
		}
	}
	delete(raw, "actions")
	rest := obj{"apiVersion": "cli.noderefit.dev/v1", "kind": "HostPlan",
		"current": "rendered-worker-a", "desired": "rendered-worker-b", "drain": true, "reboot": true, "unreconcilable": []any{}}
	if diff := cmp.Diff(rest, raw); diff != "" {
		t.Errorf("the rest (-should be, +is):\n%s", diff)
	}
}

func TestPlanChanges(t *testing.T) {
	on, off := obj{"enabled": true}, obj{"enabled": false}
	keys := func(keys ...string) obj { return obj{"sshAuthorizedKeys": keys} }
	tests := []struct {
		name             string
		current, desired part
		want             []string
	}{
		{"file contents", withFile("/f", "1"), withFile("/f", "2"), []string{"change file /f contents"}},
		{"file mode only", withFile("/f", "1"), withFile("/f", "1", mode(0o600)), []string{"change file /f mode"}},
		{"file owner only", withFile("/f", "1"), withFile("/f", "1", obj{"user": obj{"name": "core"}}), []string{"change file /f owner"}},
		{"file group only", withFile("/f", "1"), withFile("/f", "1", obj{"group": obj{"id": 7}}), []string{"change file /f owner"}},
		{"root by name is root", withFile("/f", "1"), withFile("/f", "1", obj{"user": obj{"name": "root"}, "group": obj{"id": 0}}), nil},
		{"default mode", withFile("/f", "1"), listed("storage", "files", obj{"path": "/f", "contents": obj{"source": "data:,1"}}), nil},
		{"a data URL's spelling", withFile("/f", "a b"), withFile("/f", "", obj{"contents": obj{"source": "data:,a%20b"}}), nil},
		{"compression", withFile("/f", "text"), withFile("/f", "", gzipped("text")), nil},
		{"compressed contents that differ", withFile("/f", "text"), withFile("/f", "", gzipped("other")), []string{"change file /f contents"}},
		{"a file that is empty and one without contents", withFile("/f", ""), listed("storage", "files", obj{"path": "/f"}), nil},
		{"a file without contents and one that is empty", listed("storage", "files", obj{"path": "/f"}), withFile("/f", ""), []string{"change file /f contents"}},
		{"directory mode", withDir("/d"), withDir("/d", mode(0o700)), []string{"change directory /d mode"}},
		{"directory owner", withDir("/d"), withDir("/d", obj{"user": obj{"id": 1}}), []string{"change directory /d owner"}},
		{"directory default mode", withDir("/d"), withDir("/d", mode(0o755)), nil},
		{"directory goes", withDir("/d"), withFile("/f", "1"), []string{"add file /f", "remove directory /d"}},
		{"link becomes hard", withLink("/l", "/t"), withLink("/l", "/t", obj{"hard": true}), []string{"change link /l type"}},
		{"link owner", withLink("/l", "/t"), withLink("/l", "/t", obj{"user": obj{"id": 1}}), []string{"change link /l owner"}},
		{"file becomes link", withFile("/f", "1"), withLink("/f", "/t"), []string{"remove file /f", "add link /f"}},
		{"file becomes directory", withFile("/f", "1"), withDir("/f"), []string{"remove file /f", "add directory /f"}},
		{"unit contents", withUnit("a.service", contents("[Unit]\nA=1\n")), withUnit("a.service", contents("[Unit]\nA=2\n")), []string{"change unit a.service contents"}},
		{"unit enabled", withUnit("a.service", on), withUnit("a.service", off), []string{"change unit a.service enabled"}},
		{"unit masked", withUnit("a.service", obj{"mask": true}), withUnit("a.service", obj{"mask": false}), []string{"change unit a.service masked"}},
		{"unit comes", withFile("/f", "1"), withUnit("a.service", on), []string{"remove file /f", "add unit a.service"}},
		{"unit goes", withUnit("a.service", on), withFile("/f", "1"), []string{"add file /f", "remove unit a.service"}},
		{"drop-in comes", withUnit("a.service", on), withUnit("a.service", on, dropin("x.conf", "[Unit]\n")), []string{"add dropin a.service/x.conf"}},
		{"drop-in goes", withUnit("a.service", on, dropin("x.conf", "[Unit]\n")), withUnit("a.service", on), []string{"remove dropin a.service/x.conf"}},
		{"drop-in emptied", withUnit("a.service", on, dropin("x.conf", "[Unit]\n")), withUnit("a.service", on, dropin("x.conf", "")), []string{"remove dropin a.service/x.conf"}},
		{"key comes", withUser("core", keys("ssh-rsa A")), withUser("core", keys("ssh-rsa A", "ssh-rsa B")), []string{"change sshkeys core"}},
		{"last key goes", withUser("core", keys("ssh-rsa A")), withUser("core"), []string{"remove sshkeys core"}},
		{"password comes", withUser("core"), withUser("core", obj{"passwordHash": "$6$x"}), []string{"add password core"}},
		{"user goes", withUser("core", keys("ssh-rsa A")), withFile("/f", "1"), []string{"add file /f", "remove sshkeys core"}},
		{"kernel type", withSpec("kernelType", "realtime"), withSpec("kernelType", "default"), []string{"kernelType realtime -> default"}},
		{"no kernel type is the default one", withSpec("kernelType", ""), withSpec("kernelType", "default"), nil},
		{"extensions in another order", withSpec("extensions", []string{"usbguard", "ipsec"}), withSpec("extensions", []string{"ipsec", "usbguard"}), nil},
		{"extension goes", withSpec("extensions", []string{"usbguard", "ipsec"}), withSpec("extensions", []string{"ipsec"}), []string{"extensions +[] -[usbguard]"}},
		{"image", withSpec("osImageURL", "a"), withSpec("osImageURL", "b"), []string{"osImage a -> b"}},
		{"nothing", withFile("/f", "1"), withFile("/f", "1"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, p := plan(t, doc("a", tt.current), doc("b", tt.desired))
			r.is(t, 0)
			if diff := cmp.Diff(append([]string{}, tt.want...), texts(p.Changes)); diff != "" {
				t.Errorf("changes (-should be, +is):\n%s", diff)
			}
			if len(tt.want) == 0 && (len(p.Actions) > 0 || p.Drain || p.Reboot) {
				t.Errorf("nothing changes, but actions are %v, drain %t, reboot %t", p.Actions, p.Drain, p.Reboot)
			}
		})
	}
}

func TestPlanOfReorderedListsIsEmpty(t *testing.T) {
	parts := []part{withFile("/a", "1"), withFile("/b", "2"), withUnit("a.service", obj{"enabled": true}),
		withUnit("b.service", obj{"enabled": true}), withUser("core"), withUser("more"), withDir("/d"), withDir("/e")}
	reversed := slices.Clone(parts)
	slices.Reverse(reversed)
	r, p := plan(t, doc("a", parts...), doc("b", reversed...))
	if r.is(t, 0); len(p.Changes) > 0 || len(p.Actions) > 0 {
		t.Errorf("%+v", p)
	}
}

// actionsOf plans a change of one part and returns the actions.
func actionsOf(t *testing.T, current, desired part, args ...string) planDoc {
	t.Helper()
	r, p := plan(t, doc("a", current), doc("b", desired), args...)
	r.is(t, 0)
	for _, a := range p.Actions {
		if a.Because == "" {
			t.Errorf("%s has no reason", a)
		}
	}
	return p
}

func TestDefaultPolicies(t *testing.T) {
	file := func(path string) [2]part { return [2]part{withFile(path, "1"), withFile(path, "2")} }
	reboot := []string{"Drain", "Reboot"}
	tests := []struct {
		name   string
		change [2]part
		want   []string
	}{
		{"kubelet's pull secret", file("/var/lib/kubelet/config.json"), []string{"None"}},
		{"gpg keys", file("/etc/machine-config-daemon/no-reboot/containers-gpg.pub"), []string{"Reload crio.service"}},
		{"policy.json", file("/etc/containers/policy.json"), []string{"Reload crio.service"}},
		{"registries.d", file("/etc/containers/registries.d/sigstore-registries.yaml"), []string{"Reload crio.service"}},
		{"crio policies", file("/etc/crio/policies/ns.json"), []string{"Reload crio.service"}},
		{"nmstate", file("/etc/nmstate/openshift/cluster.yml"), []string{"None"}},
		{"user CA", file("/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt"), []string{"Restart coreos-update-ca-trust.service", "Restart crio.service"}},
		{"credential providers", file("/etc/kubernetes/credential-providers/ecr.yaml"), []string{"Restart kubelet.service"}},
		{"credential drop-in", file("/etc/systemd/system/kubelet.service.d/40-kubelet-crio-image-credential-provider.conf"), []string{"DaemonReload", "Restart kubelet.service"}},
		{"iri registry", file("/etc/iri-registry/x"), []string{"Restart iri-registry.service"}},
		{"iri script", file("/usr/local/bin/load-registry-image.sh"), []string{"Restart iri-registry.service"}},
		{"iri CA", file("/etc/pki/ca-trust/source/anchors/iri-root-ca.crt"), []string{"Restart coreos-update-ca-trust.service"}},
		{"iri unit", [2]part{withUnit("iri-registry.service", contents("[Unit]\nA=1\n")), withUnit("iri-registry.service", contents("[Unit]\nA=2\n"))},
			[]string{"DaemonReload", "Restart iri-registry.service"}},
		{"keys", [2]part{withUser("core"), withUser("core", obj{"sshAuthorizedKeys": []string{"ssh-rsa A"}})}, []string{"None"}},
		{"password", [2]part{withUser("core"), withUser("core", obj{"passwordHash": "$6$x"})}, []string{"None"}},

		{"any other file", file("/etc/chrony.conf"), reboot},
		{"a name that only begins like a directory of the table", file("/etc/nmstate/openshift-more"), reboot},
		{"a name that only begins like a file of the table", file("/etc/containers/policy.json.bak"), reboot},
		{"a directory", [2]part{withDir("/etc/d"), withDir("/etc/d", mode(0o700))}, reboot},
		{"a directory of the table", [2]part{withDir("/etc/crio/policies"), withDir("/etc/crio/policies", mode(0o700))}, []string{"Reload crio.service"}},
		{"a link below a directory of the table", [2]part{withLink("/etc/nmstate/openshift/l", "/a"), withLink("/etc/nmstate/openshift/l", "/b")}, []string{"None"}},
		{"any other unit", [2]part{withUnit("a.service", obj{"enabled": true}), withUnit("a.service", obj{"enabled": false})}, reboot},
		{"any other drop-in", [2]part{withUnit("a.service"), withUnit("a.service", dropin("x.conf", "[Unit]\n"))}, reboot},
		{"kernel arguments", [2]part{withKargs("a"), withKargs("b")}, reboot},
		{"kernel type", [2]part{withSpec("kernelType", "default"), withSpec("kernelType", "realtime")}, reboot},
		{"extensions", [2]part{withSpec("extensions", []string{}), withSpec("extensions", []string{"usbguard"})}, reboot},
		{"image", [2]part{withSpec("osImageURL", "a"), withSpec("osImageURL", "b")}, reboot},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := actionsOf(t, tt.change[0], tt.change[1])
			if diff := cmp.Diff(tt.want, texts(p.Actions)); diff != "" {
				t.Errorf("actions (-should be, +is):\n%s", diff)
			}
			disrupts := slices.Contains(tt.want, "Reboot")
			if p.Reboot != disrupts || p.Drain != disrupts {
				t.Errorf("drain %t, reboot %t", p.Drain, p.Reboot)
			}
		})
	}
}

// both are several parts in one.
func both(parts ...part) part {
	return func(spec, ign obj) {
		for _, p := range parts {
			p(spec, ign)
		}
	}
}

func filesOf(contents string, paths ...string) part {
	var parts []part
	for _, p := range paths {
		parts = append(parts, withFile(p, contents))
	}
	return both(parts...)
}

func TestPolicyPrecedence(t *testing.T) {
	const restartA = `{"type":"Restart","restart":{"serviceName":"a.service"}}`
	const reloadA = `{"type":"Reload","reload":{"serviceName":"a.service"}}`
	files := func(entries ...string) string { return policy(`{"files":[` + strings.Join(entries, ",") + `]}`) }
	file := func(path, actions string) string { return fmt.Sprintf(`{"path":%q,"actions":[%s]}`, path, actions) }
	change := func(paths ...string) [2]part { return [2]part{filesOf("1", paths...), filesOf("2", paths...)} }
	const none, drain, daemonReload = `{"type":"None"}`, `{"type":"Drain"}`, `{"type":"DaemonReload"}`
	units := policy(`{"units":[{"name":"a.service","actions":[` + daemonReload + `,` + restartA + `]}]}`)
	tests := []struct {
		name   string
		policy string
		change [2]part
		want   []string
	}{
		{"a policy of one's own", files(file("/etc/a", restartA)), change("/etc/a"), []string{"Restart a.service"}},
		{"the same path replaces a default", files(file("/etc/containers/policy.json", none)), change("/etc/containers/policy.json"), []string{"None"}},
		{"other defaults stay", files(file("/etc/a", none)), change("/etc/containers/policy.json"), []string{"Reload crio.service"}},
		{"a directory covers what is below", files(file("/etc/a", none)), change("/etc/a/b/c"), []string{"None"}},
		{"the longest prefix", files(file("/etc/a", restartA), file("/etc/a/b", none)), change("/etc/a/b/c"), []string{"None"}},
		{"the longest prefix whatever the order", files(file("/etc/a/b", none), file("/etc/a", restartA)), change("/etc/a/b/c"), []string{"None"}},
		{"whole components only", files(file("/etc/a", none)), change("/etc/ab"), []string{"Drain", "Reboot"}},
		{"the root covers all", files(file("/", none)), change("/etc/ab"), []string{"None"}},
		{"reboot wins", files(file("/etc/a", restartA)), change("/etc/a", "/etc/z"), []string{"Drain", "Reboot"}},
		{"none goes where there is more", files(file("/etc/a", none), file("/etc/b", restartA)), change("/etc/a", "/etc/b"), []string{"Restart a.service"}},
		{"none once", files(file("/etc/a", none)), change("/etc/a/b1", "/etc/a/b2"), []string{"None"}},
		{"actions once", files(file("/etc/a", restartA)), change("/etc/a/1", "/etc/a/2", "/etc/a/3"), []string{"Restart a.service"}},
		{"drain and reload first, whatever the order", files(file("/etc/a", restartA+","+daemonReload+","+drain)), change("/etc/a"), []string{"Drain", "DaemonReload", "Restart a.service"}},
		{"a restart does what a reload would", files(file("/etc/a", reloadA), file("/etc/b", restartA)), change("/etc/a", "/etc/b"), []string{"Restart a.service"}},
		{"no action at all", files(file("/etc/a", "")), change("/etc/a"), []string{}},
		{"registries.conf by a policy of one's own", files(file("/etc/containers/registries.conf", restartA)), change("/etc/containers/registries.conf"), []string{"Restart a.service"}},
		{"unit", units, [2]part{withUnit("a.service", obj{"enabled": true}), withUnit("a.service", obj{"enabled": false})}, []string{"DaemonReload", "Restart a.service"}},
		{"unit covers its drop-ins", units, [2]part{withUnit("a.service"), withUnit("a.service", dropin("x.conf", "[Unit]\n"))}, []string{"DaemonReload", "Restart a.service"}},
		{"unit by its exact name", units, [2]part{withUnit("aa.service", obj{"enabled": true}), withUnit("aa.service", obj{"enabled": false})}, []string{"Drain", "Reboot"}},
		{"keys", policy(`{"sshkey":{"actions":[` + drain + `]}}`), [2]part{withUser("core"), withUser("core", obj{"sshAuthorizedKeys": []string{"ssh-rsa A"}})}, []string{"Drain"}},
		{"directory", files(file("/etc/d", none)), [2]part{withDir("/etc/d"), withDir("/etc/d", mode(0o700))}, []string{"None"}},
		{"link", files(file("/etc/l", none)), [2]part{withLink("/etc/l", "/a"), withLink("/etc/l", "/b")}, []string{"None"}},
		{"the OS, whatever a policy says", files(file("/", none)), [2]part{withKargs("a"), withKargs("b")}, []string{"Drain", "Reboot"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := write(t, map[string]string{"policy.json": tt.policy})
			p := actionsOf(t, tt.change[0], tt.change[1], "--policy", filepath.Join(dir, "policy.json"))
			if diff := cmp.Diff(tt.want, texts(p.Actions)); diff != "" {
				t.Errorf("actions (-should be, +is):\n%s", diff)
			}
			if want := slices.Contains(tt.want, "Drain"); p.Drain != want {
				t.Errorf("drain %t", p.Drain)
			}
			if want := slices.Contains(tt.want, "Reboot"); p.Reboot != want {
				t.Errorf("reboot %t", p.Reboot)
			}
		})
	}
}

func TestActionsSayWhy(t *testing.T) {
	p := actionsOf(t, filesOf("1", "/etc/containers/policy.json", "/var/lib/kubelet/config.json"),
		filesOf("2", "/etc/containers/policy.json", "/var/lib/kubelet/config.json"))
	if len(p.Actions) != 1 || !strings.Contains(p.Actions[0].Because, "/etc/containers/policy.json") ||
		!strings.Contains(p.Actions[0].Because, "policy") {
		t.Errorf("because names neither path nor rule: %+v", p.Actions)
	}
	p = actionsOf(t, withFile("/etc/z", "1"), withFile("/etc/z", "2"))
	for _, a := range p.Actions {
		if !strings.Contains(a.Because, "/etc/z") {
			t.Errorf("%s because %q", a.Type, a.Because)
		}
	}
}

func TestInvalidPolicies(t *testing.T) {
	files := func(entry string) string { return policy(`{"files":[` + entry + `]}`) }
	actions := func(a string) string { return files(`{"path":"/a","actions":[` + a + `]}`) }
	var many []string
	for i := range 51 {
		many = append(many, fmt.Sprintf(`{"path":"/a%d","actions":[{"type":"None"}]}`, i))
	}
	tests := []struct{ name, policy, field string }{
		{"unknown action", actions(`{"type":"Explode"}`), "spec.nodeDisruptionPolicy.files[0].actions[0].type"},
		{"internal action", actions(`{"type":"Special"}`), "spec.nodeDisruptionPolicy.files[0].actions[0].type"},
		{"reload without service", actions(`{"type":"Reload"}`), "files[0].actions[0].reload"},
		{"restart with a reload", actions(`{"type":"Restart","reload":{"serviceName":"a.service"}}`), "files[0].actions[0]"},
		{"service without a type", actions(`{"type":"Restart","restart":{"serviceName":"crio"}}`), "files[0].actions[0].restart.serviceName"},
		{"reboot with another", actions(`{"type":"Reboot"},{"type":"Drain"}`), "files[0].actions"},
		{"none with another", actions(`{"type":"None"},{"type":"Drain"}`), "files[0].actions"},
		{"no path", files(`{"actions":[{"type":"None"}]}`), "files[0].path"},
		{"no actions", files(`{"path":"/a"}`), "files[0].actions"},
		{"twice", files(`{"path":"/a","actions":[{"type":"None"}]},{"path":"/a","actions":[{"type":"None"}]}`), "files[1]"},
		{"too many", files(strings.Join(many, ",")), "spec.nodeDisruptionPolicy.files"},
		{"unit without a type", policy(`{"units":[{"name":"a","actions":[{"type":"None"}]}]}`), "spec.nodeDisruptionPolicy.units[0].name"},
		{"sshkey without actions", policy(`{"sshkey":{}}`), "spec.nodeDisruptionPolicy.sshkey.actions"},
		{"unknown field", policy(`{"file":[]}`), "spec.nodeDisruptionPolicy.file"},
		{"unknown override", overrides(`["Luks"]`), "spec.irreconcilableValidationOverrides.storage[0]"},
		{"empty overrides", overrides(`[]`), "spec.irreconcilableValidationOverrides.storage"},
		{"another kind", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`, "kind"},
		{"not a document", `{`, "policy"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := write(t, map[string]string{"policy.json": tt.policy, "c.json": doc("a", withFile("/f", "1"))})
			for _, args := range [][]string{
				{"plan", "--current", "c.json", "--desired", "c.json"},
				{"apply", "--config", "c.json", "--root", t.TempDir()},
			} {
				run(t, dir, daemon, append(args, "--policy", "policy.json")...).fails(t, 1, tt.field)
			}
		})
	}
}

func TestRegistriesConf(t *testing.T) {
	const digest, tag = "pull-from-mirror = \"digest-only\"\n", "pull-from-mirror = \"tag-only\"\n"
	reg := func(rest string) string { return "[[registry]]\nprefix = \"r\"\nlocation = \"r\"\n" + rest }
	mirror := func(location, rest string) string {
		return "[[registry.mirror]]\nlocation = \"" + location + "\"\n" + rest
	}
	search := func(list string) string { return "unqualified-search-registries = [" + list + "]\n" }
	tests := []struct {
		name          string
		before, after string
		safe          bool
	}{
		{"a digest mirror comes", reg(mirror("a", digest)), reg(mirror("a", digest) + mirror("b", digest)), true},
		{"a digest registry comes", search(`"s"`), search(`"s"`) + reg(mirror("a", digest)), true},
		{"a mirror becomes digest-only", reg(mirror("a", tag)), reg(mirror("a", digest)), true},
		{"a mirror of all becomes digest-only", reg(mirror("a", "")), reg(mirror("a", digest)), true},
		{"a comment", reg(mirror("a", digest)), "# hello\n" + reg(mirror("a", digest)), true},
		{"a search registry comes last", search(`"s"`), search(`"s", "t"`), true},
		{"a tag mirror comes", reg(mirror("a", digest)), reg(mirror("a", digest) + mirror("b", tag)), false},
		{"a mirror of all comes", reg(mirror("a", digest)), reg(mirror("a", digest) + mirror("b", "")), false},
		{"a registry with a tag mirror comes", "", reg(mirror("a", tag)), false},
		{"a mirror goes", reg(mirror("a", digest) + mirror("b", digest)), reg(mirror("a", digest)), false},
		{"a mirror stops being digest-only", reg(mirror("a", digest)), reg(mirror("a", tag)), false},
		{"a registry goes", reg(mirror("a", digest)), "", false},
		{"prefix", reg(mirror("a", digest)), strings.Replace(reg(mirror("a", digest)), `prefix = "r"`, `prefix = "s"`, 1), false},
		{"location", reg(mirror("a", digest)), strings.Replace(reg(mirror("a", digest)), `location = "r"`, `location = "s"`, 1), false},
		{"blocked", reg(mirror("a", digest)), reg("blocked = true\n" + mirror("a", digest)), false},
		{"insecure", reg(mirror("a", digest)), reg("insecure = true\n" + mirror("a", digest)), false},
		{"a search registry goes", search(`"s", "t"`), search(`"s"`), false},
		{"search registries in another order", search(`"s", "t"`), search(`"t", "s"`), false},
		{"not TOML", reg(mirror("a", digest)), "[[[", false},
	}
	const path = "/etc/containers/registries.conf"
	for _, tt := range tests {
		spellings := map[string]func(string) part{
			"plain":      func(text string) part { return withFile(path, text) },
			"compressed": func(text string) part { return withFile(path, "", gzipped(text)) },
		}
		for spelling, file := range spellings {
			t.Run(tt.name+"/"+spelling, func(t *testing.T) {
				p := actionsOf(t, file(tt.before), file(tt.after))
				want := []string{"Reload crio.service"}
				if !tt.safe {
					want = []string{"Drain", "Reload crio.service"}
				}
				if diff := cmp.Diff(want, texts(p.Actions)); diff != "" || p.Drain == tt.safe || p.Reboot {
					t.Errorf("drain %t, reboot %t, actions (-should be, +is):\n%s", p.Drain, p.Reboot, diff)
				}
			})
		}
	}
}

func TestRegistriesConfOnItsWayInAndOutDrains(t *testing.T) {
	text := "unqualified-search-registries = [\"s\"]\n"
	for name, change := range map[string][2]part{
		"mode only":   {withFile("/etc/containers/registries.conf", text), withFile("/etc/containers/registries.conf", text, mode(0o600))},
		"it goes":     {withFile("/etc/containers/registries.conf", text), both()},
		"a link goes": {withLink("/etc/containers/registries.conf", "/a"), both()},
	} {
		t.Run(name, func(t *testing.T) {
			if p := actionsOf(t, change[0], change[1]); p.Drain == (name == "mode only") || p.Reboot {
				t.Errorf("%+v", p)
			}
		})
	}
}

func TestUnreconcilable(t *testing.T) {
	storage := func(list string, entries ...any) part {
		return func(_, ign obj) { ign["storage"] = obj{list: entries} }
	}
	none := both()
	tests := []struct {
		name             string
		current, desired part
		field            string
	}{
		{"fips", none, withSpec("fips", true), "fips"},
		{"fips off", withSpec("fips", true), none, "fips"},
		{"disks", none, storage("disks", obj{"device": "/dev/sdb"}), "storage.disks"},
		{"disks go", storage("disks", obj{"device": "/dev/sdb"}), none, "storage.disks"},
		{"filesystems", none, storage("filesystems", obj{"device": "/dev/sdb", "format": "xfs", "path": "/var/x"}), "storage.filesystems"},
		{"raid", none, storage("raid", obj{"name": "md", "level": "raid1", "devices": []string{"/dev/a", "/dev/b"}}), "storage.raid"},
		{"luks", none, storage("luks", obj{"name": "l", "device": "/dev/sdb"}), "storage.luks"},
		{"append", withFile("/f", "1"), listed("storage", "files", obj{"path": "/f", "append": []any{obj{"source": "data:,x"}}}), "storage.files.append"},
		{"append that was there before", listed("storage", "files", obj{"path": "/f", "append": []any{obj{"source": "data:,x"}}}),
			listed("storage", "files", obj{"path": "/f", "append": []any{obj{"source": "data:,x"}}}), "storage.files.append"},
		{"groups", none, listed("passwd", "groups", obj{"name": "g"}), "passwd.groups"},
		{"kernel arguments of Ignition's own", none, func(_, ign obj) { ign["kernelArguments"] = obj{"shouldExist": []string{"a"}} }, "kernelArguments"},
		{"kernel arguments not to be", none, func(_, ign obj) { ign["kernelArguments"] = obj{"shouldNotExist": []string{"a"}} }, "kernelArguments"},
		{"a unit of the agent's", none, withUnit("machine-config-daemon-prove.service", obj{"mask": true}), "systemd.units"},
		{"a link to one", none, withLink("/etc/systemd/system/sysinit.target.wants/machine-config-daemon-recover.service", "/dev/null"),
			"storage.links"},
		{"a drop-in of its like", none, withFile("/etc/systemd/system/machine-config-daemon-.service.d/a.conf", "1"), "storage.files"},
		{"a directory in its place", none, withDir("/etc/systemd/system/machine-config-daemon-prove.service.d"), "storage.directories"},
		{"a boot that leads nowhere", none, withKargs("systemd.unit=emergency.target"), "kernelArguments"},
		{"shell of the first of two users", both(withUser("core"), withUser("last")), both(withUser("core", obj{"shell": "/bin/sh"}), withUser("last")), "passwd.users.shell"},
	}
	fields := obj{
		"gecos": "x", "groups": []string{"wheel"}, "homeDir": "/h", "noCreateHome": true, "noLogInit": true,
		"noUserGroup": true, "primaryGroup": "g", "shell": "/bin/sh", "shouldExist": false, "system": true, "uid": 1234,
	}
	for f, v := range fields {
		tests = append(tests, struct {
			name             string
			current, desired part
			field            string
		}{"user's " + f, withUser("core"), withUser("core", obj{f: v}), "passwd.users." + f})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, p := plan(t, doc("a", tt.current), doc("b", tt.desired))
			r.is(t, 3, tt.field)
			if diff := cmp.Diff([]string{tt.field}, p.fields()); diff != "" {
				t.Errorf("fields (-should be, +is):\n%s", diff)
			}
			for _, u := range p.Unreconcilable {
				if u.Reason == "" {
					t.Errorf("%s has no reason", u.Field)
				}
			}
		})
	}
}

func TestUnreconcilableListsAll(t *testing.T) {
	r, p := plan(t, doc("a"), doc("b", withSpec("fips", true), listed("storage", "disks", obj{"device": "/dev/sdb"}),
		withUser("core", obj{"shell": "/bin/sh"}), withFile("/f", "1")))
	r.is(t, 3, "fips", "storage.disks", "passwd.users.shell")
	if len(p.Unreconcilable) != 3 {
		t.Errorf("%+v", p.Unreconcilable)
	}
	if len(p.Changes) == 0 {
		t.Error("what would change is not shown")
	}
}

func TestOverridesLetProvisioningDiffer(t *testing.T) {
	for word, list := range map[string]part{
		"Disks":       listed("storage", "disks", obj{"device": "/dev/sdb"}),
		"FileSystems": listed("storage", "filesystems", obj{"device": "/dev/sdb", "format": "xfs", "path": "/var/x"}),
		"Raid":        listed("storage", "raid", obj{"name": "md", "level": "raid1", "devices": []string{"/dev/a", "/dev/b"}}),
	} {
		t.Run(word, func(t *testing.T) {
			dir := write(t, map[string]string{"p": overrides(`["` + word + `"]`), "other": overrides(`["` + map[bool]string{true: "Raid", false: "Disks"}[word == "Disks"] + `"]`)})
			r, p := plan(t, doc("a"), doc("b", list, withFile("/f", "1")), "--policy", filepath.Join(dir, "p"))
			if r.is(t, 0); len(p.Unreconcilable) > 0 {
				t.Errorf("%+v", p.Unreconcilable)
			}
			r, _ = plan(t, doc("a"), doc("b", list), "--policy", filepath.Join(dir, "other"))
			r.is(t, 3)

			// A host that has gone there says what it was made with, and no more once it has gone back.
			tr := newTree(t)
			tr.apply(doc("a"))
			tr.apply(doc("b", list), "--policy", filepath.Join(dir, "p"))
			field := "storage." + strings.ToLower(word)
			if text := tr.run("status").ok(t).stdout; !strings.Contains(text, field) {
				t.Errorf("%s", text)
			}
			var raw obj
			tr.run("status", "-o", "json").ok(t).json(t, &raw)
			if diff, _ := at(raw, "irreconcilable", 0, "diff").(string); at(raw, "irreconcilable", 0, "field") != field ||
				!strings.HasPrefix(diff, `+ {"`) {
				t.Errorf("%v", raw["irreconcilable"])
			}
			tr.apply(doc("a"), "--policy", filepath.Join(dir, "p"))
			raw = nil
			if tr.run("status", "-o", "json").ok(t).json(t, &raw); raw["irreconcilable"] != nil {
				t.Errorf("%v", raw)
			}
		})
	}
}

func TestKernelArguments(t *testing.T) {
	tests := []struct {
		name             string
		current, desired []string
		del, app         []string // both nil: no change
	}{
		{"only what differs", []string{"a", "b"}, []string{"b", "c"}, []string{"a"}, []string{"c"}},
		{"another order of different keys", []string{"a=1", "b=2"}, []string{"b=2", "a=1"}, nil, nil},
		{"one element with several", []string{"a=1 b=2"}, []string{"a=1", "b=2"}, nil, nil},
		{"the last of equal duplicates goes", []string{"a", "b", "a"}, []string{"a", "b"}, []string{"a"}, nil},
		{"a duplicate comes", []string{"a"}, []string{"a", "a"}, nil, []string{"a"}},
		{"consoles in another order", []string{"console=tty0", "console=ttyS0"}, []string{"console=ttyS0", "console=tty0"}, []string{"console=tty0"}, []string{"console=tty0"}},
		{"a console at the end", []string{"console=tty0"}, []string{"console=tty0", "console=ttyS0"}, nil, []string{"console=ttyS0"}},
		{"a console in front", []string{"console=ttyS0"}, []string{"console=tty0", "console=ttyS0"}, []string{"console=ttyS0"}, []string{"console=tty0", "console=ttyS0"}},
		{"value", []string{"a=1"}, []string{"a=2"}, []string{"a=1"}, []string{"a=2"}},
		{"quotes", []string{`a="x y" b`}, []string{"b", `a="x y"`}, nil, nil},
		{"hugepages in another order", []string{"hugepagesz=1G", "hugepages=1", "hugepagesz=2M", "hugepages=2"}, []string{"hugepagesz=2M", "hugepages=2", "hugepagesz=1G", "hugepages=1"},
			[]string{"hugepagesz=1G", "hugepages=1", "hugepagesz=2M", "hugepages=2"}, []string{"hugepagesz=2M", "hugepages=2", "hugepagesz=1G", "hugepages=1"}},
		{"hugepages as a whole", []string{"default_hugepagesz=1G", "hugepagesz=1G", "hugepages=1"}, []string{"default_hugepagesz=1G", "hugepagesz=1G", "hugepages=4"},
			[]string{"default_hugepagesz=1G", "hugepagesz=1G", "hugepages=1"}, []string{"default_hugepagesz=1G", "hugepagesz=1G", "hugepages=4"}},
		{"hugepages around another", []string{"hugepagesz=1G", "a", "hugepages=1"}, []string{"a", "hugepagesz=1G", "hugepages=1"}, nil, nil},
		{"all go", []string{"a", "b=1"}, nil, []string{"a", "b=1"}, nil},
		{"all come", nil, []string{"a", "b=1"}, nil, []string{"a", "b=1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, p := plan(t, doc("a", withKargs(tt.current...)), doc("b", withKargs(tt.desired...)))
			r.is(t, 0)
			want := []string{}
			if len(tt.del)+len(tt.app) > 0 {
				want = append(want, changeDoc{Kind: "kargs", Delete: tt.del, Append: tt.app}.String())
			}
			if diff := cmp.Diff(want, texts(p.Changes)); diff != "" {
				t.Errorf("changes (-should be, +is):\n%s", diff)
			}
		})
	}
}

func TestInvalidDocuments(t *testing.T) {
	version := func(v string) part { return func(_, ign obj) { ign["ignition"] = obj{"version": v} } }
	tests := []struct {
		name string
		bad  part
		says []string
	}{
		{"Ignition of the future", version("3.99.0"), []string{"ignition.version", "3.99.0"}},
		{"Ignition of the past", version("1.0.0"), []string{"ignition.version"}},
		{"relative path", withFile("etc/f", "1"), []string{"storage.files", "etc/f"}},
		{"mode", withFile("/f", "1", mode(0o10000)), []string{"storage.files", "/f", "mode"}},
		{"remote contents", withFile("/f", "", obj{"contents": obj{"source": "https://example.com/f"}}), []string{"storage.files", "/f", "source"}},
		{"bad compression", withFile("/f", "", obj{"contents": obj{"source": "data:,x", "compression": "gzip"}}), []string{"storage.files", "/f"}},
		{"bad hash", withFile("/f", "", obj{"contents": obj{"source": "data:,x", "verification": obj{"hash": "sha256-" + strings.Repeat("0", 64)}}}), []string{"storage.files", "/f"}},
		{"the force file", withFile("/run/machine-config-daemon-force", ""), []string{"/run/machine-config-daemon-force"}},
		{"a path twice", both(withFile("/f", "1"), withLink("/f", "/g")), []string{"/f"}},
		{"a file below a file", both(withFile("/f", "1"), withFile("/f/g", "1")), []string{"/f/g"}},
		{"kernel type", withSpec("kernelType", "fast"), []string{"kernelType", "fast"}},
		{"extension", withSpec("extensions", []string{"games"}), []string{"extensions", "games"}},
		{"unit type", withUnit("a.conf", contents("[Unit]\n")), []string{"a.conf"}},
		{"unit contents", withUnit("a.service", contents("[Unit\n")), []string{"systemd.units", "a.service"}},
		{"user name", withUser("co re"), []string{"passwd.users", "co re"}},
		{"password hash", withUser("core", obj{"passwordHash": "a:0:0"}), []string{"passwd.users", "core", "passwordHash"}},
		{"a user twice", both(withUser("core"), withUser("core", obj{"passwordHash": "x"})), []string{"passwd.users"}},
		{"unbalanced quote", withKargs(`a="b`), []string{"kernelArguments"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTree(t)
			before := tr.all()
			bad, good := tr.save(doc("bad", tt.bad)), tr.save(doc("good"))
			run(t, tr.docs, daemon, "plan", "--current", good, "--desired", bad).fails(t, 1, tt.says...)
			run(t, tr.docs, daemon, "plan", "--current", bad, "--desired", good).fails(t, 1, tt.says...)
			tr.run("apply", "--config", bad).fails(t, 1, tt.says...)
			tr.run("verify", "--config", bad).fails(t, 1, tt.says...)
			tr.same(before, tr.all(), snapshot.Untouched)
		})
	}
	for name, text := range map[string]string{
		"empty": "", "not YAML": "{", "a list": "[]", "another kind": `{"apiVersion":"v1","kind":"Pod"}`,
		"two": doc("a") + "\n---\n" + doc("b"),
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t)
			tr.run("apply", "--config", tr.save(text)).fails(t, 1)
		})
	}
}

func TestOtherSpellingsOfAConfiguration(t *testing.T) {
	tr := newTree(t)
	for name, text := range map[string]string{
		"c.ign": `{"ignition":{"version":"3.2.0"},"storage":{"files":[{"path":"/etc/f","contents":{"source":"data:,1"}}]}}`,
		"c.bu":  "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n  - path: /etc/f\n    contents: {inline: '1'}\n",
	} {
		tr.must(writeFile(filepath.Join(tr.docs, name), text))
		r := tr.run("plan", "--desired", filepath.Join(tr.docs, name), "-o", "json")
		var p planDoc
		r.ok(t).json(t, &p)
		if diff := cmp.Diff([]string{"add file /etc/f"}, texts(p.Changes)); diff != "" || p.Desired == "" {
			t.Errorf("%s: %q, changes (-should be, +is):\n%s", name, p.Desired, diff)
		}
	}
}

func TestDaemonUsage(t *testing.T) {
	dir := write(t, map[string]string{"c.json": doc("a")})
	tree := t.TempDir()
	tests := [][]string{
		{},
		{"nonsense"},
		{"plan"},
		{"plan", "--desired"},
		{"plan", "--desired", "c.json", "extra"},
		{"plan", "--desired", "c.json", "--nonsense"},
		{"plan", "--desired", "c.json", "-o", "yaml"},
		{"apply"},
		{"apply", "c.json"},
		{"apply", "--config", "c.json", "--os", "windows", "--root", tree},
		{"apply", "--config", "c.json", "-o", "xml", "--root", tree},
		{"status", "extra", "--root", tree},
		{"status", "-o", "xml", "--root", tree},
		{"verify", "--nonsense", "--root", tree},
		{"recover", "extra", "--root", tree},
		{"rollback", "--nonsense", "--root", tree},
	}
	for _, args := range tests {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			run(t, dir, daemon, args...).fails(t, 2)
		})
	}
	if s, err := snapshot.Take(tree); err != nil || len(s) != 1 {
		t.Errorf("a command that could not be meant left %v, %v", s, err)
	}
}

func TestMissingFiles(t *testing.T) {
	dir := write(t, map[string]string{"c.json": doc("a")})
	tree := t.TempDir()
	for _, args := range [][]string{
		{"plan", "--desired", "gone.json"},
		{"plan", "--desired", "c.json", "--current", "gone.json"},
		{"plan", "--desired", "c.json", "--current", "c.json", "--policy", "gone.json"},
		{"apply", "--config", "gone.json", "--root", tree},
		{"apply", "--config", "c.json", "--policy", "gone.json", "--root", tree},
		{"verify", "--config", "gone.json", "--root", tree},
		{"plan", "--desired", "c.json", "--root", "gone.json"},
		{"apply", "--config", "c.json", "--root", "gone.json"},
		{"status", "--root", "gone.json"},
		{"verify", "--config", "c.json", "--root", "gone.json"},
		{"recover", "--root", "gone.json"},
		{"rollback", "--root", "gone.json"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			run(t, dir, daemon, args...).fails(t, 1, "gone.json")
		})
	}
}

func TestPlanShowsNoContents(t *testing.T) {
	const secret = "hunter2hunter2"
	secrets := both(
		withFile("/etc/f", secret), withUnit("a.service", contents("[Service]\nExecStart=/bin/"+secret+"\n")),
		withUnit("b.service", dropin("x.conf", "[Service]\nUser="+secret+"\n")),
		withUser("core", obj{"passwordHash": "$6$" + secret, "sshAuthorizedKeys": []string{"ssh-rsa " + secret}}),
		withFile("/etc/containers/registries.conf", "[[registry]]\nlocation = \""+secret+"\"\n[[["))
	for name, docs := range map[string][2]string{
		"comes": {doc("a"), doc("b", secrets)},
		"goes":  {doc("a", secrets), doc("b")},
	} {
		dir := write(t, map[string]string{"a": docs[0], "b": docs[1]})
		for _, format := range []string{"text", "json"} {
			r := run(t, dir, daemon, "plan", "--current", "a", "--desired", "b", "-o", format).ok(t)
			if strings.Contains(r.stdout+r.stderr, secret) {
				t.Errorf("%s, %s: contents are shown:\n%s%s", name, format, r.stdout, r.stderr)
			}
			if !strings.Contains(r.stdout, "/etc/f") || !strings.Contains(r.stdout, "a.service") {
				t.Errorf("%s, %s: the objects are not named:\n%s", name, format, r.stdout)
			}
		}
	}
}

func TestPlanTextSaysWhatJSONSays(t *testing.T) {
	dir := write(t, map[string]string{
		"a": doc("from", withFile("/etc/containers/policy.json", "1")),
		"b": doc("to", withFile("/etc/containers/policy.json", "2"))})
	out := run(t, dir, daemon, "plan", "--current", "a", "--desired", "b").ok(t).stdout
	for _, want := range []string{"from", "to", "/etc/containers/policy.json", "contents", "Reload", "crio.service"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
}

func TestPlanStartsFromTheCommittedConfiguration(t *testing.T) {
	tr := newTree(t)
	desired := doc("b", withFile("/etc/f", "2"), withFile("/etc/same", "x"))
	var p planDoc
	tr.run("plan", "-o", "json", "--desired", tr.save(desired)).ok(t).json(t, &p)
	if diff := cmp.Diff([]string{"add file /etc/f", "add file /etc/same"}, texts(p.Changes)); diff != "" || p.Current != "" {
		t.Errorf("never configured: current %q, changes (-should be, +is):\n%s", p.Current, diff)
	}
	tr.apply(doc("a", withFile("/etc/f", "1"), withFile("/etc/same", "x")))
	before := tr.all()
	p = planDoc{}
	tr.run("plan", "-o", "json", "--desired", tr.save(desired)).ok(t).json(t, &p)
	if diff := cmp.Diff([]string{"change file /etc/f contents"}, texts(p.Changes)); diff != "" || p.Current != "a" {
		t.Errorf("current %q, changes (-should be, +is):\n%s", p.Current, diff)
	}
	tr.same(before, tr.all(), snapshot.Untouched)
}

func TestPlanOfAHostThatMatchesAlreadyIsEmpty(t *testing.T) {
	tr := newTree(t)
	tr.put("etc/f", "1", 0o644)
	tr.put("etc/differs", "1", 0o600)
	var p planDoc
	tr.run("plan", "-o", "json", "--desired", tr.save(doc("a", withFile("/etc/f", "1"), withFile("/etc/differs", "1")))).ok(t).json(t, &p)
	if diff := cmp.Diff([]string{"add file /etc/differs"}, texts(p.Changes)); diff != "" {
		t.Errorf("changes (-should be, +is):\n%s", diff)
	}
}

func TestPlanOnATreeRefusesTheOS(t *testing.T) {
	tr := newTree(t)
	desired := tr.save(doc("a", withFile("/etc/f", "1"), withKargs("a=1"), withSpec("kernelType", "realtime"),
		withSpec("extensions", []string{"usbguard"}), withSpec("osImageURL", "image")))
	r := tr.run("plan", "-o", "json", "--desired", desired)
	r.is(t, 3, "kernelArguments", "kernelType", "extensions", "osImageURL")
	var p planDoc
	r.json(t, &p)
	if diff := cmp.Diff([]string{"extensions", "kernelArguments", "kernelType", "osImageURL"}, p.fields()); diff != "" {
		t.Errorf("fields (-should be, +is):\n%s", diff)
	}
}
