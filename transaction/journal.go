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

// journal has all effects of one transaction outside a deployment, in order. It is written once, before the first
// effect. What is done is read from the disk: a staged node that is gone has taken its place.
type journal struct {
	ID      string        `json:"id"`
	Config  string        `json:"config"`
	Digest  string        `json:"digest"`
	Road    Road          `json:"road"`
	BootID  string        `json:"bootID,omitempty"`
	Created time.Time     `json:"created"`
	Actions []plan.Action `json:"actions,omitempty"`
	Steps   []step        `json:"steps"`
	// Loader is the change of the boot loader's files, see BootLoader; nil: none.
	Loader []byte `json:"loader,omitempty"`

	root   *files.Root
	left   func(...Left)        // see Engine.Left; may be nil
	times  map[string]time.Time // when the directories last changed before us, for undoing
	loader BootLoader
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

// rewrite replaces the journal with a version that names the left-out steps, before anything is decided.
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

// write puts the journal on the disk before anything that it names is there: one fsync.
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

// The reserve is room for one more record: going back can be recorded even if the disk fills up after the commit.
const (
	reserveFile = "reserve"
	reserveSize = 64 << 10
)

// readJournal returns the journal with the given id. It returns nil where the journal does not exist or was never
// finished: then nothing that it would name exists either.
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
		if st := &j.Steps[i]; st.Exposed == "" { // written by an older agent
			st.Exposed = exposure(root, st)
		}
	}
	return j, nil
}

// decodeJournal reads a journal. A journal that breaks off in the middle gives nil, as if it had not been begun.
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

// stage puts every new node beside its target, and keeps every old one. A step of an exposed place for which this fails
// is left out of rolling and undoing.
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

// unstage removes the staged node of a step.
func (j *journal) unstage(st *step) error {
	if st.Stage == "" {
		return nil
	}
	return j.root.Remove(path.Join(st.Dir, st.Stage))
}

// exposed returns err. It returns nil where other users than root have put something in the way of an exposed step: the
// step is left out, and reported by tell.
func (j *journal) exposed(st *step, err error) error {
	if err == nil || st.Exposed == "" || !obstructed(err) {
		return err
	}
	j.tell(st, err)
	return nil
}

// tell reports why the path of a step stays unchanged.
func (j *journal) tell(st *step, why error) {
	if j.left != nil {
		j.left(Left{Path: st.Path, Err: fmt.Errorf("%s: %w", st.subject(), why)})
	}
}

// remember notes when the directory last changed, before we change it.
func (j *journal) remember(dir string) error {
	if _, seen := j.times[dir]; seen || !j.root.IsDir(dir) {
		return nil // a directory that the steps make, perhaps in place of a file
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

// copied returns the largest size in bytes of a file that is copied because it can't be kept under a second name.
func copied(exposed string) int64 {
	if exposed != "" {
		return files.MostExposed
	}
	return math.MaxInt64
}

func (j *journal) beside(st *step) string { return files.StagePrefix + j.ID + "-" + st.Keep }

// kept returns where the pre-image of st is. The name is empty where the pre-image does not exist, or no longer.
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
	// The step removes its path. In the run that was cut, a later step may already have put something else there.
	found, size, err := j.root.InspectSized(st.Path)
	if err != nil || found.Type != st.Before.Type {
		return err
	}
	if st.IfEmpty && size > 0 {
		j.tell(st, errors.New("another program has written to the file, which stays"))
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

// undoable returns an error for a step of an exposed place whose pre-image has disappeared: users can reach a pre-image
// that is beside its original. A node without its pre-image is neither replaced nor removed.
func (j *journal) undoable(st *step) error {
	if st.Exposed == "" || st.Keep == "" {
		return nil
	}
	_, name, err := j.kept(st)
	if err == nil && name == "" {
		err = errors.New("the kept copy is gone")
	}
	return err
}

// setMeta changes mode, owner and label in place, from those of from to those of to.
func (j *journal) setMeta(st *step, from, to files.Node) error {
	if st.Exposed == "" {
		return j.root.SetMeta(st.Path, to)
	}
	return j.root.SetMetaOf(st.Path, from, to)
}

// rmdir removes a directory that the configuration no longer has. The directory stays where others have put something
// into it.
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

// check compares the disk with what the steps should have made.
func (j *journal) check() error {
	for i := range j.Steps {
		st := &j.Steps[i]
		if st.Op == opRemove || st.Op == opRmdir {
			continue // a later step may have put something else there, or others use the directory
		}
		if st.Exposed != "" {
			continue // a change by others since then is drift, as any later change is
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
		return errors.New("the contents are not those that were written")
	}
	return nil
}

// undo takes back every step that was done, and everything that was staged. It can be run again after a cut at any
// point, and after a journal that was never applied. A step that can't be undone does not stop the others.
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

// restoreTimes restores when directories last changed, where our work in them was undone.
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
		// The step was not done. The node at the path may be one that can't be replaced.
		err = j.root.Remove(path.Join(dir, name))
	default:
		if err = j.relabel(path.Join(dir, name), st.Before); err == nil {
			err = j.root.Replace(dir, name, st.Path)
		}
		if err == nil {
			// Where the step was not done, both names are one inode. Then rename does nothing and the kept name stays.
			err = j.root.Remove(path.Join(dir, name))
		}
	}
	if err != nil {
		return err
	}
	return j.unstage(st)
}

// relabel gives a kept node its former label back. An admin may have relabelled the disk since, by the path at which
// the node was kept.
func (j *journal) relabel(name string, before files.Node) error {
	n, err := j.root.Inspect(name)
	if err != nil || before.Label == "" || n.Label == before.Label {
		return err
	}
	return j.root.SetLabel(name, before.Label)
}

// takeAway removes the node that the step made where nothing was before. Any other node at the path belongs to others
// and stays.
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

// made reports whether the node that was found at the path is the one that the step puts there.
func (j *journal) made(st *step, found files.Node) (bool, error) {
	if st.Op == opHard {
		d, err := j.root.Compare(files.Want{Path: st.Path, HardTo: st.HardTo})
		return len(d) == 0, err
	}
	return found.Type == st.After.Type && found.Target == st.After.Target, nil
}

// sameMeta reports whether a node has the wanted mode, owner and label, as far as these are managed.
func sameMeta(found, want files.Node) bool {
	return (found.Type == files.Symlink || found.Mode == want.Mode) &&
		(want.Label == "" || found.Label == want.Label) &&
		(!files.Owners() || found.UID == want.UID && found.GID == want.GID)
}

// unmoved returns an error where another program has replaced a path since its old node was kept, for example a passwd
// that ran meanwhile.
func (j *journal) unmoved() error {
	for i := range j.Steps {
		st := &j.Steps[i]
		if !st.linked || st.Before.Type != files.Regular || st.Exposed != "" {
			continue // a change by others where they can always write is drift
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

// drop removes what a journal that was never decided has staged beside its targets, and nothing else: the nodes at the
// targets are not ours.
func (j *journal) drop() error {
	var errs []error
	for i := range j.Steps {
		st := &j.Steps[i]
		errs = append(errs, j.exposed(st, j.unstage(st)))
	}
	errs = append(errs, j.forget(), j.restoreTimes())
	return errors.Join(append(errs, fault("dropped"))...)
}

// sync makes everything that the steps touched durable, and the state directory too: one syncfs for each file system.
func (j *journal) sync() error {
	dirs := []string{j.dir(), "/etc"} // the directory of the units that recover
	for i := range j.Steps {
		dirs = append(dirs, path.Dir(j.Steps[i].Path))
		if j.Steps[i].Dir != "" {
			dirs = append(dirs, j.Steps[i].Dir)
		}
	}
	slices.Sort(dirs)
	return j.root.SyncFS(slices.Compact(dirs)...)
}

// forget removes the pre-images, the staged nodes of steps that could not be done, and the journal. It is called once
// the journal can't be used to undo anything any more.
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
	if j.Loader != nil && j.loader != nil {
		if err := j.loader.Forget(j.Loader); err != nil {
			return err
		}
	}
	return j.root.RemoveAll(j.dir())
}
