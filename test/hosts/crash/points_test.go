// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// kind is a kind of hosts. Each has to be cut at all fault points of its road.
type kind string

const (
	ofOSTree  kind = "ostree"
	ofGRUB    kind = "apt and GRUB"
	ofEntries kind = "dnf and boot loader entries"
)

func kindOf(options lab.Options) kind {
	switch options.Loader {
	case lab.GRUB:
		return ofGRUB
	case lab.Entries:
		return ofEntries
	}
	return ofOSTree
}

func (k kind) road() transaction.Road {
	if k == ofOSTree {
		return transaction.RoadSwitch
	}
	return transaction.RoadInPlace
}

// elsewhere are the points that a road has in the table of steps and that are not cut on its hosts, with the reason.
var elsewhere = map[transaction.Road]map[string]string{
	transaction.RoadSwitch: {
		"act SERVICE":  aLiveChange,
		"again":        earlyBoot,
		"etc recorded": theStagedRoad,
		"etc staged":   theStagedRoad,
		"fallback":     "the default is a deployment of another program",
		"left out":     changesMeanwhile,
		"loader PATH":  ofPackages,
		"reread":       earlyBoot,
		"taken back":   ofPackages,
		"unhealthy":    ofPackages,
	},
	transaction.RoadInPlace: {
		"act SERVICE":            aLiveChange,
		"counted":                aDeployment,
		"daemon-reload":          aLiveChange,
		"default":                aDeployment,
		"default is the old one": aDeployment,
		"deployed":               aDeployment,
		"discard":                aDeployment,
		"etc PATH":               aDeployment,
		"etc begun":              aDeployment,
		"etc recorded":           theStagedRoad,
		"etc staged":             theStagedRoad,
		"etc written":            aDeployment,
		"fallback":               aDeployment,
		"kernel loaded":          aDeployment,
		"left out":               changesMeanwhile,
		"materialise":            aDeployment,
		"moved":                  aDeployment,
		"noted":                  aDeployment,
		"prepared":               aLiveChange,
		"recounted":              aDeployment,
		"return":                 aDeployment,
		"returning":              aDeployment,
	},
}

// The reasons.
const (
	aDeployment      = "needs deployments, or a boot loader that counts their boots"
	aLiveChange      = "a change without a boot: on trees, and test/hosts/node"
	changesMeanwhile = "a path that is changed while it is staged"
	earlyBoot        = "early boot reads the /etc of the new deployment"
	ofPackages       = "hosts without ostree"
	theStagedRoad    = "the staged road: test/hosts/osupdate"
)

func TestThePointsThatAreNotCutAreInTheTableOfSteps(t *testing.T) {
	for road, except := range elsewhere {
		known, err := pointsOf(road)
		if err != nil {
			t.Fatal(err)
		}
		for point := range except {
			if !slices.Contains(known, point) {
				t.Errorf("%s: the table of steps in docs/architecture.md has no point %q", road, point)
			}
		}
	}
}

// pointKind returns the name of a fault point as the table of steps has it.
func pointKind(name string) string {
	first, rest, more := strings.Cut(name, " ")
	switch {
	case more && strings.HasPrefix(rest, "/"):
		return first + " PATH"
	case more && first == "act":
		return first + " SERVICE"
	}
	return name
}

// cutPoints are the kinds of points at which hosts were cut.
var cutPoints points

type points struct {
	sync.Mutex
	cut map[kind]map[string]int
}

func (p *points) add(k kind, point string) {
	if point == "" {
		return // a random moment
	}
	p.Lock()
	defer p.Unlock()
	if p.cut == nil {
		p.cut = map[kind]map[string]int{}
	}
	if p.cut[k] == nil {
		p.cut[k] = map[string]int{}
	}
	p.cut[k][pointKind(point)]++
}

// missing prints at how many points each kind was cut. In a run of all tests the error names the points of the table of
// steps at which a kind was not, and the entries of elsewhere that are not so.
func (p *points) missing(all bool) error {
	p.Lock()
	defer p.Unlock()
	var errs []error
	for _, k := range []kind{ofOSTree, ofGRUB, ofEntries} {
		if p.cut[k] == nil && (!all || os.Getenv("LAB") != "require") {
			continue // no test of this kind has run, or the lab cannot run here
		}
		want, err := pointsOf(k.road())
		if err != nil {
			return err
		}
		except := elsewhere[k.road()]
		fmt.Fprintf(os.Stdout, "points cut: %d of %d (%s)\n", len(p.cut[k]), len(want)-len(except), k)
		for _, point := range want {
			switch _, out := except[point]; {
			case p.cut[k][point] == 0 && !out && all:
				errs = append(errs, fmt.Errorf("no host of %s was cut at %q", k, point))
			case p.cut[k][point] > 0 && out:
				errs = append(errs, fmt.Errorf("a host of %s was cut at %q, which elsewhere has", k, point))
			}
		}
		for point := range p.cut[k] {
			if !slices.Contains(want, point) {
				errs = append(errs, fmt.Errorf("a host of %s was cut at %q, which the table of steps has not for it", k, point))
			}
		}
	}
	return errors.Join(errs...)
}

var inQuotes = regexp.MustCompile("`([^`]+)`")

// pointsOf returns the fault points of a road in the given steps, in all of them without any. The table of steps in the
// docs has them, which is written from the steps themselves.
func pointsOf(road transaction.Road, steps ...string) ([]string, error) {
	root, err := lab.Repository()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		return nil, err
	}
	_, table, _ := strings.Cut(string(text), "<!-- steps:")
	table, _, there := strings.Cut(table, "<!-- end of steps -->")
	var out []string
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 8 || len(steps) > 0 && !slices.Contains(steps, strings.TrimSpace(cells[1])) {
			continue
		}
		if roads := strings.TrimSpace(cells[4]); roads != "" && !slices.Contains(strings.Split(roads, ", "), string(road)) {
			continue
		}
		for _, m := range inQuotes.FindAllStringSubmatch(cells[6], -1) {
			out = append(out, m[1])
		}
	}
	if !there || len(out) == 0 {
		return nil, errors.New("docs/architecture.md has no table of steps with fault points")
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// sample returns all points of a list, and the first one in a short run.
func sample(names ...string) []string {
	if testing.Short() {
		return names[:1]
	}
	return names
}
