// SPDX-License-Identifier: Apache-2.0

package transcript

import (
	"strings"
	"testing"
)

const page = "# Page\n\n```yaml\n# pool.yaml\nkind: Pool\n```\n\n```\nno file\n```\n\n```console\n$ apply -f pool.yaml\nmade\n\n" +
	"$ quiet\n$ status\nNAME  AGE\na     5s\n```\n\nThe end.\n"

func TestAPageIsReadAndWritten(t *testing.T) {
	p, err := Read(page)
	if err != nil {
		t.Fatal(err)
	}
	if p.String() != page {
		t.Errorf("the page becomes\n%s", p)
	}
	if len(p.Files) != 1 || p.Files["pool.yaml"] != "# pool.yaml\nkind: Pool\n" {
		t.Errorf("files: %q", p.Files)
	}
	if len(p.Commands) != 3 {
		t.Fatalf("%d commands", len(p.Commands))
	}
	for i, want := range []Command{
		{"apply -f pool.yaml", "made\n\n", 13, 16}, {"quiet", "", 16, 17}, {"status", "NAME  AGE\na     5s\n", 17, 20},
	} {
		if got := *p.Commands[i]; got != want {
			t.Errorf("command %d is %+v, want %+v", i, got, want)
		}
	}
	p.Commands[0].Output, p.Commands[1].Output, p.Commands[2].Output = "", "said\n", "NAME\n"
	want := strings.NewReplacer("made\n\n", "", "$ quiet\n", "$ quiet\nsaid\n", "NAME  AGE\na     5s\n", "NAME\n").Replace(page)
	if p.String() != want {
		t.Errorf("with other outputs the page becomes\n%s", p)
	}
}

func TestAPageThatCanNotBeFollowedIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"a\n```console\n$ b\n":                       "line 2: the block does not end",
		"```console\nb\n```\n":                       "line 2: the block has to begin with a command",
		"```\n# a.yaml\n```\n\n```\n# a.yaml\n```\n": "line 6: there is a file a.yaml above",
	} {
		if _, err := Read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestWhatDiffersFromRunToRunIsMasked(t *testing.T) {
	for output, want := range map[string]string{
		"worker  Updated  73m  1/4  97254a31 ":                                                  "worker Updated AGE 1/4 97254a31",
		"15:39:26  worker 0/3  (Staging took 200ms, all 1m7.1s)":                                "TIME worker 0/3 (Staging took AGE, all AGE)",
		"Draining since 2026-11-21T13:53:10Z (73m)":                                             "Draining since TIME (AGE)",
		"machine-config-daemon-x7k2p  Running  4m35s":                                           "machine-config-daemon-POD Running AGE",
		"machine-config-controller-5d8f7b9c4-x7k2p":                                             "machine-config-controller-POD",
		"machine-config-controller-67bc997cfb-mhpc6_081ceee7-990d-4033-b043-720484993c0a leads": "machine-config-controller-POD leads",
		"server  Kubernetes v1.36.3":                                                            "server Kubernetes VERSION",
		"rendered-worker-97254a31e32a144f050a02157adac818, 50-motd\n":                           "rendered-worker-97254a31e32a144f050a02157adac818, 50-motd\n",
	} {
		if got := Masked(output); got != want {
			t.Errorf("%q becomes %q, want %q", output, got, want)
		}
	}
}
