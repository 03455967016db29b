// SPDX-License-Identifier: Apache-2.0

// Command sbom prints the SPDX document of Go programs: each program, and the modules that it was linked from, as its
// own build information has them.
//
//	sbom -name NAME -version VERSION FILE...
//
// The time of the document is SOURCE_DATE_EPOCH, so that the same programs make the same bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

const (
	project = "https://github.com/noderefit/noderefit"
	unknown = "NOASSERTION"
)

func main() {
	name := flag.String("name", "", "name of what the programs are in")
	version := flag.String("version", "", "version of the programs")
	flag.Parse()
	if err := run(*name, *version, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(name, version string, files []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("reading SOURCE_DATE_EPOCH: %w", err)
	}
	d := document{version: version, known: map[string]bool{}, all: sha256.New(), Document: spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		CreationInfo: &spdx.CreationInfo{
			Created:  time.Unix(seconds, 0).UTC().Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Organization", Creator: "Noderefit"}},
		},
	}}
	slices.SortFunc(files, func(a, b string) int {
		return slices.Compare([]string{filepath.Base(a)}, []string{filepath.Base(b)})
	})
	for _, file := range files {
		if err := d.program(file); err != nil {
			return fmt.Errorf("describing %s: %w", file, err)
		}
	}
	d.DocumentNamespace = fmt.Sprintf("%s/spdx/%s-%s-%x", project, name, version, d.all.Sum(nil)[:8])
	if err := json.Write(&d.Document, os.Stdout, json.Indent("  ")); err != nil {
		return fmt.Errorf("printing the document: %w", err)
	}
	return nil
}

// document is the document while it is made.
type document struct {
	spdx.Document
	version string
	known   map[string]bool // identifiers of packages that are in it
	all     interface {     // digest of all programs
		Write(p []byte) (int, error)
		Sum(b []byte) []byte
	}
}

// program adds a program and its modules.
func (d *document) program(file string) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	if _, err := d.all.Write(sum[:]); err != nil {
		return err
	}
	name := filepath.Base(file)
	id := identifier("Program", name)
	d.add(&spdx.Package{
		PackageName: name, PackageSPDXIdentifier: id, PackageVersion: d.version, PackageFileName: name,
		PackageDownloadLocation: project, PackageLicenseConcluded: "Apache-2.0", PackageLicenseDeclared: "Apache-2.0",
		PackageCopyrightText: unknown, PrimaryPackagePurpose: "APPLICATION",
		PackageChecksums: []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(sum[:])}},
		PackageExternalReferences: []*spdx.PackageExternalReference{
			purl(info.Main.Path, d.version, info.Path[len(info.Main.Path):])},
	})
	d.relate("DOCUMENT", id, common.TypeRelationshipDescribe)
	d.module(id, "stdlib", info.GoVersion[len("go"):], "BSD-3-Clause")
	for _, dep := range info.Deps {
		d.module(id, used(dep).Path, used(dep).Version, unknown)
	}
	return nil
}

// used is the module that was linked: a replacement stands for what it replaces.
func used(m *debug.Module) *debug.Module {
	if m.Replace != nil {
		return m.Replace
	}
	return m
}

// module adds a module that a program was linked from.
func (d *document) module(program spdx.ElementID, path, version, licence string) {
	id := identifier("Module", path+"-"+version)
	d.add(&spdx.Package{
		PackageName: path, PackageSPDXIdentifier: id, PackageVersion: version,
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: licence,
		PackageCopyrightText: unknown, PrimaryPackagePurpose: "LIBRARY",
		PackageExternalReferences: []*spdx.PackageExternalReference{purl(path, version, "")},
	})
	d.relate(program, id, common.TypeRelationshipContains)
}

// add adds a package that is not in the document yet.
func (d *document) add(p *spdx.Package) {
	if d.known[string(p.PackageSPDXIdentifier)] {
		return
	}
	d.known[string(p.PackageSPDXIdentifier)] = true
	d.Packages = append(d.Packages, p)
}

func (d *document) relate(a, b spdx.ElementID, how string) {
	d.Relationships = append(d.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", string(a)), RefB: common.MakeDocElementID("", string(b)), Relationship: how})
}

// purl is the name by which scanners look a module up.
func purl(path, version, sub string) *spdx.PackageExternalReference {
	at := "pkg:golang/" + path + "@" + version
	if sub != "" {
		at += "#" + sub[1:]
	}
	return &spdx.PackageExternalReference{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL,
		Locator: at}
}

var noIdentifier = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func identifier(kind, name string) spdx.ElementID {
	return spdx.ElementID(kind + "-" + noIdentifier.ReplaceAllString(name, "-"))
}
