// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/noderefit/noderefit/machineconfig"
)

// The folders of a Directory, as OpenShift's bootstrap server has them.
const (
	poolsDir   = "machine-pools"
	configsDir = "machine-configs"
)

const (
	// settle is how long after a change the files are read: whoever writes several is given the time.
	settle = 200 * time.Millisecond
	// lookAnew is when they are read although nothing was heard: not every file system tells.
	lookAnew = time.Minute
)

// Directory is a Source in files, without a cluster.
type Directory struct {
	dir   string
	log   logr.Logger
	files atomic.Pointer[directoryFiles]
	said  string // the last error in the log
	stale prometheus.Gauge
}

type directoryFiles struct {
	pools   map[string]*mcfgv1.MachineConfigPool
	configs map[string]*mcfgv1.MachineConfig
}

// OpenDirectory reads machine-pools and machine-configs below dir. Errors name the file and the field.
func OpenDirectory(dir string, log logr.Logger) (*Directory, error) {
	d := &Directory{dir: dir, log: log, stale: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "noderefit_server_directory_stale",
		Help: "1 while the files have an error, and what they were before is served.",
	})}
	found, err := d.read()
	if err != nil {
		return nil, err
	}
	d.files.Store(found)
	return d, nil
}

// Describe is prometheus'.
func (d *Directory) Describe(out chan<- *prometheus.Desc) { d.stale.Describe(out) }

// Collect is prometheus'.
func (d *Directory) Collect(out chan<- prometheus.Metric) { d.stale.Collect(out) }

// Pool returns a pool.
func (d *Directory) Pool(_ context.Context, name string) (*mcfgv1.MachineConfigPool, error) {
	if p := d.files.Load().pools[name]; p != nil {
		return p, nil
	}
	return nil, &UnknownPoolError{Pool: name}
}

// Config returns a configuration.
func (d *Directory) Config(_ context.Context, name string) (*mcfgv1.MachineConfig, error) {
	if c := d.files.Load().configs[name]; c != nil {
		return c, nil
	}
	return nil, unavailable{fmt.Errorf("there is no MachineConfig %s in %s", name, filepath.Join(d.dir, configsDir))}
}

func (d *Directory) read() (*directoryFiles, error) {
	pools, _, err := machineconfig.Read(filepath.Join(d.dir, poolsDir))
	if err != nil {
		return nil, err
	}
	configs, _, err := machineconfig.Read(filepath.Join(d.dir, configsDir))
	if err != nil {
		return nil, err
	}
	out := &directoryFiles{map[string]*mcfgv1.MachineConfigPool{}, map[string]*mcfgv1.MachineConfig{}}
	for _, c := range configs.Configs {
		if _, err := machineconfig.Parse(c.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Origin, err)
		}
		out.configs[c.Object.Name] = c.Object
	}
	for _, p := range pools.Pools {
		name, err := choose(p.Object)
		if err != nil {
			return nil, fmt.Errorf("%s: spec.configuration.name: %w", p, err)
		}
		if out.configs[name] == nil {
			return nil, fmt.Errorf("%s: spec.configuration.name: there is no MachineConfig %q in %s", p, name,
				filepath.Join(d.dir, configsDir))
		}
		out.pools[p.Object.Name] = p.Object
	}
	return out, nil
}

// Run reads the files again whenever they change, until ctx ends. What has an error does not replace what had none.
func (d *Directory) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", d.dir, err)
	}
	defer func() { _ = watcher.Close() }()
	due := time.NewTimer(0)
	defer due.Stop()
	for {
		// A folder that was replaced is another; adding what is watched already does nothing.
		for _, name := range []string{"", poolsDir, configsDir} {
			err := watcher.Add(filepath.Join(d.dir, name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("watching %s: %w", filepath.Join(d.dir, name), err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
			due.Reset(settle)
		case err := <-watcher.Errors:
			d.log.Info("watching the files; some changes may be lost", "dir", d.dir, "error", err)
			due.Reset(settle)
		case <-due.C:
			d.reload()
			due.Reset(lookAnew)
		}
	}
}

func (d *Directory) reload() {
	found, err := d.read()
	if err != nil {
		d.stale.Set(1)
		if err.Error() != d.said {
			d.said = err.Error()
			d.log.Error(err, "reading the files again; what they were is served", "dir", d.dir)
		}
		return
	}
	if d.said != "" {
		d.log.Info("the files are in order again", "dir", d.dir)
	}
	d.said = ""
	d.stale.Set(0)
	d.files.Store(found)
}
