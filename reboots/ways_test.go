// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// world is a host that is about to reboot.
type world struct {
	t    *testing.T
	root *files.Root
	// down are the methods by which systemd was asked to go down, and kept the ways that were recorded before.
	down []transaction.Method
	kept []transaction.Way
	ran  []string

	refuses                 map[transaction.Method]error
	inhibited, loads, fails error
	full                    bool // no way can be recorded, as on a full disk
	fullAfter               transaction.Method
	stops                   bool  // the command takes the host down
	stuck                   error // of kexec -u
	all                     []ostree.Deployment
	entry                   ostree.BootEntry
	tries                   int
	asked                   func() // is called once systemd is asked to go down
}

func (w *world) Inhibited(context.Context) error { return w.inhibited }
func (w *world) Delay(context.Context)           {}
func (w *world) Stopping(context.Context) bool   { return w.stops && slices.Contains(w.ran, commandPath) }
func (w *world) GoDown(_ context.Context, by transaction.Method) error {
	w.down = append(w.down, by)
	if w.asked != nil {
		w.asked()
	}
	w.full = w.full || by == w.fullAfter
	return w.refuses[by]
}
func (w *world) Run(_ context.Context, c systemd.Command) (systemd.Ended, error) {
	w.ran = append(w.ran, c.Argv[1])
	w.full = w.full || w.fullAfter == transaction.MethodCommand
	if w.fails != nil {
		return systemd.Ended{Result: "exit-code", Status: 3}, nil
	}
	return systemd.Ended{Result: "success"}, nil
}
func (w *world) Status(context.Context) ([]ostree.Deployment, error) { return w.all, nil }
func (w *world) BootEntry(id string) (ostree.BootEntry, error) {
	if id != "os/b.0" {
		return ostree.BootEntry{}, errors.New("there is none")
	}
	return w.entry, nil
}
func (w *world) Tries() (int, error) { return w.tries, nil }

func (w *world) put(name, text string, mode os.FileMode) {
	w.t.Helper()
	at := path.Join(w.root.Path(), name)
	if err := errors.Join(os.MkdirAll(path.Dir(at), 0o755), os.WriteFile(at, []byte(text), mode), os.Chmod(at, mode)); err != nil {
		w.t.Fatal(err)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root, err := files.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	w := &world{t: t, root: root, refuses: map[transaction.Method]error{}, stops: true,
		all: []ostree.Deployment{{ID: "os/b.0", Default: true}, {ID: "os/a.0", Booted: true}},
		entry: ostree.BootEntry{Kernel: "/boot/v", Initrds: []string{"/boot/i"},
			Arguments: `root=x noderefit.kexec=old a="b  c" ostree=/o`}}
	w.put("/usr/sbin/kexec", "", 0o755)
	w.put(commandPath, "#!/bin/sh\n", 0o755)
	return w
}

func (w *world) start(asked transaction.Method, change func(*Trip)) (*transaction.Way, error) {
	w.t.Helper()
	return w.trip(asked, change).Start(w.t.Context())
}

func (w *world) trip(asked transaction.Method, change func(*Trip)) *Trip {
	trip := &Trip{Root: w.root, System: w, Units: w, Asked: asked, Target: Target{Deployment: "os/b.0", Deployments: w,
		GRUB: ostree.NewGRUB(w.root.Path(), nil)},
		Exec: func(_ context.Context, argv ...string) ([]byte, error) {
			w.ran = append(w.ran, strings.Join(argv, " "))
			err := w.loads
			if argv[2] == "-u" {
				err = w.stuck
			}
			if err == nil {
				w.put(kexecLoaded, map[bool]string{true: "1\n", false: "0\n"}[argv[2] == "-l"], 0o644)
			}
			return nil, err
		},
		Record: func(way *transaction.Way) error {
			if w.full {
				return unix.ENOSPC
			}
			if way != nil {
				w.kept = append(w.kept, *way)
			}
			return nil
		},
		AfterLoad: func() error { return nil }, Say: func(string) {}}
	if change != nil {
		change(trip)
	}
	return trip
}

func TestWhichWayIsTaken(t *testing.T) {
	t.Parallel()
	const full, soft, kexec, command = transaction.MethodFull, transaction.MethodSoft, transaction.MethodKexec,
		transaction.MethodCommand
	for what, c := range map[string]struct {
		asked  transaction.Method
		world  func(w *world)
		trip   func(*Trip)
		down   []transaction.Method // by systemd
		why    string
		refuse bool
	}{
		"nothing is said": {"", nil, nil, []transaction.Method{full}, "", false},
		"full":            {full, nil, nil, []transaction.Method{full}, "", false},
		"soft":            {soft, nil, nil, []transaction.Method{soft}, "", false},
		"not soft": {soft, nil, func(t *Trip) { t.NotSoft = "sysctl.d changes" }, []transaction.Method{full},
			"sysctl.d changes", false},
		"kexec":              {kexec, nil, nil, []transaction.Method{kexec}, "", false},
		"kexec without host": {kexec, nil, func(t *Trip) { t.Target = Target{} }, []transaction.Method{full}, "only on a host with ostree", false},
		"no kexec": {kexec, func(w *world) { w.remove("/usr/sbin/kexec") }, nil, []transaction.Method{full},
			"install kexec-tools", false},
		"kexec is turned off": {kexec, func(w *world) { w.put("/proc/sys/kernel/kexec_load_disabled", "1\n", 0o644) }, nil,
			[]transaction.Method{full}, "kexec_load_disabled", false},
		"the kernel refuses": {kexec, func(w *world) { w.loads = errors.New("kexec_file_load failed:\nOperation not permitted") },
			nil, []transaction.Method{full}, "Operation not permitted", false},
		"the boot loader counts": {kexec, func(w *world) { w.tries = 3 }, nil, []transaction.Method{full}, "counts", false},
		"somebody has staged": {kexec, func(w *world) { w.all = append(w.all, ostree.Deployment{ID: "os/c.0", Staged: true}) },
			nil, []transaction.Method{full}, "os/c.0 is staged", false},
		"ours is staged, and locked": {kexec, func(w *world) {
			w.all = append(w.all, ostree.Deployment{ID: "os/c.0", Staged: true, Locked: true})
		}, nil, []transaction.Method{kexec}, "", false},
		"the firmware is to be seen": {kexec, func(w *world) { w.put(osIndications, "\a\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00", 0o644) },
			nil, []transaction.Method{full}, "OsIndications", false},
		"the firmware has nothing to do": {kexec, func(w *world) { w.put(osIndications, "\a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", 0o644) },
			nil, []transaction.Method{kexec}, "", false},
		"another entry once":        {kexec, func(w *world) { w.put(onceFiles[1], "x", 0o644) }, nil, []transaction.Method{full}, "LoaderEntryOneShot", false},
		"an entry for each boot":    {kexec, func(w *world) { w.put(entryChosen[0], "x", 0o644) }, nil, []transaction.Method{full}, "LoaderEntryDefault", false},
		"GRUB's next entry":         {kexec, func(w *world) { w.environment("next_entry=ostree-1") }, nil, []transaction.Method{full}, "next_entry=ostree-1", false},
		"GRUB's saved entry":        {kexec, func(w *world) { w.environment("saved_entry=1") }, nil, []transaction.Method{full}, "saved_entry=1", false},
		"GRUB's first entry":        {kexec, func(w *world) { w.environment("saved_entry=0") }, nil, []transaction.Method{kexec}, "", false},
		"no entry":                  {kexec, nil, func(t *Trip) { t.Target.Deployment = "os/x.0" }, []transaction.Method{full}, "there is none", false},
		"another default":           {kexec, func(w *world) { w.all[0].Default, w.all[1].Default = false, true }, nil, []transaction.Method{full}, "not the boot loader's default", false},
		"two initramfses":           {kexec, func(w *world) { w.entry.Initrds = append(w.entry.Initrds, "/boot/j") }, nil, []transaction.Method{full}, "more than one", false},
		"a device tree":             {kexec, func(w *world) { w.entry.Others = []string{"devicetree"} }, nil, []transaction.Method{full}, "devicetree", false},
		"variables":                 {kexec, func(w *world) { w.entry.Arguments += " $kernelopts" }, nil, []transaction.Method{full}, "variables", false},
		"kexec.target is masked":    {kexec, func(w *world) { w.refuses[kexec] = errors.New("starting kexec.target: masked") }, nil, []transaction.Method{kexec, full}, "masked", false},
		"somebody blocks the kexec": {kexec, func(w *world) { w.refuses[kexec] = &systemd.InhibitedError{} }, nil, []transaction.Method{kexec}, "", true},
		"command":                   {command, nil, nil, nil, "", false},
		"no command":                {command, func(w *world) { w.remove(commandPath) }, nil, []transaction.Method{full}, "has no " + commandPath, false},
		"a command of everybody's":  {command, func(w *world) { w.put(commandPath, "", 0o777) }, nil, []transaction.Method{full}, "others than root may write", false},
		"a text":                    {command, func(w *world) { w.put(commandPath, "", 0o644) }, nil, []transaction.Method{full}, "not executable", false},
		"a link":                    {command, func(w *world) { w.link(commandPath) }, nil, []transaction.Method{full}, "is no file", false},
		"a directory of everybody's": {command, func(w *world) { w.mode(path.Dir(commandPath), 0o777) }, nil, []transaction.Method{full},
			"others than root may write " + path.Dir(commandPath), false},
		"no limit":                  {command, func(w *world) { w.put(commandLimit, "soon\n", 0o644) }, nil, []transaction.Method{full}, "is not a time limit", false},
		"the command fails":         {command, func(w *world) { w.fails, w.stops = errors.New("3"), false }, nil, []transaction.Method{full}, "exit status 3", false},
		"it is killed on the way":   {command, func(w *world) { w.fails = errors.New("3") }, nil, nil, "", false},
		"it does nothing":           {command, func(w *world) { w.stops = false; w.put(commandLimit, "1s", 0o644) }, nil, []transaction.Method{full}, "did not take the host down within 1s", false},
		"somebody blocks the reset": {command, func(w *world) { w.inhibited = &systemd.InhibitedError{} }, nil, nil, "", true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if c.world != nil {
				c.world(w)
			}
			way, err := w.start(c.asked, c.trip)
			if (err != nil) != c.refuse || !slices.Equal(w.down, c.down) {
				t.Errorf("%v, %v; want %v", w.down, err, c.down)
			}
			if c.asked == "" || c.asked == full {
				if way != nil || len(w.kept) > 0 {
					t.Errorf("a full reboot has a way: %+v %+v", way, w.kept)
				}
				return
			}
			last := w.kept[len(w.kept)-1]
			if (last.Why == "") != (c.why == "") || !strings.Contains(last.Why, c.why) || last.Asked != c.asked {
				t.Errorf("%+v; want %q", last, c.why)
			}
			started := append([]transaction.Method{c.asked}, c.down...)
			if last.Started != started[len(started)-1] || (last.Token != "") != (last.Started == kexec) {
				t.Errorf("%+v was recorded", last)
			}
			unloads := slices.Contains(w.ran, "/usr/sbin/kexec -s -u")
			if goes := slices.Contains(c.down, kexec) && w.refuses[kexec] != nil; unloads != goes {
				t.Errorf("the kernel that nobody starts is unloaded: %t: %q", unloads, w.ran)
			}
		})
	}
}

func TestWhatKexecLoads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	way, err := w.start(transaction.MethodKexec, nil)
	want := "/usr/sbin/kexec -s -l /boot/v --command-line=root=x a=\"b  c\" ostree=/o noderefit.kexec=" + way.Token + " --initrd=/boot/i"
	if err != nil || !slices.Equal(w.ran, []string{want}) || len(way.Token) < 26 {
		t.Errorf("%q, %v; want %q", w.ran, err, want)
	}
	other, err := w.start(transaction.MethodKexec, nil)
	if err != nil || other.Token == way.Token {
		t.Errorf("two kernels have the token %s, %v", way.Token, err)
	}
}

// A kernel that stays loaded would be started by an administrator's systemctl reboot, whatever its deployment is by then.
func TestNoKernelStaysLoadedWithoutItsReboot(t *testing.T) {
	t.Parallel()
	const load, unload, own = "/usr/sbin/kexec -s -l", "/usr/sbin/kexec -s -u", commandPath
	const full, soft, kexec, command = transaction.MethodFull, transaction.MethodSoft, transaction.MethodKexec,
		transaction.MethodCommand
	earlier := func(w *world) { w.put(kexecLoaded, "1\n", 0o644) } // there is a loaded kernel
	for what, c := range map[string]struct {
		asked  transaction.Method
		loaded bool // by an earlier reboot of ours
		world  func(w *world)
		ran    []string
		down   []transaction.Method
		err    error
	}{
		"the disk is full":            {kexec, false, func(w *world) { w.full = true }, nil, nil, unix.ENOSPC},
		"and a kernel was loaded":     {kexec, true, func(w *world) { w.full = true; earlier(w) }, []string{unload}, nil, unix.ENOSPC},
		"full, and the disk is, too":  {full, true, func(w *world) { w.full = true; earlier(w) }, []string{unload}, nil, unix.ENOSPC},
		"the disk is full afterwards": {kexec, false, func(w *world) { w.refuses[kexec] = errors.New("no"); w.fullAfter = kexec }, []string{load, unload}, []transaction.Method{kexec}, unix.ENOSPC},
		"full once the command fails": {command, false, func(w *world) { w.fails, w.stops = errors.New("3"), false; w.fullAfter = command }, []string{own}, nil, unix.ENOSPC},
		"full":                        {full, true, earlier, []string{unload}, []transaction.Method{full}, nil},
		"nothing is said":             {"", true, earlier, []string{unload}, []transaction.Method{full}, nil},
		"soft":                        {soft, true, earlier, []string{unload}, []transaction.Method{soft}, nil},
		"command":                     {command, true, earlier, []string{unload, own}, nil, nil},
		"kexec again":                 {kexec, true, earlier, []string{load}, []transaction.Method{kexec}, nil},
		"kexec can't be had now":      {kexec, true, func(w *world) { w.tries = 3; earlier(w) }, []string{unload}, []transaction.Method{full}, nil},
		"it is gone already":          {full, true, nil, nil, []transaction.Method{full}, nil},
		"it is somebody's":            {command, false, earlier, []string{own}, nil, nil},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if c.world != nil {
				c.world(w)
			}
			_, err := w.start(c.asked, func(t *Trip) { t.Loaded = map[bool]string{true: "0ld"}[c.loaded] })
			same := slices.EqualFunc(w.ran, c.ran, strings.HasPrefix)
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || !same || !slices.Equal(w.down, c.down) {
				t.Errorf("%q, down %v, %v; want %q, %v, %v", w.ran, w.down, err, c.ran, c.down, c.err)
			}
		})
	}
}

// The kernel that stays loaded stays in the record: the next run of the agent unloads it. Only a full reboot leaves such a
// kernel behind for good.
func TestAKernelThatCantBeUnloadedStaysInTheRecord(t *testing.T) {
	t.Parallel()
	const full, soft, kexec, command = transaction.MethodFull, transaction.MethodSoft, transaction.MethodKexec,
		transaction.MethodCommand
	for _, asked := range []transaction.Method{"", full, soft, kexec, command} {
		w := newWorld(t)
		w.stuck, w.refuses[kexec] = errors.New("Operation not permitted"), errors.New("masked")
		w.put(kexecLoaded, "1\n", 0o644)
		way, err := w.start(asked, func(t *Trip) { t.Loaded = "0ld" })
		if err != nil || w.down[len(w.down)-1] != full || slices.Contains(w.ran, commandPath) || len(w.kept) == 0 {
			t.Errorf("%q: down %v, ran %q, %v", asked, w.down, w.ran, err)
			continue
		}
		last := w.kept[len(w.kept)-1]
		if *way != last || last.Asked != cmp.Or(asked, full) || last.Started != full ||
			(last.Token == "0ld") != (asked != kexec) || last.Token == "" || (last.Why == "") != (last.Asked == full) {
			t.Errorf("%q: %+v was recorded", asked, last)
		}
	}
}

// Whatever ends the agent right after the load, the record has the kernel.
func TestAKernelIsRecordedBeforeItIsLoaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.start(transaction.MethodKexec, func(trip *Trip) {
		load := trip.Exec
		trip.Exec = func(ctx context.Context, argv ...string) ([]byte, error) {
			if len(w.kept) != 1 || w.kept[0].Token == "" || !strings.Contains(strings.Join(argv, " "), w.kept[0].Token) {
				t.Errorf("%q loads what is not recorded: %+v", argv, w.kept)
			}
			return load(ctx, argv...)
		}
	})
	if err != nil || len(w.ran) != 1 {
		t.Errorf("%q, %v", w.ran, err)
	}
}

// A person who stops an update while its kernel is loaded wants no reboot. A load that fails by itself ends in a full one.
func TestAnUpdateThatIsStoppedDuringTheLoadDoesNotReboot(t *testing.T) {
	t.Parallel()
	const load, unload = "/usr/sbin/kexec -s -l", "/usr/sbin/kexec -s -u"
	failed := errors.New("killed")
	for what, c := range map[string]struct {
		stop, after bool  // before the end of the load, and after the load
		err         error // of the load
		down        []transaction.Method
	}{
		"while the kernel is loaded":  {true, false, failed, nil},
		"right after the load":        {false, true, nil, nil},
		"by nobody, and it fails":     {false, false, failed, []transaction.Method{transaction.MethodFull}},
		"by nobody, and all is right": {false, false, nil, []transaction.Method{transaction.MethodKexec}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			_, err := w.trip(transaction.MethodKexec, func(trip *Trip) {
				run := trip.Exec
				trip.Exec = func(ctx context.Context, argv ...string) ([]byte, error) {
					out, err := run(ctx, argv...)
					if argv[2] == "-u" {
						return out, err
					}
					if c.stop {
						stop()
					}
					return out, c.err
				}
				trip.AfterLoad = func() error {
					if c.after {
						stop()
					}
					return nil
				}
			}).Start(ctx)
			stopped := c.stop || c.after
			if errors.Is(err, context.Canceled) != stopped || !stopped && err != nil || !slices.Equal(w.down, c.down) {
				t.Errorf("down %v, %v; want %v", w.down, err, c.down)
			}
			want := []string{load, unload}
			if !stopped && c.err == nil {
				want = want[:1]
			}
			if !slices.EqualFunc(w.ran, want, strings.HasPrefix) {
				t.Errorf("ran %q; want %q", w.ran, want)
			}
		})
	}
}

// environment writes GRUB's environment, which has always the same size.
func (w *world) environment(line string) {
	text := "# GRUB Environment Block\n" + line + "\n"
	w.put("/boot/grub2/grubenv", text+strings.Repeat("#", 1024-len(text)), 0o644)
}

func (w *world) remove(name string) { w.must(os.Remove(path.Join(w.root.Path(), name))) }

func (w *world) link(name string) {
	w.remove(name)
	w.must(os.Symlink("/usr/sbin/kexec", path.Join(w.root.Path(), name)))
}

func (w *world) mode(name string, mode os.FileMode) {
	w.must(os.Chmod(path.Join(w.root.Path(), name), mode))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}
