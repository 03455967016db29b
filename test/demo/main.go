// SPDX-License-Identifier: Apache-2.0

// Command demo shows, on this machine and with no cluster needed beforehand, what happens to nodes that get a new
// configuration: a good one, and a bad one.
//
// It has three parts: a directory (seconds, no root), one real ostree host (test/lab), and a cluster whose nodes are
// such hosts (test/lab/fleet), driven by the commands that people type. The control plane of the third part is compiled
// while the first two are shown. Without root the demo shows the directory, and says what that leaves out.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

type options struct {
	bin   string // the directory of the built binaries
	parts string // names of the parts to show, separated by commas
	shell bool   // end with a shell on what was made
}

func main() {
	var o options
	only := func(part string) func(string) error {
		return func(string) error {
			o.parts = strings.TrimPrefix(o.parts+","+part, ",")
			return nil
		}
	}
	flag.StringVar(&o.bin, "bin", "", "directory with the binaries (default: bin of the repository)")
	for _, p := range parts {
		flag.BoolFunc(p.name, "show "+p.title+" alone: "+p.takes, only(p.name))
	}
	flag.BoolVar(&o.shell, "shell", false, "end with a shell on the last cluster or host, and clean up when it exits")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "error: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, o)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "\nInterrupted. The demo has removed what it had made.")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}

// part is a part of the demo.
type part struct {
	name, title, takes string
	acts               int
	lab                bool // the part needs a machine that can run hosts
	run                func(*demo, context.Context) error
}

var parts = []part{
	{"tree", "a directory", "3 seconds, without root", 7, false, (*demo).onTree},
	{"host", "one host from within", "30 seconds, as root", 7, true, (*demo).onHost},
	{"pool", "a pool of nodes in a cluster", "a minute or two, as root", 6, true, (*demo).onFleet},
}

// chosen returns the parts of these names, all where there is no name.
func chosen(names string) []part {
	if names == "" {
		return parts
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool {
		return !slices.Contains(strings.Split(names, ","), p.name)
	})
}

// demo is what the parts have in common.
type demo struct {
	*show
	options
	began   time.Time
	repo    string // commands are typed here
	work    string // documents and results of one part; removed at its end
	env     []string
	last    bool // no part follows
	several bool // parts are shown
	missing error
	kubebox *background[string]       // nil where no part needs a control plane
	fleet   *background[*fleet.Fleet] // nil before it is begun, and when it is closed
	leaving []*background[struct{}]   // the ends of parts
}

func run(ctx context.Context, o options) (err error) {
	d := &demo{options: o, began: time.Now()}
	if d.repo, err = lab.Repository(); err != nil {
		return err
	}
	if d.bin == "" {
		d.bin = "bin"
	}
	for _, name := range []string{"kubectl-refit", "machine-config-controller", agent.Program, agent.RunProgram} {
		if _, err := os.Stat(filepath.Join(d.absolute(d.bin), name)); err != nil {
			return fmt.Errorf("looking for the binaries: %w; make build makes them", err)
		}
	}
	show := chosen(o.parts)
	d.several = len(show) > 1
	// What the parts of a machine without a lab would wait for is not begun there.
	pool := slices.ContainsFunc(show, func(p part) bool { return p.name == "pool" })
	if pool && os.Geteuid() == 0 {
		d.kubebox = begin(ctx, cluster.Kubebox)
		defer d.kubebox.end()
	}
	defer func() { err = errors.Join(err, d.left()) }()
	for i, p := range show {
		if p.lab {
			if d.missing = ready(ctx); d.missing != nil && i > 0 {
				d.line("")
				d.say("This machine cannot show more: " + d.missing.Error() + ".")
				d.next(time.Since(d.began))
				return nil
			}
			if d.missing != nil {
				return fmt.Errorf("%w; go run ./test/demo -tree shows what works on a directory", d.missing)
			}
		}
		if p.lab && pool && d.fleet == nil {
			d.fleet = begin(ctx, d.raise)
		}
		d.last = i == len(show)-1
		if len(show) > 1 && i > 0 {
			fmt.Fprintf(os.Stdout, "\n\n")
		}
		if err := d.part(ctx, p, i+1, len(show)); err != nil {
			return err
		}
	}
	if err := d.left(); err != nil {
		return err
	}
	d.next(time.Since(d.began))
	return nil
}

// leave ends what a part has made while the next part is shown.
func (d *demo) leave(end func() error) {
	d.leaving = append(d.leaving, begin(context.Background(), func(context.Context, io.Writer) (struct{}, error) {
		return struct{}{}, end()
	}))
}

// left waits until all that the demo has made is gone.
func (d *demo) left() error {
	d.leave(d.lower)
	var errs []error
	for _, b := range d.leaving {
		_, err := b.wait(nil)
		errs = append(errs, err)
	}
	d.leaving = nil
	return errors.Join(errs...)
}

// part shows one part in a directory of its own.
func (d *demo) part(ctx context.Context, p part, number, of int) (err error) {
	if d.work, err = os.MkdirTemp("", "noderefit-demo-"); err != nil {
		return fmt.Errorf("making a directory for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, lab.RemoveTree(d.work)) }()
	// The documents are read by this machine's commands alone, and the tree may be looked into while the demo runs.
	if err := os.Chmod(d.work, 0o755); err != nil {
		return err
	}
	d.show = newShow(os.Stdout, p.acts)
	if of > 1 {
		d.line(d.style("1", fmt.Sprintf("Part %d of %d: %s (%s)", number, of, p.title, p.takes)))
		d.line("")
	}
	return p.run(d, ctx)
}

// ready makes this machine able to run a host, or says why it can't be.
func ready(ctx context.Context) error {
	if os.Geteuid() == 0 {
		if err := lab.Install(ctx, os.Stderr); err != nil {
			return err
		}
	}
	return lab.Available()
}

// where shows what $W is in the commands.
func (d *demo) where() { d.typed("$", "W="+d.work) }

// here types a command on this machine and returns what it printed. $W is the demo's directory.
func (d *demo) here(ctx context.Context, command string, trim func([]string) []string) (string, int, error) {
	d.typed("$", command)
	began := time.Now()
	cmd := d.command(ctx, command)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var status *exec.ExitError
	if ctx.Err() != nil {
		return "", -1, ctx.Err()
	}
	if err != nil && !errors.As(err, &status) {
		return "", -1, fmt.Errorf("running %s: %w", command, err)
	}
	exit := cmd.ProcessState.ExitCode()
	d.printed(trimmed(out.String(), trim))
	d.took(began, exit)
	return out.String(), exit, nil
}

func trimmed(text string, trim func([]string) []string) []string {
	lines := splitLines(text)
	if trim != nil {
		lines = trim(lines)
	}
	return lines
}

// failed is the error of a command that did not end as the story needs it.
func failed(command string, exit int, output string) error {
	return fmt.Errorf("%s: exit code %d: %s", command, exit, strings.TrimSpace(output))
}

// Documents that the pool is rendered from, in the repository.
const (
	documents = "test/demo/documents"
	mistake   = "test/demo/mistake"
)

// render renders the pool infra from those documents and the base into the file of that name below work.
func (d *demo) render(ctx context.Context, name, from string) error {
	command := fmt.Sprintf("%s/machine-config-controller render --pool infra %s $W/base > $W/%s", d.bin, from, name)
	if out, exit, err := d.here(ctx, command, nil); err != nil || exit != 0 {
		return errors.Join(err, failed(command, exit, out))
	}
	_, _, err := d.here(ctx, fmt.Sprintf("grep -o 'rendered-infra-.*' $W/%s", name), nil)
	return err
}

// rendered makes both configurations: what all roads begin with.
func (d *demo) rendered(ctx context.Context) error {
	d.act("Documents become one configuration", fmt.Sprintf("The pool infra takes the documents of the roles worker and "+
		"infra: a base of %d files and %d units, and what people added in %s/ (YAML of two Ignition versions, and Butane). "+
		"Rendering merges them into one document whose name is a digest of its content.", baseFiles, baseUnits, documents))
	base := filepath.Join(d.work, "base")
	if err := os.Mkdir(base, 0o755); err != nil {
		return err
	}
	if err := writeBase(base); err != nil {
		return err
	}
	if _, _, err := d.here(ctx, "ls "+documents+" $W/base", nil); err != nil {
		return err
	}
	return d.render(ctx, "good.yaml", documents)
}

// next tells where to look after the demo.
func (d *demo) next(took time.Duration) {
	d.line("")
	done := fmt.Sprintf("Done in %.0f s; the demo has removed what it made.", took.Seconds())
	d.line(d.style("1", done) + " Where to look next:")
	for _, l := range []string{
		"test/demo/                   what was applied, to change and to try again",
		"go run ./test/demo -host     one part alone: -tree, -host or -pool",
		"docs/concepts.md             plan, switch, verdict, quarantine in a few minutes",
		"docs/commands.md             each command, exit code and JSON document",
		"docs/coming-from-the-mco.md  what stays the same for who knows the machine-config-operator",
		"go run ./test/demo -shell    the same, and then a shell on the cluster",
		"docs/kubectl-refit.md        what the plugin shows, and how it steers",
		"make test-all                everything above as tests, power cuts included",
	} {
		d.line("  " + l)
	}
}
