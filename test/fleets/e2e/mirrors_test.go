// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/test/lab/fleet"
)

// registries is a MachineConfig with a registries.conf of an administrator's own.
const registries = `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 60-registries
  labels:
    machineconfiguration.openshift.io/role: worker
spec:
  config:
    ignition:
      version: 3.2.0
    storage:
      files:
      - path: /etc/containers/registries.conf
        mode: 420
        overwrite: true
        contents:
          source: data:,unqualified-search-registries%20%3D%20%5B%22registry.example%22%5D%0A
`

// publishedMirror is a mirror policy that people pass on.
const publishedMirror = `apiVersion: operator.openshift.io/v1alpha1
kind: ImageContentSourcePolicy
metadata:
  name: tmp
spec:
  repositoryDigestMirrors:
    - mirrors:
        - hub.iefcu.cn/xiaoyun/test
      source: quay.io/xiaoyun/test
`

// notContacted is a mirror whose source is never to be asked again.
const notContacted = `apiVersion: config.openshift.io/v1
kind: ImageDigestMirrorSet
metadata:
  name: strict
spec:
  imageDigestMirrors:
    - source: quay.io/xiaoyun/test
      mirrors: [other.example/test]
      mirrorSourcePolicy: NeverContactSource
`

const pids = `apiVersion: machineconfiguration.openshift.io/v1
kind: ContainerRuntimeConfig
metadata:
  name: pids
spec:
  machineConfigPoolSelector:
    matchLabels:
      pools.operator.machineconfiguration.openshift.io/worker: ""
  containerRuntimeConfig:
    pidsLimit: 2048
`

func TestMirrorsAndRuntimeConfigurationsReachTheHost(t *testing.T) {
	ctx, f := start(t, fleet.Options{Hosts: []string{"w0"}, Kwok: []string{"k0"}})
	_, err := f.Kubectl(ctx, "label", "mcp", "worker", "pools.operator.machineconfiguration.openshift.io/worker=")
	must(t, err)
	w0, reloads := f.Node("w0"), func() int {
		text, err := f.Node("w0").Output(ctx, "cat", "/run/testos/crio.log")
		must(t, err)
		return strings.Count(text, "reload")
	}
	reached := func(document, path string, words ...string) {
		t.Helper()
		before, err := f.Configuration(ctx, "worker")
		must(t, err, f.Apply(ctx, document))
		after, err := f.Render(ctx, "worker", before)
		must(t, err, f.WaitAt(ctx, after, "w0"), f.WaitPool(ctx, "worker", "updated", fleet.Updated(1)))
		text, err := w0.Output(ctx, "cat", path)
		must(t, err)
		for _, word := range words {
			if !strings.Contains(text, word) {
				t.Errorf("%s lacks %q: %s", path, word, text)
			}
		}
	}
	const conf = "/etc/containers/registries.conf"

	// Neither an administrator's registries.conf nor a mirror takes the node out of service, and one keeps the other.
	boots, serving, reloaded := w0.Boots(), f.WatchNodes(ctx, "worker"), reloads()
	reached(registries, conf, "registry.example")
	reached(publishedMirror, conf, "registry.example", "quay.io/xiaoyun/test", "hub.iefcu.cn/xiaoyun/test", "digest-only")
	if w0.Boots() != boots || serving.Least() != 1 || reloads() != reloaded+2 {
		t.Errorf("booted %d times, %d nodes served, crio was reloaded %d times", w0.Boots()-boots, serving.Least(),
			reloads()-reloaded)
	}

	// To be cut off from a source does, and to have another limit for processes takes a reboot.
	drained := cordons(ctx, t, f)
	reached(notContacted, conf, "blocked = true", "other.example/test", "hub.iefcu.cn/xiaoyun/test")
	if w0.Boots() != boots || cordons(ctx, t, f) == drained {
		t.Errorf("booted %d times, and the last cordon was that of %q", w0.Boots()-boots, drained)
	}
	reached(pids, "/etc/crio/crio.conf.d/01-ctrcfg-pidsLimit", "pids_limit = 2048")
	if w0.Boots() != boots+1 {
		t.Errorf("booted %d times", w0.Boots()-boots)
	}
	text, err := f.Kubectl(ctx, "get", "containerruntimeconfig", "pids", "-o",
		"jsonpath={.status.conditions[-1:].type} {.status.conditions[-1:].status}")
	must(t, err)
	if text != "Accepted True" {
		t.Errorf("the object says %s", text)
	}

	// What was made of them goes with them.
	before, err := f.Configuration(ctx, "worker")
	must(t, err)
	_, err = f.Kubectl(ctx, "delete", "containerruntimeconfig/pids", "imagedigestmirrorset/strict",
		"imagecontentsourcepolicy/tmp")
	must(t, err)
	must(t, f.WaitPool(ctx, "worker", "updated again", fleet.Updated(1)))
	after, err := f.Render(ctx, "worker", before)
	must(t, err)
	must(t, fleet.Until(ctx, "w0 has its own again", func(ctx context.Context) (bool, string, error) {
		after, err = f.Configuration(ctx, "worker")
		says, _, more := f.Says(ctx, "w0")
		text, _ := w0.Output(ctx, "cat", conf)
		if err == nil {
			err = more
		}
		return says.Current == after && !strings.Contains(text, "mirror"), says.Current + " " + text, err
	}))
	if _, _, exit, err := w0.Exec(ctx, nil, "test", "-e", "/etc/crio/crio.conf.d/01-ctrcfg-pidsLimit"); err != nil || exit == 0 {
		t.Errorf("the limit is still there: %d, %v", exit, err)
	}
}

// cordons is the last drain that the node was asked for, and had.
func cordons(ctx context.Context, t *testing.T, f *fleet.Fleet) string {
	t.Helper()
	text, err := f.Kubectl(ctx, "get", "node", "w0", "-o",
		`jsonpath={.metadata.annotations.machineconfiguration\.openshift\.io/lastAppliedDrain}`)
	must(t, err)
	return text
}
