// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/message"
)

// configsDir is the folder that has no pools, as in OpenShift's bootstrap server.
const configsDir = "machine-configs"

const (
	// settle is how long after a change the files are read, so that several files can be written.
	settle = 200 * time.Millisecond
	// lookAnew is how often the files are read without a reported change, since some file systems do not report changes.
	lookAnew = time.Minute
)

// Renderer makes of documents what a cluster would make of them.
type Renderer interface {
	// Read reads files.
	Read(paths ...string) (*machineconfig.Documents, []string, error)
	// Render renders pools. Each has a configuration or an error, by its name. The warnings are about what the documents
	// leave open.
	Render(docs *machineconfig.Documents, pools []string) (map[string]*mcfgv1.MachineConfig, map[string]error, []string)
}

// Directory is a Source in files, without a cluster. A pool that names its configuration is served that one. Another
// pool is rendered. A file with an error affects only the pools that need it.
type Directory struct {
	dir      string
	renderer Renderer
	log      logr.Logger
	files    atomic.Pointer[directoryFiles]
	said     string // the last errors in the log
	doubt    string // the last warnings in the log
	stale    prometheus.Gauge
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
	// warnings are about what the documents leave open.
	warnings []string
}

// OpenDirectory reads the documents below dir, of which there has to be one at least. Errors of the files are logged,
// with the file and the field.
func OpenDirectory(dir string, renderer Renderer, log logr.Logger) (*Directory, error) {
	d := &Directory{dir: dir, renderer: renderer, log: log, stale: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "noderefit_server_directory_stale",
		Help: "1 while the files have an error; what they were before is served where that was good.",
	})}
	found, err := walk(dir)
	if err == nil && len(found.files) == 0 {
		err = fmt.Errorf("%s has no document, a file that ends with .yaml, .yml, .json, .bu or .ign", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what is to be served: %w", err)
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
	return served{}, unavailable{fmt.Errorf("there is no MachineConfig %s in %s", name, d.dir)}
}

// versionOf returns a digest of everything in a configuration that is served.
func versionOf(mc *mcfgv1.MachineConfig) (string, error) {
	text, err := json.Marshal(mc.Spec)
	if err != nil {
		return "", fmt.Errorf("MachineConfig/%s: %w", mc.Name, err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(text)), nil
}

// tree is what a directory has at any depth, without what is hidden: a mounted ConfigMap keeps its own versions there.
// Links to folders are followed, as in a mounted ConfigMap.
type tree struct {
	files, folders []string
	// wrong has the errors of what can't be looked at, by the first part of its path below the directory.
	wrong map[string]error
}

func walk(dir string) (*tree, error) {
	t := &tree{wrong: map[string]error{}}
	if err := t.add(dir, dir, map[string]bool{}); err != nil {
		return nil, fmt.Errorf("reading documents: %w", err)
	}
	return t, nil
}

// add adds a folder. seen has the folders that were added, without links.
func (t *tree) add(dir, folder string, seen map[string]bool) error {
	real, err := filepath.EvalSymlinks(folder)
	if err != nil || seen[real] {
		return err
	}
	seen[real] = true
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	t.folders = append(t.folders, folder)
	for _, e := range entries {
		at := filepath.Join(folder, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it went meanwhile, or leads nowhere
		case err == nil && info.IsDir():
			err = t.add(dir, at, seen)
		case err == nil && info.Mode().IsRegular() && suffixes[filepath.Ext(at)]:
			t.files = append(t.files, at)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.folders = append(t.folders, at)
			part := firstPart(dir, at)
			t.wrong[part] = errors.Join(t.wrong[part], fmt.Errorf("reading documents: %w", err))
		}
	}
	return nil
}

// suffixes are the endings of files with documents.
var suffixes = map[string]bool{".yaml": true, ".yml": true, ".json": true, ".bu": true, ".ign": true}

// firstPart returns the first part of a path below a directory.
func firstPart(dir, at string) string {
	below, err := filepath.Rel(dir, at)
	if err != nil {
		return ""
	}
	part, _, _ := strings.Cut(below, string(filepath.Separator))
	return part
}

// documents reads each file of the directory by itself. wrong has the errors of what can't be read, by the first part
// of its path.
func (d *Directory) documents() (docs *machineconfig.Documents, wrong map[string]error) {
	docs = &machineconfig.Documents{}
	found, err := walk(d.dir)
	if err != nil {
		return docs, map[string]error{"": err}
	}
	for _, file := range found.files {
		read, _, err := d.renderer.Read(file)
		if err != nil {
			part := firstPart(d.dir, file)
			found.wrong[part] = errors.Join(found.wrong[part], err)
			continue
		}
		docs.Configs = append(docs.Configs, read.Configs...)
		docs.Pools = append(docs.Pools, read.Pools...)
		docs.Others = append(docs.Others, read.Others...)
	}
	return docs, found.wrong
}

// joined returns the errors in the order of their keys, without those of one key.
func joined(wrong map[string]error, without string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(wrong)) {
		if key != without {
			errs = append(errs, wrong[key])
		}
	}
	return errors.Join(errs...)
}

func (d *Directory) read() *directoryFiles {
	docs, wrong := d.documents()
	out := &directoryFiles{pools: map[string]served{}, unread: joined(wrong, configsDir)}
	missing := joined(wrong, "")
	if wrong[""] != nil {
		missing = errors.Join(wrong[""], missing)
	}
	if missing != nil {
		out.wrong = append(out.wrong, missing)
	}
	if len(docs.Pools) == 0 && out.unread == nil {
		out.unread = fmt.Errorf("there is no MachineConfigPool in %s", d.dir)
		out.wrong = append(out.wrong, out.unread)
	}
	configs := chosen(docs.Configs)
	rendered := d.rendered(docs, missing, out)
	for _, p := range docs.Pools {
		this, ok := rendered[p.Object.Name]
		if !ok {
			this = d.config(p, configs, missing)
		}
		if _, again := out.pools[p.Object.Name]; again {
			this.err = behind{fmt.Errorf("%s: metadata.name: another document has the same name", p)}
		}
		if this.err != nil && !slices.ContainsFunc(out.wrong, func(err error) bool { return errors.Is(this.err, err) }) {
			out.wrong = append(out.wrong, this.err)
		}
		out.pools[p.Object.Name] = this
	}
	return out
}

// chosen returns the MachineConfigs that a pool may name, by name.
func chosen(docs []*machineconfig.Document) map[string]served {
	configs := map[string]served{}
	for _, c := range docs {
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
	return configs
}

// config returns a pool with the configuration that it names.
func (d *Directory) config(p *machineconfig.PoolDocument, configs map[string]served, missing error) served {
	const field = "spec.configuration.name"
	name, err := choose(p.Object)
	if err != nil {
		return served{pool: p.Object, err: unavailable{fmt.Errorf("%s: %s: %w", p, field, err)}}
	}
	c, ok := configs[name]
	switch {
	case !ok && missing != nil:
		c.err = behind{fmt.Errorf("%s: %s: there is no MachineConfig %q: %w", p, field, name, missing)}
	case !ok:
		c.err = unavailable{fmt.Errorf("%s: %s: there is no MachineConfig %q in %s; without the field the pool is rendered "+
			"from the documents", p, field, name, d.dir)}
	}
	c.pool = p.Object
	return c
}

// rendered returns the pools that name no configuration, with the one that they are rendered to. None is rendered while
// a document can't be read, or is there twice: it may be one of theirs.
func (d *Directory) rendered(docs *machineconfig.Documents, unread error, out *directoryFiles) map[string]served {
	pools := map[string]served{}
	for _, p := range docs.Pools {
		if p.Object.Spec.Configuration.Name == "" && p.Object.Status.Configuration.Name == "" {
			pools[p.Object.Name] = served{pool: p.Object}
		}
	}
	if len(pools) == 0 {
		return pools
	}
	if err := errors.Join(append(docs.Again(), unread)...); err != nil {
		for name, p := range pools {
			p.err = behind{fmt.Errorf("MachineConfigPool/%s is not rendered: %w", name, err)}
			pools[name] = p
		}
		return pools
	}
	configs, wrong, warnings := d.renderer.Render(docs, slices.Sorted(maps.Keys(pools)))
	out.warnings = warnings
	for name, p := range pools {
		if p.err = wrong[name]; p.err == nil {
			p.config = configs[name]
			p.version, p.err = versionOf(p.config)
		}
		if p.err != nil {
			p.err = behind{fmt.Errorf("MachineConfigPool/%s is not rendered: %w", name, p.err)}
		} else {
			p.pool = p.pool.DeepCopy()
			p.pool.Spec.Configuration.Name = p.config.Name
		}
		pools[name] = p
	}
	return pools
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
	folders := []string{d.dir}
	if found, err := walk(d.dir); err == nil {
		folders = found.folders
	}
	for _, folder := range folders {
		if err := watcher.Add(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
			wrong = append(wrong, fmt.Errorf("watching %s: %w", folder, err))
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
	doubt := message.OneLine(strings.Join(now.warnings, "\n"))
	if doubt != "" && doubt != d.doubt {
		d.log.Info("the documents leave something open", "dir", d.dir, "warnings", doubt)
	}
	d.doubt = doubt
	d.stale.Set(float64(min(len(now.wrong), 1)))
}
