// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
)

// The folders of a Directory, as in OpenShift's bootstrap server.
const (
	poolsDir   = "machine-pools"
	configsDir = "machine-configs"
)

const (
	// settle is how long after a change the files are read, so that several files can be written.
	settle = 200 * time.Millisecond
	// lookAnew is how often the files are read without a reported change, since some file systems do not report changes.
	lookAnew = time.Minute
)

// Directory is a Source in files, without a cluster. A file with an error affects only the pools that need it.
type Directory struct {
	dir   string
	log   logr.Logger
	files atomic.Pointer[directoryFiles]
	said  string // the last errors in the log
	stale prometheus.Gauge
}

// served is a pool with the configuration that its new machines get, or with the error why they get no configuration.
type served struct {
	pool    *mcfgv1.MachineConfigPool
	config  *mcfgv1.MachineConfig
	version string
	err     error
}

type directoryFiles struct {
	pools  map[string]served
	unread error   // the errors of files that may have more pools
	wrong  []error // all errors
}

// OpenDirectory reads machine-pools and machine-configs below dir. Both must exist. Errors of their files are logged,
// with the file and the field.
func OpenDirectory(dir string, log logr.Logger) (*Directory, error) {
	d := &Directory{dir: dir, log: log, stale: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "noderefit_server_directory_stale",
		Help: "1 while the files have an error; what they were before is served where that was good.",
	})}
	for _, name := range []string{poolsDir, configsDir} {
		if _, err := os.ReadDir(filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("reading what is to be served: %w", err)
		}
	}
	d.files.Store(&directoryFiles{})
	d.reload()
	return d, nil
}

// Describe implements prometheus.Collector.
func (d *Directory) Describe(out chan<- *prometheus.Desc) { d.stale.Describe(out) }

// Collect implements prometheus.Collector.
func (d *Directory) Collect(out chan<- prometheus.Metric) { d.stale.Collect(out) }

// Pool returns a pool.
func (d *Directory) Pool(_ context.Context, name string) (*mcfgv1.MachineConfigPool, error) {
	files := d.files.Load()
	p, ok := files.pools[name]
	switch {
	case ok:
		return p.pool, p.err
	case files.unread != nil:
		return nil, behind{fmt.Errorf("there is no MachineConfigPool %q: %w", name, files.unread)}
	}
	return nil, &unknownPoolError{Pool: name}
}

// Config returns the configuration of a pool. A pool that is served as before has its former configuration, while
// another pool may have the present one of that name.
func (d *Directory) Config(
	_ context.Context, pool *mcfgv1.MachineConfigPool, name string,
) (*mcfgv1.MachineConfig, string, error) {
	p, err := d.served(pool, name)
	return p.config, p.version, err
}

// Version returns a digest of what Config returns.
func (d *Directory) Version(_ context.Context, pool *mcfgv1.MachineConfigPool, name string) (string, error) {
	p, err := d.served(pool, name)
	return p.version, err
}

func (d *Directory) served(pool *mcfgv1.MachineConfigPool, name string) (served, error) {
	if p := d.files.Load().pools[pool.Name]; p.err == nil && p.config != nil && p.config.Name == name {
		return p, nil
	}
	return served{}, unavailable{fmt.Errorf("there is no MachineConfig %s in %s", name, filepath.Join(d.dir, configsDir))}
}

// versionOf returns a digest of everything in a configuration that is served.
func versionOf(mc *mcfgv1.MachineConfig) (string, error) {
	text, err := json.Marshal(mc.Spec)
	if err != nil {
		return "", fmt.Errorf("MachineConfig/%s: %w", mc.Name, err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(text)), nil
}

// documents reads each file of a folder by itself. wrong has the errors of files that can't be read.
func documents(dir string) (docs []*machineconfig.Documents, wrong []error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []error{fmt.Errorf("reading documents: %w", err)}
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json", ".bu", ".ign":
		default:
			continue
		}
		found, _, err := machineconfig.Read(butane.Translate, filepath.Join(dir, e.Name()))
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		docs = append(docs, found)
	}
	return docs, wrong
}

func (d *Directory) read() *directoryFiles {
	at := filepath.Join(d.dir, configsDir)
	out, configs := &directoryFiles{pools: map[string]served{}}, map[string]served{}
	found, wrong := documents(at)
	out.wrong = wrong
	missing := errors.Join(wrong...)
	for _, docs := range found {
		for _, c := range docs.Configs {
			this := served{config: c.Object}
			if _, again := configs[c.Object.Name]; again {
				this.err = behind{fmt.Errorf("%s: metadata.name: another document has the same name", c)}
			} else if _, err := machineconfig.Parse(c.Object); err != nil {
				this.err = behind{fmt.Errorf("%s: %w", c.Origin, err)}
			} else if this.version, err = versionOf(c.Object); err != nil {
				this.err = behind{fmt.Errorf("%s: %w", c.Origin, err)}
			}
			configs[c.Object.Name] = this
		}
	}
	config := func(p *machineconfig.PoolDocument) served {
		const field = "spec.configuration.name"
		name, err := choose(p.Object)
		if err != nil {
			return served{err: unavailable{fmt.Errorf("%s: %s: %w", p, field, err)}}
		}
		c, ok := configs[name]
		switch {
		case !ok && missing != nil:
			c.err = behind{fmt.Errorf("%s: %s: there is no MachineConfig %q: %w", p, field, name, missing)}
		case !ok:
			c.err = unavailable{fmt.Errorf("%s: %s: there is no MachineConfig %q in %s", p, field, name, at)}
		}
		c.pool = p.Object
		return c
	}
	found, wrong = documents(filepath.Join(d.dir, poolsDir))
	out.wrong, out.unread = append(out.wrong, wrong...), errors.Join(wrong...)
	for _, docs := range found {
		for _, p := range docs.Pools {
			this := config(p)
			if _, again := out.pools[p.Object.Name]; again {
				this.err = behind{fmt.Errorf("%s: metadata.name: another document has the same name", p)}
			}
			if this.err != nil {
				out.wrong = append(out.wrong, this.err)
			}
			out.pools[p.Object.Name] = this
		}
	}
	return out
}

// Run reads the files again whenever they change, until ctx ends. Where the kernel does not report changes, Run reads
// now and then. A pool with an error does not replace a former one without an error.
func (d *Directory) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		d.log.Info("watching the files; they are read now and then", "dir", d.dir, "every", lookAnew.String(),
			"error", err.Error())
		watcher = &fsnotify.Watcher{} // nothing ever comes from its channels
	} else {
		defer func() { _ = watcher.Close() }()
	}
	due := time.NewTimer(0)
	defer due.Stop()
	blind := ""
	for {
		if err == nil {
			blind = d.watch(watcher, blind)
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

// watch watches the folders, and returns the errors of those that can't be watched. blind has the errors that were
// logged last.
func (d *Directory) watch(watcher *fsnotify.Watcher, blind string) string {
	var wrong []error
	// A folder that was replaced has to be added again. To add a watched folder does nothing.
	for _, name := range []string{"", poolsDir, configsDir} {
		if err := watcher.Add(filepath.Join(d.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			wrong = append(wrong, fmt.Errorf("watching %s: %w", filepath.Join(d.dir, name), err))
		}
	}
	now := ""
	if err := errors.Join(wrong...); err != nil {
		now = message.OneLine(err.Error())
	}
	if now != "" && now != blind {
		d.log.Info("not all files are watched; they are read now and then", "dir", d.dir, "every", lookAnew.String(),
			"error", now)
	}
	return now
}

func (d *Directory) reload() {
	before, now := d.files.Load(), d.read()
	var lacking, asBefore []string
	for name, p := range now.pools {
		if was, ok := before.pools[name]; p.err != nil && (!ok || was.err != nil) {
			lacking = append(lacking, name)
		}
	}
	for name, was := range before.pools {
		p, ok := now.pools[name]
		if was.err == nil && (ok && p.err != nil || !ok && now.unread != nil) {
			now.pools[name] = was
			asBefore = append(asBefore, name)
		}
	}
	d.files.Store(now)
	text := ""
	if err := errors.Join(now.wrong...); err != nil {
		text = message.OneLine(err.Error())
	}
	switch {
	case text == "" && d.said != "":
		d.log.Info("the files are in order again", "dir", d.dir)
	case text != "" && text != d.said:
		slices.Sort(lacking)
		slices.Sort(asBefore)
		d.log.Error(errors.New(text), "reading the files; the other pools are served", "dir", d.dir, "notServed", lacking,
			"servedAsBefore", asBefore)
	}
	d.said = text
	d.stale.Set(float64(min(len(now.wrong), 1)))
}
