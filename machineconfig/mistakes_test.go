// SPDX-License-Identifier: Apache-2.0

package machineconfig

import (
	"fmt"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestADecimalModeIsToldFromAnOctalOne(t *testing.T) {
	t.Parallel()
	for _, meant := range usualModes {
		if text := octalMeant(meant); text != "" {
			t.Errorf("%#o: %s", meant, text)
		}
		var decimal int
		if _, err := fmt.Sscanf(fmt.Sprintf("%o", meant), "%d", &decimal); err != nil {
			t.Fatal(err)
		}
		if text := octalMeant(decimal); !strings.Contains(text, fmt.Sprintf("for %#o write %d,", meant, meant)) {
			t.Errorf("%d: %q", decimal, text)
		}
	}
	for _, mode := range []int{0, 0o604, 0o20, 1, 999, -1} {
		if text := octalMeant(mode); text != "" {
			t.Errorf("%d: %s", mode, text)
		}
	}
}

func TestANameThatIsNearlyRightIsFoundAndNoOther(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"MachineConfg": "MachineConfig", "machineconfig": "MachineConfig", "MachineConfigs": "MachineConfig",
		"MachineConfigPol": "MachineConfigPool", "MachineConfigPools": "MachineConfigPool", "MachinConfigPool": "MachineConfigPool",
		"MachineConfigNode": "", "MachineConfiguration": "", "ControllerConfig": "", "KubeletConfig": "", "Secret": "",
	} {
		if got := Kinds(nil).mistaken(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// An Ignition config of any version whose file would be empty for a field that is none is refused; any other such field
// is a warning, as Ignition has it.
func TestAFieldThatDoesNotExistNeverMakesAnEmptyFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ version, storage, says string }{
		"Butane's":          {"3.5.0", `{"files":[{"path":"/a","contents":{"inline":"x"}}]}`, "files[0].contents.inline (/a): inline is a field of Butane"},
		"Butane's in 3.0":   {"3.0.0", `{"files":[{"path":"/a","contents":{"inline":"x"}}]}`, "files[0].contents.inline (/a): inline is a field of Butane"},
		"Butane's in 2.2":   {"2.2.0", `{"files":[{"path":"/a","filesystem":"root","mode":420,"contents":{"inline":"x"}}]}`, "files[0].contents.inline (/a): inline is a field of Butane"},
		"misspelt":          {"3.5.0", `{"files":[{"path":"/a","contents":{"sorce":"data:,x"}}]}`, "files[0].contents.sorce (/a): there is no such field, so"},
		"what is appended":  {"3.5.0", `{"files":[{"path":"/a","append":[{"inline":"x"}]}]}`, "files[0].append[0].inline (/a): inline"},
		"beside the source": {"3.5.0", `{"files":[{"path":"/a","contents":{"source":"data:,x","inline":"x"}}]}`, ""},
		"an empty source":   {"3.5.0", `{"files":[{"path":"/a","contents":{"source":"","inline":"x"}}]}`, ""},
		"the same in 2.2":   {"2.2.0", `{"files":[{"path":"/a","filesystem":"root","mode":420,"contents":{"source":"","inline":"x"}}]}`, ""},
		"elsewhere":         {"3.5.0", `{"file":[{"path":"/a"}]}`, ""},
	} {
		d := &Document{Object: newObject("a")}
		d.Object.Spec.Config.Raw = []byte(`{"ignition":{"version":"` + test.version + `"},"storage":` + test.storage + `}`)
		_, warnings, err := d.parse(offered)
		// What a host or a cluster has already stays readable.
		if _, err := Parse(d.Object); err != nil {
			t.Errorf("%s, existing: %v", name, err)
		}
		if _, err := Serve(d.Object); err != nil {
			t.Errorf("%s, served: %v", name, err)
		}
		if _, old, err := d.parse(existing); test.says != "" && (err != nil || len(old) != 1 || !strings.Contains(old[0], test.says)) {
			t.Errorf("%s, existing: %q, %v; want a warning of %q", name, old, err, test.says)
		}
		if _, _, err := Merge("p", []*Document{d}, nil); (err != nil) != (test.says != "") {
			t.Errorf("%s, rendered for a pool: %v", name, err)
		}
		switch {
		case test.says == "" && (err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "there is no such field")):
			t.Errorf("%s: %q, %v", name, warnings, err)
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
			t.Errorf("%s: %v; want %q", name, err, test.says)
		}
	}
}

// A custom pool may have nothing of its own yet, and no object in the files.
func TestAPoolThatNobodyNamesIsMisspeltOrDoubted(t *testing.T) {
	t.Parallel()
	document := func(role string) *Document {
		d := &Document{Object: newObject("50-" + role)}
		d.Object.Labels = map[string]string{roleLabel: role}
		return d
	}
	docs := &Documents{Configs: []*Document{document("worker"), document("infra"), document("worker-a"), document("cpu")}}
	const unheard = "there is neither a MachineConfigPool of that name nor a MachineConfig with that role; pools are: none; roles are: cpu, infra, worker, worker-a"
	for pool, want := range map[string]string{
		"infra": "", "worker": "", "master": "no document matches",
		"wroker": "did you mean worker?", "workr": "did you mean worker?", "workers": "did you mean worker?",
		"infar": "did you mean infra?", "wroker-a": "did you mean worker-a?", "mastre": "did you mean master?",
		"worker2": "doubt", "worker-2": "doubt", "worker-b": "doubt", "worker-a2": "doubt", "gpu": "doubt", "work": "did you mean worker?",
		"storage": "doubt",
	} {
		mc, warnings, err := Render(pool, docs, nil)
		said := strings.Join(warnings, "\n")
		switch {
		case want == "" || want == "doubt":
			if want == "doubt" {
				want = "pool " + pool + ": " + unheard + "; it gets what the role worker gets"
			}
			if err != nil || said != want || !strings.HasPrefix(mc.Name, "rendered-"+pool+"-") {
				t.Errorf("%s: %q, %v; want %q", pool, warnings, err, want)
			}
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v; want %q", pool, err, want)
		case pool != "master" && !strings.Contains(err.Error(), unheard):
			t.Errorf("%s: %v; want what there is", pool, err)
		}
	}
	meant := &Documents{Configs: docs.Configs, Pools: []*PoolDocument{{Object: &mcfgv1.MachineConfigPool{
		ObjectMeta: metav1.ObjectMeta{Name: "wroker"}, Spec: mcfgv1.MachineConfigPoolSpec{MachineConfigSelector: RoleSelector("wroker")},
	}}}}
	if _, warnings, err := Render("wroker", meant, nil); err != nil || len(warnings) > 0 {
		t.Errorf("a pool that an object says is meant: %q, %v", warnings, err)
	}
}
