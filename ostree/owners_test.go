// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const tuned, dracut = ownerPrefix + "tuned", ownerPrefix + "dracut"

// The fixture is a dictionary as GLib writes it.
func TestOwnersOfAStagedDeploymentAreRead(t *testing.T) {
	state, err := os.ReadFile("testdata/staged-extra")
	if err != nil {
		t.Fatal(err)
	}
	got, err := readStaged(hostTree(t, map[string]string{StagedState: string(state)}))
	want := Extra{tuned: "isolcpus=1-3 nohz=full", dracut: "", ownKey: "a=1"}
	if err != nil || !reflect.DeepEqual(got.extra, want) {
		t.Errorf("%v %v", got.extra, err)
	}
	for _, bad := range []variant{{"a{ss}", []byte("abc")}, {"as", []byte("a\x00\x02")}, {"a{ss}", []byte("a\x00b\x07\x04")}} {
		if _, err := readPairs(bad); err == nil {
			t.Errorf("%q is taken for pairs", bad.value)
		}
	}
}

func TestWhatOthersOwnIsCarriedAndOursIsOwned(t *testing.T) {
	had := Extra{tuned: "isolcpus=1", dracut: "", ownKey: "old=1", "x-other": "y"}
	if diff := cmp.Diff(Extra{tuned: "isolcpus=1", dracut: "", "x-other": "y", ownKey: "a=1 b=2"}, had.With([]string{"a=1", "b=2"})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Extra{tuned: "isolcpus=1", dracut: "", "x-other": "y"}, had.With(nil)); diff != "" {
		t.Error(diff)
	}
	if got := Extra(nil).With(nil); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

func TestAStagedDeploymentOfAnotherOwnerIsAWish(t *testing.T) {
	booted := Deployment{OS: "testos", Checksum: one, Booted: true, KernelArguments: []string{"rw", "isolcpus=1", "a=1"},
		Extra: Extra{tuned: "isolcpus=1", ownKey: "a=1"}}
	staged := func(change func(*Deployment)) Deployment {
		d := Deployment{OS: "testos", Checksum: one, Staged: true, KernelArguments: []string{"rw", "a=1", "isolcpus=0-7", "nohz=on"},
			Extra: Extra{tuned: "isolcpus=0-7 nohz=on", ownKey: "a=1"}}
		change(&d)
		return d
	}
	for _, c := range []struct {
		name   string
		staged []Deployment
		wish   []string
	}{
		{"nothing staged", nil, nil},
		{"other arguments", []Deployment{staged(func(*Deployment) {})}, []string{"tuned"}},
		{"none any more", []Deployment{staged(func(d *Deployment) {
			d.KernelArguments, d.Extra = []string{"rw", "a=1"}, Extra{tuned: "", ownKey: "a=1"}
		})}, []string{"tuned"}},
		{"one more owner", []Deployment{staged(func(d *Deployment) {
			d.KernelArguments, d.Extra = []string{"rw", "isolcpus=1", "a=1", "rd.x"}, Extra{tuned: "isolcpus=1", dracut: "rd.x", ownKey: "a=1"}
		})}, []string{"dracut"}},
		{"another OS too", []Deployment{staged(func(d *Deployment) { d.Checksum = two })}, nil},
		{"an argument of nobody's too", []Deployment{staged(func(d *Deployment) { d.KernelArguments = append(d.KernelArguments, "x=1") })}, nil},
		{"locked", []Deployment{staged(func(d *Deployment) { d.Locked = true })}, nil},
		{"the same owners", []Deployment{staged(func(d *Deployment) { d.KernelArguments, d.Extra = booted.KernelArguments, booted.Extra })}, nil},
	} {
		line, wishing := NextCommandLine(append(slices.Clone(c.staged), booted))
		want := CommandLine{booted.KernelArguments, booted.Extra}
		if c.wish != nil {
			want = CommandLine{c.staged[0].KernelArguments, c.staged[0].Extra}
		}
		if diff := cmp.Diff(want, line); diff != "" || !slices.Equal(wishing, c.wish) {
			t.Errorf("%s: %v %s", c.name, wishing, diff)
		}
	}
}

func TestOwnersAreNotedInTheEntryOfADeploymentThatDoesNotBootNext(t *testing.T) {
	const begins = "title Test OS v1 (ostree:1)\nversion 1\noptions rw a=1 ostree=/ostree/boot.1/testos/7c32/1\n"
	root := hostTree(t, map[string]string{
		"boot/loader.1/entries/x":             "",
		"boot/loader.1/entries/ostree-2.conf": "version 2\noptions rw ostree=/ostree/boot.1/testos/7c32/0\n" + tuned + " isolcpus=1\n" + dracut + " \n",
		"boot/loader.1/entries/ostree-1.conf": begins,
	})
	link(t, root, "ostree/boot.1/testos/7c32/0", "../../../deploy/testos/deploy/"+one+".0")
	link(t, root, "ostree/boot.1/testos/7c32/1", "../../../deploy/testos/deploy/"+one+".1")
	entries, err := readEntries(root)
	if err != nil {
		t.Fatal(err)
	}
	was := entries["testos/"+one+".0"].extra
	if diff := cmp.Diff(Extra{tuned: "isolcpus=1", dracut: ""}, was); diff != "" {
		t.Fatal(diff)
	}
	writes := 0
	write := func(path string, text []byte) error {
		writes++
		if path != "/boot/loader.1/entries/ostree-1.conf" {
			return errors.New("writing " + path)
		}
		return os.WriteFile(filepath.Join(root, path), text, 0o600)
	}
	p := NewPlain(nil, root)
	for range 2 { // the second time there is nothing to do
		if err := p.Note(t.Context(), "testos/"+one+".1", was.With([]string{"a=1"}), write); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "boot/loader/entries/ostree-1.conf"))
	if want := begins + dracut + " \n" + ownKey + " a=1\n" + tuned + " isolcpus=1\n"; err != nil || string(text) != want || writes != 1 {
		t.Errorf("%v, %d writes, %s", err, writes, text)
	}
	if err := p.Note(t.Context(), "testos/"+one+".0", nil, write); err == nil || !strings.Contains(err.Error(), "boots next already") {
		t.Errorf("the default: %v", err)
	}
	if err := p.Note(t.Context(), "testos/"+one+".2", nil, write); ClassOf(err) != Invalid {
		t.Errorf("an unknown one: %v", err)
	}
	cut := func(string, []byte) error { return nil } // as if another program had rewritten the entries
	if err := p.Note(t.Context(), "testos/"+one+".1", nil, cut); ClassOf(err) != Retryable {
		t.Errorf("a write that is not there: %v", err)
	}
}
