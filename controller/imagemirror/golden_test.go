// SPDX-License-Identifier: Apache-2.0

package imagemirror

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/registries"
)

var update = flag.Bool("update", false, "write the files of testdata anew")

// Each file of testdata has objects, four dashes, and the files of the pool worker byte by byte, or what is wrong.
func TestWhatObjectsBecome(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(cases) < 16 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			given, want, found := strings.Cut(string(text), "\n----\n")
			if !found {
				t.Fatal("the file has no four dashes")
			}
			got := becomes(t, given)
			if *update {
				if err := os.WriteFile(path, []byte(given+"\n----\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func becomes(t *testing.T, given string) string {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := configv1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	if err := mcfgv1.Install(scheme); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	p := pool("worker", "worker")
	_, on, _ := strings.Cut(given, "# runtime: ")
	on, _, _ = strings.Cut(on, "\n")
	p.Annotations = map[string]string{api.Runtime: on}
	w := &source.World{Pools: []*mcfgv1.MachineConfigPool{p}}
	var objects []client.Object
	for document := range strings.SplitSeq(given, "\n---\n") {
		o, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if mc, is := o.(*mcfgv1.MachineConfig); is {
			w.Configs = append(w.Configs, mc)
		} else {
			objects = append(objects, o.(client.Object))
		}
	}
	var out bytes.Buffer
	write, _, wrong := Decide(objects, w, "v1")
	for _, p := range wrong {
		how := "refused"
		if p.Beside {
			how = "goes on without"
		}
		fmt.Fprintf(&out, "%s: %s %s: %s\n", how, p.Object.GetName(), p.Pool, strings.ReplaceAll(p.Err.Error(), "\n", "\n    "))
	}
	for _, mc := range write {
		c, err := machineconfig.Parse(mc)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range c.Files {
			fmt.Fprintf(&out, "== %s\n%s", f.Path, f.Contents)
			if f.Path == registries.PolicyPath || filepath.Dir(f.Path) == namespacedDir {
				if _, err := osimage.ParsePolicy(f.Path, f.Contents); err != nil {
					t.Error(err)
				}
			}
			if f.Path == registries.Path || strings.HasSuffix(f.Path, "/hosts.toml") {
				asDocumented(t, f.Path, f.Contents)
			}
		}
	}
	return out.String()
}
