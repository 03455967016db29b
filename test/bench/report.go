// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

// report prints figures as they come, and keeps what the end says.
type report struct {
	out     io.Writer
	targets []target
	rows    []row
}

// target is one thing that was to be reached.
type target struct {
	name, found string
	reached     bool
	counts      bool // that this one is missed is a failure: it does not depend on the machine
}

type row struct {
	name string
	*result
}

// figure prints one line that scripts read. A name, once given, stays.
func (r *report) figure(name string, value float64, unit string) {
	text := strconv.FormatFloat(value, 'f', -1, 64)
	if value != float64(int64(value)) {
		text = strconv.FormatFloat(value, 'f', 2, 64)
	}
	fmt.Fprintln(r.out, "bench:", name, text, unit)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// compare prints two times for the same work, and how many times longer the naive one took.
func (r *report) compare(name string, ours, naive time.Duration) {
	r.figure(name, milliseconds(ours), "ms")
	r.figure(name+".naive", milliseconds(naive), "ms")
	r.figure(name+".ratio", float64(naive)/float64(ours), "times")
}

func (r *report) note(reached bool, name, found string, counts bool) {
	r.targets = append(r.targets, target{name, found, reached, counts})
}

// target notes a time, which depends on the machine.
func (r *report) target(name string, found, limit time.Duration) {
	r.note(found <= limit, name, fmt.Sprintf("%.1f ms of %.0f", milliseconds(found), milliseconds(limit)), false)
}

// step prints what is known of a step, and holds it against its limits.
func (r *report) step(name string, res *result) {
	r.rows = append(r.rows, row{name, res})
	if len(res.costs) > 0 {
		m := res.median()
		r.figure(name+".wall", milliseconds(m.Wall), "ms")
		r.figure(name+".cpu", milliseconds(m.CPU), "ms")
		r.figure(name+".hostcpu", milliseconds(m.Host), "ms")
		r.figure(name+".rss", float64(m.RSS)/1e6, "MB")
	}
	c := res.counts
	for _, f := range []struct {
		name  string
		count int
	}{
		{"fsyncs", c.Fsyncs}, {"syncfs", c.SyncFS}, {"ownsyncs", c.Own}, {"renames", c.Renames}, {"opens", c.Opens},
		{"writes", c.Writes}, {"forks", c.Forks}, {"reloads", c.Reloads},
	} {
		r.figure(name+"."+f.name, float64(f.count), f.name)
	}
	for _, ch := range judge(name, c) {
		r.note(ch.reached, name, ch.what, true)
	}
}

// upstream is what the machine-config-operator's own daemon was measured at, for people. Its figures are of another
// machine, so they are no bench lines: the ratios to the naive side of the same run are what holds here.
const upstream = `
Upstream's daemon (openshift/machine-config-operator 7ff337a4f, once-from --skip-reboot, unmodified, n=7) with the same
workload on a Debian container with systemd 257, two cores of a Xeon, 2026-11-20. No rpm on the host, which favours it;
with rpm 100 forks more on each apply but the first:
  first apply             1.40 s   238 fsyncs  30 forks   7 daemon-reloads  59 MiB
  nothing changed         3.36 s   138 fsyncs  45 forks  22 daemon-reloads
  one file changed        3.40 s   138 fsyncs  45 forks  22 daemon-reloads   (in a cluster 0.55 s, 102 fsyncs)
  one unit changed        3.39 s   138 fsyncs  45 forks  22 daemon-reloads   (in a cluster 0.83 s, 104 fsyncs)
  verify                  0.17 s   18 forks, without owners, masks and keys
  diff and reconcile      382 ms
  merge of 50 and 200     74.5 and 706 ms
  binary                  112.6 MB
`

// finish prints the table and every target, and says whether all that do not depend on the machine were reached.
func (r *report) finish() bool {
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\nstep\twall ms\tCPU ms\thost CPU ms\tRSS MB\t"+
		"fsync\tsyncfs\town\trename\twrites\tforks\treloads\t  programs")
	for _, row := range r.rows {
		c, times := row.counts, "-\t-\t-\t-"
		if len(row.costs) > 0 {
			m := row.median()
			times = fmt.Sprintf("%.0f\t%.0f\t%.0f\t%.0f", milliseconds(m.Wall), milliseconds(m.CPU), milliseconds(m.Host),
				float64(m.RSS)/1e6)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t  %s\n",
			row.name, times, c.Fsyncs, c.SyncFS, c.Own, c.Renames, c.Writes, c.Forks, c.Reloads, c.programs())
	}
	w.Flush()
	fmt.Fprint(r.out, upstream, "\n")
	ok := true
	for _, t := range r.targets {
		word := "reached"
		switch {
		case !t.reached && t.counts:
			word, ok = "MISSED", false
		case !t.reached:
			word = "not reached here"
		}
		fmt.Fprintf(r.out, "target: %s: %s: %s\n", t.name, word, t.found)
	}
	return ok
}
