// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/installation"
	"github.com/noderefit/noderefit/test/lab/cluster"
	"github.com/noderefit/noderefit/test/lab/programs"
)

// unpacked returns the files of a packed chart, by their paths in it.
func unpacked(t *testing.T, file string) map[string]string {
	t.Helper()
	packed, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	plain, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			_, name, _ := strings.Cut(strings.TrimPrefix(header.Name, "./"), "/")
			all[name] = string(data)
		}
	}
}

// carried returns the files of the chart that a program of a version carries.
func carried(t *testing.T, version, registry string) map[string]string {
	t.Helper()
	release, err := installation.NewRelease(version, registry)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for name, data := range release.Files() {
		all[name] = string(data)
	}
	return all
}

func TestThePluginCarriesTheChart(t *testing.T) {
	inputs(t)
	t.Run("of a checkout", func(t *testing.T) {
		packed := t.TempDir()
		helm(t, "package", chart, "--destination", packed)
		want, got := unpacked(t, packed+"/noderefit-0.0.0-dev.tgz"), carried(t, "dev", "")
		// Helm writes this one anew, in an order of its own.
		delete(want, "Chart.yaml")
		delete(got, "Chart.yaml")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("helm package (-) and the plugin (+) differ:\n%s", diff)
		}
	})
	t.Run("of a release", func(t *testing.T) {
		const version = "v1.2.3-rc.1"
		want := unpacked(t, released(t, version, "chart")+"/noderefit-1.2.3-rc.1.tgz")
		if diff := cmp.Diff(want, carried(t, version, "ghcr.io/noderefit")); diff != "" {
			t.Errorf("the release's chart (-) and the plugin's (+) differ:\n%s", diff)
		}
	})
}

func TestInstallPrintsWhatHelmMakes(t *testing.T) {
	inputs(t)
	program, err := programs.Build(t.Context(), t.TempDir(), "cmd/kubectl-refit")
	if err != nil {
		t.Fatal(err)
	}
	values := t.TempDir() + "/values.yaml"
	const text = "image: {registry: example.org/x, tag: v1}\ncontroller: {replicas: 1, tolerations: null}\n"
	if err := os.WriteFile(values, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"defaults":   {"--set", registry},
		"everything": {"--set", registry + ",server.enabled=true,monitoring.enabled=true,page.enabled=true,templates.create=true"},
		"a file":     {"--values", values, "--set", "daemon.maxUnavailable=2"},
	} {
		t.Run(name, func(t *testing.T) {
			printed, err := run(exec.CommandContext(t.Context(), program, append([]string{"install", "--dry-run"}, args...)...))
			if err != nil {
				t.Fatal(err)
			}
			want := objects(t, helm(t, append([]string{"template", "noderefit", chart, "--include-crds", "--set",
				"createNamespace=true"}, args...)...))
			if diff := cmp.Diff(want, objects(t, printed)); diff != "" {
				t.Errorf("helm template (-) and the plugin (+) differ:\n%s", diff)
			}
		})
	}
	for args, says := range map[string]string{
		"":                                    "image.registry is not set: say where the images are",
		"--registry=https://x":                "at '/image/registry': ",
		"--set=" + registry + ",page.on=true": "at '/page': additional properties 'on' not allowed",
		"--values=/none":                      "flag --values: open /none: no such file or directory",
		"--registry=x --timeout=-1s":          "flag --timeout: -1s is not a time in the future",
		"--registry=x more":                   "unexpected argument \"more\"",
	} {
		cmd := exec.CommandContext(t.Context(), program, append([]string{"install", "--dry-run"}, strings.Fields(args)...)...)
		if text, err := run(cmd); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v\n%s; want %q", args, err, text, says)
		}
	}
}

// bench is a control plane with nodes on which pods run, that Noderefit is installed in and removed from.
type bench struct {
	*cluster.Cluster

	t *testing.T
}

func newBench(t *testing.T) *bench {
	t.Helper()
	inputs(t)
	b := &bench{cluster.New(t, cluster.Options{Controllers: true, Scheduler: true, Kwok: true, NoCRDs: true}), t}
	for name, labels := range map[string]map[string]string{
		"master-0": {"node-role.kubernetes.io/control-plane": ""}, "worker-0": {"node-role.kubernetes.io/worker": ""},
	} {
		labels["kubernetes.io/os"] = "linux"
		if err := b.AddNode(t.Context(), name, labels); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// plugin connects as the plugin of a version does; wrap may be nil.
func (b *bench) plugin(config *rest.Config, version string, wrap func(http.RoundTripper) http.RoundTripper) (
	*installation.Cluster, *strings.Builder, *installation.Release,
) {
	b.t.Helper()
	config = rest.CopyConfig(config)
	if wrap != nil {
		config.Wrap(wrap)
	}
	said := &strings.Builder{}
	c, err := installation.Connect(config, version, said)
	if err != nil {
		b.t.Fatal(err)
	}
	release, err := installation.NewRelease(version, "registry.example.com/noderefit")
	if err != nil {
		b.t.Fatal(err)
	}
	return c, said, release
}

// set are the values of people who give --set.
func set(settings ...string) func(installation.Values) (installation.Values, error) {
	return func(base installation.Values) (installation.Values, error) {
		return installation.ReadValues(base, nil, settings, "", os.ReadFile)
	}
}

func (b *bench) install(ctx context.Context, version string, settings ...string) (string, error) {
	b.t.Helper()
	c, said, release := b.plugin(b.Config, version, nil)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := c.Install(ctx, installation.Change{Release: release, Values: set(settings...)})
	return said.String(), err
}

// refuses wants a command refused with words.
func (b *bench) refuses(err error, says string) {
	b.t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		b.t.Errorf("%v; want an error with %q", err, says)
	}
}

// killer ends a context with the n-th write that reaches the API server, after the server has answered it.
type killer struct {
	http.RoundTripper

	left *atomic.Int64
	kill context.CancelFunc
}

func (k killer) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := k.RoundTripper.RoundTrip(r)
	writes := r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "selfsubjectaccessreviews")
	if writes && k.left.Add(-1) == 0 {
		k.kill()
	}
	return answer, err
}

// killedOften runs a command again and again, and kills it ever later, until it comes to its end.
func (b *bench) killedOften(version string, command func(context.Context, *installation.Cluster, *installation.Release) error) {
	b.t.Helper()
	for n := int64(1); b.killedAt(n, version, command); n += 1 + n/3 {
	}
}

// killedAt runs a command that is killed at its n-th write, and reports whether there was such a write.
func (b *bench) killedAt(n int64, version string,
	command func(context.Context, *installation.Cluster, *installation.Release) error,
) bool {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	left := &atomic.Int64{}
	left.Store(n)
	c, said, release := b.plugin(b.Config, version, func(rt http.RoundTripper) http.RoundTripper {
		return killer{rt, left, cancel}
	})
	err := command(ctx, c, release)
	if left.Load() > 0 && err != nil {
		b.t.Fatalf("killed at write %d: %v\n%s", n, err, said)
	}
	return left.Load() <= 0
}

func TestThePluginInstalls(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	t.Run("without rights", func(t *testing.T) {
		config := rest.CopyConfig(b.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: "jane", Groups: []string{"system:authenticated", "viewers"}}
		viewer(t, b, "viewers")
		c, said, release := b.plugin(config, "v0.1.0", nil)
		err := c.Install(ctx, installation.Change{Release: release, Values: set()})
		b.refuses(err, "nothing was changed: you may not create customresourcedefinitions.apiextensions.k8s.io")
		b.refuses(err, "escalate clusterroles.rbac.authorization.k8s.io")
		if said.Len() > 0 {
			t.Errorf("it said %q", said)
		}
	})
	empty := b.state()
	began := time.Now()
	b.killedOften("v0.1.0", func(ctx context.Context, c *installation.Cluster, r *installation.Release) error {
		return c.Install(ctx, installation.Change{Release: r, Values: set("controller.replicas=1")})
	})
	t.Logf("killed: %s", time.Since(began))
	said, err := b.install(ctx, "v0.1.0")
	if err != nil || !strings.HasSuffix(said, "Noderefit v0.1.0 is installed\n") {
		t.Fatalf("%v\n%s", err, said)
	}
	before := b.state()
	if said, err := b.install(ctx, "v0.1.0"); err != nil {
		t.Fatalf("again: %v\n%s", err, said)
	}
	if diff := cmp.Diff(before, b.state()); diff != "" {
		t.Errorf("a second installation changed objects:\n%s", diff)
	}
	deployment, err := b.Client.AppsV1().Deployments(api.Namespace).Get(ctx, api.Controller, metav1.GetOptions{})
	if err != nil || *deployment.Spec.Replicas != 1 || deployment.Labels["app.kubernetes.io/version"] != "v0.1.0" {
		t.Errorf("%v: %d replicas of %v", err, *deployment.Spec.Replicas, deployment.Labels)
	}
	_, err = b.install(ctx, "v0.1.0", "controller.replicas=2")
	b.refuses(err, "the version v0.1.0 of Noderefit is installed already, with other values: use kubectl refit upgrade")
	_, err = b.install(ctx, "v0.2.0")
	b.refuses(err, "the version v0.1.0 of Noderefit is installed already, and this program is v0.2.0")
	t.Run("upgrades", b.upgrades)
	t.Run("uninstalls", func(t *testing.T) { b.uninstalls(t, empty) })
	t.Run("newer definitions are left", func(t *testing.T) {
		file := newerDefinition(t)
		if text, err := kubectl(ctx, b.Cluster, "create", "-f", file); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		before := b.state()
		said, err := b.install(ctx, "v0.1.0")
		b.refuses(err, "are of version v9.1.0")
		if diff := cmp.Diff(before, b.state()); diff != "" || said != "" {
			t.Errorf("it said %q, and changed:\n%s", said, diff)
		}
		if text, err := kubectl(ctx, b.Cluster, "delete", "--wait", "-f", file); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	})
	t.Run("an OpenShift", func(t *testing.T) {
		if text, err := kubectl(ctx, b.Cluster, "create", "-f", clusterVersions(t)); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		cluster.Until(ctx, t, "the cluster is taken for an OpenShift", func() (bool, any) {
			_, err := b.install(ctx, "v0.1.0")
			return err != nil && strings.Contains(err.Error(), "this cluster is an OpenShift: its API has clusterversions"), err
		})
	})
}

// newerDefinition writes a definition as an uninstallation of a later version leaves it.
func newerDefinition(t *testing.T) string {
	t.Helper()
	file := t.TempDir() + "/newer.yaml"
	const text = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: rolloutpolicies.noderefit.dev
  labels: {app.kubernetes.io/part-of: noderefit, app.kubernetes.io/version: v9.1.0}
spec:
  group: noderefit.dev
  names: {kind: RolloutPolicy, plural: rolloutpolicies, singular: rolloutpolicy, listKind: RolloutPolicyList}
  scope: Cluster
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// clusterVersions writes the definition by which an OpenShift is known.
func clusterVersions(t *testing.T) string {
	t.Helper()
	file := t.TempDir() + "/crd.yaml"
	const text = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusterversions.config.openshift.io
  annotations: {api-approved.kubernetes.io: "unapproved, a test"}
spec:
  group: config.openshift.io
  names: {kind: ClusterVersion, plural: clusterversions, singular: clusterversion, listKind: ClusterVersionList}
  scope: Cluster
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The shared cluster has what kustomize makes. TestHelmInstallsAndUninstalls has the same of Helm.
func TestThePluginLeavesAnInstallationOfKubectl(t *testing.T) {
	b := &bench{installed(t), t}
	_, err := b.install(t.Context(), "v0.1.0")
	b.refuses(err, "kustomize or kubectl apply has installed Noderefit here (")
	if _, err := b.Client.CoreV1().ConfigMaps(api.Namespace).Get(t.Context(), "noderefit-installation", metav1.GetOptions{}); err == nil {
		t.Error("the refused installation has left a record")
	}
}
