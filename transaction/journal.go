// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/plan"
)

// journal is everything that one transaction does outside a deployment, in order. It is written once, before the first
// effect; what is done is read off the disk: a staged node that is gone has taken its place.
type journal struct {
	ID      string        `json:"id"`
	Config  string        `json:"config"`
	Digest  string        `json:"digest"`
	Road    Road          `json:"road"`
	BootID  string        `json:"bootID,omitempty"`
	Created time.Time     `json:"created"`
	Actions []plan.Action `json:"actions,omitempty"`
	Steps   []step        `json:"steps"`

	root  *files.Root
	left  func(...Left)        // see Engine.Left; may be nil
	times map[string]time.Time // directories' times before us, to be put back when nothing comes of it
}

func newID(now time.Time) string {
	var b [3]byte
	_, _ = rand.Read(b[:])
	return now.UTC().Format("20060102T150405Z") + "-" + hex.EncodeToString(b[:])
}

func journalDir(id string) string { return path.Join(journalsDir, id) }

func (j *journal) dir() string { return journalDir(j.ID) }

func (j *journal) encode() ([]byte, error) {
	data, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("encoding journal: %w", err)
	}
	return data, nil
}

// rewrite replaces the journal with one that names the steps that were left out, before anything is decided.
func (j *journal) rewrite() error {
	data, err := j.encode()
	if err != nil {
		return err
	}
	if err := j.root.WriteRecord(path.Join(j.dir(), journalFile), data, 0o600); err != nil {
		return fmt.Errorf("writing journal: %w", err)
	}
	return fault("left out")
}

// write puts the journal on the disk before anything it speaks of is there: one fsync.
func (j *journal) write() error {
	data, err := j.encode()
	if err != nil {
		return err
	}
	if err := j.root.MkdirAll(j.dir(), 0o700); err != nil {
		return fmt.Errorf("writing journal: %w", err)
	}
	if err := j.root.Stage(j.dir(), journalFile, files.Node{Type: files.Regular, Mode: 0o600, Data: data}); err != nil {
		return fmt.Errorf("writing journal: %w", err)
	}
	if err := j.root.Fsync(path.Join(j.dir(), journalFile)); err != nil {
		return fmt.Errorf("writing journal: %w", err)
	}
	reserve := files.Node{Type: files.Regular, Mode: 0o600, Data: bytes.Repeat([]byte{'.'}, reserveSize)}
	if err := j.root.Stage(j.dir(), reserveFile, reserve); err != nil {
		return fmt.Errorf("writing journal: %w", err)
	}
	return nil
}

// The reserve is room for one more record: whatever fills the disk after the commit, going back can be written down.
const (
	reserveFile = "reserve"
	reserveSize = 64 << 10
)

// readJournal returns the journal of that id, nil where there is none or it was never finished: then nothing that it
// would speak of exists either.
func readJournal(root *files.Root, id string) (*journal, error) {
	if id == "" || id != path.Base(id) {
		return nil, nil
	}
	data, err := root.ReadFile(path.Join(journalDir(id), journalFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading journal: %w", err)
	}
	j, err := decodeJournal(data)
	if err != nil {
		return nil, nil //nolint:nilerr // not one of ours: nothing that it says is acted on
	}
	if j == nil || j.ID != id {
		return nil, nil
	}
	j.root = root
	for i := range j.Steps {
		if st := &j.Steps[i]; st.Exposed == "" { // an older agent's
			st.Exposed = exposure(root, st)
		}
	}
	return j, nil
}

// decodeJournal reads a journal; one that breaks off in the middle is nil, as if it had not been begun.
func decodeJournal(data []byte) (*journal, error) {
	if !json.Valid(data) {
		return nil, nil
	}
	j := &journal{}
	if err := json.Unmarshal(data, j); err != nil {
		return nil, err
	}
	for _, st := range j.Steps {
		if !path.IsAbs(st.Path) || strings.Contains(st.Stage, "/") || strings.Contains(st.Keep, "/") ||
			st.Stage != "" && !strings.HasPrefix(st.Stage, files.StagePrefix) {
			return nil, fmt.Errorf("step for %q is not one of ours", st.Path)
		}
	}
	return j, nil
}

// stage puts every new node beside its target, and keeps every old one. A step of an exposed place for which that can't
// be done is left out of rolling and undoing.
func (j *journal) stage() error {
	j.times = map[string]time.Time{}
	leftOut := false
	for i := range j.Steps {
		st := &j.Steps[i]
		if err := fault("stage " + st.Path); err != nil {
			return err
		}
		err := j.stageStep(st)
		if err == nil {
			continue
		}
		if err = j.exposed(st, err); err != nil {
			return err
		}
		if err := j.exposed(st, j.unstage(st)); err != nil {
			return err
		}
		st.LeftOut, leftOut = true, true
	}
	if leftOut {
		if err := j.rewrite(); err != nil {
			return err
		}
	}
	return fault("staged")
}

func (j *journal) stageStep(st *step) error {
	if st.Op == opPut {
		if err := j.remember(st.Dir); err != nil {
			return err
		}
		n := st.After
		n.Data = st.data
		if err := j.root.Stage(st.Dir, st.Stage, n); err != nil {
			return fmt.Errorf("staging %s: %w", st.subject(), err)
		}
	}
	if st.Op != opMeta {
		if err := j.remember(path.Dir(st.Path)); err != nil {
			return err
		}
	}
	if st.Keep != "" {
		if err := j.keep(st); err != nil {
			return fmt.Errorf("keeping %s: %w", st.subject(), err)
		}
	}
	return nil
}

// unstage removes what waits beside the target of a step.
func (j *journal) unstage(st *step) error {
	if st.Stage == "" {
		return nil
	}
	return j.root.Remove(path.Join(st.Dir, st.Stage))
}

// exposed returns err, but for what others than root have put in the way of an exposed step: that leaves the step out,
// and is told.
func (j *journal) exposed(st *step, err error) error {
	if err == nil || st.Exposed == "" || !obstructed(err) {
		return err
	}
	j.tell(st, err)
	return nil
}

// tell says why the path of a step stays as it is.
func (j *journal) tell(st *step, why error) {
	if j.left != nil {
		j.left(Left{Path: st.Path, Err: fmt.Errorf("%s: %w", st.subject(), why)})
	}
}

// remember notes when the directory last changed, before we change it.
func (j *journal) remember(dir string) error {
	if _, seen := j.times[dir]; seen || !j.root.IsDir(dir) {
		return nil // a directory that the steps make, perhaps where a file is now
	}
	t, err := j.root.ModTime(dir)
	j.times[dir] = t
	return err
}

// keep makes the pre-image: a hard link in the journal's directory, or beside the original where that is another mount.
func (j *journal) keep(st *step) error {
	if j.root.Link(st.Path, j.dir(), st.Keep) == nil || j.root.Link(st.Path, path.Dir(st.Path), j.beside(st)) == nil {
		st.linked = true
		return nil
	}
	return j.root.Preserve(st.Path, path.Dir(st.Path), j.beside(st), copied(st.Exposed))
}

// copied is how many bytes are copied, at most, of a file that can't be kept by a second name.
func copied(exposed string) int64 {
	if exposed != "" {
		return files.MostExposed
	}
	return math.MaxInt64
}

func (j *journal) beside(st *step) string { return files.StagePrefix + j.ID + "-" + st.Keep }

// kept returns where the pre-image of st is, or no name where there is none (any more).
func (j *journal) kept(st *step) (dir, name string, err error) {
	if st.Keep == "" {
		return "", "", nil
	}
	for _, at := range [][2]string{{j.dir(), st.Keep}, {path.Dir(st.Path), j.beside(st)}} {
		n, err := j.root.Inspect(path.Join(at[0], at[1]))
		if err != nil {
			return "", "", err
		}
		if n.Type != files.Absent {
			return at[0], at[1], nil
		}
	}
	return "", "", nil
}

// staged reports whether the step's new node still waits beside its target.
func (j *journal) staged(st *step) (bool, error) {
	if st.Stage == "" {
		return false, nil
	}
	n, err := j.root.Inspect(path.Join(st.Dir, st.Stage))
	return err == nil && n.Type != files.Absent, err
}

// roll does every step that is not done. It can be run again after a cut at any point.
func (j *journal) roll() error {
	for i := range j.Steps {
		st := &j.Steps[i]
		if err := fault("apply " + st.Path); err != nil {
			return err
		}
		if err := j.exposed(st, j.rollStep(st)); err != nil {
			return fmt.Errorf("applying %s: %w", st.subject(), err)
		}
	}
	return fault("applied")
}

func (j *journal) rollStep(st *step) error {
	if st.LeftOut {
		return nil
	}
	switch st.Op {
	case opPut:
		waiting, err := j.staged(st)
		if err != nil || !waiting {
			return err
		}
		if err := j.undoable(st); err != nil {
			return err
		}
		return j.root.Replace(st.Dir, st.Stage, st.Path)
	case opHard:
		if err := j.undoable(st); err != nil {
			return err
		}
		if err := j.root.Remove(path.Join(st.Dir, st.Stage)); err != nil {
			return err
		}
		if err := j.root.Link(st.HardTo, st.Dir, st.Stage); err != nil {
			return err
		}
		if err := j.root.Replace(st.Dir, st.Stage, st.Path); err != nil {
			return err
		}
		return j.root.Remove(path.Join(st.Dir, st.Stage)) // rename does nothing where both were one inode already
	case opMkdir:
		if j.root.IsDir(st.Path) {
			return j.setMeta(st, st.After, st.After)
		}
		return j.root.Mkdir(st.Path, st.After)
	case opMeta:
		return j.setMeta(st, st.Before, st.After)
	}
	// Going: a later step may have put something else at the path already, in the run that was cut.
	found, size, err := j.root.InspectSized(st.Path)
	if err != nil || found.Type != st.Before.Type {
		return err
	}
	if st.IfEmpty && size > 0 {
		j.tell(st, errors.New("it was written to meanwhile, and stays"))
		return nil
	}
	if st.Op == opRmdir {
		return j.rmdir(st.Path)
	}
	if err := j.undoable(st); err != nil {
		return err
	}
	return j.root.Remove(st.Path)
}

// undoable returns an error for a step of an exposed place whose pre-image has gone since it was made: users can reach
// one that is beside its original. What is not kept is neither replaced nor removed.
func (j *journal) undoable(st *step) error {
	if st.Exposed == "" || st.Keep == "" {
		return nil
	}
	_, name, err := j.kept(st)
	if err == nil && name == "" {
		err = errors.New("the copy that was kept of it is gone")
	}
	return err
}

// setMeta changes mode, owner and label in place, from what they were.
func (j *journal) setMeta(st *step, from, to files.Node) error {
	if st.Exposed == "" {
		return j.root.SetMeta(st.Path, to)
	}
	return j.root.SetMetaOf(st.Path, from, to)
}

// rmdir removes a directory that we let go of; what others put into it keeps it alive.
func (j *journal) rmdir(name string) error {
	empty, err := j.root.Empty(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !empty {
		return err
	}
	return j.root.Remove(name)
}

// check compares what the steps should have made with what is there.
func (j *journal) check() error {
	for i := range j.Steps {
		st := &j.Steps[i]
		if st.Op == opRemove || st.Op == opRmdir {
			continue // a later step may have put something else there, and a directory may be in use by others
		}
		if st.Exposed != "" {
			continue // what others have made of it since is their drift, as it is from now on
		}
		if err := j.checkStep(st); err != nil {
			return fmt.Errorf("verifying %s: %w", st.subject(), err)
		}
	}
	return nil
}

func (j *journal) checkStep(st *step) error {
	found, err := j.root.Inspect(st.Path)
	if err != nil {
		return err
	}
	ok, err := j.made(st, found)
	if err != nil {
		return err
	}
	if st.Op != opHard {
		ok = ok && sameMeta(found, st.After)
	}
	if ok && st.Sum != "" {
		data, err := j.root.Contents(st.Path)
		if err != nil {
			return err
		}
		ok = files.Sum(data) == st.Sum
	}
	if !ok {
		return errors.New("it is not what was written")
	}
	return nil
}

// undo takes back every step that was done, and everything that was staged. It can be run again after a cut at any
// point, and after a journal that was never applied. A step that can't be taken back keeps none of the others from it.
func (j *journal) undo() error {
	var errs []error
	for i := range slices.Backward(j.Steps) {
		st := &j.Steps[i]
		if err := fault("undo " + st.Path); err != nil {
			return err
		}
		if err := j.exposed(st, j.undoStep(st)); err != nil {
			errs = append(errs, fmt.Errorf("undoing %s: %w", st.subject(), err))
		}
	}
	return errors.Join(append(errs, j.restoreTimes(), fault("undone"))...)
}

// restoreTimes puts back when directories last changed, where nothing has come of what we did in them.
func (j *journal) restoreTimes() error {
	var errs []error
	for dir, t := range j.times {
		if now, err := j.root.ModTime(dir); err == nil && now.Equal(t) {
			continue
		}
		err := j.root.Touch(dir, t)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && j.root.Exposed(path.Join(dir, "entry")) == "" {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (j *journal) undoStep(st *step) error {
	if st.LeftOut {
		return j.unstage(st)
	}
	switch st.Op {
	case opMeta:
		n, err := j.root.Inspect(st.Path)
		if err != nil || n.Type != st.Before.Type || sameMeta(n, st.Before) {
			return err
		}
		return j.setMeta(st, st.After, st.Before)
	case opMkdir:
		n, err := j.root.Inspect(st.Path)
		if err != nil || n.Type != files.Directory {
			return err
		}
		return j.rmdir(st.Path)
	case opRmdir:
		n, err := j.root.Inspect(st.Path)
		if err != nil || n.Type != files.Absent {
			return err
		}
		return j.root.Mkdir(st.Path, st.Before)
	}
	dir, name, err := j.kept(st)
	if err != nil {
		return err
	}
	waiting, err := j.staged(st)
	if err != nil {
		return err
	}
	switch {
	case name == "" && st.Keep == "" && st.Op != opRemove:
		err = j.takeAway(st)
	case name == "":
	case waiting && st.Op == opPut:
		// It was not done, and what is there may be what can't be replaced.
		err = j.root.Remove(path.Join(dir, name))
	default:
		if err = j.relabel(path.Join(dir, name), st.Before); err == nil {
			err = j.root.Replace(dir, name, st.Path)
		}
		if err == nil {
			// Where the step was not done both names are one inode; then rename does nothing and the kept one stays.
			err = j.root.Remove(path.Join(dir, name))
		}
	}
	if err != nil {
		return err
	}
	return j.unstage(st)
}

// relabel gives a kept node the label back that it had. An admin may have relabelled the disk since, by the path at
// which it was kept.
func (j *journal) relabel(name string, before files.Node) error {
	n, err := j.root.Inspect(name)
	if err != nil || before.Label == "" || n.Label == before.Label {
		return err
	}
	return j.root.SetLabel(name, before.Label)
}

// takeAway removes what the step made where nothing was before; what is not what we made belongs to others and stays.
func (j *journal) takeAway(st *step) error {
	found, err := j.root.Inspect(st.Path)
	if err != nil || found.Type == files.Absent {
		return err
	}
	waiting, err := j.staged(st)
	if err != nil || waiting && st.Op == opPut {
		return err
	}
	if ours, err := j.made(st, found); err != nil || !ours {
		return err
	}
	return j.root.Remove(st.Path)
}

// made reports whether what was found at the path is what the step puts there.
func (j *journal) made(st *step, found files.Node) (bool, error) {
	if st.Op == opHard {
		d, err := j.root.Compare(files.Want{Path: st.Path, HardTo: st.HardTo})
		return len(d) == 0, err
	}
	return found.Type == st.After.Type && found.Target == st.After.Target, nil
}

// sameMeta reports whether a node has the mode, owner and label that are wanted, as far as these are managed.
func sameMeta(found, want files.Node) bool {
	return (found.Type == files.Symlink || found.Mode == want.Mode) &&
		(want.Label == "" || found.Label == want.Label) &&
		(!files.Owners() || found.UID == want.UID && found.GID == want.GID)
}

// unmoved checks that no other program has replaced a path since its old node was kept: a passwd that ran meanwhile,
// say.
func (j *journal) unmoved() error {
	for i := range j.Steps {
		st := &j.Steps[i]
		if !st.linked || st.Before.Type != files.Regular || st.Exposed != "" {
			continue // what others change where they can always write is drift
		}
		dir, name, err := j.kept(st)
		if err != nil {
			return err
		}
		if name == "" {
			continue
		}
		d, err := j.root.Compare(files.Want{Path: st.Path, HardTo: path.Join(dir, name)})
		if err != nil {
			return err
		}
		if len(d) > 0 {
			return fmt.Errorf("%s: another program changed it meanwhile", st.subject())
		}
	}
	return nil
}

// drop removes what a journal that was never decided has put beside its targets, and nothing else: what is at the
// targets is not from us.
func (j *journal) drop() error {
	var errs []error
	for i := range j.Steps {
		st := &j.Steps[i]
		errs = append(errs, j.exposed(st, j.unstage(st)))
	}
	errs = append(errs, j.forget(), j.restoreTimes())
	return errors.Join(append(errs, fault("dropped"))...)
}

// sync makes everything that the steps touched durable, and the state directory with it: one syncfs a file system.
func (j *journal) sync() error {
	dirs := []string{j.dir(), "/etc"} // where the units that recover lie
	for i := range j.Steps {
		dirs = append(dirs, path.Dir(j.Steps[i].Path))
		if j.Steps[i].Dir != "" {
			dirs = append(dirs, j.Steps[i].Dir)
		}
	}
	slices.Sort(dirs)
	return j.root.SyncFS(slices.Compact(dirs)...)
}

// forget removes the pre-images, what is still staged of steps that could not be done, and the journal, once nothing
// can be undone with them any more.
func (j *journal) forget() error {
	for i := range j.Steps {
		st := &j.Steps[i]
		if st.Exposed != "" { // elsewhere a step that could not be done has failed the transaction
			if err := j.exposed(st, j.unstage(st)); err != nil {
				return err
			}
		}
		if st.Keep == "" {
			continue
		}
		if err := j.exposed(st, j.root.Remove(path.Join(path.Dir(st.Path), j.beside(st)))); err != nil {
			return err
		}
	}
	return j.root.RemoveAll(j.dir())
}
