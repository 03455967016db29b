// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/support"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// scene is what the scenarios share.
type scene struct {
	*fleet.Fleet
	images *Images
}

// The scenarios share one fleet, one after the other: each begins and ends with every node at its pool's configuration.
func TestPods(t *testing.T) {
	s := start(t)
	for _, scenario := range []struct {
		name string
		long bool
		run  func(context.Context, *testing.T, *scene)
	}{
		{"the agent has what it is installed with, and no more", false, confined},
		{"what people type in the pod works", false, habits},
		{"a pod of a check looks at the hosts", false, probed},
		{"the server runs beside them", true, beside},
		{"an update drains and reboots a node, and the pod comes back", false, updated},
		{"a drain waits for pods that take their time to end", true, takingTheirTime},
		{"an agent that is evicted in an update goes on", true, evicted},
		{"an agent that memory runs out for in an update goes on", true, outOfMemory},
		{"a host whose pods do not come up goes back alone", true, givenUp},
		// The page of the first ten minutes has both of these, too.
		{"an agent that another image replaces in an update goes on", true, upgraded},
		{"an uninstallation leaves the configuration alone on a host", true, removed},
	} {
		if scenario.long && testing.Short() {
			continue
		}
		ok := t.Run(scenario.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the scenario takes too long"))
			defer cancel()
			scenario.run(ctx, t, s)
		})
		if !ok {
			t.FailNow() // what a scenario leaves behind is not what the next one begins with
		}
	}
}

// must fails the scenario.
func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// agent returns the agent's pod on a node, which is ready and has nothing to do with an earlier one of the UID not.
func (s *scene) agent(ctx context.Context, t *testing.T, node, not string) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	must(t, fleet.Until(ctx, "the agent's pod on "+node+" is ready", func(ctx context.Context) (bool, string, error) {
		pods, err := s.Client.CoreV1().Pods(api.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: "k8s-app=" + api.Daemon, FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return false, "", err
		}
		for i, p := range pods.Items {
			if string(p.UID) != not && p.DeletionTimestamp == nil && len(p.Status.ContainerStatuses) == 1 &&
				p.Status.ContainerStatuses[0].Ready {
				found = &pods.Items[i]
				return true, "", nil
			}
		}
		return false, fmt.Sprint(len(pods.Items), " pods"), nil
	}))
	return found
}

// exec runs a program in the agent's pod on a node.
func (s *scene) exec(ctx context.Context, t *testing.T, node string, argv ...string) (string, error) {
	t.Helper()
	pod := s.agent(ctx, t, node, "")
	return s.Kubectl(ctx, append([]string{"-n", api.Namespace, "exec", pod.Name, "--"}, argv...)...)
}

func (s *scene) all() []string {
	names := make([]string, len(s.Nodes))
	for i, n := range s.Nodes {
		names[i] = n.Name
	}
	return names
}

// change applies a MachineConfig and returns what the pool renders to now.
func (s *scene) change(ctx context.Context, t *testing.T, document string) string {
	t.Helper()
	before, err := s.Configuration(ctx, "worker")
	must(t, err, s.Apply(ctx, document))
	after, err := s.Render(ctx, "worker", before)
	must(t, err)
	return after
}

func (s *scene) boots() map[string]int {
	out := map[string]int{}
	for _, n := range s.Nodes {
		out[n.Name] = n.Boots()
	}
	return out
}

func (s *scene) bootedOnce(t *testing.T, before map[string]int) {
	t.Helper()
	for name, was := range before {
		if got := s.Node(name).Boots() - was; got != 1 {
			t.Errorf("%s has booted %d times", name, got)
		}
	}
}

// blocked begins a change that w0 can't be drained for, and waits until its drain waits. The function that it returns
// lets the drain go on.
func (s *scene) blocked(ctx context.Context, t *testing.T, document string) (after string, release func()) {
	t.Helper()
	must(t, s.workload(ctx, "guarded", "nodeSelector: {kubernetes.io/hostname: w0}", "maxUnavailable: 0"))
	after = s.change(ctx, t, document)
	must(t, fleet.Until(ctx, "the drain of w0 waits", func(ctx context.Context) (bool, string, error) {
		says, n, err := s.Says(ctx, "w0")
		if err != nil {
			return false, "", err
		}
		return says.Desired == after && says.Cordon != nil && n.Spec.Unschedulable, fmt.Sprintf("%+v", says), nil
	}))
	return after, func() {
		_, err := s.Kubectl(ctx, "delete", "poddisruptionbudget/guarded", "deployment/guarded")
		must(t, err)
	}
}

// workload makes a deployment of one pod, and waits until its budget counts it. where selects the node, and budget is
// how many pods may go. Each is a field in YAML.
func (s *scene) workload(ctx context.Context, name, where, budget string) error {
	err := s.Apply(ctx, fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata:
  name: %[1]s
  namespace: default
spec:
  selector:
    matchLabels: {app: %[1]s}
  template:
    metadata:
      labels: {app: %[1]s}
    spec:
      terminationGracePeriodSeconds: 2
      %[2]s
      containers:
      - name: main
        image: %[4]s
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: %[1]s
  namespace: default
spec:
  %[3]s
  selector:
    matchLabels: {app: %[1]s}
`, name, where, budget, s.images.Ref(Pod, "latest")))
	if err != nil {
		return err
	}
	return fleet.Until(ctx, "the budget of "+name+" counts its pod", func(ctx context.Context) (bool, string, error) {
		b, err := s.Client.PolicyV1().PodDisruptionBudgets("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return b.Status.ObservedGeneration == b.Generation && b.Status.CurrentHealthy == 1, fmt.Sprint(b.Status), nil
	})
}

func confined(ctx context.Context, t *testing.T, s *scene) {
	status, err := s.exec(ctx, t, "w0", "/bin/cat", "/proc/1/status")
	must(t, err)
	for _, want := range []string{"CapEff:\t0000000000040000", "CapBnd:\t0000000000040000", "NoNewPrivs:\t1", "Seccomp:\t2",
		"Uid:\t0\t0\t0\t0"} {
		if !strings.Contains(status, want) {
			t.Errorf("the agent has not %q: %s", want, status)
		}
	}
	if text, err := s.exec(ctx, t, "w0", "touch", "/file"); err == nil || !strings.Contains(err.Error(), "Read-only") {
		t.Errorf("a file in the container's root: %q, %v", text, err)
	}
	// A mount that the host makes while the pod runs.
	for _, argv := range [][]string{{"mkdir", "-p", "/var/mnt/late"}, {"mount", "-t", "tmpfs", "late", "/var/mnt/late"},
		{"touch", "/var/mnt/late/here"}} {
		_, err := s.Node("w0").Output(ctx, argv...)
		must(t, err)
	}
	if text, err := s.exec(ctx, t, "w0", "ls", "/rootfs/var/mnt/late"); err != nil || strings.TrimSpace(text) != "here" {
		t.Errorf("the host's new mount is %q for the pod, %v", text, err)
	}
	if text, err := s.exec(ctx, t, "w0", "umount", "/rootfs/var/mnt/late"); err == nil {
		t.Errorf("the pod unmounts: %q", text)
	}
	_, err = s.Node("w0").Output(ctx, "umount", "/var/mnt/late")
	must(t, err)
	if text, err := s.exec(ctx, t, "w0", "ls", "/rootfs/var/mnt/late"); err != nil || text != "" {
		t.Errorf("the host's mount stays for the pod: %q, %v", text, err)
	}
}

func habits(ctx context.Context, t *testing.T, s *scene) {
	pod := s.agent(ctx, t, "w0", "")
	text, err := s.Kubectl(ctx, "-n", api.Namespace, "logs", pod.Name)
	if err != nil || !strings.Contains(text, `"msg":"running"`) || strings.Contains(text, "might not work") {
		t.Errorf("the log is %q, %v", text, err)
	}
	for _, test := range []struct{ command, want string }{
		{"chroot /rootfs cat /etc/hostname", "w0"},
		{"chroot /rootfs cat /etc/00-worker.conf", "first"},
		{"chroot /rootfs systemctl is-active kubelet.service", "active"},
		{"chroot /rootfs journalctl --unit kubelet.service --lines 1 --quiet", "kubelet"},
		{"chroot /rootfs " + api.HostProgram + " status", "Done"},
		{"/machine-config-daemon --version", "v1"},
		{"chroot /rootfs systemctl restart crio.service", ""},
		{"chroot /rootfs systemd-run --pipe --wait --quiet ps -e", "kubebox"},
		{"sh -c ls", "rootfs"},
	} {
		text, err := s.exec(ctx, t, "w0", strings.Fields(test.command)...)
		if err != nil || !strings.Contains(text, test.want) {
			t.Errorf("%s: %q, %v, want %q", test.command, text, err, test.want)
		}
	}
	collected(ctx, t, s)
}

// collected has everything about the hosts in one archive, but no contents of their files.
func collected(ctx context.Context, t *testing.T, s *scene) {
	t.Helper()
	c, err := support.Connect(s.Config, support.Options{Plugin: "v1", Namespace: api.Namespace})
	must(t, err)
	var archive bytes.Buffer
	entries, err := c.Collect(ctx, &archive, support.Selection{Nodes: []string{"w0"}, Limit: 64 << 20})
	must(t, err)
	notes := map[string]string{}
	for _, e := range entries {
		notes[e.Name] = fmt.Sprintf("%d bytes; %s", e.Bytes, e.Note)
	}
	zipped, err := gzip.NewReader(&archive)
	must(t, err)
	tar, err := io.ReadAll(zipped)
	must(t, err)
	text := string(tar)
	for _, want := range []string{"hosts/w0/status.json", "hosts/w0/journal.txt", "hosts/w0/failed-units.txt",
		"/machine-config-daemon.log", "\"committed\": ", "systemd[1]: ", "\"msg\":\"running\""} {
		if !strings.Contains(text, want) {
			t.Errorf("the archive lacks %q: %v", want, notes)
		}
	}
	for name, note := range notes {
		if strings.HasPrefix(name, "hosts/") && !strings.HasSuffix(note, "; ") || strings.HasPrefix(name, "hosts/w1") {
			t.Errorf("%s: %s", name, note)
		}
	}
	if strings.Contains(text, "data:,first") {
		t.Error("the archive has the contents of a file")
	}
}

func updated(ctx context.Context, t *testing.T, s *scene) {
	must(t, s.workload(ctx, "web", "", "maxUnavailable: 1"))
	before := s.boots()
	after := s.change(ctx, t, fleet.WorkerFile("50-change", "second"))
	must(t, s.WaitAt(ctx, after, s.all()...), s.WaitPool(ctx, "worker", "updated", fleet.Updated(len(s.Nodes))))
	s.bootedOnce(t, before)
	for _, name := range s.all() {
		s.agent(ctx, t, name, "")
		program, err := os.ReadFile(s.Node(name).HostPath(api.HostProgram))
		must(t, err)
		if !strings.Contains(string(program), "v1") {
			t.Errorf("the program on %s is not that of the image", name)
		}
		text, err := s.Node(name).Output(ctx, "cat", "/etc/50-change.conf")
		if err != nil || text != "second" {
			t.Errorf("%s has %q, %v", name, text, err)
		}
	}
	_, err := s.Kubectl(ctx, "delete", "poddisruptionbudget/web", "deployment/web")
	must(t, err)
}

func evicted(ctx context.Context, t *testing.T, s *scene) {
	before := s.boots()
	after, release := s.blocked(ctx, t, fleet.WorkerFile("50-change", "third"))
	pod := s.agent(ctx, t, "w0", "")
	must(t, s.Client.CoreV1().Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name}}))
	s.agent(ctx, t, "w0", string(pod.UID))
	release()
	must(t, s.WaitAt(ctx, after, s.all()...))
	s.bootedOnce(t, before)
}

func outOfMemory(ctx context.Context, t *testing.T, s *scene) {
	_, err := s.Kubectl(ctx, "-n", api.Namespace, "set", "resources", "daemonset/"+api.Daemon, "--limits=memory=96Mi")
	must(t, err)
	_, err = s.Kubectl(ctx, "-n", api.Namespace, "rollout", "status", "daemonset/"+api.Daemon)
	must(t, err)
	before := s.boots()
	after, release := s.blocked(ctx, t, fleet.WorkerFile("50-change", "fourth"))
	pod := s.agent(ctx, t, "w0", "")
	// The kernel kills the process that has most, and that is marked most. What eats the memory ends with the agent.
	_, err = s.exec(ctx, t, "w0", "sh", "-c", "echo 1000 >/proc/1/oom_score_adj; tail /dev/zero")
	if err == nil {
		t.Error("nobody was killed")
	}
	must(t, fleet.Until(ctx, "the agent was killed and is back", func(ctx context.Context) (bool, string, error) {
		now, err := s.Client.CoreV1().Pods(api.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil || len(now.Status.ContainerStatuses) != 1 {
			return false, "", err
		}
		c := now.Status.ContainerStatuses[0]
		return c.Ready && c.LastTerminationState.Terminated != nil &&
			c.LastTerminationState.Terminated.Reason == "OOMKilled", fmt.Sprintf("%+v", c), nil
	}))
	release()
	must(t, s.WaitAt(ctx, after, s.all()...))
	s.bootedOnce(t, before)
	_, err = s.Kubectl(ctx, "-n", api.Namespace, "patch", "daemonset", api.Daemon, "--type=json",
		`--patch=[{"op": "remove", "path": "/spec/template/spec/containers/0/resources/limits"}]`)
	must(t, err)
}

func upgraded(ctx context.Context, t *testing.T, s *scene) {
	must(t, s.images.Build(ctx, "v2", api.Daemon))
	before := s.boots()
	after, release := s.blocked(ctx, t, fleet.WorkerFile("50-change", "fifth"))
	pod := s.agent(ctx, t, "w0", "")
	_, err := s.Kubectl(ctx, "-n", api.Namespace, "set", "image", "daemonset/"+api.Daemon,
		api.Daemon+"="+s.images.Ref(api.Daemon, "v2"))
	must(t, err)
	now := s.agent(ctx, t, "w0", string(pod.UID))
	if image := now.Spec.Containers[0].Image; image != s.images.Ref(api.Daemon, "v2") {
		t.Errorf("the new pod has image %s", image)
	}
	release()
	must(t, s.WaitAt(ctx, after, s.all()...))
	s.bootedOnce(t, before)
	for _, name := range s.all() {
		text, err := s.Node(name).Output(ctx, api.HostProgram, "--version")
		if err != nil || !strings.Contains(text, "v2") {
			t.Errorf("the program on %s is %q, %v", name, text, err)
		}
	}
}
