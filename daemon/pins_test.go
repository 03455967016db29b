// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/pins"
)

func image(name string) string { return "quay.io/x/" + name + "@sha256:" + strings.Repeat(name, 64) }

// pinsOn is a node at rest that was told of two sets.
func pinsOn() (*pinsState, *situation, *api.PinOrder) {
	v := atRestOn()
	v.exists = true
	o := &api.PinOrder{Pull: true, Sets: []api.PinnedSet{{Name: "base", Generation: 3, Digest: "d"}, {Name: "more", Generation: 1, Digest: "e"}}}
	v.node.Pins = o
	s := &pinsState{}
	s.see(v, true)
	s.sets = []imageSet{{PinnedSet: o.Sets[0], images: []string{image("a"), image("b")}},
		{PinnedSet: o.Sets[1], images: []string{image("b"), image("c")}}}
	return s, v, o
}

func TestAReportOfPinnedImagesNamesWhatFailedOnceAllWereTried(t *testing.T) {
	t.Parallel()
	s, v, o := pinsOn()
	now := v.now
	at := func(step string, want api.Pinned, again time.Duration) {
		t.Helper()
		got := *s.report
		got.Since = time.Time{}
		if want.Order = o.Digest(); got != want {
			t.Errorf("%s: the report is %+v, want %+v", step, got, want)
		}
		// Times have a jitter of a fifth at most.
		if left := s.at.Sub(now); left < again-again/4 || left > again+again/4 {
			t.Errorf("%s: the runtime is asked again after %s, want %s", step, left, again)
		}
	}
	s.ended(o, pins.State{Missing: map[string]string{image("a"): "not found", image("c"): ""}}, nil, now)
	at("one failed, and one was not tried", api.Pinned{Images: 3, Missing: 2}, pinPause)
	s.ended(o, pins.State{Missing: map[string]string{image("a"): ""}}, nil, now)
	at("all were tried", api.Pinned{Images: 3, Missing: 1, Error: image("a") + ": not found", Tries: 1}, time.Minute)
	if s.failed != nil {
		t.Error("the next try leaves images out")
	}
	got := s.pinnedSets(v, nil)
	want := []mcfgv1.MachineConfigNodeStatusPinnedImageSet{
		{Name: "base", DesiredGeneration: 3, LastFailedGeneration: 3, LastFailedGenerationError: image("a") + ": not found"},
		{Name: "more", DesiredGeneration: 1, CurrentGeneration: 1}}
	if !slices.Equal(got, want) {
		t.Errorf("the MachineConfigNode says %+v", got)
	}
	s.ended(o, pins.State{}, errors.New("containerd does not listen"), now)
	at("the runtime is gone", api.Pinned{Images: 3, Missing: 3, Error: "containerd does not listen", Tries: 2}, 2*time.Minute)
	since := now.Add(time.Hour)
	s.ended(o, pins.State{}, nil, since)
	if r := s.report; r.Missing != 0 || r.Tries != 0 || !r.Keeps(o) {
		t.Errorf("at the end the report is %+v", r)
	}
	s.ended(o, pins.State{}, nil, since.Add(time.Hour))
	if !s.report.Since.Equal(since) {
		t.Error("a report without news is written again")
	}
	if got := s.pinnedSets(v, got); got[0].CurrentGeneration != 3 || got[0].LastFailedGeneration != 0 {
		t.Errorf("at the end the MachineConfigNode says %+v", got)
	}
	o.Pull = false
	s.ended(o, pins.State{Missing: map[string]string{image("a"): ""}}, nil, now)
	at("its turn has not come", api.Pinned{Images: 3, Missing: 1}, verifyPace)
}

func TestSetsThatCantBeReadAreToldAfterSomeTries(t *testing.T) {
	t.Parallel()
	s, v, o := pinsOn()
	for range unreadTries - 1 {
		if !s.silent(o) {
			t.Fatal("the first failures are told")
		}
	}
	if s.silent(o) {
		t.Fatal("no failure is told")
	}
	s.sets = nil
	s.ended(o, pins.State{}, errors.New("reading PinnedImageSet base: not found"), v.now)
	if r := s.report; !r.Fails(o) || !strings.Contains(r.Error, "PinnedImageSet base") || s.at.Before(v.now.Add(30*time.Second)) {
		t.Errorf("the report is %+v, again at %s", r, s.at)
	}
	s.report = &api.Pinned{Order: o.Digest(), Images: 3}
	if !s.silent(o) {
		t.Error("images that are pinned are told as failed")
	}
}

// Where a set can't be read, the number of images is not known, and "0 of 0 images" would say nothing.
func TestAnEventAboutImagesSaysWhatCantBeRead(t *testing.T) {
	t.Parallel()
	s, v, o := pinsOn()
	s.sets = nil
	s.ended(o, pins.State{}, errors.New("reading PinnedImageSet base: not found"), v.now)
	got := pinningFailed(s.report)
	if strings.Contains(got, "0 of 0") || !strings.Contains(got, "reading PinnedImageSet base: not found") ||
		!strings.Contains(got, "See that the set is there") {
		t.Error(got)
	}
	s, v, o = pinsOn()
	s.sets = []imageSet{{}}
	s.ended(o, pins.State{}, errors.New("containerd does not listen"), v.now)
	if got := pinningFailed(s.report); got != "Images that the node is to keep no longer may still be pinned, the node serves "+
		"as before: containerd does not listen" {
		t.Error(got)
	}
	s, v, o = pinsOn()
	s.ended(o, pins.State{Missing: map[string]string{image("a"): "not found"}}, nil, v.now)
	if got, want := pinningFailed(s.report), "1 of 3 images are not pinned, the node serves as before: "+image("a")+": not found"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// All nodes of a pool are told of a changed set at the same moment.
func TestNodesReadAChangedSetSpreadOverSomeTime(t *testing.T) {
	t.Parallel()
	const nodes = 1000
	var early, late int
	for range nodes {
		s, v, _ := pinsOn()
		wait := s.at.Sub(v.now)
		if wait < 0 || wait >= readSpread {
			t.Fatalf("a node reads the set after %s, and not within %s", wait, readSpread)
		}
		if wait < readSpread/5 {
			early++
		}
		if wait > readSpread-readSpread/5 {
			late++
		}
	}
	if early < nodes/10 || late < nodes/10 {
		t.Errorf("of %d nodes %d read in the first fifth of the time, and %d in the last", nodes, early, late)
	}
	// What runs again and again, at the same pace on all nodes, moves apart.
	for range nodes {
		if d := jitter(time.Minute); d < 48*time.Second || d > 72*time.Second {
			t.Fatalf("a minute became %s", d)
		}
	}
}

func TestASetThatHasNotChangedIsNotReadAgain(t *testing.T) {
	t.Parallel()
	s, _, o := pinsOn()
	// Without a client, reading any set would end the test.
	got, err := (*cluster)(nil).imageSets(t.Context(), o, s.sets)
	if err != nil || len(got) != 2 || !slices.Equal(imagesOf(got), imagesOf(s.sets)) {
		t.Errorf("%+v, %v", got, err)
	}
}

// An object that is made again begins with generation 1, as the object before it did.
func TestASetWithOtherImagesThanTheNodeWasToldOfSaysSo(t *testing.T) {
	t.Parallel()
	set := &mcfgv1.PinnedImageSet{ObjectMeta: metav1.ObjectMeta{Name: "base", Generation: 1}}
	set.Spec.PinnedImages = []mcfgv1.PinnedImageRef{{Name: mcfgv1.ImageDigestFormat(image("a"))}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(api.Encode(set)))
	}))
	defer server.Close()
	told := api.NewPinnedSet(set)
	is := told.Digest
	told.Digest = "0123456789ab"
	_, err := (&cluster{kube: clientOf(t, server.URL)}).imageSets(t.Context(), &api.PinOrder{Sets: []api.PinnedSet{told}}, nil)
	want := "reading PinnedImageSet base: it has generation 1 with images " + is +
		", and the node was told of generation 1 with images 0123456789ab"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// The API server refuses a generation below the one that it has.
func TestASetThatWasMadeAgainIsLeftOutOnce(t *testing.T) {
	t.Parallel()
	s, v, _ := pinsOn()
	said := []mcfgv1.MachineConfigNodeStatusPinnedImageSet{{Name: "base", DesiredGeneration: 7, CurrentGeneration: 6},
		{Name: "more", DesiredGeneration: 1, CurrentGeneration: 1}}
	got := s.pinnedSets(v, said)
	if len(got) != 1 || got[0] != said[1] {
		t.Errorf("at first the MachineConfigNode says %+v", got)
	}
	if got = s.pinnedSets(v, got); len(got) != 2 || got[0] != (mcfgv1.MachineConfigNodeStatusPinnedImageSet{Name: "base", DesiredGeneration: 3}) {
		t.Errorf("then it says %+v", got)
	}
}

func TestAnotherOrderAndAnUpdateEndAPull(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*situation) (rests bool){
		"an update": func(*situation) bool { return false },
		"other sets": func(v *situation) bool {
			v.node.Pins = &api.PinOrder{Pull: true}
			return true
		},
		"no sets": func(v *situation) bool {
			v.node.Pins = nil
			return true
		},
		"a window that closes": func(v *situation) bool {
			o := *v.node.Pins
			o.Pull, v.node.Pins = false, &o
			return true
		},
	} {
		s, v, _ := pinsOn()
		var cause error
		s.cancel = func(err error) { cause = err }
		if s.see(v, true); cause != nil {
			t.Errorf("%s: nothing changed, and the pull ends with %v", name, cause)
		}
		if s.see(v, change(v)); !errors.Is(cause, hands.ErrSuperseded) {
			t.Errorf("%s: the pull goes on", name)
		}
	}
}

// An order may have a hundred sets, and the status is made in each turn of the loop.
func TestTheStatusOfSetsTakesAFixedNumberOfDigests(t *testing.T) {
	cost := func(sets int) float64 {
		s, v, o := pinsOn()
		o.Sets = o.Sets[:0]
		for i := range sets {
			o.Sets = append(o.Sets, api.PinnedSet{Name: strconv.Itoa(i), Generation: 1, Digest: "d"})
		}
		s.report = &api.Pinned{Order: o.Digest(), Images: 1, Missing: 1, Error: "not found"}
		return testing.AllocsPerRun(10, func() { s.pinnedSets(v, nil) })
	}
	// A digest takes ten. The race detector adds some that do not depend on the sets.
	if one, many := cost(1), cost(101); many-one >= 100 {
		t.Errorf("101 sets take %v allocations, and 1 set takes %v", many, one)
	}
}
