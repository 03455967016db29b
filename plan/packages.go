// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	_ "embed" // for knownPackages
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/machineconfig"
)

// CataloguePath is the file where an admin adds packages to the known ones. packages.yaml in this folder describes it.
const CataloguePath = "/etc/machine-config-daemon/packages.yaml"

//go:embed packages.yaml
var knownPackages []byte

// Catalogue knows which packages make up a kernel type and an extension on an OS.
type Catalogue struct {
	known, host []catalogueEntry
}

// catalogueEntry is an entry of a packages.yaml, which describes the fields.
type catalogueEntry struct {
	IDs        []string               `json:"ids"`
	Versions   []string               `json:"versions"`
	Kernels    map[string]kernelEntry `json:"kernels"`
	Extensions map[string][]string    `json:"extensions"`
}

type kernelEntry struct {
	Packages      []string `json:"packages"`
	Architectures []string `json:"architectures"`
	Release       string   `json:"release"`
}

// NewCatalogue reads the host's CataloguePath, nil if the host has none, on top of the known packages. An error names
// the file and the field.
func NewCatalogue(host []byte) (*Catalogue, error) {
	var c Catalogue
	var err error
	if c.known, err = parseCatalogue(knownPackages); err != nil {
		return nil, fmt.Errorf("parsing the packages that are known: %w", err)
	}
	if c.host, err = parseCatalogue(host); err != nil {
		return nil, fmt.Errorf("parsing %s: %w", CataloguePath, err)
	}
	return &c, nil
}

// packagePattern matches the name of a package. The name goes into the command line of a tool, which would take other
// text for options, files or URLs.
var packagePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

// kernelTypes are the kernel types that a configuration may ask for.
var kernelTypes = []string{machineconfig.KernelDefault, machineconfig.KernelRealtime, machineconfig.Kernel64kPages}

func parseCatalogue(data []byte) ([]catalogueEntry, error) {
	var file struct {
		Systems []catalogueEntry `json:"systems"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return nil, err
	}
	for i, entry := range file.Systems {
		if len(entry.IDs) == 0 {
			return nil, fmt.Errorf("systems[%d].ids: is empty", i)
		}
		for _, name := range slices.Sorted(maps.Keys(entry.Kernels)) {
			if err := checkKernel(name, entry.Kernels[name]); err != nil {
				return nil, fmt.Errorf("systems[%d].kernels.%s%w", i, name, err)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(entry.Extensions)) {
			if err := checkPackages(entry.Extensions[name]); err != nil {
				return nil, fmt.Errorf("systems[%d].extensions.%s%w", i, name, err)
			}
		}
	}
	return file.Systems, nil
}

// checkKernel returns an error that begins with the rest of the field's name.
func checkKernel(name string, k kernelEntry) error {
	isDefault := name == machineconfig.KernelDefault
	if _, err := regexp.Compile(k.Release); err != nil {
		return fmt.Errorf(".release: %w", err)
	}
	switch {
	case !slices.Contains(kernelTypes, name):
		return fmt.Errorf(": is not one of %s", strings.Join(kernelTypes, ", "))
	case isDefault && (k.Release != "" || len(k.Architectures) > 0):
		return errors.New(": may have packages only, because the default kernel is the kernel without another type")
	case !isDefault && k.Release == "" && len(k.Packages) > 0:
		return errors.New(".release: is missing; without a release, no check can tell that this kernel runs")
	}
	if err := checkPackages(k.Packages); err != nil {
		return fmt.Errorf(".packages%w", err)
	}
	return nil
}

func checkPackages(names []string) error {
	for i, name := range names {
		if !packagePattern.MatchString(name) {
			return fmt.Errorf("[%d]: %q is not a name of a package", i, name)
		}
	}
	return nil
}

// Platform is the OS and the machine that packages are for.
type Platform struct {
	ID      string // in os-release: rhel, fedora
	Version string // for example 9.6; for an OS that is made of RHEL, the version of RHEL
	Arch    string // as Go names it: amd64, arm64
}

func (p Platform) String() string {
	return cmp.Or(p.ID, "an unknown OS") + " " + cmp.Or(p.Version, "of no version") + " on " + p.Arch
}

// ParsePlatform reads an os-release(5). In older releases of RHEL CoreOS and CentOS Stream CoreOS, VERSION_ID is the
// version of OpenShift. RHEL CoreOS then has RHEL_VERSION. CentOS Stream CoreOS has the 9 in a VERSION of
// 413.9.202302130811-0.
func ParsePlatform(osRelease []byte, arch string) Platform {
	values := make(map[string]string)
	for line := range strings.Lines(string(osRelease)) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found {
			values[key] = strings.Trim(value, `"'`)
		}
	}
	p := Platform{ID: values["ID"], Version: cmp.Or(values["RHEL_VERSION"], values["VERSION_ID"]), Arch: arch}
	if openshift := values["OPENSHIFT_VERSION"]; openshift != "" && values["RHEL_VERSION"] == "" {
		prefix := strings.ReplaceAll(openshift, ".", "") + "."
		if rest, found := strings.CutPrefix(values["VERSION"], prefix); found {
			p.Version, _, _ = strings.Cut(rest, ".")
		}
	}
	return p
}

// of returns what is known of one platform. Entries for a more exact version replace those for a less exact one. The
// host's entries replace the known ones.
func (c *Catalogue) of(p Platform) (kernels map[string]kernelEntry, extensions map[string][]string) {
	kernels, extensions = make(map[string]kernelEntry), make(map[string][]string)
	for _, entries := range [][]catalogueEntry{c.known, c.host} {
		entries = slices.DeleteFunc(slices.Clone(entries), func(e catalogueEntry) bool { return e.exactness(p) < 0 })
		slices.SortStableFunc(entries, func(a, b catalogueEntry) int { return cmp.Compare(a.exactness(p), b.exactness(p)) })
		for _, entry := range entries {
			maps.Copy(kernels, entry.Kernels)
			maps.Copy(extensions, entry.Extensions)
		}
	}
	maps.DeleteFunc(kernels, func(name string, k kernelEntry) bool {
		return name != machineconfig.KernelDefault && (len(k.Packages) == 0 ||
			len(k.Architectures) > 0 && !slices.Contains(k.Architectures, p.Arch))
	})
	maps.DeleteFunc(extensions, func(_ string, packages []string) bool { return len(packages) == 0 })
	return kernels, extensions
}

// exactness returns how many parts of the platform's version an entry names. The result is 0 for an entry for all
// versions, and -1 for an entry that is not for the platform.
func (e catalogueEntry) exactness(p Platform) int {
	if !slices.Contains(e.IDs, p.ID) {
		return -1
	}
	if len(e.Versions) == 0 {
		return 0
	}
	best := -1
	for _, version := range e.Versions {
		if p.Version == version || strings.HasPrefix(p.Version, version+".") {
			best = max(best, strings.Count(version, ".")+1)
		}
	}
	return best
}

// NotKnown is the error about kernel types and extensions that have no packages on a platform.
type NotKnown []Unreconcilable

func (e NotKnown) Error() string {
	parts := make([]string, len(e))
	for i, u := range e {
		parts[i] = u.Field + ": " + u.Reason
	}
	return strings.Join(parts, "; ")
}

// Packages returns the packages that a kernel type and extensions put on the base of a platform. remove has the
// packages of the base that these replace. The kernel type "" is the default one. Each list is without duplicates, in
// the catalogue's order. An error is a NotKnown. The lists then have the packages of the known types and extensions.
func (c *Catalogue) Packages(p Platform, kernelType string, extensions []string) (install, remove []string, err error) {
	kernels, known := c.of(p)
	var wrong NotKnown
	if kernelType = cmp.Or(kernelType, machineconfig.KernelDefault); kernelType != machineconfig.KernelDefault {
		kernel, ok := kernels[kernelType]
		if !ok {
			kernels[machineconfig.KernelDefault] = kernelEntry{} // for the list of known types in the error
			wrong = append(wrong, notKnown(p, KernelType, kernelType, slices.Sorted(maps.Keys(kernels))))
		} else {
			install, remove = slices.Clone(kernel.Packages), slices.Clone(kernels[machineconfig.KernelDefault].Packages)
		}
	}
	for _, extension := range extensions {
		packages, ok := known[extension]
		if !ok {
			wrong = append(wrong, notKnown(p, Extensions, extension, slices.Sorted(maps.Keys(known))))
		}
		for _, name := range packages {
			if !slices.Contains(install, name) {
				install = append(install, name)
			}
		}
	}
	if len(wrong) > 0 {
		return install, remove, wrong
	}
	return install, remove, nil
}

// Ever reports whether at least one release of a platform's OS has packages for the kernel type and all extensions.
func (c *Catalogue) Ever(p Platform, kernelType string, extensions []string) bool {
	for _, entry := range slices.Concat(c.known, c.host) {
		if !slices.Contains(entry.IDs, p.ID) {
			continue
		}
		versions := entry.Versions
		if len(versions) == 0 {
			versions = []string{""}
		}
		for _, version := range versions {
			if _, _, err := c.Packages(Platform{ID: p.ID, Version: version, Arch: p.Arch}, kernelType, extensions); err == nil {
				return true
			}
		}
	}
	return false
}

func notKnown(p Platform, kind Kind, name string, known []string) Unreconcilable {
	reason := fmt.Sprintf("no packages are known for %s on %s", name, p)
	if len(known) > 0 {
		reason += ", only for " + strings.Join(known, ", ")
	}
	return Unreconcilable{string(kind), reason + "; " + CataloguePath + " on the host can add some"}
}

// Extension returns the packages of one extension on a platform, and nil if none are known.
func (c *Catalogue) Extension(p Platform, name string) []string {
	_, extensions := c.of(p)
	return slices.Clone(extensions[name])
}

// Extensions returns the names of the extensions that have packages on a platform, sorted.
func (c *Catalogue) Extensions(p Platform) []string {
	_, extensions := c.of(p)
	return slices.Sorted(maps.Keys(extensions))
}

// RunningKernel returns the type of the kernel with this release (uname -r). A kernel of no other type is the default
// one.
func (c *Catalogue) RunningKernel(p Platform, release string) string {
	kernels, _ := c.of(p)
	for _, name := range slices.Sorted(maps.Keys(kernels)) {
		// NewCatalogue has refused patterns that do not compile.
		if pattern := kernels[name].Release; pattern != "" && regexp.MustCompile(pattern).MatchString(release) {
			return name
		}
	}
	return machineconfig.KernelDefault
}

// NamePackages writes into a plan which packages the changing extensions have on a platform.
func (p *Plan) NamePackages(c *Catalogue, platform Platform) {
	for _, change := range p.Changes {
		for name := range change.Packages {
			if known := c.Extension(platform, name); known != nil {
				change.Packages[name] = known
			}
		}
	}
}
