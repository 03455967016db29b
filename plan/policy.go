// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/registries"
)

// Policy is a node disruption policy merged over the default one, with the irreconcilable validation overrides.
type Policy struct {
	files     rules // by clean path
	units     rules
	sshkey    *rule
	overrides map[string]bool // by the words of irreconcilableValidationOverrides.storage
	idle      []string
}

// rules are the rules about paths, or about units, by key and in the order in which they are shown.
type rules struct {
	order []*rule
	by    map[string]*rule
}

// set adds a rule. set replaces a rule for the same key, and returns that one.
func (r *rules) set(key string, is *rule) (was *rule) {
	if r.by == nil {
		r.by = map[string]*rule{}
	}
	if was = r.by[key]; was == nil {
		r.order = append(r.order, is)
	} else {
		r.order[slices.Index(r.order, was)] = is
	}
	r.by[key] = is
	return was
}

// rule is a policy's rule about one path, one unit, or SSH keys.
type rule struct {
	name  string // its name for people
	about string // the path or unit, as written
	field string // where it was written, "" for a default
	steps []step
	// registries means that the contents of a change of registries.conf decide. hosts means the same for the files that
	// containerd reads.
	registries, hosts bool
}

// defaultPolicy returns the rules that apply where no policy replaces them: OpenShift's default table, and containerd's
// counterpart of registries.conf.
func defaultPolicy() *Policy {
	const (
		caTrust = "coreos-update-ca-trust.service"
		iri     = "iri-registry.service"
		kubelet = "kubelet.service"

		credentialDropin = "/etc/systemd/system/kubelet.service.d/40-kubelet-crio-image-credential-provider.conf"
	)
	var (
		none         = step{action: ActionNone}
		daemonReload = step{action: ActionDaemonReload}
		reloadCrio   = step{ActionReload, crio}
		restart      = func(service string) step { return step{ActionRestart, service} }
	)
	p := &Policy{overrides: map[string]bool{}}
	// In OpenShift's order.
	for _, d := range []struct {
		path  string
		steps []step
	}{
		{"/var/lib/kubelet/config.json", []step{none}},
		{"/etc/machine-config-daemon/no-reboot/containers-gpg.pub", []step{reloadCrio}},
		{"/etc/containers/policy.json", []step{reloadCrio}},
		{registries.Path, nil},
		{"/etc/containers/registries.d", []step{reloadCrio}},
		{"/etc/crio/policies", []step{reloadCrio}},
		{"/etc/nmstate/openshift", []step{none}},
		{"/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt", []step{restart(caTrust), restart(crio)}},
		{"/etc/kubernetes/credential-providers", []step{restart(kubelet)}},
		{credentialDropin, []step{daemonReload, restart(kubelet)}},
		{"/etc/iri-registry", []step{restart(iri)}},
		{"/usr/local/bin/load-registry-image.sh", []step{restart(iri)}},
		{"/etc/pki/ca-trust/source/anchors/iri-root-ca.crt", []step{restart(caTrust)}},
	} {
		p.files.set(d.path, &rule{name: "default policy for file " + d.path, about: d.path, steps: d.steps,
			registries: d.path == registries.Path})
	}
	p.files.set(registries.HostsDir, &rule{name: "default policy for hosts.toml below " + registries.HostsDir,
		about: registries.HostsDir, hosts: true})
	p.units.set(iri, &rule{name: "default policy for unit " + iri, about: iri, steps: []step{daemonReload, restart(iri)}})
	p.sshkey = &rule{name: "default policy for sshkey", steps: []step{none}}
	return p
}

// A MachineConfiguration. A node reads its policies alone, where an absent field differs from an empty one. The other
// fields are here so that a name that the API does not have is refused.
type (
	policyDocument struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   metav1.ObjectMeta `json:"metadata"`
		Spec       *policySpec       `json:"spec"`
		Status     json.RawMessage   `json:"status"`
	}
	policySpec struct {
		NodeDisruptionPolicy *struct {
			Files  []policyFile   `json:"files"`
			Units  []policyUnit   `json:"units"`
			SSHKey *policyActions `json:"sshkey"`
		} `json:"nodeDisruptionPolicy"`
		Overrides *struct {
			Storage *[]string `json:"storage"`
		} `json:"irreconcilableValidationOverrides"`

		ManagementState            string          `json:"managementState"`
		LogLevel                   string          `json:"logLevel"`
		OperatorLogLevel           string          `json:"operatorLogLevel"`
		UnsupportedConfigOverrides json.RawMessage `json:"unsupportedConfigOverrides"`
		ObservedConfig             json.RawMessage `json:"observedConfig"`
		ForceRedeploymentReason    string          `json:"forceRedeploymentReason"`
		FailedRevisionLimit        int32           `json:"failedRevisionLimit"`
		SucceededRevisionLimit     int32           `json:"succeededRevisionLimit"`
		ManagedBootImages          json.RawMessage `json:"managedBootImages"`
		BootImageSkewEnforcement   json.RawMessage `json:"bootImageSkewEnforcement"`
	}
	policyFile struct {
		Path *string `json:"path"`
		policyActions
	}
	policyUnit struct {
		Name *string `json:"name"`
		policyActions
	}
	policyActions struct {
		Actions *[]policyAction `json:"actions"`
	}
	policyAction struct {
		Type    *string        `json:"type"`
		Reload  *policyService `json:"reload"`
		Restart *policyService `json:"restart"`
	}
	policyService struct {
		ServiceName *string `json:"serviceName"`
	}
)

// policyVersion and policyKind are those of a MachineConfiguration.
const (
	policyVersion = "operator.openshift.io/v1"
	policyKind    = "MachineConfiguration"
)

// The limits and patterns of the MachineConfiguration's schema.
const (
	maxEntries     = 50
	maxActions     = 10
	maxServiceName = 255 // characters
)

var (
	serviceType = regexp.MustCompile(
		`\.(service|socket|device|mount|automount|swap|target|path|timer|snapshot|slice|scope)$`)
	serviceStem = regexp.MustCompile(`^[a-zA-Z0-9:._\\-]+\..`)

	actionTypes   = []ActionType{ActionReboot, ActionDrain, ActionReload, ActionRestart, ActionDaemonReload, ActionNone}
	overrideWords = []string{"Disks", "FileSystems", "Raid"}
)

// ParsePolicy reads one MachineConfiguration of operator.openshift.io/v1, YAML or JSON, and merges its policies over
// the default ones. A rule for the same path or name replaces the default, and so does sshkey. The fields that a node
// reads are validated as by the API's schema, other fields for unknown names and wrong types only. Errors name each
// wrong field by its path.
func ParsePolicy(data []byte) (*Policy, error) {
	doc, err := readPolicy(data)
	if err != nil {
		return nil, fmt.Errorf("reading MachineConfiguration: %s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	if errs := doc.validate(); len(errs) > 0 {
		return nil, fmt.Errorf("validating MachineConfiguration: %w", errs.ToAggregate())
	}
	p := defaultPolicy()
	if ndp := doc.Spec.NodeDisruptionPolicy; ndp != nil {
		for i, e := range ndp.Files {
			p.forFile(i, e)
		}
		for _, e := range ndp.Units {
			p.units.set(*e.Name, &rule{name: "policy for unit " + *e.Name, about: *e.Name, steps: e.steps()})
		}
		if ndp.SSHKey != nil {
			p.sshkey = &rule{name: "policy for sshkey", steps: ndp.SSHKey.steps()}
		}
	}
	if o := doc.Spec.Overrides; o != nil && o.Storage != nil {
		for _, word := range *o.Storage {
			p.overrides[word] = true
		}
	}
	return p, nil
}

// forFile adds a valid entry for a path. An entry whose path is not absolute covers no path.
func (p *Policy) forFile(i int, e policyFile) {
	at := field.NewPath("spec", "nodeDisruptionPolicy", "files").Index(i).Child("path")
	if !path.IsAbs(*e.Path) {
		p.idle = append(p.idle, field.Invalid(at, *e.Path, "is not absolute, so the policy never covers a change").Error())
		return
	}
	is := &rule{name: "policy for file " + *e.Path, about: *e.Path, field: at.String(), steps: e.steps()}
	if was := p.files.set(path.Clean(*e.Path), is); was != nil && was.field != "" {
		p.idle = append(p.idle,
			fmt.Sprintf("%s: Invalid value: %q: %s has the same path and takes precedence", was.field, was.about, at))
	}
}

// readPolicy reads the one document strictly. An error can have several lines.
func readPolicy(data []byte) (*policyDocument, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var text []byte
	for {
		part, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var content any
		if err := yaml.Unmarshal(part, &content); err == nil && content == nil {
			continue // comments only
		}
		if text != nil {
			return nil, errors.New("more than one document")
		}
		text = part
	}
	if text == nil {
		return nil, errors.New("no document")
	}
	text, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, err
	}
	var doc policyDocument
	strict, err := strictjson.UnmarshalStrict(text, &doc)
	if err == nil {
		err = errors.Join(strict...)
	}
	if err != nil {
		return nil, err
	}
	return &doc, nil
}

func (d *policyDocument) validate() (errs field.ErrorList) {
	if d.APIVersion != policyVersion {
		errs = append(errs, field.NotSupported(field.NewPath("apiVersion"), d.APIVersion, []string{policyVersion}))
	}
	if d.Kind != policyKind {
		errs = append(errs, field.NotSupported(field.NewPath("kind"), d.Kind, []string{policyKind}))
	}
	spec := field.NewPath("spec")
	if d.Spec == nil {
		return append(errs, field.Required(spec, ""))
	}
	if ndp := d.Spec.NodeDisruptionPolicy; ndp != nil {
		at := spec.Child("nodeDisruptionPolicy")
		files, units := at.Child("files"), at.Child("units")
		errs = append(errs, validateEntries(files, "path", ndp.Files)...)
		errs = append(errs, validateEntries(units, "name", ndp.Units)...)
		for i, e := range ndp.Units {
			if e.Name != nil {
				errs = append(errs, naming(*e.Name, validateService(units.Index(i).Child("name"), *e.Name))...)
			}
		}
		if ndp.SSHKey != nil {
			errs = append(errs, validateActions(at.Child("sshkey", "actions"), ndp.SSHKey.Actions)...)
		}
	}
	if o := d.Spec.Overrides; o != nil {
		at := spec.Child("irreconcilableValidationOverrides")
		if o.Storage == nil {
			return append(errs, field.Required(at.Child("storage"), "an override must name the sections that it overrides"))
		}
		errs = append(errs, validateOverrides(at.Child("storage"), *o.Storage)...)
	}
	return errs
}

// policyEntry is an entry about a path or a unit.
type policyEntry interface {
	about() *string // nil where it is missing
	wanted() *[]policyAction
}

func (f policyFile) about() *string { return f.Path }

func (u policyUnit) about() *string { return u.Name }

func (a policyActions) wanted() *[]policyAction { return a.Actions }

func validateEntries[E policyEntry](at *field.Path, key string, entries []E) (errs field.ErrorList) {
	if len(entries) > maxEntries {
		errs = append(errs, field.TooMany(at, len(entries), maxEntries))
	}
	seen := make(map[string]bool)
	for i, e := range entries {
		wrong := validateActions(at.Index(i).Child("actions"), e.wanted())
		v := e.about()
		if v == nil {
			errs = append(append(errs, field.Required(at.Index(i).Child(key), "")), wrong...)
			continue
		}
		if seen[*v] {
			wrong = append(wrong, field.Duplicate(at.Index(i).Child(key), *v))
		}
		seen[*v] = true
		errs = append(errs, naming(*v, wrong)...)
	}
	return errs
}

// naming adds the path or name of the wrong entry to the field of each error. An index alone tells little in a list of
// thirty.
func naming(entry string, errs field.ErrorList) field.ErrorList {
	for _, e := range errs {
		e.Field += " (" + entry + ")"
	}
	return errs
}

func validateActions(at *field.Path, actions *[]policyAction) (errs field.ErrorList) {
	if actions == nil {
		return append(errs, field.Required(at, ""))
	}
	if len(*actions) > maxActions {
		errs = append(errs, field.TooMany(at, len(*actions), maxActions))
	}
	for i, a := range *actions {
		at := at.Index(i)
		if a.Type == nil {
			errs = append(errs, field.Required(at.Child("type"), ""))
			continue
		}
		action := ActionType(*a.Type)
		if !slices.Contains(actionTypes, action) {
			errs = append(errs, field.NotSupported(at.Child("type"), action, actionTypes))
			continue
		}
		if (action == ActionReboot || action == ActionNone) && len(*actions) > 1 {
			errs = append(errs, field.Invalid(at.Child("type"), *a.Type, "must be the only action: it overrides all others"))
		}
		errs = append(errs, validateTarget(at.Child("reload"), a.Reload, action == ActionReload, action)...)
		errs = append(errs, validateTarget(at.Child("restart"), a.Restart, action == ActionRestart, action)...)
	}
	return errs
}

func validateTarget(at *field.Path, target *policyService, wanted bool, action ActionType) field.ErrorList {
	switch {
	case target == nil && !wanted:
		return nil
	case target == nil:
		return field.ErrorList{field.Required(at, fmt.Sprintf("with type %s", action))}
	case !wanted:
		return field.ErrorList{field.Forbidden(at, fmt.Sprintf("with type %s", action))}
	case target.ServiceName == nil:
		return field.ErrorList{field.Required(at.Child("serviceName"), "")}
	}
	return validateService(at.Child("serviceName"), *target.ServiceName)
}

func validateService(at *field.Path, name string) (errs field.ErrorList) {
	if utf8.RuneCountInString(name) > maxServiceName {
		errs = append(errs, field.TooLongCharacters(at, name, maxServiceName))
	}
	if !serviceType.MatchString(name) {
		errs = append(errs, field.Invalid(at, name, "must end in .service, .socket, .device, .mount, .automount, "+
			".swap, .target, .path, .timer, .snapshot, .slice or .scope"))
	}
	if !serviceStem.MatchString(name) {
		errs = append(errs, field.Invalid(at, name,
			`must have a name of letters, digits, ":", "-", "_", "." and "\" before its type`))
	}
	return errs
}

func validateOverrides(at *field.Path, words []string) (errs field.ErrorList) {
	if len(words) == 0 {
		errs = append(errs, field.TooFew(at, 0, 1))
	}
	if len(words) > len(overrideWords) {
		errs = append(errs, field.TooMany(at, len(words), len(overrideWords)))
	}
	for i, word := range words {
		if !slices.Contains(overrideWords, word) {
			errs = append(errs, field.NotSupported(at.Index(i), word, overrideWords))
		}
		if slices.Contains(words[:i], word) {
			errs = append(errs, field.Duplicate(at.Index(i), word))
		}
	}
	return errs
}

// steps returns the steps of a valid entry.
func (a policyActions) steps() (out []step) {
	for _, is := range *a.Actions {
		s := step{action: ActionType(*is.Type)}
		switch s.action {
		case ActionReload:
			s.service = *is.Reload.ServiceName
		case ActionRestart:
			s.service = *is.Restart.ServiceName
		default:
		}
		out = append(out, s)
	}
	return out
}
