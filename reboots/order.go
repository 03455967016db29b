// SPDX-License-Identifier: Apache-2.0

package reboots

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// Leads returns the booted deployment, and the one to which a reboot leads; both are "" without deployments. It refuses
// a reboot that can't be had. unable is why the host can't restart its userspace alone, nil where it can.
func Leads(all []ostree.Deployment, withheld []transaction.Withheld, soft bool, unable error) (booted, next string,
	err error) {
	if soft && unable != nil {
		return "", "", fmt.Errorf("a soft reboot was ordered, which this host can't do: %w", unable)
	}
	for _, d := range all {
		if d.Booted {
			booted, next = d.ID, d.ID
		}
	}
	other := Next(all, func(string) bool { return false })
	if other == nil {
		return booted, next, nil
	}
	if soft {
		return "", "", fmt.Errorf("a soft reboot was ordered, and deployment %s waits for a full one", other.ID)
	}
	if w := withholds(withheld, api.RebootDeployment, other.Checksum); w != nil {
		return "", "", fmt.Errorf("deployment %s would boot, which did not prove healthy on this host at %s: %s; take it "+
			"away (rpm-ostree cleanup -p, ostree admin undeploy), or make another one the default", other.ID,
			w.Since.Format(time.RFC3339), w.Why)
	}
	return booted, other.ID, nil
}

// Ordered returns the record of an order that is about to be carried out, with what programs have said in this boot.
func Ordered(root *files.Root, boot, id, why string) *transaction.Rebooted {
	o := &transaction.Rebooted{ID: id, Why: why, Wanted: map[string]time.Time{}}
	said, wanted := Recall(root, boot, nil)
	programs := map[api.RebootKind]bool{api.RebootHook: said.Hook != "", api.RebootPackages: said.NeedsReboot}
	for kind, says := range programs {
		if r := reason(wanted, kind); says && r != nil {
			o.Wanted[string(kind)] = r.Since
		}
	}
	return o
}

// CarryOut records an order, and starts the reboot by goDown, which returns the error of Trip.Start. Where no reboot
// comes, the order is withdrawn: the next boot, of another cause, would be judged as the order's. An order of the agent
// whose start was stopped stays, and the agent gives the order again; but not where a program blocks a shutdown. After
// another error the reboot may have begun, and its boot is to be proved.
func CarryOut(ctx context.Context, e *transaction.Engine, r *transaction.Record, o transaction.Reboot,
	goDown func() error) error {
	if err := e.BeginReboot(ctx, r, o); err != nil {
		return err
	}
	err := goDown()
	if NotBegun(err) && (o.ID == "" || ctx.Err() == nil || errors.As(err, new(*systemd.InhibitedError))) {
		err = errors.Join(err, e.WithdrawReboot(ctx, r, err.Error()))
	}
	return err
}

// Shown returns an ordered reboot as it is told, nil where none was ordered.
func Shown(o *transaction.Rebooted) *api.Rebooted {
	if o == nil {
		return nil
	}
	return &api.Rebooted{ID: o.ID, Why: o.Why, Begun: o.Begun, Ended: o.Ended, Failed: o.Failed, TakenBack: o.TakenBack,
		Soft: o.Soft}
}

// AskHooks asks hooks in their order. The first one that wants a reboot is the answer, with the first line that it has
// printed. A hook that could not be run is an error, and no answer.
func AskHooks(all []hooks.Hook, ask func(one hooks.Hook, hear func(line string)) error) (hook, said string, err error) {
	for _, one := range all {
		first := ""
		err := ask(one, func(line string) {
			if first == "" {
				first = line
			}
		})
		if err == nil {
			return one.Name, first, nil
		}
		if no, is := errors.AsType[*hooks.Error](err); !is || no.NotRun {
			return "", "", err
		}
	}
	return "", "", nil
}
