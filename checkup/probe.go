// SPDX-License-Identifier: Apache-2.0

package checkup

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/noderefit/noderefit/api"
)

//go:embed probe.sh
var probeScript string

const (
	// probeLabel marks the Jobs and Pods of probes.
	probeLabel = "noderefit.dev/probe"
	// probeTime is how long a probe may take, with its image. The API server ends it then.
	probeTime = 90 * time.Second
	// probeKept is how long an ended Job stays. The cluster removes it then, also where this program was killed.
	probeKept = 60
	// probeMost is how many hosts are probed at a time: each has a Job.
	probeMost = 20
	// probePace is the time between two looks at the probes.
	probePace = 500 * time.Millisecond
	// nobody runs the probe: all that it reads, everybody on the host may read.
	nobody = 65534
)

// probe has a short-lived pod look at hosts, and returns what each host has. Every Job is removed at the end. Jobs that
// an earlier check left are removed by the cluster.
func (c *Cluster) probe(ctx context.Context, o CheckOptions, f *facts) map[string]probed {
	out := map[string]probed{}
	nodes, unknown := sample(f.nodes.is, o.Nodes)
	fail := func(err error) map[string]probed {
		for _, n := range append(nodes, unknown...) {
			out[n] = probed{err: err}
		}
		return out
	}
	if f.nodes.err != nil {
		return fail(f.nodes.err)
	}
	reference, err := c.probeImage(o, f)
	if err != nil {
		return fail(err)
	}
	namespace := "kube-system"
	if f.ns.is != nil && f.ns.is.Labels[enforceLabel] == "privileged" {
		namespace = f.namespace
	}
	run := fmt.Sprintf("%x", time.Now().UnixNano())
	jobs := c.kube.BatchV1().Jobs(namespace)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		background := metav1.DeletePropagationBackground
		// What can't be removed now, the cluster removes.
		_ = jobs.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: &background},
			metav1.ListOptions{LabelSelector: probeLabel + "=" + run})
	}()
	for _, n := range unknown {
		out[n] = probed{err: errors.New("there is no such node")}
	}
	for some := range slices.Chunk(nodes, probeMost) {
		var begun []string
		for _, n := range some {
			if _, err := jobs.Create(ctx, probeJob(run, n, reference), metav1.CreateOptions{}); err != nil {
				out[n] = probed{err: fmt.Errorf("making a Job in namespace %s: %w", namespace, err)}
				continue
			}
			begun = append(begun, n)
		}
		c.await(ctx, namespace, run, begun, out)
	}
	return out
}

// sample returns the named nodes, or one node of each kind of host; unknown are names without a node. A sample is of
// Linux nodes that are ready.
func sample(nodes []corev1.Node, named []string) (names, unknown []string) {
	for _, name := range named {
		if slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name }) {
			names = append(names, name)
		} else {
			unknown = append(unknown, name)
		}
	}
	if len(named) > 0 {
		return names, unknown
	}
	seen := map[string]bool{}
	for i := range nodes {
		n := &nodes[i]
		kind := strings.Join([]string{n.Status.NodeInfo.OSImage, n.Status.NodeInfo.Architecture, roleOf(n)}, "\x00")
		if n.Labels[corev1.LabelOSStable] == "windows" || !ready(n) || seen[kind] {
			continue
		}
		seen[kind] = true
		names = append(names, n.Name)
	}
	return names, nil
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// probeImage is the image of the agent. It has no programs of its own: its shell is the host's.
func (c *Cluster) probeImage(o CheckOptions, f *facts) (string, error) {
	if o.Registry != "" {
		return reference(o.Registry, api.Daemon, cmp.Or(o.Tag, c.options.Plugin)), nil
	}
	if f.daemonSet.is != nil && len(f.daemonSet.is.Spec.Template.Spec.Containers) > 0 {
		return f.daemonSet.is.Spec.Template.Spec.Containers[0].Image, nil
	}
	return "", errors.New("there is no image for the probe: --registry says where the agent's image is")
}

// probeJob is a Job that reads the host of a node. It needs no scheduler, no service account and no privilege, and is
// root nowhere.
func probeJob(run, node, image string) *batchv1.Job {
	var none, kept int32 = 0, probeKept
	deadline, user, no, yes := int64(probeTime.Seconds()), int64(nobody), false, true
	labels := map[string]string{probeLabel: run}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "noderefit-probe-", Labels: labels},
		Spec: batchv1.JobSpec{
			BackoffLimit: &none, ActiveDeadlineSeconds: &deadline, TTLSecondsAfterFinished: &kept,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeName: node, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
					EnableServiceLinks: &no,
					Tolerations:        []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					SecurityContext:    &corev1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &yes},
					Containers: []corev1.Container{{
						Name: "probe", Image: image,
						Command: []string{"/bin/sh", "-c", probeScript, "probe", "/rootfs", corev1.TerminationMessagePathDefault},
						SecurityContext: &corev1.SecurityContext{
							ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no,
							Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
							SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t"},
							SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
						},
						// The report is short, and so is in the Pod's status: nothing has to read logs.
						TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
						VolumeMounts:             []corev1.VolumeMount{{Name: "rootfs", MountPath: "/rootfs", ReadOnly: true}},
					}},
					Volumes: []corev1.Volume{{
						Name: "rootfs", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}},
					}},
				},
			},
		},
	}
}

// await waits for the Pods of a probe: one list each half second, whatever the number of nodes.
func (c *Cluster) await(ctx context.Context, namespace, run string, nodes []string, out map[string]probed) {
	open := map[string]error{}
	for _, n := range nodes {
		open[n] = errors.New("no pod was made for the probe")
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, probePace, true, func(ctx context.Context) (bool, error) {
		pods, err := c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: probeLabel + "=" + run})
		if err != nil {
			return false, fmt.Errorf("listing the probe's Pods in namespace %s: %w", namespace, err)
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if _, waits := open[p.Spec.NodeName]; !waits {
				continue
			}
			if result, ended := readProbe(p); ended {
				out[p.Spec.NodeName] = result
				delete(open, p.Spec.NodeName)
			} else {
				open[p.Spec.NodeName] = result.err
			}
		}
		return len(open) == 0, nil
	})
	for n, last := range open {
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		out[n] = probed{err: last}
	}
}

// readProbe reads the Pod of a probe. ended is false while the Pod may still report; the error then is what it waits
// for.
func readProbe(p *corev1.Pod) (result probed, ended bool) {
	for _, s := range p.Status.ContainerStatuses {
		if t := s.State.Terminated; t != nil {
			result.host, result.err = readHost(t.Message)
			if t.ExitCode != 0 {
				result.err = fmt.Errorf("the probe failed with exit code %d: %s", t.ExitCode, strings.TrimSpace(t.Message))
			}
			return result, true
		}
		if w := s.State.Waiting; w != nil && pullFailures[w.Reason] {
			return probed{err: fmt.Errorf("%s: %s", w.Reason, cmp.Or(w.Message, s.Image)), pull: true}, true
		}
	}
	if p.Status.Phase == corev1.PodFailed {
		return probed{err: fmt.Errorf("the pod failed: %s", cmp.Or(p.Status.Message, p.Status.Reason,
			"the node says no reason"))}, true
	}
	return probed{err: fmt.Errorf("the pod %s of the probe is %s after %s", p.Name, cmp.Or(string(p.Status.Phase),
		"new"), probeTime)}, false
}

// pullFailures are a container's reasons to wait that an image can't be had.
var pullFailures = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true,
	"RegistryUnavailable": true, "ImageInspectError": true, "SignatureValidationFailed": true,
}
