// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// tree makes a host's file system: paths with contents, and links where the content begins with "-> ".
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, link := strings.CutPrefix(content, "-> "); link {
			err = os.Symlink(to, at)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestTheProbeReportsWhatManagesAHost(t *testing.T) {
	t.Parallel()
	const wants, unit = "etc/systemd/system/multi-user.target.wants/", "usr/lib/systemd/system/"
	coreos := func(more map[string]string) map[string]string {
		files := map[string]string{
			"run/ostree-booted": "", "run/systemd/system/.x": "", "usr/bin/rpm-ostree": "",
			unit + "zincati.service": "", wants + "zincati.service": "-> /" + unit + "zincati.service",
		}
		maps.Copy(files, more)
		return files
	}
	for name, c := range map[string]struct {
		files map[string]string
		says  string
		want  []string
	}{
		"an empty host": {nil, "no systemd", nil},
		"Debian": {map[string]string{
			"run/systemd/system/.x": "", "lib/systemd/system/unattended-upgrades.service": "",
			wants + "unattended-upgrades.service": "-> /lib/systemd/system/unattended-upgrades.service",
		}, "no ostree", []string{"unattended-upgrades.service"}},
		"Fedora CoreOS":                            {coreos(nil), "rpm-ostree: ", []string{api.UnitZincati}},
		"zincati is masked":                        {coreos(map[string]string{"etc/systemd/system/zincati.service": "-> /dev/null"}), "rpm-ostree: ", nil},
		"zincati is replaced by a link of its own": {coreos(map[string]string{"etc/systemd/system/zincati.service": "-> /opt/zincati.service"}), "rpm-ostree: ", []string{api.UnitZincati}},
		"a timer without a policy": {coreos(map[string]string{
			wants + "zincati.service": "", wants + "rpm-ostreed-automatic.timer": "", unit + "rpm-ostreed-automatic.timer": "",
			"etc/rpm-ostreed.conf":               "[Daemon]\n#AutomaticUpdatePolicy=apply\n",
			"etc/systemd/system/zincati.service": "-> /dev/null",
		}), "rpm-ostree: ", nil},
		"a timer that stages": {coreos(map[string]string{
			"usr/lib/systemd/system/timers.target.wants/rpm-ostreed-automatic.timer": "",
			"etc/systemd/system/zincati.service":                                     "-> /dev/null",
			"etc/rpm-ostreed.conf":                                                   "[Experimental]\nAutomaticUpdatePolicy=none\n[Daemon]\nAutomaticUpdatePolicy=stage\n",
		}), "rpm-ostree: ", []string{api.UnitRPMOSTree}},
		"bootc": {map[string]string{
			"run/ostree-booted": "", "run/systemd/system/.x": "", "usr/bin/bootc": "", "usr/bin/podman": "",
			unit + api.UnitBootc: "", "etc/systemd/system/timers.target.wants/" + api.UnitBootc: "-> /" + unit + api.UnitBootc,
		}, "bootc: ", []string{api.UnitBootc}},
		"ostree alone": {map[string]string{"run/ostree-booted": "", "run/systemd/system/.x": ""}, "ostree alone", nil},
		"strange words": {map[string]string{"run/systemd/system/.x": "",
			"etc/rpm-ostreed.conf": "[Daemon]\nAutomaticUpdatePolicy=$(touch /tmp/no)\n\\"}, "no ostree", nil},
	} {
		root := tree(t, c.files)
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-eu", "-c", probeScript, "probe", root).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		h, err := readHost(string(out))
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		if got := h.updaters(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v\n%s", name, got, c.want, out)
		}
		if got := (probed{host: h}).finding("n").Says; !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", name, got, c.says)
		}
	}
}

func TestHalfOfAProbesReportIsRefused(t *testing.T) {
	t.Parallel()
	for _, report := range []string{"", "ostree=yes\n", "end=no", "unit/zincati.service"} {
		if h, err := readHost(report); err == nil {
			t.Errorf("%q: %v", report, h)
		}
	}
}

func TestTheMachineConfigMasksWhatWasFound(t *testing.T) {
	t.Parallel()
	f := fresh(t)
	f.nodes.is[0] = testNode("a", "Fedora CoreOS 43")
	f.nodes.is[1] = testNode("b", "Fedora CoreOS 43")
	f.nodes.is[1].Labels[api.NodeRole+"control-plane"] = ""
	f.probes = map[string]probed{"b": {host: host{units: map[string]string{
		api.UnitZincati: "installed", api.UnitBootc: "enabled", api.UnitRPMOSTree: "enabled", "x.timer": "enabled"}}}}
	want := map[string][]string{
		"50-worker-mask-updaters": {api.UnitZincati},
		"50-master-mask-updaters": {api.UnitBootc, "x.timer"},
	}
	documents := strings.Split(strings.TrimPrefix(maskManifest(f), "---\n"), "---\n")
	if len(documents) != len(want) {
		t.Fatalf("%d documents, want %d: %s", len(documents), len(want), documents)
	}
	for _, text := range documents {
		var mc mcfgv1.MachineConfig
		if err := yaml.UnmarshalStrict([]byte(text), &mc); err != nil {
			t.Fatal(err)
		}
		cfg, err := machineconfig.Parse(&mc)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		var masked []string
		for _, u := range cfg.Units {
			if u.Mask != nil && *u.Mask {
				masked = append(masked, u.Name)
			}
		}
		if !slices.Equal(masked, want[mc.Name]) || "50-"+mc.Labels[api.Role]+"-mask-updaters" != mc.Name {
			t.Errorf("%s masks %v, want %v", mc.Name, masked, want[mc.Name])
		}
	}
	if f.nodes.is = nil; maskManifest(f) != "" {
		t.Error("without nodes something is masked")
	}
}

func TestASampleHasOneNodeOfEachKind(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{testNode("a", "x"), testNode("b", "x"), testNode("c", "y"), testNode("d", "x"),
		testNode("e", "z"), testNode("f", "w")}
	nodes[3].Status.NodeInfo.Architecture = "arm64"
	nodes[4].Labels[corev1.LabelOSStable] = "windows"
	nodes[5].Status.Conditions[0].Status = corev1.ConditionFalse
	if names, unknown := sample(nodes, nil); !slices.Equal(names, []string{"a", "c", "d"}) || len(unknown) > 0 {
		t.Errorf("%v, %v", names, unknown)
	}
	if names, unknown := sample(nodes, []string{"f", "g"}); !slices.Equal(names,
		[]string{"f"}) || !slices.Equal(unknown, []string{"g"}) {
		t.Errorf("%v, %v", names, unknown)
	}
}
