// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/rollout"
)

// keptJob is for how many seconds an ended Job is kept, unless its template sets this. The Job's end is the answer of
// the gate, and a rollout may take days.
const keptJob int32 = 14 * 24 * 60 * 60

// job looks for the Job of a question, and makes a missing one.
func (a *Asker) job(ctx context.Context, ask rollout.Ask, g *api.JobGate) (string, error) {
	key := client.ObjectKey{Namespace: g.Namespace, Name: jobName(ask.Question)}
	var job batchv1.Job
	err := a.client.Get(ctx, key, &job)
	if apierrors.IsNotFound(err) {
		return a.makeJob(ctx, key, ask, g)
	}
	if err != nil {
		return "", fmt.Errorf("reading Job %s: %w", key, err)
	}
	for _, c := range job.Status.Conditions {
		switch {
		case c.Status != corev1.ConditionTrue:
		case c.Type == batchv1.JobComplete:
			return "", nil
		case c.Type == batchv1.JobFailed:
			return fmt.Sprintf("Job %s failed: %s: %s; after its deletion the Job is created again", key, c.Reason,
				c.Message), nil
		}
	}
	return fmt.Sprintf("Job %s has not ended yet", key), nil
}

// jobName returns the same name for the same question in every process, so that a Job is made once.
func jobName(q rollout.Question) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []string{
		q.Policy, q.Pool, api.Content(q.Config), q.Stage, q.Node, q.Gate, q.Arrived,
	}))
	return "gate-" + q.Gate + "-" + hex.EncodeToString(sum[:5])
}

func (a *Asker) makeJob(ctx context.Context, key client.ObjectKey, ask rollout.Ask, g *api.JobGate) (string, error) {
	var from batchv1.CronJob
	name := client.ObjectKey{Namespace: g.Namespace, Name: g.CronJob}
	if err := a.client.Get(ctx, name, &from); err != nil {
		return "", fmt.Errorf("reading CronJob %s: %w", name, err)
	}
	job := jobOf(&from, key, ask.Question)
	if err := a.client.Create(ctx, job); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("making Job %s: %w", key, err)
	}
	return fmt.Sprintf("Job %s has begun", key), nil
}

func jobOf(from *batchv1.CronJob, key client.ObjectKey, q rollout.Question) *batchv1.Job {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name,
			Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "CronJob", Name: from.Name, UID: from.UID,
			}},
		},
		Spec: *from.Spec.JobTemplate.Spec.DeepCopy(),
	}
	maps.Copy(job.Labels, from.Spec.JobTemplate.Labels)
	maps.Copy(job.Annotations, from.Spec.JobTemplate.Annotations)
	job.Labels[api.JobGateLabel] = q.Gate
	for k, v := range map[string]string{"pool": q.Pool, "config": q.Config, "stage": q.Stage, "node": q.Node} {
		if v != "" {
			job.Annotations[api.JobGateLabel+"-"+k] = v
		}
	}
	if job.Spec.TTLSecondsAfterFinished == nil {
		kept := keptJob
		job.Spec.TTLSecondsAfterFinished = &kept
	}
	return job
}
