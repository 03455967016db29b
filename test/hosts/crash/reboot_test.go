// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/transaction"
)

// ordered is a host that is ordered to reboot as it is.
type ordered struct {
	*crashHost
	orders int
}

// order orders a reboot, and does not wait.
func (o *ordered) order(ctx context.Context, flags ...string) {
	o.orders++
	go func() { _, _, _, _ = o.Agent(ctx, slices.Concat([]string{"reboot", "--id=" + o.id()}, flags)...) }()
}

func (o *ordered) id() string { return fmt.Sprintf("order-%d", o.orders) }

// cutOrder orders a reboot and pulls the plug at a point.
func (o *ordered) cutOrder(ctx context.Context, verb, at string, flags ...string) (string, error) {
	if err := o.ask(verb, "hang", at); err != nil {
		return "", err
	}
	o.order(ctx, flags...)
	point, err := o.hit(ctx)
	return point, errors.Join(err, o.cut())
}

// end waits for the end of the order, which the host has to know after a cut.
func (o *ordered) end(ctx context.Context) (*host.Status, error) {
	s, err := o.settled(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLost, err)
	}
	if b := s.Rebooted; b == nil || b.ID != o.id() || b.Ended.IsZero() {
		return nil, fmt.Errorf("%w: the host says of order %s: %+v", errLost, o.id(), b)
	}
	return s, nil
}

// cutReboots pulls the plug at the points of an ordered reboot after which the host is healthy, and where the reboot of
// an update is left to people.
func (h *crashHost) cutReboots(ctx context.Context) {
	h.t.Helper()
	o := &ordered{crashHost: h}
	carriedOut := func(ctx context.Context) error {
		s, err := o.end(ctx)
		if err == nil && s.Rebooted.Failed != "" {
			err = fmt.Errorf("%w: order %s failed: %s", errLost, o.id(), s.Rebooted.Failed)
		}
		return errors.Join(err, o.stays(ctx))
	}
	for _, verb := range []string{"reboot", "recover", "prove"} {
		h.everyPoint(verb, func() error {
			o.order(ctx)
			err := until(ctx, "the order", func() (bool, error) {
				data, err := os.ReadFile(h.HostPath(transaction.StateDir + "/boot.json"))
				return strings.Contains(string(data), `"`+o.id()+`"`), err
			})
			return errors.Join(err, carriedOut(ctx))
		}, func(point string) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			point, err := o.cutOrder(ctx, verb, point)
			if err == nil {
				err = carriedOut(ctx)
			}
			return point, err
		})
	}
	h.flags = append(h.flags, "--no-reboot")
	point, err := h.cutAt(ctx, "apply", "left to people", h.other())
	report(h.t, "apply cut at "+point, err)
	for _, point := range sample("withdrawn", "dropped", "discard") {
		if point != "discard" || h.kind == ofOSTree {
			report(h.t, "apply cut at "+point, h.cutWithdrawal(ctx, point))
		}
	}
	h.flags = h.flags[:len(h.flags)-1]
}

// cutWithdrawal pulls the plug where an update that has not booted is withdrawn in favour of what runs.
func (h *crashHost) cutWithdrawal(ctx context.Context, point string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if res, exit, err := h.Apply(ctx, h.docs[h.other()], h.flags...); err != nil || res.Reboot != host.RebootNeeded {
		return fmt.Errorf("committing without a reboot: exit %d, %w", exit, err)
	}
	if err := h.ask("apply", "hang", point); err != nil {
		return err
	}
	h.start(ctx, h.docs[h.at])
	if _, err := h.hit(ctx); err != nil {
		return err
	}
	if err := h.cut(); err != nil { // which is a boot
		return err
	}
	return h.stays(ctx)
}

// failing has the kubelet of the next boot fail.
const failing = "echo fail >/etc/kubernetes/kubelet.conf"

// healed has the kubelet run again.
const healed = "rm -f /etc/kubernetes/kubelet.conf; systemctl reset-failed kubelet; systemctl restart kubelet"

// cutUnhealthy pulls the plug where a host that is not healthy after its reboot has nothing to go back to.
func (h *crashHost) cutUnhealthy(ctx context.Context) {
	h.t.Helper()
	const point = "unhealthy"
	report(h.t, "prove cut at "+point, (&ordered{crashHost: h}).cutWithoutKubelet(ctx, point))
}

func (o *ordered) cutWithoutKubelet(ctx context.Context, point string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := o.shell(ctx, failing); err != nil {
		return err
	}
	if _, err := o.cutOrder(ctx, "prove", point, "--verdict-timeout=2s"); err != nil {
		return err
	}
	s, err := o.end(ctx)
	if err != nil {
		return err
	}
	if s.State != transaction.Degraded || !strings.Contains(s.Rebooted.Failed, "kubelet") || s.Rebooted.TakenBack {
		err = fmt.Errorf("%w: after a reboot without a kubelet the host says %s: %s, %+v", errLost, s.State, s.Reason, s.Rebooted)
	}
	return errors.Join(err, o.shell(ctx, healed), o.moveTo(ctx, o.at), o.stays(ctx))
}

// shell runs a script on the host.
func (h *crashHost) shell(ctx context.Context, script string) error {
	_, err := h.Output(ctx, "sh", "-ec", script)
	return err
}

// cutTakenBack pulls the plug where a deployment of another program is taken back.
func (h *crashHost) cutTakenBack(ctx context.Context) {
	h.t.Helper()
	o := &ordered{crashHost: h}
	for i, at := range []string{"prove given up", "prove default is the old one", "recover returned", "recover rolled back"} {
		if testing.Short() && i%2 != 0 {
			continue
		}
		verb, name, _ := strings.Cut(at, " ")
		point, err := o.cutForeign(ctx, verb, name, fmt.Sprintf("theirs-%d", i))
		report(h.t, verb+" cut at "+point, err)
	}
	if err := h.afterCut(ctx, h.other()); err != nil {
		report(h.t, "the update after all deployments of others", err)
	}
}

// cutForeign has the host reboot into a deployment of another program whose kubelet fails.
func (o *ordered) cutForeign(ctx context.Context, verb, at, branch string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := o.shell(ctx, failing+"\nostree commit --repo=/ostree/repo --bootable --no-bindings --branch="+branch+
		" --subject="+branch+" --tree=ref="+lab.RefV1+"\nostree admin deploy --os="+lab.OS+" "+branch+
		"\nrm /etc/kubernetes/kubelet.conf")
	if err != nil {
		return "", err
	}
	point, err := o.cutOrder(ctx, verb, at, "--verdict-timeout=2s")
	if err != nil {
		return point, err
	}
	s, err := o.end(ctx)
	if err == nil && (s.State == transaction.Degraded || !s.Rebooted.TakenBack || len(s.RebootsWithheld) == 0) {
		err = fmt.Errorf("%w: after a deployment that was not healthy the host says %s: %s, %+v", errLost, s.State, s.Reason, s.Rebooted)
	}
	return point, errors.Join(err, o.stays(ctx))
}
