// SPDX-License-Identifier: Apache-2.0

package releases

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func image(digit int) string { return fmt.Sprintf("r.example/os@sha256:%064x", digit) }

// line returns an offer of versions without a graph, whose images are 1, 2 and so on, for all architectures.
func line(versions ...string) *Offer {
	o := &Offer{}
	for i, v := range versions {
		o.Releases = append(o.Releases, Release{
			Version: v, Images: map[string]string{Any: image(i + 1)}, Since: noon.Add(-48 * time.Hour),
		})
	}
	return o
}

// linked adds updates, each as FROM>TO.
func (o *Offer) linked(updates ...string) *Offer {
	o.Edges = map[string]map[string][]string{Any: {}}
	for _, u := range updates {
		from, to, _ := strings.Cut(u, ">")
		o.Edges[Any][from] = append(o.Edges[Any][from], to)
	}
	return o
}

func (o *Offer) with(change func(*Offer)) *Offer { change(o); return o }

func at(version string, digit int) Node {
	return Node{Name: "n" + version, Arch: "amd64", Version: version, Image: image(digit)}
}

// said writes a choice on one line.
func said(c Choice) string {
	parts := []string{"nothing"}
	if c.Take != nil {
		parts[0] = c.Take.Version
	}
	if c.Back {
		parts = append(parts, "back")
	}
	for _, s := range c.Skipped {
		parts = append(parts, fmt.Sprintf("%s:%s", s.Version, s.Reason))
	}
	if c.Withheld != "" {
		parts = append(parts, "withheld")
	}
	return strings.Join(parts, " ")
}

func TestWhichReleaseAPoolTakes(t *testing.T) {
	t.Parallel()
	one, two := &Taken{"1", image(1)}, &Taken{"2", image(2)}
	failed := []Failure{{"2", image(2), "n1", "kubelet.service failed"}}
	for _, c := range []struct {
		name string
		in   Input
		want string
	}{
		{"the newest, at first", Input{Offer: line("1", "2", "3")}, "3"},
		{"what it has, if nothing is newer", Input{Offer: line("1", "2"), Current: two}, "2"},
		{"nothing older than it has", Input{Offer: line("1", "2"), Current: two, Rules: Rules{Highest: "3"}}, "2"},
		{"not above the highest", Input{Offer: line("1.1", "1.9.5", "2.0"), Rules: Rules{Highest: "1.9"}}, "1.9.5 2.0:AboveHighest"},
		{"no version that can't be compared", Input{Offer: line("rolling"), Rules: Rules{Highest: "1"}}, "nothing rolling:AboveHighest"},
		{"not too young", Input{Offer: line("1", "2").with(func(o *Offer) { o.Releases[1].Since = noon.Add(-time.Hour) }),
			Rules: Rules{MinAge: 24 * time.Hour}}, "1 2:TooYoung"},
		{"old enough to the minute", Input{Offer: line("1"), Rules: Rules{MinAge: 48 * time.Hour}}, "1"},
		{"approved alone", Input{Offer: line("1", "2", "3"), Rules: Rules{Manual: true, Approved: "2"}}, "2 3:NeedsApproval"},
		{"none that hosts refuse", Input{Offer: line("1"), Rules: Rules{Admit: func(string) error { return errors.New("no") }}},
			"nothing 1:Signature"},
		{"the one after a failed one", Input{Offer: line("1", "2", "3"), Current: two, Previous: one, Failures: failed}, "3"},
		{"back, if the failed one is the newest and no node is there", Input{Offer: line("1", "2"), Current: two, Previous: one,
			Failures: failed, Nodes: []Node{at("1", 1)}}, "1 back 2:Quarantined"},
		{"the failed one no more", Input{Offer: line("1", "2"), Current: one, Failures: failed}, "1 2:Quarantined"},
		{"nothing, if there was nothing before the failed one", Input{Offer: line("1", "2"), Current: two, Failures: failed},
			"nothing back 2:Quarantined"},
		{"nodes that have not gone to the failed one are held", Input{Offer: line("1", "2"), Current: two, Previous: one,
			Failures: failed, Nodes: []Node{at("1", 1), at("2", 2)}}, "2 withheld"},
		{"no image for an architecture", Input{Offer: line("1", "2").with(func(o *Offer) {
			o.Releases[1].Images = map[string]string{"amd64": image(2)}
		}), Nodes: []Node{{Name: "a", Arch: "amd64"}, {Name: "b", Arch: "arm64"}}}, "1 2:NoImage"},
		{"one digest for both", Input{Offer: line("1", "2").with(func(o *Offer) {
			o.Releases[1].Images = map[string]string{"amd64": image(2), "arm64": image(2)}
		}), Nodes: []Node{{Name: "a", Arch: "amd64"}, {Name: "b", Arch: "arm64"}}}, "2"},
		{"not two digests", Input{Offer: line("1", "2").with(func(o *Offer) {
			o.Releases[1].Images = map[string]string{"amd64": image(2), "arm64": image(9)}
		}), Nodes: []Node{{Name: "a", Arch: "amd64"}, {Name: "b", Arch: "arm64"}}}, "1 2:SeveralImages"},
		{"no release without an image", Input{Offer: line("1", "2").with(func(o *Offer) { o.Releases[1].Problem = "none" })},
			"1 2:Unusable"},
		{"a tag that moved", Input{Offer: line("2").with(func(o *Offer) { o.Latest = true }), Current: &Taken{"9", image(9)}}, "2"},
		{"what it has, if what the tag moved to is not taken", Input{Offer: line("2").with(func(o *Offer) { o.Latest = true }),
			Current: &Taken{"9", image(9)}, Rules: Rules{Manual: true}}, "9 2:NeedsApproval"},
		{"a tag that moved back to what failed", Input{Offer: line("1", "2").with(func(o *Offer) {
			o.Latest, o.Releases = true, o.Releases[1:]
		}), Current: one, Failures: failed}, "1 2:Quarantined"},
		{"back from a withdrawn one", Input{Offer: line("1"), Current: two, Previous: one, Nodes: []Node{at("1", 1)}},
			"1 back 2:Withdrawn"},
		{"nodes that have not gone to a withdrawn one are held", Input{Offer: line("1"), Current: two, Previous: one,
			Nodes: []Node{at("1", 1), at("", 2)}}, "2 withheld"},
		{"a withdrawn one where all nodes are", Input{Offer: line("1"), Current: two, Previous: one, Nodes: []Node{at("", 2)}}, "2"},
		{"the one after a withdrawn one", Input{Offer: line("1", "2", "3").with(func(o *Offer) {
			o.Releases = slices.Delete(o.Releases, 1, 2)
		}), Current: two, Previous: one}, "3"},
		{"the release after a candidate that was withdrawn", Input{Offer: line("1.0.0", "2.0.0"),
			Current: &Taken{"2.0.0-rc.1", image(9)}, Previous: one}, "2.0.0"},
		{"no candidate of what was withdrawn", Input{Offer: line("1.0.0", "2.0.0-rc.1"),
			Current: &Taken{"2.0.0", image(9)}, Nodes: []Node{at("", 9)}}, "2.0.0"},
		{"what it has, where the graph has another image of that version", Input{
			Offer:   line("1", "2").linked("1>2").with(func(o *Offer) { o.Releases[1].Images[Any] = image(9) }),
			Current: two, Previous: one, Nodes: []Node{at("1", 1), at("2", 2)}}, "2"},
		{"not what failed, where the graph has another image of that version", Input{
			Offer: line("1", "2", "3").linked("1>2", "1>3").with(func(o *Offer) {
				o.Releases[1].Images[Any], o.Releases[2].DeadEnd = image(9), "it eats disks"
			}), Current: one, Failures: failed, Nodes: []Node{at("1", 1)}}, "1 3:DeadEnd 2:Quarantined"},
		{"by an update of the graph", Input{Offer: line("1", "2").linked("1>2"), Nodes: []Node{at("1", 1)}}, "2"},
		{"not without one", Input{Offer: line("1", "2", "3").linked("1>2"), Nodes: []Node{at("1", 1)}}, "2 3:NoEdge"},
		{"a barrier first", Input{Offer: line("1", "2", "3").linked("1>2", "2>3").with(func(o *Offer) {
			o.Releases[1].Barrier = "keys"
		}), Nodes: []Node{at("1", 1)}}, "2 3:BarrierFirst"},
		{"on until all nodes are past the barrier", Input{Offer: line("1", "2", "3").linked("1>2", "2>3"), Current: two,
			Nodes: []Node{at("1", 1), at("2", 2)}}, "2 3:BarrierFirst"},
		{"past the barrier", Input{Offer: line("1", "2", "3").linked("1>2", "2>3"), Current: two, Nodes: []Node{at("2", 2)}}, "3"},
		{"no dead end", Input{Offer: line("1", "2", "3").linked("1>2", "1>3").with(func(o *Offer) {
			o.Releases[2].DeadEnd = "too large"
		}), Nodes: []Node{at("1", 1)}}, "2 3:DeadEnd"},
		{"nothing from a dead end", Input{Offer: line("1", "2").linked().with(func(o *Offer) { o.Releases[0].DeadEnd = "x" }),
			Current: one, Nodes: []Node{at("1", 1)}}, "1 2:NoEdge"},
		{"back from what became a dead end", Input{Offer: line("1", "2").linked("1>2").with(func(o *Offer) {
			o.Releases[1].DeadEnd = "x"
		}), Current: two, Previous: one, Nodes: []Node{at("1", 1)}}, "1 back 2:DeadEnd"},
		{"nodes stay whose update was withdrawn", Input{Offer: line("1", "2").linked(), Current: two, Previous: one,
			Nodes: []Node{at("1", 1), at("2", 2)}}, "2 withheld"},
		{"nothing for a node that the graph does not know", Input{Offer: line("1", "2").linked("1>2"),
			Nodes: []Node{{Name: "n"}}}, "nothing 2:UnknownVersion 1:UnknownVersion"},
		{"an approved one for such a node", Input{Offer: line("1", "2").linked("1>2"), Nodes: []Node{{Name: "n"}},
			Rules: Rules{Approved: "2"}}, "2"},
		{"not while its rollout is behind the wariness", Input{Offer: line("1", "2").with(func(o *Offer) {
			o.Releases[1].Rollout = &Rollout{Start: noon.Add(-time.Hour), Duration: 4 * time.Hour}
		}), Rules: Rules{Wariness: 0.5}}, "1 2:Wariness"},
		{"once its rollout is there", Input{Offer: line("1", "2").with(func(o *Offer) {
			o.Releases[1].Rollout = &Rollout{Start: noon.Add(-2 * time.Hour), Duration: 4 * time.Hour}
		}), Rules: Rules{Wariness: 0.5}}, "2"},
		{"not before its rollout begins", Input{Offer: line("1", "2").with(func(o *Offer) {
			o.Releases[1].Rollout = &Rollout{Start: noon.Add(time.Hour), Value: 1}
		})}, "1 2:Wariness"},
		{"not where its rollout has stopped", Input{Offer: line("1", "2").with(func(o *Offer) {
			o.Releases[1].Rollout = &Rollout{Value: 0.2}
		}), Rules: Rules{Wariness: 0.5}}, "1 2:Wariness"},
	} {
		c.in.Now = noon
		if got := said(Choose(c.in)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestAChoiceExplainsTheNewestReleases(t *testing.T) {
	t.Parallel()
	var all []string
	for i := range 3 * MostSkipped {
		all = append(all, fmt.Sprint(i+1))
	}
	o := line(all...).linked("1>2", "2>3")
	c := Choose(Input{Offer: o, Nodes: []Node{at("1", 1)}})
	if len(c.Skipped) != MostSkipped || c.Skipped[0].Version != all[len(all)-1] || c.Take == nil || c.Take.Version != "2" {
		t.Errorf("%+v %+v", c.Take, c.Skipped)
	}
}

func TestAReasonThatEndsByItselfSaysWhen(t *testing.T) {
	t.Parallel()
	o := line("1", "2", "3")
	o.Releases[1].Rollout = &Rollout{Start: noon.Add(-time.Hour), Duration: 4 * time.Hour}
	o.Releases[2].Since = noon.Add(-time.Hour)
	c := Choose(Input{Offer: o, Rules: Rules{MinAge: 24 * time.Hour, Wariness: 0.5}, Now: noon})
	if said(c) != "1 3:TooYoung 2:Wariness" || !c.Next.Equal(noon.Add(time.Hour)) {
		t.Errorf("%s, again at %s", said(c), c.Next)
	}
	if text := c.Skipped[1].Message; text != "its rollout is at 25%, and the wariness is 50%: at 2026-03-01T13:00:00Z" {
		t.Error(text)
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// way is the way of a node by the graph of a file, from what its description of the OS names.
func way(t *testing.T, file, from string, now time.Time) []string {
	t.Helper()
	o, err := ParseGraph("amd64", read(t, file), nil)
	if err != nil {
		t.Fatal(err)
	}
	version := o.VersionIn("Fedora CoreOS " + from)
	var path []string
	for version != "" && len(path) < 20 {
		path = append(path, version)
		c := Choose(Input{Offer: o, Rules: Rules{Wariness: 0.5}, Now: now,
			Nodes: []Node{{Name: "n", Arch: "amd64", Version: version}}})
		if c.Take == nil || c.Take.Version == version {
			break
		}
		version = c.Take.Version
	}
	return path
}

func TestTheGraphOfFedoraCoreOSLeadsOverItsBarriers(t *testing.T) {
	t.Parallel()
	stable, testing := time.Unix(1646168400, 0), time.Unix(1730219400, 0) // when the rollouts of the newest begin
	for _, c := range []struct {
		file, from string
		now        time.Time
		want       []string
	}{
		{"stable-2022.json", "33.20201201.3.0", stable.Add(36 * time.Hour),
			[]string{"33.20201201.3.0", "34.20210611.3.0", "35.20211029.3.0", "35.20220213.3.0"}},
		{"testing-2024.json", "36.20221030.2.3", testing.Add(36 * time.Hour),
			[]string{"36.20221030.2.3", "37.20230322.2.0", "38.20231014.2.0", "39.20240104.2.0", "39.20240407.2.0",
				"40.20240701.2.0", "40.20241019.2.0", "41.20241027.2.0"}},
		{"testing-2024.json", "40.20240701.2.0", testing.Add(12 * time.Hour),
			[]string{"40.20240701.2.0", "40.20241019.2.0"}},
		{"testing-2024.json", "30.20190716.1", testing.Add(36 * time.Hour), []string{"30.20190716.1"}},
	} {
		if path := way(t, c.file, c.from, c.now); !slices.Equal(path, c.want) {
			t.Errorf("the way of %s by %s is %s", c.from, c.file, path)
		}
	}
	o, err := ParseGraph("amd64", read(t, "stable-2022.json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := Choose(Input{Offer: o, Rules: Rules{Wariness: 0.9}, Now: stable.Add(36 * time.Hour),
		Nodes: []Node{{Name: "n", Arch: "amd64", Version: "35.20211029.3.0"}}})
	if said(c) != "35.20220131.3.0 35.20220213.3.0:Wariness" {
		t.Errorf("with a wariness of 90%%: %s", said(c))
	}
	if o, err = ParseGraph("amd64", read(t, "testing-2024.json"), nil); err != nil {
		t.Fatal(err)
	}
	c = Choose(Input{Offer: o, Now: noon, Nodes: []Node{{Name: "n", Arch: "amd64", Version: "30.20190716.1"}}})
	if want := "node n runs 30.20190716.1, a dead end: https://github.com/coreos/fedora-coreos-tracker/issues/215"; len(
		c.Skipped) == 0 || c.Skipped[0].Message != want {
		t.Errorf("of a node on a dead end: %+v", c.Skipped)
	}
}

// Fedora's server names some versions with another digest every other minute.
func TestAVersionWithTwoDigestsIsOneRelease(t *testing.T) {
	t.Parallel()
	var digests map[string]map[string]map[string]string
	if err := json.Unmarshal(read(t, "digests-2025.json"), &digests); err != nil || len(digests) == 0 {
		t.Fatal(err, digests)
	}
	for version, arches := range digests {
		for arch, is := range arches {
			named := func(which string) *Offer {
				o, err := ParseGraph("amd64", fmt.Appendf(nil, `{"nodes":[{"version":%q,"payload":%q,"metadata":{%q:"0"}},
					{"version":"43.20251120.3.0","payload":%q,"metadata":{%q:"1",%q:"true",%q:"9999999999"}}],"edges":[[0,1]]}`,
					version, "quay.io/fedora/fedora-coreos@"+is[which], metaAge, image(2), metaAge, metaRollout, metaStart), nil)
				if err != nil {
					t.Fatal(err)
				}
				return o
			}
			nodes := []Node{{Name: "a", Arch: "amd64", Version: version}, {Name: "b", Arch: "amd64", Version: version}}
			first := Choose(Input{Offer: named("good"), Nodes: nodes, Now: noon})
			if first.Take == nil || Digest(first.Take.Image) != is["good"] {
				t.Fatalf("%s of %s: %+v", version, arch, first)
			}
			nodes[0].Image = first.Take.Image
			then := Choose(Input{Offer: named("bad"), Nodes: nodes, Now: noon, Current: first.Take})
			if then.Take != first.Take || then.Withheld != "" || then.Back {
				t.Errorf("%s of %s: %+v", version, arch, then)
			}
		}
	}
}

func TestReleasesWithoutAnImageGetThemFromTheIndex(t *testing.T) {
	t.Parallel()
	bare, err := ParseGraph("amd64", read(t, "next-2020.json"), nil)
	if err != nil || !bare.NeedsIndex() || bare.Releases[2].Version != "32.20200601.1.1" {
		t.Fatalf("%+v: %v", bare, err)
	}
	if got := said(Choose(Input{Offer: bare, Now: noon})); !strings.HasPrefix(got, "nothing 32.20200601.1.1:Unusable") {
		t.Error(got)
	}
	index, err := ParseIndex(fmt.Appendf(nil, `{"releases":[{"version":"32.20200601.1.1","oci-images":[
		{"architecture":"x86_64","image":"quay.io/fedora/fedora-coreos:next","digest-ref":%q}]}]}`, image(7)))
	if err != nil {
		t.Fatal(err)
	}
	full, err := ParseGraph("amd64", read(t, "next-2020.json"), index)
	if err != nil {
		t.Fatal(err)
	}
	c := Choose(Input{Offer: full, Rules: Rules{Wariness: 1}, Now: noon})
	if c.Take == nil || c.Take.Image != image(7) {
		t.Errorf("%s", said(c))
	}
}

func TestTheIndexOfFedoraCoreOSHasTheImageOfItsRelease(t *testing.T) {
	t.Parallel()
	index, err := ParseIndex(read(t, "releases-2021.json"))
	if err != nil {
		t.Fatal(err)
	}
	o, err := ParseGraph("amd64", []byte(`{"nodes":[
		{"version":"31.20200108.3.0","payload":"113aa27efe1bbcf6324af7423f64ef7deb0acbf21b928faec84bf66a60a5c933"},
		{"version":"31.20200113.3.1","payload":"f480038412cba26ab010d2cd5a09ddec736204a6e9faa8370edaa943cf33c932"}]}`), index)
	if err != nil {
		t.Fatal(err)
	}
	const want = "quay.io/fedora/fedora-coreos@sha256:460576931cf4ce59afe432ea266234f9d34fa77f8ca3087282084bc3a7324632"
	if o.Releases[0].Images["amd64"] != want || o.Releases[1].Problem == "" {
		t.Errorf("%+v", o.Releases)
	}
}

func TestGraphsOfArchitecturesAreOneOffer(t *testing.T) {
	t.Parallel()
	graph := func(arch string, versions ...string) *Offer {
		var nodes []string
		for i, v := range versions {
			nodes = append(nodes, fmt.Sprintf(`{"version":%q,"payload":%q,"metadata":{%q:"%d"}}`, v, image(i+1), metaAge, i))
		}
		o, err := ParseGraph(arch, []byte(`{"nodes":[`+strings.Join(nodes, ",")+`],"edges":[[0,1]]}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := Join([]*Offer{graph("amd64", "1", "3"), graph("arm64", "1", "2", "3")})
	var versions []string
	for _, r := range o.Releases {
		versions = append(versions, r.Version)
	}
	if !slices.Equal(versions, []string{"1", "2", "3"}) {
		t.Errorf("the order is %s", versions)
	}
	both := []Node{{Name: "a", Arch: "amd64", Version: "1"}, {Name: "b", Arch: "arm64", Version: "1"}}
	if got := said(Choose(Input{Offer: o, Nodes: both, Now: noon})); got != "1 3:NoEdge 2:NoEdge" {
		t.Error(got)
	}
}

func TestAGraphThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`[]`, `{"nodes":[],"edges":[]}`, `{"nodes":[{"version":"1"}],"edges":[[0,1]]}`, `{"nodes":[{"version":"1"}],"edges":[[-1,0]]}`,
		`{"nodes":[{"version":"1"},{"version":"1"}]}`, `{"nodes":[{}]}`, `{"nodes":[{"version":"1\u001b[2J"}]}`,
		`{"nodes":[{"version":"` + strings.Repeat("1", 129) + `"}]}`,
	} {
		if o, err := ParseGraph(Any, []byte(text), nil); err == nil {
			t.Errorf("%s: %+v", text, o)
		}
	}
}

func TestAPayloadIsARegistrysImageAndNothingElse(t *testing.T) {
	t.Parallel()
	digest := "@" + Digest(image(1))
	for payload, good := range map[string]bool{
		"quay.io/fedora/fedora-coreos" + digest: true, "r.example:5000/a/b__c/d-e.f" + digest: true,
		"ostree-unverified-registry:r.example/os" + digest: false, "ostree-unverified-image:docker://r.example/os" + digest: false,
		"dir:/var/os" + digest: false, "r.example/os:stable" + digest: false, "r.example/os\n" + digest: false, "os" + digest: false,
		"r.example/" + strings.Repeat("a", 500) + digest: false, "r.example/os:stable": false,
	} {
		o, err := ParseGraph(Any, fmt.Appendf(nil, `{"nodes":[{"version":"1","payload":%q}]}`, payload), nil)
		if err != nil {
			t.Fatal(err)
		}
		if r := o.Releases[0]; (r.Images[Any] == payload) != good || (r.Problem == "") != good {
			t.Errorf("%s: %+v", payload, r)
		}
	}
}

func TestTagsInARangeAreInTheirOrder(t *testing.T) {
	t.Parallel()
	tags := []string{"v1.10.0", "v1.9.0", "latest", "1.2", "v2.0.0", "v1.11.0-rc.1", "v0.9.0"}
	got, err := Range(">=1 <2", tags, 5)
	if err != nil || !slices.Equal(got, []string{"v1.9.0", "v1.10.0"}) {
		t.Errorf("%s %v", got, err)
	}
	if got, err = Range(">=0.1", tags, 1); err != nil || !slices.Equal(got, []string{"v2.0.0"}) {
		t.Errorf("%s %v", got, err)
	}
	if _, err = Range("newest", tags, 1); err == nil || !strings.Contains(err.Error(), "spec.source.versions.range") {
		t.Error(err)
	}
}
