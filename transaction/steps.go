// SPDX-License-Identifier: Apache-2.0

package transaction

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

// op is the effect of a step on its path.
type op string

const (
	opPut    op = "put"    // a staged file or link takes the path's place, by rename
	opHard   op = "hard"   // the path becomes another name of a file
	opMeta   op = "meta"   // mode, owner or label change in place; no byte is touched
	opMkdir  op = "mkdir"  // a directory is made
	opRemove op = "remove" // a file or link is removed
	opRmdir  op = "rmdir"  // a directory is removed, if it is empty
)

// step is one effect on one path, recorded before anything is done. Whether it is done is seen from the disk.
type step struct {
	Op     op         `json:"op"`
	Path   string     `json:"path"`
	Dir    string     `json:"dir,omitempty"`   // where the new node is staged: the deepest directory that exists
	Stage  string     `json:"stage,omitempty"` // the name of the new node there
	Keep   string     `json:"keep,omitempty"`  // the name under which the old node is kept, see journal.kept
	Before files.Node `json:"before"`
	After  files.Node `json:"after"`
	Sum    string     `json:"sum,omitempty"` // digest of the new contents
	HardTo string     `json:"hardTo,omitempty"`
	Field  string     `json:"field,omitempty"` // field of the configuration, for messages
	// Implied means that no want asks for the directory: it is a parent of something below it.
	Implied bool `json:"implied,omitempty"`
	// Exposed is a place that other users than root can write to. It is the outermost such directory on the way to the
	// path (see files.ExposedError), or the path itself where a user owns the file. What these users do there fails no
	// transaction.
	Exposed string `json:"exposed,omitempty"`
	// IfEmpty means that the file is removed only while it has no bytes.
	IfEmpty bool `json:"ifEmpty,omitempty"`
	// LeftOut means that a step of an exposed place could not be staged, or its old node could not be kept. The step is
	// neither done nor undone.
	LeftOut bool `json:"leftOut,omitempty"`

	data   []byte
	linked bool // the old node is kept as another name of its inode
}

// stepper turns wants into steps, by comparing them with the host.
type stepper struct {
	root   *files.Root
	id     string
	labels *files.Labels
	wants  map[string]*files.Want
	going  map[string]bool // files, links and directories that will be removed
	made   map[string]bool // directories that a step makes
	steps  []step
	left   []Left // exposed wants that are impossible
}

// makeSteps returns the steps after which the host has every want. A want that the host already has needs no step. The
// order lets old and new overlap at each moment rather than leave a gap: directories and new nodes first, removals
// last. An exception is a removal that makes room. left has the wants of exposed places without steps, and why.
func makeSteps(root *files.Root, id string, labels *files.Labels, wants []files.Want) (steps []step, left []Left,
	err error) {
	s := &stepper{root: root, id: id, labels: labels,
		wants: map[string]*files.Want{}, going: map[string]bool{}, made: map[string]bool{}}
	var differing []files.Want
	for i := range wants {
		w := &wants[i]
		w.Path = path.Clean(w.Path)
		if prior, dup := s.wants[w.Path]; dup {
			if prior.Exists && w.Exists {
				continue
			}
			if !prior.Exists && !w.Exists {
				return nil, nil, fmt.Errorf("planning %s: wanted twice, by %s %s and by %s %s",
					w.Path, prior.Kind, prior.Name, w.Kind, w.Name)
			}
			if w.Exists {
				continue // the other want says more
			}
		}
		s.wants[w.Path] = w
	}
	for i := range wants {
		w := &wants[i]
		if s.wants[w.Path] != w {
			continue
		}
		differs, err := s.differs(w)
		if err != nil {
			return nil, nil, err
		}
		if differs {
			differing = append(differing, *w)
			if going, err := s.goes(w); err != nil {
				return nil, nil, err
			} else if going {
				s.going[w.Path] = true
			}
		}
	}
	for i := range differing {
		if err := s.addOrLeave(&differing[i]); err != nil {
			return nil, nil, err
		}
	}
	if err := s.changeable(); err != nil {
		return nil, nil, err
	}
	s.order()
	for i := range s.steps {
		st := &s.steps[i]
		if st.Op == opPut || st.Op == opHard {
			st.Stage = files.StagePrefix + id + "-" + strconv.Itoa(i)
		}
		if st.Before.Type != files.Absent && st.Before.Type != files.Directory {
			if st.Op != opMeta {
				st.Keep = "keep-" + strconv.Itoa(i)
			}
		}
	}
	return s.steps, s.left, nil
}

// addOrLeave adds the steps of w, all of them or none. An obstacle that other users than root put into the way of a
// want is their drift. It does not stop the other wants.
func (s *stepper) addOrLeave(w *files.Want) error {
	if err := s.nameable(w); err != nil {
		return fmt.Errorf("%s: %w", w.Subject(), err)
	}
	exposed := s.root.Exposed(w.Path)
	before, made, going := len(s.steps), s.made, s.going
	if exposed != "" {
		made, going = maps.Clone(made), maps.Clone(going)
	}
	err := s.add(w)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", w.Subject(), err)
	if exposed == "" || !obstructed(err) || errors.As(err, new(refusal)) {
		return err
	}
	s.steps, s.made, s.going = s.steps[:before], made, going
	if !w.Exists { // the wants for its contents meet the same obstacle
		err = fmt.Errorf("%w; users other than root can write to %s: remove the obstacle, and apply again", err, exposed)
		s.left = append(s.left, Left{Path: w.Path, Err: err})
	}
	return nil
}

// obstructed reports whether others can cause an error, in a directory that they can write to, rather than the disk or
// this process. A user can fill their home, and has quotas.
func obstructed(err error) bool {
	ours := []error{unix.EIO, unix.EROFS, unix.ENOMEM, unix.EMFILE, unix.ENFILE}
	return !slices.ContainsFunc(ours, func(target error) bool { return errors.Is(err, target) })
}

// nameable refuses names that no file system takes, before anything is staged under a shorter name.
func (s *stepper) nameable(w *files.Want) error {
	for part := range strings.SplitSeq(w.Path, "/") {
		if len(part) > maxName {
			return fmt.Errorf("a name of %d bytes in a path: %w", len(part), unix.ENAMETOOLONG)
		}
	}
	return nil
}

// append adds a step.
func (s *stepper) append(st step) {
	st.Exposed = exposure(s.root, &st)
	s.steps = append(s.steps, st)
}

// exposure returns the exposed place of a step, "" where the step has none. A user who owns the file, or will own it,
// can change it at any moment.
func exposure(root *files.Root, st *step) string {
	if at := root.Exposed(st.Path); at != "" {
		return at
	}
	shared := func(n files.Node) bool { return n.Type == files.Regular && (n.UID != 0 || n.Mode&0o022 != 0) }
	if files.Owners() && (shared(st.Before) || shared(st.After)) {
		return st.Path
	}
	return ""
}

// refusal is the error of a want that is impossible also where others can write to the place.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// goes reports whether the node at the path is removed, for nothing or for a directory.
func (s *stepper) goes(w *files.Want) (bool, error) {
	if w.Exists || w.HardTo != "" || w.Node.Type != files.Absent && w.Node.Type != files.Directory {
		return false, nil
	}
	found, err := s.root.Inspect(w.Path)
	return w.Node.Type == files.Absent || found.Type != files.Directory && found.Type != files.Absent, err
}

func (s *stepper) differs(w *files.Want) (bool, error) {
	d, err := s.root.Compare(*w)
	if err != nil {
		return false, fmt.Errorf("comparing %s: %w", w.Subject(), err)
	}
	if len(d) > 0 || w.HardTo == "" {
		return len(d) > 0, nil
	}
	// Both names are the same inode now. When the target is replaced, this name keeps the old inode.
	if t := s.wants[path.Clean(w.HardTo)]; t != nil && t.Node.Type == files.Regular {
		d, err := s.root.Compare(*t)
		return len(d) > 0, err
	}
	return false, nil
}

func (s *stepper) add(w *files.Want) error {
	found, err := s.root.Inspect(w.Path)
	if err != nil {
		return err
	}
	st := step{Path: w.Path, Before: found, After: w.Node, HardTo: w.HardTo, Field: w.Field()}
	st.After.Data = nil
	if w.Exists {
		st.After.Type = files.Directory
	}
	switch {
	case w.HardTo == "" && !w.Exists && w.Node.Type == files.Absent:
		st.Op, st.IfEmpty = opRemove, w.IfEmpty
		if found.Type == files.Directory {
			st.Op = opRmdir
		}
		s.append(st)
		return nil
	case st.After.Type == files.Directory && found.Type == files.Directory && !w.Exists:
		st.Op = opMeta
		s.append(st)
		return nil
	case st.After.Type == files.Directory:
		return s.addDirectory(w, st, found)
	}
	if found.Type == files.Directory {
		if err := s.vacate(w.Path); err != nil {
			return err
		}
		s.append(step{Op: opRmdir, Path: w.Path, Before: found, After: files.Node{Type: files.Absent},
			Field: w.Field()})
		st.Before = files.Node{Type: files.Absent}
	}
	if found.Type == files.Other {
		return fmt.Errorf("%s is there", a(found.Type))
	}
	switch {
	case w.HardTo != "":
		if err := s.hardTarget(w.HardTo); err != nil {
			if s.root.Exposed(w.HardTo) == "" {
				err = refusal{err}
			}
			return err
		}
		st.Op = opHard
	case w.Node.Type == files.Regular && found.Type == files.Regular && s.inPlace(w):
		if w.Node.AnyData && w.Node.Mode&0o6000 != 0 && s.root.Exposed(w.Path) != "" {
			return refusal{fmt.Errorf("mode %04o for contents that users other than root choose: give the file contents",
				w.Node.Mode)}
		}
		st.Op = opMeta
		s.append(st)
		return nil
	default:
		st.Op, st.data = opPut, w.Node.Data
		if w.Node.Type == files.Regular {
			st.Sum = files.Sum(w.Node.Data)
		}
	}
	if st.Dir, err = s.parents(w.Path); err != nil {
		return err
	}
	s.append(st)
	return nil
}

// maxName is the kernel's NAME_MAX, in bytes.
const maxName = 255

func a(t files.Type) string {
	if t == files.Other {
		return "a socket, device or FIFO"
	}
	return "a " + string(t)
}

// hardTarget checks that there will be a file to link to.
func (s *stepper) hardTarget(name string) error {
	if w := s.wants[path.Clean(name)]; w != nil && w.Node.Type == files.Regular {
		return nil
	}
	found, err := s.root.Inspect(name)
	switch {
	case err != nil:
		return err
	case s.going[path.Clean(name)] || found.Type == files.Absent:
		return fmt.Errorf("there is no %s to link to: %w", name, unix.ENOENT)
	case found.Type != files.Regular:
		return fmt.Errorf("its target %s is %s, not a file", name, a(found.Type))
	}
	return nil
}

// makesWay reports whether a directory above name is removed, so that the present state says nothing about name.
func (s *stepper) makesWay(name string) bool {
	for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
		if s.going[dir] {
			return true
		}
	}
	return false
}

// changeable refuses steps that the file system would refuse, before anything is touched.
func (s *stepper) changeable() error {
	seen := map[string]bool{}
	check := func(st *step, at string) error {
		if seen[at] {
			return nil
		}
		seen[at] = true
		err := s.root.Changeable(at)
		if st.Exposed != "" && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)) {
			return nil // a user has just moved it away, or something is in the way
		}
		if err != nil {
			return fmt.Errorf("%s: %w", st.subject(), err)
		}
		return nil
	}
	for i := range s.steps {
		st := &s.steps[i]
		if st.Before.Type != files.Absent {
			if err := check(st, st.Path); err != nil {
				return err
			}
		}
		if st.Op == opMeta || s.makesWay(st.Path) {
			continue
		}
		dir, err := s.root.Ancestor(st.Path)
		if errors.Is(err, unix.ENOTDIR) || st.Exposed != "" && err != nil {
			continue // an earlier step makes room, or others move a directory on the way
		}
		if err != nil {
			return err
		}
		in, err := s.root.Resolve(path.Join(dir, "entry")) // dir may be a link to another file system, as /usr/local is
		if err != nil {
			return err
		}
		if err := check(st, path.Dir(in)); err != nil {
			return err
		}
	}
	return nil
}

// subject names the step in a message.
func (st *step) subject() string { return strings.TrimSpace(st.Field + " " + st.Path) }

// inPlace reports whether only mode, owner and label are to change. A file in an exposed place may be exchanged before
// they change. So in such places only files whose contents belong to their owner change in place.
func (s *stepper) inPlace(w *files.Want) bool {
	return w.Node.AnyData || s.root.Exposed(w.Path) == "" && s.sameContents(w)
}

func (s *stepper) sameContents(w *files.Want) bool {
	d, err := s.root.Compare(files.Want{Path: w.Path, Node: w.Node})
	return err == nil && !slices.ContainsFunc(d, func(d files.Difference) bool { return d.What == files.Contents })
}

func (s *stepper) addDirectory(w *files.Want, st step, found files.Node) error {
	if found.Type != files.Absent {
		if w.Exists || found.Type == files.Other {
			return fmt.Errorf("%s is there: %w", a(found.Type), unix.ENOTDIR)
		}
		s.append(step{Op: opRemove, Path: w.Path, Before: found, After: files.Node{Type: files.Absent},
			Field: w.Field()})
		st.Before = files.Node{Type: files.Absent}
	}
	if _, err := s.parents(w.Path); err != nil {
		return err
	}
	if s.made[w.Path] {
		for i := range s.steps { // made only as a parent before: this want says more
			if s.steps[i].Op == opMkdir && s.steps[i].Path == w.Path && !w.Exists {
				s.steps[i].After, s.steps[i].Implied = st.After, false
			}
		}
		return nil
	}
	st.Op, st.Implied = opMkdir, w.Exists
	s.made[w.Path] = true
	s.append(st)
	return nil
}

// vacate checks that nothing is left in the directory name once this transaction has done its removals. It removes the
// directories below that hold nothing else: those that were made only as parents. In an exposed place a user can make
// any number of entries, so the first entry that stays ends the search.
func (s *stepper) vacate(name string) error {
	return s.root.EachName(name, func(e string) error {
		below := path.Join(name, e)
		found, err := s.root.Inspect(below)
		if err != nil {
			return fmt.Errorf("inspecting %s: %w", below, err)
		}
		switch {
		case found.Type == files.Directory && (s.going[below] || s.root.Exposed(below) == ""):
			if err := s.vacate(below); err != nil {
				return err
			}
			if !s.going[below] {
				s.going[below] = true
				s.append(step{Op: opRmdir, Path: below, Before: found, After: files.Node{Type: files.Absent}})
			}
		case !s.going[below]:
			return fmt.Errorf("replacing directory %s: it holds %s, which no configuration owns", name, e)
		}
		return nil
	})
}

// parents makes sure that the directories above name will exist, and returns the deepest one that already exists. The
// new node is staged there: on the target's own file system, and with no effect before the commit.
func (s *stepper) parents(name string) (string, error) {
	var missing []string
	dir := path.Dir(name)
	for ; ; dir = path.Dir(dir) {
		found, err := s.root.Inspect(dir)
		if dir == "/" {
			break
		}
		if err != nil {
			return "", fmt.Errorf("inspecting %s: %w", dir, err)
		}
		if s.going[dir] || found.Type == files.Absent {
			missing = append(missing, dir)
			continue
		}
		if !s.root.IsDir(dir) {
			if found.Type == files.Symlink {
				return "", fmt.Errorf("its parent %s is a link to %s: %w", dir, found.Target, unix.ENOTDIR)
			}
			return "", fmt.Errorf("its parent %s is %s: %w", dir, a(found.Type), unix.ENOTDIR)
		}
		break
	}
	for _, m := range missing {
		if s.made[m] {
			continue
		}
		s.made[m] = true
		after, implied := files.Node{Type: files.Directory, Mode: 0o755}, true
		if w := s.wants[m]; w != nil && (w.Node.Type == files.Directory || w.Exists) {
			after, implied = w.Node, w.Exists
			after.Type = files.Directory
		} else if resolved, err := s.root.Resolve(m); err == nil {
			after.Label = s.labels.Of(resolved, files.Directory)
		}
		s.append(step{Op: opMkdir, Path: m, Implied: implied,
			Before: files.Node{Type: files.Absent}, After: after})
	}
	return dir, nil
}

// implied returns the directories that the steps make only as parents.
func implied(steps []step) []string {
	var out []string
	for i := range steps {
		if steps[i].Implied && !steps[i].LeftOut {
			out = append(out, steps[i].Path)
		}
	}
	return out
}

// addTo returns the sorted union of two sets of paths.
func addTo(set, more []string) []string {
	out := slices.Concat(set, more)
	slices.Sort(out)
	return slices.Compact(out)
}

// order sorts the steps: removals that make room, directories from the top, new nodes, hard links to them, changes in
// place, and then the other removals, from the bottom.
func (s *stepper) order() {
	needed := map[string]bool{}
	for _, st := range s.steps {
		if st.Op == opPut || st.Op == opMkdir || st.Op == opHard {
			for p := st.Path; p != "/"; p = path.Dir(p) {
				needed[p] = true
			}
		}
	}
	makesRoom := map[string]bool{} // directories that must be removed, with all that is below them
	for _, st := range s.steps {
		if st.Op == opRmdir && needed[st.Path] {
			makesRoom[st.Path] = true
		}
	}
	class := func(st *step) int {
		room := needed[st.Path]
		for p := st.Path; p != "/" && !room; p = path.Dir(p) {
			room = makesRoom[p]
		}
		switch st.Op {
		case opRemove, opRmdir:
			if room {
				return 0
			}
			return 5
		case opMkdir:
			return 1
		case opPut:
			return 2
		case opHard:
			return 3
		default:
			return 4
		}
	}
	slices.SortStableFunc(s.steps, func(a, b step) int {
		if c := cmp.Compare(class(&a), class(&b)); c != 0 {
			return c
		}
		depth := cmp.Compare(strings.Count(a.Path, "/"), strings.Count(b.Path, "/"))
		if a.Op == opRemove || a.Op == opRmdir {
			depth = -depth
		}
		return cmp.Or(depth, cmp.Compare(a.Path, b.Path))
	})
}

// stateNodes is how many files and directories the agent's own state needs for one transaction at most.
const stateNodes = 12

// checkSpace refuses an update that a file system has no room for. The update needs room for staged nodes, for new
// directories, and for the given bytes, in a few files, of the agent's own state.
func checkSpace(root *files.Root, steps []step, state string, bytes uint64) error {
	type need struct {
		space        files.Space
		dir          string
		bytes, nodes uint64
		needed       bool // more than exposed places, which a user can fill, need the room
	}
	needs := map[uint64]*need{}
	add := func(dir string, bytes, nodes uint64, needed bool) error {
		sp, err := root.Space(dir)
		if err != nil {
			return err
		}
		n := needs[sp.Device]
		if n == nil {
			n = &need{space: sp, dir: dir}
			needs[sp.Device] = n
		}
		n.bytes += (bytes + 4095) &^ 4095
		n.nodes += nodes
		n.needed = n.needed || needed
		return nil
	}
	for _, st := range steps {
		dir := st.Dir
		if st.Op == opMkdir {
			var err error
			if dir, err = root.Ancestor(st.Path); err != nil {
				continue // a removal makes room for the directory
			}
		}
		if dir == "" {
			continue
		}
		if err := add(dir, uint64(len(st.data)), 1, st.Exposed == ""); err != nil && st.Exposed == "" {
			return err
		}
	}
	if state != "" {
		at, err := root.Ancestor(path.Join(state, "x"))
		if err != nil {
			return err
		}
		if err := add(at, bytes, stateNodes, true); err != nil {
			return err
		}
	}
	var errs []error
	for _, n := range needs {
		if !n.needed {
			continue // steps that find no room in an exposed place are left out
		}
		if n.bytes > n.space.Bytes {
			errs = append(errs, fmt.Errorf("checking space: the file system of %s has %d bytes free, this update needs %d: %w",
				n.dir, n.space.Bytes, n.bytes, unix.ENOSPC))
		}
		if n.nodes > n.space.Inodes {
			errs = append(errs, fmt.Errorf("checking space: the file system of %s has %d inodes free, this update needs %d: %w",
				n.dir, n.space.Inodes, n.nodes, unix.ENOSPC))
		}
	}
	return errors.Join(errs...)
}
