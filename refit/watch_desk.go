// SPDX-License-Identifier: Apache-2.0

package refit

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/message"
	"github.com/noderefit/noderefit/progress"
)

// tailLines is how many lines of a log the key for logs shows.
const tailLines = 500

// hands do what a person asks for by keys. The text is for people.
type hands interface {
	explainText(ctx context.Context, name string) (string, error)
	diffText(ctx context.Context, name string) (string, error)
	logText(ctx context.Context, node string) (string, error)
	Pause(ctx context.Context, pool string) (string, error)
	Resume(ctx context.Context, pool string, keepPin bool) (string, error)
}

// do does a deed.
func do(ctx context.Context, h hands, what deed) (string, error) {
	name := strings.ToLower(strings.TrimPrefix(what.about.object.Kind, "MachineConfig")) + "/" + what.about.object.Name
	switch what.verb {
	case verbExplain:
		return h.explainText(ctx, name)
	case verbDiff:
		return h.diffText(ctx, name)
	case verbLog:
		return h.logText(ctx, what.about.object.Name)
	case verbPause:
		return h.Pause(ctx, what.about.pool)
	case verbResume:
		return h.Resume(ctx, what.about.pool, false)
	default:
		return "", fmt.Errorf("unknown: %s", what.verb)
	}
}

func (c *Cluster) explainText(ctx context.Context, name string) (string, error) {
	a, err := c.Explain(ctx, name)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	now := time.Now()
	err = WriteAnswer(message.Local(&b, now.Location()), a.Answer, now)
	return b.String(), err
}

func (c *Cluster) diffText(ctx context.Context, name string) (string, error) {
	d, err := c.Diff(ctx, name)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = d.WriteText(&b)
	return b.String(), err
}

// logText returns the end of the log of a node's agent.
func (c *Cluster) logText(ctx context.Context, node string) (string, error) {
	pods, err := c.kube.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "k8s-app=" + api.Daemon, FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return "", fmt.Errorf("listing the daemon's Pods: %w", err)
	}
	if len(pods.Items) == 0 {
		return "", fmt.Errorf("no Pod of the daemon is on node %s in namespace %s", node, c.namespace)
	}
	pod := pods.Items[0]
	data, err := c.kube.CoreV1().Pods(c.namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: pod.Spec.Containers[0].Name, TailLines: new(int64(tailLines)),
	}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the log of Pod %s: %w", pod.Name, err)
	}
	return string(data), nil
}

// keyboard is the terminal from which a person presses keys. It is nil without one.
type keyboard struct {
	keys    chan []key
	restore func()
}

// typed makes a terminal pass on each key at once. It returns nil if the file is no terminal.
func typed(in *os.File) *keyboard {
	if in == nil || !term.IsTerminal(int(in.Fd())) {
		return nil
	}
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil // a watch without keys is better than none
	}
	k := &keyboard{keys: make(chan []key), restore: func() { _ = term.Restore(int(in.Fd()), before) }}
	go func() {
		buffer := make([]byte, 256)
		for {
			n, err := in.Read(buffer)
			if n > 0 {
				k.keys <- keysOf(buffer[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return k
}

// leave takes the keys away and draws the rollout as the last picture, without them.
func (f *follower) leave(r *progress.Report, now time.Time) {
	if f.keyboard == nil {
		return
	}
	f.keyboard.restore()
	f.keyboard, f.screen.raw = nil, false
	if r != nil {
		f.show(r, now)
	}
}

// result is what came of a deed.
type result struct {
	of   deed
	text string
	err  error
}

// errQuit ends a watch that a person leaves. The exit code is that of an interrupt: the rollout is not over, and what
// comes after the command in a shell must not take it as updated.
var errQuit = cli.SignalError{Signal: os.Interrupt}

// pressed takes keys, and begins what they ask for. It reports whether the person leaves.
func (f *follower) pressed(ctx context.Context, keys []key) bool {
	for _, k := range keys {
		_, height := f.screen.size()
		var what deed
		f.desk, what = f.desk.press(k, f.targets, max(height-4, 1))
		switch what.verb {
		case "":
		case verbQuit:
			return true
		default:
			go func() {
				text, err := do(ctx, f.hands, what)
				select {
				case f.results <- result{what, text, err}:
				case <-ctx.Done():
				}
			}()
		}
	}
	return false
}
