// SPDX-License-Identifier: Apache-2.0

package machineconfig_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/machineconfig"
)

// A MachineConfig and a Butane config become the one configuration of the pool worker.
func Example() {
	dir, err := os.MkdirTemp("", "documents")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{
		"50-motd.yaml": `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 50-motd
  labels: {machineconfiguration.openshift.io/role: worker}
spec:
  kernelArguments: [audit=1]
  config:
    ignition: {version: 3.5.0}
    storage:
      files:
      - {path: /etc/motd, mode: 0644, contents: {source: "data:,hello%0A"}}
`,
		"60-chrony.bu": `variant: openshift
version: 4.17.0
metadata:
  name: 60-chrony
  labels: {machineconfiguration.openshift.io/role: worker}
systemd:
  units:
  - {name: chronyd.service, enabled: true}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			panic(err)
		}
	}

	documents, _, err := machineconfig.Read(butane.Translate, dir)
	if err != nil {
		panic(err)
	}
	rendered, _, err := machineconfig.Render("worker", documents, nil)
	if err != nil {
		panic(err)
	}
	config, err := machineconfig.Parse(rendered)
	if err != nil {
		panic(err)
	}
	fmt.Println(rendered.Name)
	for _, f := range config.Files {
		fmt.Printf("%s %o %q\n", f.Path, f.Mode, f.Contents)
	}
	for _, u := range config.Units {
		fmt.Println(u.Name, "enabled:", *u.Enabled)
	}
	fmt.Println(config.KernelArguments)
	// Output:
	// rendered-worker-df01aa97db4a50ab693799f14a10bc3a
	// /etc/motd 644 "hello\n"
	// chronyd.service enabled: true
	// [audit=1]
}
