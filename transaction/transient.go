// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/plan"
)

// etcWritten names the boot whose transient /etc has a configuration, and the digest of that, from before the first
// file is written; "written" ends the line once all are. It lies where each boot begins with nothing.
const etcWritten = RunDir + "/etc"

// rewriteEtc writes into a transient /etc what the record says, after a recovery: the revision under proof, where it
// has booted, and else the committed one. A deployment of somebody else gets the committed one too, as the merge of an
// /etc of its own would have brought it along.
func (e *Engine) rewriteEtc(ctx context.Context, r *Record, done Todo) error {
	rev := r.Committed
	if p := r.Pending; p != nil && p.Phase == PhaseProve && (done == FirstBoot || done == AwaitProof) {
		rev = &p.Revision
	}
	if rev == nil || rev.Digest == "" {
		// The host gets its first configuration in this boot, and later differences are drift.
		return e.markWritten("", etcComplete)
	}
	err := e.writeBootEtc(ctx, rev)
	if err == nil {
		return nil
	}
	before := r.Before
	if before == nil {
		now := r.Standing
		before = &now
	}
	return errors.Join(err, e.note(r, Degraded, err.Error(), before))
}

// writeBootEtc writes a revision into a transient /etc, once in a boot: later differences are drift. A cut loses the
// whole /etc, and the next boot begins anew, so nothing is kept or waited for.
func (e *Engine) writeBootEtc(ctx context.Context, rev *Revision) error {
	if e.BootEtc == nil {
		return nil
	}
	in, err := e.Root.ReadFile(etcWritten)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch words := strings.Fields(string(in)); {
	case len(words) == 0 || words[0] != e.BootID:
	case words[len(words)-1] == etcComplete:
		return nil
	case words[1] != rev.Digest:
		return fmt.Errorf("the transient /etc of this boot has a part of another configuration than %s: reboot the host",
			rev.Config)
	}
	e.Say("recover", "writing "+rev.Config+" into the /etc of this boot")
	if err := e.writeTransient(ctx, rev); err != nil {
		return fmt.Errorf("writing %s into the transient /etc: %w", rev.Config, err)
	}
	return nil
}

func (e *Engine) writeTransient(ctx context.Context, rev *Revision) error {
	wants, err := e.BootEtc(rev)
	if err != nil {
		return err
	}
	id := newID(e.Now())
	steps, left, err := makeSteps(e.Root, id, e.Labels, wants)
	if err != nil {
		return err
	}
	e.left(left...)
	if err := checkSpace(e.Root, steps, "", 0); err != nil {
		return err
	}
	j := &journal{ID: id, Steps: steps, root: e.Root, left: e.left}
	if err := errors.Join(e.markWritten(rev.Digest, "begun"), fault("etc begun")); err != nil {
		return err
	}
	if err := errors.Join(j.writeEtc(), fault("etc written")); err != nil {
		return err
	}
	for range busTries {
		if err = e.again(ctx, j); err == nil || ctx.Err() != nil {
			break
		}
		e.Say("act", err.Error())
	}
	// A bus that says nothing is no fault of the configuration: services that did not start are for the verdict.
	return errors.Join(ctx.Err(), e.markWritten(rev.Digest, etcComplete))
}

const (
	// etcComplete ends a mark of an /etc into which nothing is to be written any more.
	etcComplete = "written"
	// busTries is how often systemd is asked to see what was written.
	busTries = 3
)

// markWritten notes how far the /etc of this boot is with a digest.
func (e *Engine) markWritten(digest, state string) error {
	note := files.StagePrefix + path.Base(etcWritten)
	if err := errors.Join(e.Root.MkdirAll(RunDir, 0o755), e.Root.Remove(path.Join(RunDir, note))); err != nil {
		return err
	}
	mark := []byte(e.BootID + " " + digest + " " + state)
	err := e.Root.Stage(RunDir, note, files.Node{Type: files.Regular, Mode: 0o600, Data: mark})
	return errors.Join(err, e.Root.Replace(RunDir, note, etcWritten))
}

// again makes the boot that is under way see what was written: units that are now masked or not wanted any more do not
// start, and what has read its files already reads them again. A service that fails at that says so to the verdict.
func (e *Engine) again(ctx context.Context, j *journal) error {
	if e.Services == nil {
		return nil
	}
	var stops, readers []string
	units := false
	for i := range j.Steps {
		st := &j.Steps[i]
		if isUnitPath(st.Path) {
			units = true
			if name := keptFromStarting(st); name != "" {
				stops = append(stops, name)
			}
		} else if _, service := tooEarly(st.Path, nil); service != "" {
			readers = append(readers, service)
		}
	}
	if units {
		if err := errors.Join(fault("daemon-reload"), e.Services.Reload(ctx)); err != nil {
			return err
		}
	}
	for _, name := range unique(stops) {
		if err := e.Services.Stop(ctx, name); err != nil {
			e.Say("act", err.Error())
		}
	}
	for _, name := range unique(readers) {
		if err := e.Services.Act(ctx, plan.Action{Type: plan.ActionRestart, Service: name}, false); err != nil {
			e.Say("act", err.Error())
		}
	}
	if !units {
		return nil
	}
	return e.Services.Start(ctx, "default.target")
}

func unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// keptFromStarting returns the unit whose mask the step makes, or whose link it takes away, "" where it does neither.
func keptFromStarting(st *step) string {
	dir, name := path.Split(st.Path)
	switch {
	case st.After.Type == files.Symlink && st.After.Target == "/dev/null":
		return name
	case st.After.Type == files.Absent && (strings.HasSuffix(dir, ".wants/") || strings.HasSuffix(dir, ".requires/")):
		return name
	}
	return ""
}

// outlived takes the steps in a transient /etc out of a journal of an earlier boot: that /etc has ended with its boot.
func (e *Engine) outlived(j *journal) {
	if e.BootEtc == nil || j.BootID == e.BootID {
		return
	}
	j.Steps = slices.DeleteFunc(j.Steps, func(st step) bool {
		at, err := e.Root.Resolve(st.Path)
		return strings.HasPrefix(st.Path, "/etc/") && (err != nil || strings.HasPrefix(at, "/etc/"))
	})
}

// readAgain are the services by which the host reads, in the boot that is under way, what recovery wrote. A directory
// ends in a slash and stands for all paths below it.
var readAgain = []struct{ service, places string }{
	{"systemd-modules-load.service", "/etc/modules /etc/modules-load.d/"},
	{"systemd-sysctl.service", "/etc/sysctl.conf /etc/sysctl.d/"},
	{"systemd-binfmt.service", "/etc/binfmt.d/"},
	{"systemd-sysusers.service", "/etc/sysusers.d/"},
	{"systemd-journald.service", "/etc/systemd/journald.conf /etc/systemd/journald.conf.d/"},
}

// readOnUse are paths of readEarly that are read when somebody needs them, or after the recovery of such a host.
const readOnUse = "/etc/tmpfiles.d/ /etc/localtime /etc/environment /etc/environment.d/ /etc/machine-info " +
	"/etc/os-release /etc/passwd /etc/group /etc/nsswitch.conf /etc/systemd/coredump.conf /etc/systemd/coredump.conf.d/"

func among(at, places string) bool {
	for place := range strings.FieldsSeq(places) {
		if at == place || strings.HasSuffix(place, "/") && strings.HasPrefix(at, place) {
			return true
		}
	}
	return false
}

// tooEarly returns which program reads a path in a boot before recovery can write it into a transient /etc, "" where
// none does. again is the service that reads the path anew then. text is as of rereads.
func tooEarly(at string, text func(unit string) string) (why, again string) {
	for _, r := range readAgain {
		if among(at, r.places) {
			return "", r.service
		}
	}
	if text == nil || among(at, readOnUse) {
		return "", ""
	}
	return rereads(at, files.Node{Type: files.Regular}, text), ""
}

// WrittenInTime refuses wants that a transient /etc would have too late in each boot.
func WrittenInTime(root *files.Root, wants []files.Want) error {
	text := func(unit string) string {
		var all []byte
		for _, w := range wants {
			if dir, _ := path.Split(w.Path); path.Base(w.Path) == unit || path.Base(dir) == unit+".d" {
				all = append(append(all, w.Node.Data...), '\n')
			}
		}
		if data, err := root.ReadFile("/usr/lib/systemd/system/" + unit); err == nil {
			all = append(all, data...)
		}
		return string(all)
	}
	var wrong files.Misplaced
	reported := map[string]bool{}
	for _, w := range wants {
		at, err := root.Resolve(w.Path)
		if err != nil || w.Kind == "" || w.Exists || w.Node.Type == files.Directory || !strings.HasPrefix(at, "/etc/") {
			continue
		}
		why, _ := tooEarly(at, text)
		if why == "" {
			continue
		}
		vendor := w
		vendor.Path = "/usr" + at
		if d, err := root.Compare(vendor); err == nil && len(d) == 0 {
			continue // the image has it
		}
		if w.Name != "" && reported[w.Name] {
			continue
		}
		reported[w.Name] = true
		wrong = append(wrong, files.Misfit{Want: w, Reason: "is " + why + ", and this host's /etc is transient: the agent " +
			"writes it later in each boot; build it into the image"})
	}
	if len(wrong) > 0 {
		return wrong
	}
	return nil
}
