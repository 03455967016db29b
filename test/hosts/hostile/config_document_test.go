// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
)

// document is a configuration as it is put together from pieces. What two pieces say about one path is the later one's.
type document struct {
	files map[string]file
	links map[string]string
	dirs  map[string]bool
	units map[string]*unit
	kargs []string
}

type file struct {
	text string
	mode int
}

type unit struct {
	contents string
	enabled  bool
	masked   bool
	dropins  map[string]string
}

func newDocument() *document {
	return &document{files: map[string]file{}, links: map[string]string{}, dirs: map[string]bool{}, units: map[string]*unit{}}
}

func (d *document) file(path, text string) { d.files[path] = file{text, 0o644} }

func (d *document) script(path, text string) {
	d.files[path] = file{"#!/bin/sh\n" + text + "\n", 0o755}
}

func (d *document) unit(name string) *unit {
	if d.units[name] == nil {
		d.units[name] = &unit{dropins: map[string]string{}}
	}
	return d.units[name]
}

// service is a unit that is started at boot, by the target wants, unless that is empty.
func (d *document) service(name, unit, service, wants string) {
	text := "[Unit]\n" + unit + "\n[Service]\n" + service + "\n"
	if wants != "" {
		text += "[Install]\nWantedBy=" + wants + "\n"
	}
	d.unit(name).contents, d.unit(name).enabled = text, wants != ""
}

type object = map[string]any

// render is the document as the agent gets it.
func (d *document) render(name string) []byte {
	var fs, links, dirs, units []object
	for _, path := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[path]
		fs = append(fs, object{"path": path, "mode": f.mode, "overwrite": true, "contents": object{
			"source": "data:;base64," + base64.StdEncoding.EncodeToString([]byte(f.text))}})
	}
	for _, path := range slices.Sorted(maps.Keys(d.links)) {
		links = append(links, object{"path": path, "target": d.links[path], "overwrite": true})
	}
	for _, path := range slices.Sorted(maps.Keys(d.dirs)) {
		dirs = append(dirs, object{"path": path, "mode": 0o755})
	}
	for _, name := range slices.Sorted(maps.Keys(d.units)) {
		u := d.units[name]
		o := object{"name": name}
		if u.contents != "" {
			o["contents"] = u.contents
		}
		if u.enabled {
			o["enabled"] = true
		}
		if u.masked {
			o["mask"] = true
		}
		var dropins []object
		for _, name := range slices.Sorted(maps.Keys(u.dropins)) {
			dropins = append(dropins, object{"name": name, "contents": u.dropins[name]})
		}
		if dropins != nil {
			o["dropins"] = dropins
		}
		units = append(units, o)
	}
	text, err := json.Marshal(object{
		"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": object{"name": name},
		"spec": object{"kernelArguments": d.kargs, "config": object{
			"ignition": object{"version": "3.2.0"},
			"storage":  object{"files": fs, "links": links, "directories": dirs},
			"systemd":  object{"units": units},
		}},
	})
	if err != nil {
		panic(err) // it is made of strings
	}
	return text
}

// harmless is a configuration that changes files, a unit and the kernel arguments, and hurts nobody.
func harmless(name string) []byte { return base(name).render(name) }

func base(name string) *document {
	d := newDocument()
	d.kargs = []string{"lab.config=" + name}
	d.file("/etc/lab.conf", name+"\n")
	d.file("/usr/local/share/lab.conf", name+"\n")
	d.service("lab-config.service", "Description=Be there", "Type=exec\nExecStart=sleep infinity\nEnvironment=NAME="+name,
		"multi-user.target")
	// systemd ends an orderly reboot after half an hour, if not told otherwise.
	d.unit("reboot.target").dropins["50-lab.conf"] = "[Unit]\nJobTimeoutSec=1min\nJobTimeoutAction=reboot-force\n"
	return d
}
