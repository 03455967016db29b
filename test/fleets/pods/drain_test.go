// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/test/lab/fleet"
)

// notes is the folder on a host in which pods note what happens to them.
const notes = "/var/lib/notes"

// lone is a pod on w0 that nobody makes again.
type lone struct {
	name  string
	grace int
	args  string // of the program, in YAML's short form of a list
	hook  string // the pod's preStop command, in the same form
}

func (s *scene) start(ctx context.Context, pod lone) error {
	lifecycle := ""
	if pod.hook != "" {
		lifecycle = fmt.Sprintf("lifecycle: {preStop: {exec: {command: [/pod, %s]}}}", pod.hook)
	}
	err := s.Apply(ctx, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: default
spec:
  terminationGracePeriodSeconds: %[2]d
  nodeSelector: {kubernetes.io/hostname: w0}
  containers:
  - name: main
    image: %[5]s
    args: [%[3]s]
    %[4]s
    volumeMounts:
    - {name: notes, mountPath: /notes}
    - {name: memory, mountPath: /memory}
  volumes:
  - {name: notes, hostPath: {path: %[6]s, type: DirectoryOrCreate}}
  - {name: memory, emptyDir: {medium: Memory}}
`, pod.name, pod.grace, pod.args, lifecycle, s.images.Ref(Pod, "latest"), notes))
	if err != nil {
		return err
	}
	_, err = s.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=1m", "pod/"+pod.name)
	return err
}

func (s *scene) note(t *testing.T, pod string) []string {
	t.Helper()
	text, err := os.ReadFile(s.Node("w0").HostPath(notes + "/" + pod))
	must(t, err)
	return strings.Split(strings.ReplaceAll(strings.TrimSpace(string(text)), " ", "-"), "\n")
}

// takingTheirTime has pods that need their grace period, that outlive it, and whose volume somebody on the host is in.
func takingTheirTime(ctx context.Context, t *testing.T, s *scene) {
	for _, pod := range []lone{
		{"slow", 30, "-note=/notes/slow, -linger=2s", "-note=/notes/slow, -say=told, -linger=1s"},
		{"stubborn", 3, "-note=/notes/stubborn, -linger=1h", ""},
		{"busy", 2, "-note=/notes/busy, -hold=/memory/file", ""},
	} {
		must(t, s.start(ctx, pod))
	}
	busy, err := s.Client.CoreV1().Pods("default").Get(ctx, "busy", metav1.GetOptions{})
	must(t, err)
	volume := fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~empty-dir/memory", busy.UID)
	_, err = s.Node("w0").Output(ctx, "systemd-run", "--unit=user-of-volume", "--working-directory="+volume, "sleep",
		"infinity")
	must(t, err)
	before := s.boots()
	after := s.change(ctx, t, fleet.WorkerFile("50-change", "drained"))
	must(t, fleet.Until(ctx, "the drain waits for the volume", func(ctx context.Context) (bool, string, error) {
		text, _, err := s.Refit(ctx, "explain", "w0")
		for _, gone := range []string{"slow", "stubborn"} {
			_, err := s.Client.CoreV1().Pods("default").Get(ctx, gone, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return false, text, err
			}
		}
		return strings.Contains(text, "default/busy") && strings.Contains(text, "is terminating"), text, err
	}))
	if got := s.boots(); got["w0"] != before["w0"] {
		t.Error("w0 boots with a pod whose volume is in use")
	}
	_, err = s.Node("w0").Output(ctx, "systemctl", "stop", "user-of-volume")
	must(t, err, s.WaitAt(ctx, after, s.all()...))
	s.bootedOnce(t, before)
	for pod, want := range map[string]string{
		"slow":     "started told asked-to-end ended",
		"stubborn": "started asked-to-end",
		"busy":     "started asked-to-end ended",
	} {
		if got := strings.Join(s.note(t, pod), " "); got != want {
			t.Errorf("%s notes %q, want %q", pod, got, want)
		}
	}
}
