// SPDX-License-Identifier: Apache-2.0

package containerruntimeconfig

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/pelletier/go-toml/v2"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/controller/source"
)

// What the programs read, by the tables of their manuals. All of them ignore what they don't know, so a key in the wrong
// table has no effect, and nothing says so.
type (
	// crioConf is crio.conf(5), as far as we write it: what is read in one table is not read in another.
	crioConf struct {
		Crio struct {
			Runtime struct {
				LogLevel       string   `toml:"log_level,omitempty"`
				PidsLimit      int64    `toml:"pids_limit,omitempty"`
				LogSizeMax     int64    `toml:"log_size_max,omitempty"`
				DefaultRuntime string   `toml:"default_runtime,omitempty"`
				ArtifactStores []string `toml:"additional_artifact_stores,omitempty"` //nolint:misspell // CRI-O's
			} `toml:"runtime"`
		} `toml:"crio"`
	}
	// storageConf is containers-storage.conf(5).
	storageConf struct {
		Storage struct {
			Driver    string `toml:"driver"`
			RunRoot   string `toml:"runroot"`
			GraphRoot string `toml:"graphroot"`
			Options   struct {
				ImageStores []string `toml:"additionalimagestores"`
				LayerStores []string `toml:"additionallayerstores"`
				Size        string   `toml:"size"` // what was read before the table of overlay
				Overlay     struct {
					Size string `toml:"size"`
				} `toml:"overlay"`
			} `toml:"options"`
		} `toml:"storage"`
	}
	// containerdConf is containerd-config.toml(5), version 2.
	containerdConf struct {
		Version int `toml:"version"`
		Debug   struct {
			Level string `toml:"level"`
		} `toml:"debug"`
	}
)

func TestEachFileHasItsKeysInTheTablesThatAreRead(t *testing.T) {
	all := func(c *mcfgv1.ContainerRuntimeConfiguration) {
		c.PidsLimit, c.LogLevel, c.DefaultRuntime = new(int64(2048)), "debug", "runc"
		c.LogSizeMax, c.OverlaySize = quantity("-1"), quantity("8G")
		c.AdditionalLayerStores = []mcfgv1.AdditionalLayerStore{{Path: "/var/l"}}
		c.AdditionalImageStores = []mcfgv1.AdditionalImageStore{{Path: "/var/i"}}
		c.AdditionalArtifactStores = []mcfgv1.AdditionalArtifactStore{{Path: "/var/a"}}
	}
	level := func(c *mcfgv1.ContainerRuntimeConfiguration) { c.LogLevel = "debug" }
	var crio crioConf
	var storage storageConf
	var containerd containerdConf
	for runtime, set := range map[string]func(*mcfgv1.ContainerRuntimeConfiguration){"crio": all, "containerd": level} {
		p := pool("worker")
		p.Annotations = map[string]string{api.Runtime: runtime}
		out := decide(t, &source.World{Pools: []*mcfgv1.MachineConfigPool{p}}, config("a", 1, "worker", set))
		if why := out.says("a"); why != "" {
			t.Fatal(why)
		}
		for path, text := range out.said() {
			var into any
			switch {
			case strings.Contains(path, "/etc/crio/crio.conf.d/"):
				into = &crio
			case strings.Contains(path, "/etc/containers/storage.conf"):
				into = &storage
			case strings.Contains(path, "/etc/containerd/"):
				into = &containerd
			default:
				t.Errorf("%s: no reader of it is known", path)
				continue
			}
			d := toml.NewDecoder(bytes.NewReader([]byte(text))).DisallowUnknownFields()
			if err := d.Decode(into); err != nil {
				t.Errorf("%s: %v: %s", path, err, text)
			}
		}
	}
	var wantCrio crioConf
	r := &wantCrio.Crio.Runtime
	r.LogLevel, r.PidsLimit, r.LogSizeMax, r.DefaultRuntime = "debug", 2048, -1, "runc"
	r.ArtifactStores = []string{"/var/a"}
	if diff := cmp.Diff(wantCrio, crio); diff != "" {
		t.Errorf("CRI-O reads (-want +got): %s", diff)
	}
	s := storage.Storage
	if s.Driver != "overlay" || s.Options.Overlay.Size != "8G" || len(s.Options.ImageStores) != 1 || len(s.Options.LayerStores) != 1 {
		t.Errorf("containers/storage reads %+v", s)
	}
	if containerd.Version != 2 || containerd.Debug.Level != "debug" {
		t.Errorf("containerd reads %+v", containerd)
	}
}
