// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	operatorv1 "github.com/openshift/api/operator/v1"

	mc "github.com/noderefit/noderefit/machineconfig"
)

func policy(t *testing.T, spec string) *Policy {
	t.Helper()
	p, err := ParsePolicy([]byte(document(spec)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// document is a MachineConfiguration with this spec, flow or block style.
func document(spec string) string {
	return "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata: {name: cluster}\nspec: " + spec + "\n"
}

// added is a configuration with an empty file at each path, and for each name of a unit that unit.
func added(names ...string) *mc.Config {
	c := &mc.Config{}
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "/"):
			c.Files = append(c.Files, file(name, "x"))
		case strings.Contains(name, "/"):
			unit, dropin, _ := strings.Cut(name, "/")
			c.Units = append(c.Units, mc.Unit{Name: unit, Dropins: []mc.Dropin{{Name: dropin, Contents: "x"}}})
		case strings.Contains(name, "."):
			c.Units = append(c.Units, mc.Unit{Name: name, Contents: "x"})
		default:
			c.Users = append(c.Users, mc.User{Name: name, Keys: []string{"k"}})
		}
	}
	return c
}

func TestDefaultTable(t *testing.T) {
	reboot := []string{"Drain", "Reboot"}
	for _, c := range []struct {
		change string
		want   []string
	}{
		{"/var/lib/kubelet/config.json", []string{"None"}},
		{"/etc/machine-config-daemon/no-reboot/containers-gpg.pub", []string{"Reload crio.service"}},
		{"/etc/containers/policy.json", []string{"Reload crio.service"}},
		{"/etc/containers/registries.d", []string{"Reload crio.service"}},
		{"/etc/containers/registries.d/sigstore-registries.yaml", []string{"Reload crio.service"}},
		{"/etc/crio/policies/ns.json", []string{"Reload crio.service"}},
		{"/etc/nmstate/openshift/cluster.yml", []string{"None"}},
		{"/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt", []string{"Restart coreos-update-ca-trust.service", "Restart crio.service"}},
		{"/etc/kubernetes/credential-providers/x.yaml", []string{"Restart kubelet.service"}},
		{"/etc/systemd/system/kubelet.service.d/40-kubelet-crio-image-credential-provider.conf", []string{"DaemonReload", "Restart kubelet.service"}},
		{"/etc/iri-registry/config", []string{"Restart iri-registry.service"}},
		{"/usr/local/bin/load-registry-image.sh", []string{"Restart iri-registry.service"}},
		{"/etc/pki/ca-trust/source/anchors/iri-root-ca.crt", []string{"Restart coreos-update-ca-trust.service"}},
		{"iri-registry.service", []string{"DaemonReload", "Restart iri-registry.service"}},
		{"iri-registry.service/10-x.conf", []string{"DaemonReload", "Restart iri-registry.service"}},
		{"core", []string{"None"}},

		{"/etc/chrony.conf", reboot},
		{"/etc/containers/policy.json.d", reboot},
		{"/etc/containers/registries.db", reboot},
		{"/etc/crio/policiesx", reboot},
		{"/etc/crio", reboot},
		{"/etc/pki/ca-trust/source/anchors/other.crt", reboot},
		{"crio.service", reboot},
		{"iri-registry.socket", reboot},
		// A policy for a file is about files, though the path is that of a drop-in.
		{"kubelet.service/40-kubelet-crio-image-credential-provider.conf", reboot},
	} {
		t.Run(c.change, func(t *testing.T) {
			p := mustMake(t, nil, added(c.change), Options{})
			check(t, "added", steps(p.Actions), c.want)
			check(t, "reboot", p.Reboot, c.want[len(c.want)-1] == "Reboot")
			check(t, "drain", p.Drain, p.Reboot)
			check(t, "removed", steps(mustMake(t, added(c.change), &mc.Config{}, Options{}).Actions), c.want)
			for _, a := range p.Actions {
				if !strings.Contains(a.Because, strings.TrimSuffix(c.change, "/")) && !strings.Contains(a.Because, "of core") && !strings.Contains(a.Because, "user core") {
					t.Errorf("%s because %s: where is %s?", a.Type, a.Because, c.change)
				}
			}
		})
	}
	for _, os := range []*mc.Config{
		{OSImageURL: "i"}, {KernelArguments: []string{"a"}}, {KernelType: "realtime"}, {Extensions: []string{"usbguard"}},
	} {
		check(t, "OS change", steps(mustMake(t, nil, os, Options{}).Actions), reboot)
	}
	check(t, "password", steps(mustMake(t, nil, &mc.Config{Users: []mc.User{{Name: "a", PasswordHash: new("h")}}}, Options{}).Actions), []string{"None"})
	check(t, "directory", steps(mustMake(t, nil, &mc.Config{Directories: []mc.Directory{{Path: "/etc/crio/policies"}}}, Options{}).Actions), []string{"Reload crio.service"})
	check(t, "link", steps(mustMake(t, nil, &mc.Config{Links: []mc.Link{{Path: "/etc/crio/policies/x"}}}, Options{}).Actions), []string{"Reload crio.service"})
}

func TestActionsAreJoinedAndOrdered(t *testing.T) {
	custom := policy(t, `
  nodeDisruptionPolicy:
    files:
    - {path: /drain, actions: [{type: Drain}]}
    - {path: /reload-a, actions: [{type: Reload, reload: {serviceName: a.service}}]}
    - {path: /restart-a, actions: [{type: Restart, restart: {serviceName: a.service}}]}
    - {path: /restart-b, actions: [{type: Restart, restart: {serviceName: b.service}}, {type: DaemonReload}, {type: Drain}]}
    - {path: /nothing, actions: []}
    - {path: /none, actions: [{type: None}]}
    - {path: /reboot, actions: [{type: Reboot}]}
    - {path: /tree, actions: [{type: Reload, reload: {serviceName: tree.service}}]}
    - {path: /tree/deep/, actions: [{type: None}]}
    - {path: /tree/deep/file, actions: [{type: Reload, reload: {serviceName: file.service}}]}
    - {path: /etc/containers/policy.json, actions: [{type: None}]}
    - {path: /etc/containers/registries.conf, actions: [{type: None}]}
    units:
    - {name: u.service, actions: [{type: Restart, restart: {serviceName: u.service}}]}
    - {name: iri-registry.service, actions: [{type: None}]}
    sshkey:
      actions: [{type: Drain}]
`)
	for _, c := range []struct {
		changes []string
		want    []string
	}{
		{nil, nil},
		{[]string{"/none"}, []string{"None"}},
		{[]string{"/nothing"}, nil},
		{[]string{"/nothing", "/none"}, []string{"None"}},
		{[]string{"/none", "/reload-a"}, []string{"Reload a.service"}},
		{[]string{"/reload-a", "/restart-a"}, []string{"Restart a.service"}},
		{[]string{"/reload-a", "/restart-b"}, []string{"Drain", "DaemonReload", "Reload a.service", "Restart b.service"}},
		{[]string{"/restart-b", "u.service", "/restart-a"}, []string{"Drain", "DaemonReload", "Restart a.service", "Restart b.service", "Restart u.service"}},
		{[]string{"/drain"}, []string{"Drain"}},
		{[]string{"/none", "/reload-a", "/reboot"}, []string{"Drain", "Reboot"}},
		{[]string{"/restart-b", "/reboot"}, []string{"Drain", "Reboot"}},
		{[]string{"/restart-b", "/unknown"}, []string{"Drain", "Reboot"}},
		{[]string{"core"}, []string{"Drain"}},
		{[]string{"/tree/a/b"}, []string{"Reload tree.service"}},
		{[]string{"/tree/deep/x"}, []string{"None"}},
		{[]string{"/tree/deep/file"}, []string{"Reload file.service"}},
		{[]string{"/tree/deeper"}, []string{"Reload tree.service"}},
		{[]string{"/treehouse"}, []string{"Drain", "Reboot"}},
		{[]string{"u.service"}, []string{"Restart u.service"}},
		{[]string{"u.service/d.conf"}, []string{"Restart u.service"}},
		{[]string{"u.service.d"}, []string{"Drain", "Reboot"}},
		{[]string{"iri-registry.service"}, []string{"None"}},
		{[]string{"/etc/containers/policy.json"}, []string{"None"}},
		{[]string{"/etc/containers/registries.conf"}, []string{"None"}},
		{[]string{"/etc/containers/registries.d/x"}, []string{"Reload crio.service"}},
	} {
		p := mustMake(t, nil, added(c.changes...), Options{Policy: custom})
		if c.want == nil {
			c.want = []string{}
		}
		check(t, fmt.Sprint(c.changes), steps(p.Actions), c.want)
	}
	everything := policy(t, `{nodeDisruptionPolicy: {files: [{path: /, actions: [{type: None}]}]}}`)
	check(t, "a policy for /", steps(mustMake(t, nil, added("/a/b/c"), Options{Policy: everything}).Actions), []string{"None"})
}

// shown returns the steps of a rule as those of a plan are compared.
func shown(r RuleInForce) []string {
	if r.Special {
		return []string{"Special"}
	}
	return steps(r.Actions)
}

func TestWhatIsShownIsWhatIsDone(t *testing.T) {
	custom := policy(t, `
  nodeDisruptionPolicy:
    files:
    - {path: /etc/mine/, actions: [{type: Drain}, {type: DaemonReload}, {type: Reload, reload: {serviceName: a.service}}]}
    - {path: /etc/containers/registries.conf/, actions: [{type: Restart, restart: {serviceName: crio.service}}]}
    - {path: /etc/nothing, actions: []}
    - {path: /etc/crio/policies, actions: [{type: Reboot}]}
    units:
    - {name: u.service, actions: [{type: DaemonReload}, {type: Restart, restart: {serviceName: u.service}}]}
    - {name: iri-registry.service, actions: [{type: None}]}
    sshkey:
      actions: [{type: Drain}]
`)
	for name, p := range map[string]*Policy{"default": defaultPolicy(), "custom": custom} {
		t.Run(name, func(t *testing.T) {
			s := p.InForce()
			does := func(what string, r RuleInForce) {
				t.Helper()
				want := shown(r)
				switch {
				case slices.Equal(want, []string{"Special"}):
					return
				case slices.Equal(want, []string{"Reboot"}):
					want = []string{"Drain", "Reboot"}
				}
				check(t, what, steps(mustMake(t, nil, added(what), Options{Policy: p}).Actions), want)
			}
			for _, f := range s.Files {
				does(path.Clean(f.About), f)
			}
			for _, u := range s.Units {
				does(u.About, u)
			}
			does("core", s.SSHKey)
		})
	}

	s := defaultPolicy().InForce()
	var paths []string
	for _, f := range s.Files {
		paths = append(paths, f.About+" "+strings.Join(shown(f), ", "))
	}
	check(t, "defaults", paths, []string{
		"/var/lib/kubelet/config.json None",
		"/etc/machine-config-daemon/no-reboot/containers-gpg.pub Reload crio.service",
		"/etc/containers/policy.json Reload crio.service",
		"/etc/containers/registries.conf Special",
		"/etc/containers/registries.d Reload crio.service",
		"/etc/crio/policies Reload crio.service",
		"/etc/nmstate/openshift None",
		"/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt Restart coreos-update-ca-trust.service, Restart crio.service",
		"/etc/kubernetes/credential-providers Restart kubelet.service",
		"/etc/systemd/system/kubelet.service.d/40-kubelet-crio-image-credential-provider.conf DaemonReload, Restart kubelet.service",
		"/etc/iri-registry Restart iri-registry.service",
		"/usr/local/bin/load-registry-image.sh Restart iri-registry.service",
		"/etc/pki/ca-trust/source/anchors/iri-root-ca.crt Restart coreos-update-ca-trust.service",
		"/etc/containerd/certs.d Special",
	})
	merged := custom.InForce()
	check(t, "in the place of a default", merged.Files[3].About, "/etc/containers/registries.conf/")
	check(t, "a rule without an action", merged.Files[15], RuleInForce{About: "/etc/nothing"})
	var added []string
	for _, f := range merged.Files[len(s.Files):] {
		added = append(added, f.About)
	}
	check(t, "added, in their order", added, []string{"/etc/mine/", "/etc/nothing"})
	check(t, "units", []string{merged.Units[0].About, merged.Units[1].About}, []string{"iri-registry.service", "u.service"})
	check(t, "what covers nothing", len(custom.Idle()), 0)
}

func TestEntriesThatCoverNothingAreNamed(t *testing.T) {
	p := policy(t, `{nodeDisruptionPolicy: {files: [
      {path: etc/a, actions: [{type: None}]},
      {path: /etc/b, actions: [{type: None}]},
      {path: /etc/crio/policies, actions: [{type: None}]},
      {path: /etc//b/, actions: [{type: Drain}]}]}}`)
	check(t, "idle", p.Idle(), []string{
		`spec.nodeDisruptionPolicy.files[0].path: Invalid value: "etc/a": is not absolute, so the policy never covers a change`,
		`spec.nodeDisruptionPolicy.files[1].path: Invalid value: "/etc/b": spec.nodeDisruptionPolicy.files[3].path has the same path and takes precedence`,
	})
	check(t, "the later one counts", steps(mustMake(t, nil, added("/etc/b"), Options{Policy: p}).Actions), []string{"Drain"})
	for _, f := range p.InForce().Files {
		if f.About == "etc/a" || f.About == "/etc/b" {
			t.Errorf("%s is shown as in force", f.About)
		}
	}
}

func TestBecauseNamesTheRuleAndWhatDecided(t *testing.T) {
	custom := policy(t, `{nodeDisruptionPolicy: {units: [{name: u.service, actions: [{type: Restart, restart: {serviceName: v.service}}]}]}}`)
	p := mustMake(t, nil, added("/etc/crio/policies/a", "/etc/containers/policy.json", "/etc/crio/policies/b", "u.service", "core"), Options{Policy: custom})
	check(t, "actions", p.Actions, []Action{
		{ActionReload, "crio.service", "file /etc/containers/policy.json: default policy for file /etc/containers/policy.json (and 2 more changes)"},
		{ActionRestart, "v.service", "unit u.service: policy for unit u.service"},
	})
	p = mustMake(t, nil, &mc.Config{KernelArguments: []string{"a"}, OSImageURL: "i"}, Options{})
	check(t, "OS", p.Actions[1].Because, "kernel arguments: a change of the OS takes effect with a reboot (and 1 more change)")
}

// The library is too large for the program of the host (docs/own-code.md). So the names are here and there, and this test
// holds them together.
func TestMachineConfigurationHasTheFieldsOfTheAPI(t *testing.T) {
	check(t, "version", policyVersion, operatorv1.GroupVersion.String())
	check(t, "overrides", overrideWords, []string{
		string(operatorv1.IrreconcilableValidationOverridesStorageDisks),
		string(operatorv1.IrreconcilableValidationOverridesStorageFileSystems),
		string(operatorv1.IrreconcilableValidationOverridesStorageRaid),
	})
	actions := []operatorv1.NodeDisruptionPolicySpecActionType{operatorv1.RebootSpecAction, operatorv1.DrainSpecAction,
		operatorv1.ReloadSpecAction, operatorv1.RestartSpecAction, operatorv1.DaemonReloadSpecAction, operatorv1.NoneSpecAction}
	for i, a := range actions {
		check(t, "actions", string(actionTypes[i]), string(a))
	}
	check(t, "number of actions", len(actionTypes), len(actions))
	compared := sameFields(t, "", reflect.TypeFor[policyDocument](), reflect.TypeFor[operatorv1.MachineConfiguration]())
	if compared < 8 {
		t.Errorf("only %d types were compared", compared)
	}
}

// sameFields compares the JSON fields of two types, and of the types of these fields. Raw JSON is like any type. It
// returns how many structs it compared.
func sameFields(t *testing.T, at string, ours, theirs reflect.Type) int {
	t.Helper()
	inner := func(typ reflect.Type) reflect.Type {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		return typ
	}
	raw := ours == reflect.TypeFor[json.RawMessage]()
	ours, theirs = inner(ours), inner(theirs)
	switch {
	case raw || ours == theirs:
		return 0
	case ours.Kind() != theirs.Kind():
		t.Errorf("%s is a %s, and upstream a %s", at, ours.Kind(), theirs.Kind())
		return 0
	case ours.Kind() != reflect.Struct:
		return 0
	}
	is, want := jsonFields(ours), jsonFields(theirs)
	check(t, "the fields of "+at, slices.Sorted(maps.Keys(is)), slices.Sorted(maps.Keys(want)))
	compared := 1
	for name, typ := range is {
		if want[name] != nil {
			compared += sameFields(t, at+"."+name, typ, want[name])
		}
	}
	return compared
}

// jsonFields returns the types of the fields of a struct by their names in JSON.
func jsonFields(typ reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			maps.Copy(out, jsonFields(f.Type))
			continue
		}
		out[name] = f.Type
	}
	return out
}

func TestInvalidPoliciesNameTheField(t *testing.T) {
	ndp := func(s string) string { return document("{nodeDisruptionPolicy: {" + s + "}}") }
	entry := func(actions string) string { return ndp("files: [{path: /a, actions: [" + actions + "]}]") }
	many := func(n int, format string) string {
		var parts []string
		for i := range n {
			parts = append(parts, strings.ReplaceAll(format, "#", fmt.Sprint(i)))
		}
		return strings.Join(parts, ", ")
	}
	const first = "spec.nodeDisruptionPolicy.files[0].actions"
	for _, c := range []struct{ name, document, want string }{
		{"nothing", "", "no document"},
		{"comments", "# x\n---\n", "no document"},
		{"two documents", document("{}") + "---\n" + document("{}"), "more than one document"},
		{"no YAML", "a: b: c", "reading MachineConfiguration"},
		{"other kind", "apiVersion: operator.openshift.io/v1\nkind: Network\nspec: {}", `kind: Unsupported value: "Network"`},
		{"other version", "apiVersion: operator.openshift.io/v2\nkind: MachineConfiguration\nspec: {}", "apiVersion: Unsupported value"},
		{"no spec", "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration", "spec: Required value"},
		{"unknown field", document("{foo: 1}"), `unknown field "spec.foo"`},
		{"unknown field of the object", "metadata: {nome: cluster}\n" + "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nspec: {}", `unknown field "metadata.nome"`},
		{"unknown field beside", "stats: {}\napiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nspec: {}", `unknown field "stats"`},
		{"wrong type of what no node reads", document("{failedRevisionLimit: many}"), "failedRevisionLimit"},
		{"a file by its name", ndp("files: [{path: /a, name: a.service, actions: []}]"), `unknown field "spec.nodeDisruptionPolicy.files[0].name"`},
		{"a unit by its path", ndp("units: [{name: a.service, path: /a, actions: []}]"), `unknown field "spec.nodeDisruptionPolicy.units[0].path"`},
		{"SSH keys by a path", ndp("sshkey: {path: /a, actions: []}"), `unknown field "spec.nodeDisruptionPolicy.sshkey.path"`},
		{"unknown field below", entry("{type: None, service: a}"), `unknown field "` + first + `[0].service"`},
		{"field of another case", ndp("Files: []"), `unknown field "spec.nodeDisruptionPolicy.Files"`},
		{"field twice", document("{nodeDisruptionPolicy: {}, nodeDisruptionPolicy: {}}"), `"nodeDisruptionPolicy" already set`},
		{"wrong type", ndp("files: x"), "files"},
		{"no path", ndp("files: [{actions: []}]"), "spec.nodeDisruptionPolicy.files[0].path: Required value"},
		{"no actions", ndp("files: [{path: /a}]"), first + " (/a): Required value"},
		{"no name", ndp("units: [{actions: []}]"), "spec.nodeDisruptionPolicy.units[0].name: Required value"},
		{"no actions of a unit", ndp("units: [{name: a.service}]"), "spec.nodeDisruptionPolicy.units[0].actions (a.service): Required value"},
		{"no actions of sshkey", ndp("sshkey: {}"), "spec.nodeDisruptionPolicy.sshkey.actions: Required value"},
		{"path twice", ndp("files: [{path: /a, actions: []}, {path: /b, actions: []}, {path: /a, actions: []}]"), `spec.nodeDisruptionPolicy.files[2].path (/a): Duplicate value: "/a"`},
		{"unit twice", ndp("units: [{name: a.service, actions: []}, {name: a.service, actions: []}]"), `spec.nodeDisruptionPolicy.units[1].name (a.service): Duplicate value: "a.service"`},
		{"51 files", ndp("files: [" + many(51, "{path: /#, actions: []}") + "]"), "spec.nodeDisruptionPolicy.files: Too many: 51: must have at most 50 items"},
		{"51 units", ndp("units: [" + many(51, "{name: u#.service, actions: []}") + "]"), "spec.nodeDisruptionPolicy.units: Too many: 51"},
		{"11 actions", entry(many(11, "{type: Drain}")), first + " (/a): Too many: 11: must have at most 10 items"},
		{"11 actions of sshkey", ndp("sshkey: {actions: [" + many(11, "{type: Drain}") + "]}"), "spec.nodeDisruptionPolicy.sshkey.actions: Too many"},
		{"no type", entry("{}"), first + "[0].type (/a): Required value"},
		{"unknown type", entry("{type: Halt}"), first + `[0].type (/a): Unsupported value: "Halt"`},
		{"Special is not for people", entry("{type: Special}"), first + `[0].type (/a): Unsupported value: "Special"`},
		{"Reboot and more", entry("{type: Drain}, {type: Reboot}"), first + `[1].type (/a): Invalid value: "Reboot"`},
		{"None and more", entry("{type: None}, {type: Drain}"), first + `[0].type (/a): Invalid value: "None"`},
		{"two Nones", entry("{type: None}, {type: None}"), first + `[0].type (/a): Invalid value: "None"`},
		{"reload missing", entry("{type: Drain}, {type: Reload}"), first + "[1].reload (/a): Required value"},
		{"restart missing", entry("{type: Restart, reload: {serviceName: a.service}}"), first + "[0].restart (/a): Required value"},
		{"reload not wanted", entry("{type: None, reload: {serviceName: a.service}}"), first + "[0].reload (/a): Forbidden"},
		{"restart not wanted", entry("{type: Reload, reload: {serviceName: a.service}, restart: {serviceName: a.service}}"), first + "[0].restart (/a): Forbidden"},
		{"no service name", entry("{type: Reload, reload: {}}"), first + "[0].reload.serviceName (/a): Required value"},
		{"service of no type", entry("{type: Restart, restart: {serviceName: serv.ice}}"), first + `[0].restart.serviceName (/a): Invalid value: "serv.ice"`},
		{"service of no name", entry("{type: Reload, reload: {serviceName: .service}}"), first + `[0].reload.serviceName (/a): Invalid value: ".service"`},
		{"service with a space", entry("{type: Reload, reload: {serviceName: a b.service}}"), first + "[0].reload.serviceName (/a): Invalid value"},
		{"long service name", entry("{type: Reload, reload: {serviceName: " + strings.Repeat("a", 248) + ".service}}"), first + "[0].reload.serviceName (/a): Too long"},
		{"unit of no type", ndp("units: [{name: a, actions: []}]"), `spec.nodeDisruptionPolicy.units[0].name (a): Invalid value: "a"`},
		{"empty overrides", document("{irreconcilableValidationOverrides: {}}"), "spec.irreconcilableValidationOverrides.storage: Required value"},
		{"no override", document("{irreconcilableValidationOverrides: {storage: []}}"), "spec.irreconcilableValidationOverrides.storage: Too few"},
		{"unknown override", document("{irreconcilableValidationOverrides: {storage: [Disks, Luks]}}"), `spec.irreconcilableValidationOverrides.storage[1]: Unsupported value: "Luks"`},
		{"override twice", document("{irreconcilableValidationOverrides: {storage: [Disks, Raid, Disks]}}"), `spec.irreconcilableValidationOverrides.storage[2]: Duplicate value: "Disks"`},
		{"four overrides", document("{irreconcilableValidationOverrides: {storage: [Disks, Raid, FileSystems, Disks]}}"), "spec.irreconcilableValidationOverrides.storage: Too many: 4"},
		{"several errors", entry("{type: Halt}, {type: Reload}"), first + "[1].reload (/a): Required value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := ParsePolicy([]byte(c.document))
			if err == nil {
				t.Fatalf("accepted: %+v", p)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is\n%v\nwithout\n%s", err, c.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of more than one line: %q", err)
			}
		})
	}
}

func TestValidPoliciesAtTheLimits(t *testing.T) {
	var files, units, actions []string
	for i := range maxEntries {
		files = append(files, fmt.Sprintf("{path: /%d, actions: []}", i))
		units = append(units, fmt.Sprintf("{name: u%d.service, actions: []}", i))
	}
	for range maxActions {
		actions = append(actions, "{type: Drain}")
	}
	for _, spec := range []string{
		"{}",
		"{nodeDisruptionPolicy: {}}",
		"{nodeDisruptionPolicy: {files: null}}",
		"{managementState: Managed, logLevel: Normal, managedBootImages: {machineManagers: []}}",
		"{nodeDisruptionPolicy: {files: [" + strings.Join(files, ", ") + "], units: [" + strings.Join(units, ", ") + "], sshkey: {actions: [" + strings.Join(actions, ", ") + "]}}}",
		`{nodeDisruptionPolicy: {files: [{path: /a, actions: [{type: Reload, reload: {serviceName: 'a:b_c-d\.e.swap'}}]}]}}`,
		"{nodeDisruptionPolicy: {files: [{path: /a, actions: [{type: Reload, reload: {serviceName: " + strings.Repeat("a", 247) + ".service}}]}]}}",
		"{irreconcilableValidationOverrides: {storage: [Raid, Disks, FileSystems]}}",
	} {
		policy(t, spec)
	}
	stored := `{"apiVersion":"operator.openshift.io/v1","kind":"MachineConfiguration","metadata":{"name":"cluster","creationTimestamp":"2026-01-01T00:00:00Z","managedFields":[]},` +
		`"spec":{"logLevel":"Normal"},"status":{"observedGeneration":3,"nodeDisruptionPolicyStatus":{"clusterPolicies":{"files":[{"path":"/a","actions":[{"type":"Special"}]}]}}}}`
	if _, err := ParsePolicy([]byte(stored)); err != nil {
		t.Errorf("as the API server stores it: %v", err)
	}
	if _, err := ParsePolicy([]byte("# a comment\n---\n" + document("{}") + "---\n# the end\n")); err != nil {
		t.Errorf("one document among comments: %v", err)
	}
}

func FuzzParsePolicy(f *testing.F) {
	f.Add(document("{nodeDisruptionPolicy: {files: [{path: /a, actions: [{type: Reload, reload: {serviceName: a.service}}]}], sshkey: {actions: [{type: None}]}}}"))
	f.Add(document("{irreconcilableValidationOverrides: {storage: [Disks]}}"))
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := ParsePolicy([]byte(text)); err == nil {
			if _, err := Make(nil, added("/a", "a.service", "core"), Options{Policy: p}); err != nil {
				t.Error(err)
			}
		}
	})
}
