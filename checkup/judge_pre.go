// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/noderefit/noderefit/api"
)

// leastMinor is the oldest minor version of Kubernetes 1 that is supported.
const leastMinor = 32

func judgeServer(f *facts) (string, []Finding) {
	if f.server.err != nil {
		return "Kubernetes of an unknown version", []Finding{unknown("the server's version", f.server.err)}
	}
	v := f.server.is
	says := "Kubernetes " + v.GitVersion
	major, majorErr := strconv.Atoi(v.Major)
	minor, minorErr := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	switch {
	case majorErr != nil || minorErr != nil:
		return says, []Finding{found(Warning, "see that the server is Kubernetes 1.32 or newer",
			"the server's version %s.%s cannot be read", v.Major, v.Minor)}
	case major == 1 && minor < leastMinor:
		return says, []Finding{found(Failed, fmt.Sprintf("upgrade the cluster to Kubernetes 1.%d or newer", leastMinor),
			"Noderefit needs Kubernetes 1.%d or newer", leastMinor)}
	}
	return says, nil
}

func judgeFeatures(f *facts) (string, []Finding) {
	const says = "ValidatingAdmissionPolicies are served"
	if f.served.err != nil {
		return "served features", []Finding{unknown("whether ValidatingAdmissionPolicies are served", f.served.err)}
	}
	for _, resource := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		if !f.served.is[resource+".admissionregistration.k8s.io"] {
			return "a feature is missing", []Finding{found(Failed,
				"let the API server serve admissionregistration.k8s.io/v1: see its flag --runtime-config",
				"the API server does not serve %s: nothing would limit an agent to its own node", resource)}
		}
	}
	return says, nil
}

func judgeOpenShift(f *facts) (string, []Finding) {
	const do = "do not install Noderefit here: OpenShift's machine-config-operator does this job"
	var out []Finding
	if f.served.err == nil && f.served.is["clusterversions.config.openshift.io"] {
		out = append(out, found(Failed, do, "the cluster is an OpenShift: it serves clusterversions.config.openshift.io"))
	}
	for _, w := range f.workloads.is {
		if w.Namespace == api.Namespace && w.Name == "machine-config-operator" {
			out = append(out, found(Failed, do, "a machine-config-operator runs here").about(w.kind, w.Namespace, w.Name))
		}
	}
	for _, name := range sortedNames(f.definitions.is) {
		if crd := f.definitions.is[name]; crd != nil && foreign(crd) {
			out = append(out, found(Failed, "find out who installed the definition, and remove it where nothing uses it",
				"the definition is not Noderefit's").about("CustomResourceDefinition", "", name))
		}
	}
	if len(out) > 0 {
		return "somebody else's MachineConfigs are here", out
	}
	for what, err := range map[string]error{"whether this is an OpenShift": f.served.err,
		"whether a machine-config-operator runs": f.workloads.err} {
		if err != nil {
			out = append(out, unknown(what, err))
		}
	}
	return "no OpenShift, no other machine-config-operator", out
}

// foreign reports whether a definition is another project's. Ours differ from OpenShift's in one default: an object
// that no controller has seen yet has the observed generation -1.
func foreign(crd *apiextensionsv1.CustomResourceDefinition) bool {
	own := ownDefinitions()[crd.Name]
	return own != nil && unseen(own) && !unseen(crd)
}

func unseen(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		s := v.Schema
		return s != nil && s.OpenAPIV3Schema != nil && s.OpenAPIV3Schema.Properties["status"].Default != nil
	})
}

func judgeRights(f *facts) (string, []Finding) {
	if f.lacks.err != nil {
		return "your rights", []Finding{unknown("whether you have the rights for an installation", f.lacks.err)}
	}
	if len(f.lacks.is) == 0 {
		return "you have the rights for an installation", nil
	}
	var out []Finding
	for _, r := range f.lacks.is {
		severity, do := Failed, "have the right granted, or have an administrator install"
		if r.verb == "bind" || r.verb == "escalate" {
			severity = Warning
			do = "have all rights that Noderefit's roles grant, or this right: RBAC refuses the roles otherwise"
		}
		out = append(out, found(severity, do, "you may not %s", r))
	}
	return objects(len(out), "right") + " missing for an installation", out
}

// enforceLabel is the label of a namespace that says which pods the API server takes there.
const enforceLabel = "pod-security.kubernetes.io/enforce"

func judgeNamespace(f *facts) (string, []Finding) {
	const kind = "Namespace"
	label := fmt.Sprintf("kubectl label namespace %s --overwrite %s=privileged", f.namespace, enforceLabel)
	switch {
	case f.ns.err != nil:
		return "the agents' namespace", []Finding{unknown("the namespace", f.ns.err).about(kind, "", f.namespace)}
	case f.ns.is == nil && f.pre:
		return "namespace " + f.namespace + " is not there; the installation makes it", nil
	case f.ns.is == nil:
		return "the namespace is missing", []Finding{found(Failed, "install Noderefit; -n names another namespace",
			"the namespace does not exist").about(kind, "", f.namespace)}
	case f.ns.is.DeletionTimestamp != nil:
		return "the namespace is being deleted", []Finding{found(Failed,
			"wait until the namespace is gone, and install again",
			"the namespace is being deleted").about(kind, "", f.namespace)}
	}
	switch enforced := f.ns.is.Labels[enforceLabel]; enforced {
	case "privileged":
		return "namespace " + f.namespace + " takes the agents' pods", nil
	case "":
		return "the namespace has no pod-security label", []Finding{found(Note, label,
			"without the label %s, the API server's own default decides whether the agents' pods may run", enforceLabel).
			about(kind, "", f.namespace)}
	default:
		return "the namespace refuses the agents' pods", []Finding{found(Failed, label,
			"the label %s=%s refuses the agents' pods, which mount the host", enforceLabel, enforced).about(kind, "",
			f.namespace)}
	}
}

func judgeDefinitions(f *facts) (string, []Finding) {
	if f.definitions.err != nil {
		return "the definitions", []Finding{unknown("the definitions", f.definitions.err)}
	}
	const apply = "apply the definitions (crds.yaml) of the version that is to run"
	own := ownDefinitions()
	var out []Finding
	there := 0
	for _, name := range sortedNames(own) {
		crd := f.definitions.is[name]
		say := func(s Severity, format string, args ...any) {
			out = append(out, found(s, apply, format, args...).about("CustomResourceDefinition", "", name))
		}
		if crd == nil {
			if !f.pre {
				say(Failed, "the definition is missing")
			}
			continue
		}
		there++
		if !established(crd) {
			say(Failed, "the definition is not established: the API server does not serve the kind")
		}
		if lacks := lacking(own[name], crd); len(lacks) > 0 {
			severity := Failed
			if f.pre {
				severity = Note // the installation brings them
			}
			say(severity, "the definition lacks what this version of the plugin knows: %s", few(lacks))
		}
	}
	switch {
	case there == 0 && f.pre:
		return "not installed yet", out
	case f.pre:
		return fmt.Sprintf("%d of %d definitions are here already: %s", there, len(own),
			sortedCounts(readVersions(f).Definitions)), out
	case len(out) > 0:
		return "the definitions are not those of this version", out
	}
	return fmt.Sprintf("all %d definitions are served, with every field that this plugin knows", there), out
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return crd.DeletionTimestamp == nil && slices.ContainsFunc(crd.Status.Conditions,
		func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		})
}

// lacking returns the fields of one definition that another definition of the same name does not have.
func lacking(want, have *apiextensionsv1.CustomResourceDefinition) []string {
	var out []string
	for _, w := range want.Spec.Versions {
		if !w.Served {
			continue
		}
		at := slices.IndexFunc(have.Spec.Versions, func(h apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return h.Name == w.Name && h.Served
		})
		if at < 0 {
			out = append(out, "version "+w.Name)
			continue
		}
		if w.Schema != nil && have.Spec.Versions[at].Schema != nil {
			out = append(out, lackingFields(w.Schema.OpenAPIV3Schema, have.Spec.Versions[at].Schema.OpenAPIV3Schema, "")...)
		}
	}
	return out
}

func lackingFields(want, have *apiextensionsv1.JSONSchemaProps, at string) []string {
	if want == nil || have == nil || have.XPreserveUnknownFields != nil && *have.XPreserveUnknownFields {
		return nil
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(want.Properties)) {
		field := strings.TrimPrefix(at+"."+name, ".")
		inside, ok := have.Properties[name]
		if !ok {
			out = append(out, field)
			continue
		}
		w := want.Properties[name]
		out = append(out, lackingFields(&w, &inside, field)...)
	}
	if want.Items != nil && have.Items != nil {
		out = append(out, lackingFields(want.Items.Schema, have.Items.Schema, at+"[]")...)
	}
	if want.AdditionalProperties != nil && have.AdditionalProperties != nil {
		out = append(out, lackingFields(want.AdditionalProperties.Schema, have.AdditionalProperties.Schema, at+".*")...)
	}
	return out
}

// few lists the first of many names.
func few(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func sortedNames[T any](of map[string]T) []string { return slices.Sorted(maps.Keys(of)) }

// family is what a node's own words say of its OS, before anything runs on the node.
type family struct {
	// words are parts of nodeInfo.osImage, in lower case.
	words []string
	// tool is what the OS seems to be managed by.
	tool     string
	severity Severity
	means    string
	// masks are units that the OS seems to have, and that update the OS by themselves.
	masks []string
}

const (
	meansImages = "OS images, packages, kernel arguments and files"
	meansBootc  = "OS images, kernel arguments and files; no packages; bootc needs podman"
	meansFiles  = "files, units, users and keys; changes that need a reboot need ostree 2023.6"
	meansNone   = "the agent needs systemd and a writable /etc: keep the node out of all pools"
)

// families are the systems that a node may name. The first row that applies counts.
var families = []family{
	{[]string{"bootc"}, "bootc", OK, meansBootc, []string{api.UnitBootc}},
	{[]string{"fedora coreos"}, "rpm-ostree", OK, meansImages, []string{api.UnitZincati}},
	{[]string{"coreos", "silverblue", "kinoite", "iot", "atomic"}, "rpm-ostree", OK, meansImages, nil},
	{[]string{"talos", "bottlerocket", "flatcar", "container-optimi", "harvester", "windows"}, "another manager",
		Warning,
		meansNone, nil},
	{[]string{"debian", "ubuntu", "suse", "alma", "rocky", "oracle", "amazon linux", "centos", "fedora", "red hat"},
		"no ostree, or one that cannot be told from here", Note, meansFiles, nil},
}

func familyOf(osImage string) family {
	osImage = strings.ToLower(osImage)
	for _, row := range families {
		if slices.ContainsFunc(row.words, func(w string) bool { return strings.Contains(osImage, w) }) {
			return row
		}
	}
	return family{nil, "no system that is known", Note, meansFiles, nil}
}

// architectures are those of the images.
var architectures = []string{"amd64", "arm64"}

func judgeNodes(f *facts) (string, []Finding) {
	if f.nodes.err != nil {
		return "the nodes", []Finding{unknown("the nodes", f.nodes.err)}
	}
	var out []Finding
	groups := map[string][]string{}
	for i := range f.nodes.is {
		n := &f.nodes.is[i]
		if p, ok := f.probes[n.Name]; ok {
			out = append(out, p.finding(n.Name))
		} else {
			groups[n.Status.NodeInfo.OSImage] = append(groups[n.Status.NodeInfo.OSImage], n.Name)
		}
		if arch := n.Status.NodeInfo.Architecture; arch != "" && !slices.Contains(architectures, arch) {
			out = append(out, found(Warning, "keep the agent away from the node by its nodeSelector",
				"the images have no program for the architecture %s", arch).about("Node", "", n.Name))
		}
	}
	for _, os := range sortedNames(groups) {
		row := familyOf(os)
		severity, do := Note, "kubectl refit check --pre --probe looks at hosts"
		if row.severity.rank() >= Warning.rank() {
			severity, do = row.severity, row.means
		}
		out = append(out, found(severity, do, "%s (%s) with %q: seems to have %s; a pool could have there: %s",
			objects(len(groups[os]), "node"), few(groups[os]), cmp.Or(os, "no word of its OS"), row.tool, row.means))
	}
	if len(f.nodes.is) == 0 {
		return "no nodes", []Finding{found(Note, "", "the cluster has no nodes yet")}
	}
	return fmt.Sprintf("%s, %d looked at", objects(len(f.nodes.is), "node"), len(f.probes)), out
}

// rival is another manager of nodes that is installed in the cluster, by the name of its workload.
type rival struct{ name, does, do string }

var rivals = []rival{
	{"kured", "reboots nodes", "remove it: Noderefit drains and reboots nodes itself"},
	{"system-upgrade-controller", "runs upgrades on nodes",
		"remove it, or see that none of its Plans changes or reboots nodes of a pool"},
	{"bootc-operator", "moves nodes to bootc images", "remove it, or keep its nodes out of all pools"},
	{"flatcar-linux-update-operator", "reboots nodes", "remove it: Noderefit drains and reboots nodes itself"},
	{"zincati", "updates the OS of nodes", "remove it: Noderefit updates the OS"},
	{"machine-config-operator", "manages nodes as Noderefit does", "run one of the two"},
}

func judgeManagers(f *facts) (string, []Finding) {
	var out []Finding
	if f.workloads.err != nil {
		out = append(out, unknown("whether the cluster has other managers of nodes", f.workloads.err))
	}
	for _, w := range f.workloads.is {
		for _, r := range rivals {
			if rivalNamed(w, r.name) {
				out = append(out, found(Warning, r.do, "%s %s", r.name, r.does).about(w.kind, w.Namespace, w.Name))
			}
		}
	}
	if f.served.err == nil && f.served.is["plans.upgrade.cattle.io"] && !slices.ContainsFunc(out, func(o Finding) bool {
		return strings.HasPrefix(o.Says, "system-upgrade-controller")
	}) {
		out = append(out, found(Note, "see whether a controller for them runs outside of the cluster",
			"the kind Plan of system-upgrade-controller is served").about("CustomResourceDefinition", "",
			"plans.upgrade.cattle.io"))
	}
	if f.pre {
		out = append(out, hostManagers(f)...)
	}
	if len(out) > 0 {
		return "others may change or reboot the nodes", out
	}
	return "nothing else was found that changes or reboots nodes", nil
}

// rivalNamed reports whether a workload is another manager's. Charts put their release's name in front.
func rivalNamed(w workload, name string) bool {
	return w.Name == name || strings.HasSuffix(w.Name, "-"+name) || w.Labels["app.kubernetes.io/name"] == name ||
		w.Labels["app"] == name || w.Labels["k8s-app"] == name || strings.HasPrefix(w.Name, name+"-controller")
}

// masked says how to mask units of hosts.
const masked = "once Noderefit is installed: kubectl refit check --pre --manifest | kubectl apply -f -"

// hostManagers are the managers on the hosts themselves: of a probed host what the probe saw, of another host what its
// OS usually has.
func hostManagers(f *facts) []Finding {
	var out []Finding
	guesses := map[string][]string{}
	for i := range f.nodes.is {
		n := &f.nodes.is[i]
		if p, ok := f.probes[n.Name]; ok {
			out = append(out, p.managers(n.Name)...)
			continue
		}
		for _, unit := range familyOf(n.Status.NodeInfo.OSImage).masks {
			guesses[unit] = append(guesses[unit], n.Name)
		}
	}
	for _, unit := range sortedNames(guesses) {
		out = append(out, found(Warning, masked+"; --probe looks at hosts",
			"%s (%s) seem to have %s, which updates the OS by itself",
			objects(len(guesses[unit]), "node"), few(guesses[unit]), unit))
	}
	return out
}

func judgeImages(f *facts) (string, []Finding) {
	var out []Finding
	for _, i := range f.images {
		if i.err != nil {
			out = append(out, found(Failed,
				"copy the image to the registry, or correct --registry and --tag; credentials are those of docker login",
				"%s cannot be pulled from here: %s", i.reference, i.err))
		}
	}
	for _, node := range sortedNames(f.probes) {
		if p := f.probes[node]; p.pull {
			out = append(out, found(Failed, "see that the node reaches the registry and has its credentials and certificates",
				"the node cannot pull the image: %s", p.err).about("Node", "", node))
		}
	}
	switch {
	case len(out) > 0:
		return "images cannot be pulled", out
	case len(f.images) == 0:
		return "not looked at: --registry says where an installation would pull its images from", nil
	}
	return objects(len(f.images), "image") + " can be pulled from here", nil
}

// roleOf is the pool that a node would be in without custom pools.
func roleOf(n *corev1.Node) string {
	for _, role := range []string{api.PoolControlPlane, api.PoolMaster} {
		if _, ok := n.Labels[api.NodeRole+role]; ok {
			return api.PoolMaster
		}
	}
	return api.PoolWorker
}
