// SPDX-License-Identifier: Apache-2.0

// Package catalogue is what a machine with the stand-in for rpm-ostree gets its software from: packages in
// repositories, and container images in registries. Both are directories.
package catalogue

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Package is one package. Its file, NEVRA.rpm, is its JSON: in a repository (a directory that a .repo file names by
// baseurl=file://), or by itself for who installs a local file. A tree says what it has installed in DatabaseDir.
type Package struct {
	Name    string `json:"name"`
	Epoch   uint64 `json:"epoch,omitempty"`
	Version string `json:"version"`
	Release string `json:"release"`
	Arch    string `json:"arch"`
	// Provides are capabilities beside the name, Requires names or capabilities that have to be there too.
	Provides []string `json:"provides,omitempty"`
	Requires []string `json:"requires,omitempty"`
	// Files are contents by absolute path. What is below /etc becomes a default in /usr/etc. One with a kernel has
	// /usr/lib/modules/RELEASE/vmlinuz.
	Files map[string]string `json:"files,omitempty"`
}

// DatabaseDir is where a tree has what is installed in it, a file NAME.json for each package. Real trees have an rpmdb
// at the same place.
const DatabaseDir = "/usr/share/rpm"

// NEVRA is name, epoch where there is one, version, release and architecture, as rpm-ostree writes them.
func (p Package) NEVRA() string {
	epoch := ""
	if p.Epoch > 0 {
		epoch = fmt.Sprintf("%d:", p.Epoch)
	}
	return fmt.Sprintf("%s-%s%s-%s.%s", p.Name, epoch, p.Version, p.Release, p.Arch)
}

// Matches says whether a request (a name, NEVRA, a part of it as dnf takes it, or a capability) means this package.
func (p Package) Matches(request string) bool {
	version := p.Name + "-" + p.Version
	names := []string{p.Name, p.NEVRA(), p.Name + "." + p.Arch, version, version + "-" + p.Release}
	return slices.Contains(names, request) || slices.Contains(p.Provides, request)
}

// Kernel is the release of the kernel that is in the package, "" if none.
func (p Package) Kernel() string {
	for path := range p.Files {
		if dir, ok := strings.CutSuffix(path, "/vmlinuz"); ok && filepath.Dir(dir) == "/usr/lib/modules" {
			return filepath.Base(dir)
		}
	}
	return ""
}

// Write writes the package's file into dir and returns its path.
func (p Package) Write(dir string) (string, error) {
	data, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return "", fmt.Errorf("writing package %s: %w", p.NEVRA(), err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("writing package %s: %w", p.NEVRA(), err)
	}
	path := filepath.Join(dir, p.NEVRA()+".rpm")
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return "", fmt.Errorf("writing package %s: %w", p.NEVRA(), err)
	}
	return path, nil
}

// ParsePackage reads a package, and gives the digest that names a local one beside its NEVRA.
func ParsePackage(data []byte) (p Package, digest string, err error) {
	if err := json.Unmarshal(data, &p); err != nil {
		return p, "", fmt.Errorf("parsing package: %w", err)
	}
	if p.Name == "" || p.Version == "" || p.Release == "" || p.Arch == "" {
		return p, "", errors.New("parsing package: name, version, release or arch is missing")
	}
	sum := sha256.Sum256(data)
	return p, hex.EncodeToString(sum[:]), nil
}

// ReadPackages reads every package of a directory: *.rpm of a repository, *.json of a tree's database.
func ReadPackages(dir string) ([]Package, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading packages: %w", err)
	}
	var all []Package
	for _, entry := range entries {
		if ext := filepath.Ext(entry.Name()); ext != ".rpm" && ext != ".json" {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading packages: %w", err)
		}
		p, _, err := ParsePackage(data)
		if err != nil {
			return nil, fmt.Errorf("reading packages: %s: %w", path, err)
		}
		all = append(all, p)
	}
	return all, nil
}
