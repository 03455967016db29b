// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/installation"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// upgrade is kubectl refit upgrade of a version.
func (b *bench) upgrade(ctx context.Context, version string, dryRun bool, settings ...string) (string, error) {
	b.t.Helper()
	c, said, release := b.plugin(b.Config, version, nil)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := c.Upgrade(ctx, installation.Change{Release: release, Values: set(settings...)}, dryRun)
	return said.String(), err
}

// versions are the labels of definitions, controller and agents.
func (b *bench) versions() string {
	b.t.Helper()
	var out []string
	for _, args := range [][]string{
		{"get", "crd", "machineconfigpools.machineconfiguration.openshift.io"},
		{"-n", api.Namespace, "get", "deployment", api.Controller},
		{"-n", api.Namespace, "get", "daemonset", api.Daemon},
	} {
		version, err := kubectl(b.t.Context(), b.Cluster, append(args, "-o",
			`jsonpath={.metadata.labels.app\.kubernetes\.io/version}`)...)
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, version)
	}
	return strings.Join(out, " ")
}

// noted is what the record says.
func (b *bench) noted() (noted struct {
	Version, Phase string
	From           []string
	Values         map[string]any
}) {
	b.t.Helper()
	cm, err := b.Client.CoreV1().ConfigMaps(api.Namespace).Get(b.t.Context(), "noderefit-installation", metav1.GetOptions{})
	if err == nil {
		err = json.Unmarshal([]byte(cm.Data["record.json"]), &noted)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return noted
}

// rollingOut has the pools and nodes as they are in the middle of a rollout, and returns what shall not change of them.
func (b *bench) rollingOut() func() string {
	b.t.Helper()
	for kind, patch := range map[string]string{
		"mcp/worker":    `{"spec":{"configuration":{"name":"rendered-worker-new"}}}`,
		"node/worker-0": `{"metadata":{"annotations":{"` + api.DesiredConfig + `":"rendered-worker-new","` + api.CurrentConfig + `":"rendered-worker-old"}}}`,
	} {
		if text, err := kubectl(b.t.Context(), b.Cluster, "patch", kind, "--type=merge", "--patch", patch); err != nil {
			b.t.Fatalf("%v\n%s", err, text)
		}
	}
	return func() string {
		b.t.Helper()
		text, err := kubectl(b.t.Context(), b.Cluster, "get", "mcp,nodes,controllerconfigs", "-o",
			`jsonpath={range .items[*]}{.kind} {.metadata.name} {.spec} {.metadata.annotations} {.metadata.labels}{"\n"}{end}`)
		if err != nil {
			b.t.Fatal(err)
		}
		return text
	}
}

// upgrades has an installation of v0.1.0 upgraded, stopped at each write, taken back, and refused.
func (b *bench) upgrades(t *testing.T) {
	ctx := t.Context()
	targets := b.rollingOut()
	nodes := targets()
	t.Run("is refused without rights", func(t *testing.T) {
		config := rest.CopyConfig(b.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: "jane", Groups: []string{"system:authenticated", "viewers"}}
		c, said, release := b.plugin(config, "v0.2.0", nil)
		err := c.Upgrade(ctx, installation.Change{Release: release, Values: set()}, false)
		b.refuses(err, "nothing was changed: you may not create customresourcedefinitions.apiextensions.k8s.io")
		b.refuses(err, "delete daemonsets.apps in namespace "+api.Namespace)
		if said.Len() > 0 {
			t.Errorf("it said %q", said)
		}
	})
	t.Run("is refused more than one minor version further", func(t *testing.T) {
		before := b.state()
		_, err := b.upgrade(ctx, "v0.3.0", false)
		b.refuses(err, "v0.1.0 and v0.3.0 are more than one minor version apart, and their parts do not work together: go through v0.2")
		_, err = b.upgrade(ctx, "v1.0.0", false)
		b.refuses(err, "different major versions")
		if said, err := b.upgrade(ctx, "v0.2.0", true, "server.enabled=true,image.tag=x"); err != nil ||
			!strings.Contains(said, "warning: value image.tag is x: the pods get images of that tag") ||
			!strings.Contains(said, "upgrading Noderefit from v0.1.0 to v0.2.0 would do this") ||
			!strings.Contains(said, "server: 1 to make (DaemonSet "+api.Namespace+"/"+api.Server+")\n") {
			t.Errorf("dry run: %v\n%s", err, said)
		}
		if diff := cmp.Diff(before, b.state()); diff != "" {
			t.Errorf("what was refused or only tried changed objects:\n%s", diff)
		}
	})
	t.Run("stopped at each write, it goes on", func(t *testing.T) {
		b.killedOften("v0.2.0", func(ctx context.Context, c *installation.Cluster, r *installation.Release) error {
			return c.Upgrade(ctx, installation.Change{Release: r, Values: set("server.enabled=true")}, false)
		})
		if got := b.versions(); got != "v0.2.0 v0.2.0 v0.2.0" {
			t.Errorf("definitions, controller and agents are %s", got)
		}
		// The number of controllers is of the first installation.
		if got := b.noted(); got.Version != "v0.2.0" || got.Phase != "Installed" || len(got.From) > 0 ||
			!cmp.Equal(got.Values["controller"], map[string]any{"replicas": 1.0}) {
			t.Errorf("the record is %+v", got)
		}
	})
	t.Run("the same version again changes nothing", func(t *testing.T) {
		before := b.state()
		said, err := b.upgrade(ctx, "v0.2.0", false)
		if err != nil || !strings.HasPrefix(said, "applying Noderefit v0.2.0 again\n") || strings.Contains(said, "changed") {
			t.Errorf("%v\n%s", err, said)
		}
		if diff := cmp.Diff(before, b.state()); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("stopped in the middle, it goes back", func(t *testing.T) {
		b.killedOn("/deployments/"+api.Controller, "v0.3.0")
		if got := b.versions(); got != "v0.3.0 v0.3.0 v0.2.0" {
			t.Errorf("definitions, controller and agents are %s", got)
		}
		b.killedOn("/daemonsets/"+api.Daemon, "v0.3.0")
		if got := b.noted(); got.Phase != "Upgrading" || !slices.Equal(got.From, []string{"v0.2.0"}) {
			t.Errorf("the record is %+v", got)
		}
		_, err := b.upgrade(ctx, "v0.4.0", false)
		b.refuses(err, "v0.2.0 and v0.4.0 are more than one minor version apart")
		_, err = b.install(ctx, "v0.3.0")
		b.refuses(err, "an upgrade to the version v0.3.0 of Noderefit has begun and has not ended")
		b.killedOn("/daemonsets/"+api.Daemon, "v0.2.0")
		if got := b.versions(); got != "v0.3.0 v0.3.0 v0.2.0" {
			t.Errorf("on the way back, definitions, controller and agents are %s", got)
		}
		b.killedOften("v0.2.0", func(ctx context.Context, c *installation.Cluster, r *installation.Release) error {
			return c.Upgrade(ctx, installation.Change{Release: r, Values: set()}, false)
		})
		if got := b.versions(); got != "v0.3.0 v0.2.0 v0.2.0" {
			t.Errorf("definitions, controller and agents are %s", got)
		}
		_, err = b.upgrade(ctx, "v0.1.0", false)
		b.refuses(err, "definitions v0.3.0 with agents v0.1.0 is not supported: a way back leaves the definitions as they are")
	})
	t.Run("another command in the middle ends it", func(t *testing.T) {
		records := b.Client.CoreV1().ConfigMaps(api.Namespace)
		was, err := records.Get(ctx, "noderefit-installation", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		record := func(text string) {
			patch, err := json.Marshal(map[string]any{"data": map[string]any{"record.json": text}})
			if err == nil {
				_, err = records.Patch(ctx, was.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			}
			if err != nil {
				t.Error(err)
			}
		}
		c, _, release := b.plugin(b.Config, "v0.2.0", func(rt http.RoundTripper) http.RoundTripper {
			return at{rt, "/deployments/" + api.Controller, func() { record(`{"version": "v0.2.1", "phase": "Upgrading"}`) }}
		})
		err = c.Upgrade(ctx, installation.Change{Release: release, Values: set("controller.replicas=2")}, false)
		b.refuses(err, "another command has begun meanwhile: it has noted version v0.2.1, phase Upgrading")
		record(was.Data["record.json"])
	})
	t.Run("what it does not have any more is removed", func(t *testing.T) {
		b.adopted(t)
		said, err := b.upgrade(ctx, "v0.2.0", false, "server.enabled=false")
		if err != nil || !strings.Contains(said, "DaemonSet "+api.Namespace+"/"+api.Server+": removed, this version does not have it") ||
			!strings.Contains(said, "stays, it has become somebody else's") {
			t.Errorf("%v\n%s", err, said)
		}
		if _, err := b.Client.AppsV1().DaemonSets(api.Namespace).Get(ctx, api.Server, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the server is still there: %v", err)
		}
		if _, err := b.Client.CoreV1().ServiceAccounts(api.Namespace).Get(ctx, api.Server, metav1.GetOptions{}); err != nil {
			t.Errorf("what had become somebody else's: %v", err)
		}
	})
	if diff := cmp.Diff(nodes, targets()); diff != "" {
		t.Errorf("upgrades have changed what pools, nodes and the ControllerConfig have:\n%s", diff)
	}
	t.Run("a node that is off is not waited for", func(t *testing.T) {
		b.off(t)
		said, err := b.upgrade(ctx, "v0.3.1", false, "daemon.maxUnavailable=2")
		if err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		shown(t, said)
		for _, name := range []string{"master-0", "worker-0"} {
			text, err := kubectl(ctx, b.Cluster, "-n", api.Namespace, "get", "pods", "-l", "k8s-app="+api.Daemon,
				"--field-selector", "spec.nodeName="+name, "-o", `jsonpath={.items[*].metadata.labels.app\.kubernetes\.io/version}`)
			if err != nil || text != "v0.3.1" {
				t.Errorf("the agents on %s are %q, %v", name, text, err)
			}
		}
	})
}

// shown wants what an upgrade said in docs/kubectl-refit.md, but for what it waited for meanwhile.
func shown(t *testing.T, said string) {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/kubectl-refit.md")
	if err != nil {
		t.Fatal(err)
	}
	want := "    $ kubectl refit upgrade --set daemon.maxUnavailable=2\n"
	for line := range strings.Lines(said) {
		if !strings.HasPrefix(line, "  ") || strings.Contains(line, "not waited for") {
			want += "    " + line
		}
	}
	if !strings.Contains(string(page), want) {
		t.Errorf("docs/kubectl-refit.md does not show:\n%s", want)
	}
}

// off makes a node that no kubelet keeps, with an agent that waits for one.
func (b *bench) off(t *testing.T) {
	t.Helper()
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		corev1.ResourcePods: resource.MustParse("10"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "off", Labels: map[string]string{"kubernetes.io/os": "linux"}},
		Spec:       corev1.NodeSpec{Unschedulable: true},
		Status:     corev1.NodeStatus{Capacity: room, Allocatable: room},
	}
	if _, err := b.Client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Until(t.Context(), t, "the node has a pod", func() (bool, any) {
		text, err := kubectl(t.Context(), b.Cluster, "-n", api.Namespace, "get", "pods", "--field-selector", "spec.nodeName=off",
			"-o", "name")
		return err == nil && text != "", text
	})
}

// at kills with the first write of a path that is no dry run, after the server has answered it.
type at struct {
	http.RoundTripper

	path string
	kill context.CancelFunc
}

func (k at) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := k.RoundTripper.RoundTrip(r)
	if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, k.path) && !r.URL.Query().Has("dryRun") {
		k.kill()
	}
	return answer, err
}

// killedOn has an upgrade killed when it has written an object.
func (b *bench) killedOn(path, version string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	c, said, release := b.plugin(b.Config, version, func(rt http.RoundTripper) http.RoundTripper { return at{rt, path, cancel} })
	err := c.Upgrade(ctx, installation.Change{Release: release, Values: set()}, false)
	if !errors.Is(err, context.Canceled) {
		b.t.Fatalf("%v\n%s", err, said)
	}
}

// adopted makes the server's account somebody else's.
func (b *bench) adopted(t *testing.T) {
	t.Helper()
	patch := []byte(`{"metadata":{"labels":{"app.kubernetes.io/part-of":"other"}}}`)
	if _, err := b.Client.CoreV1().ServiceAccounts(api.Namespace).Patch(t.Context(), api.Server, types.MergePatchType,
		patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestTheUpgradeOfWhatKubectlInstalledIsRefused(t *testing.T) {
	c := installed(t)
	program, err := programs.Build(t.Context(), t.TempDir(), "cmd/kubectl-refit")
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"--registry=example.org/x":               {1, "error: kustomize or kubectl apply has installed Noderefit here ("},
		"--registry=example.org/x --dry-run":     {1, "go on with kubectl apply --server-side of the new version's manifests"},
		"--registry=example.org/x --timeout=-1s": {2, "flag --timeout: -1s is not a time in the future"},
		"--registry=example.org/x --set=a=1":     {2, "additional properties 'a' not allowed"},
		"v0.2.0":                                 {2, `unexpected argument "v0.2.0"`},
	} {
		cmd := exec.CommandContext(t.Context(), program, append([]string{"upgrade", "--kubeconfig", c.Kubeconfig},
			strings.Fields(args)...)...)
		text, err := run(cmd)
		if code := cmd.ProcessState.ExitCode(); code != want.code || !strings.Contains(err.Error(), want.says) {
			t.Errorf("%s: exit code %d: %v\n%s; want %d, %q", args, code, err, text, want.code, want.says)
		}
	}
}
