// SPDX-License-Identifier: Apache-2.0

package rpmostree

import (
	"context"
	"strings"
	"syscall"
	"time"

	"github.com/noderefit/noderefit/systemd"
)

const (
	// transactionUnit is the service in which transactions run, one at a time. rpm-ostree's daemon continues a transaction
	// whose client has died. So if the client were stopped together with us, only its output would be lost.
	transactionUnit = "noderefit-rpm-ostree"
	// clientID is our name in rpm-ostree's journal, and in the messages to programs that wait for us.
	clientID = "noderefit"
)

// transact runs one transaction to its end. When ctx is done, the waiting ends and the transaction goes on. An error is
// a *CommandError with the end of the client's standard error, which is empty if the client was killed.
func (r *Driver) transact(ctx context.Context, argv ...string) error {
	stop := r.tools.Follow(ctx, transactionUnit, r.Progress)
	_, err := r.tools.In(transactionUnit, systemd.Command{Description: strings.Join(argv, " "),
		Environment: []string{"RPMOSTREE_CLIENT_ID=" + clientID}})(ctx, argv...)
	stop()
	if err == nil || ctx.Err() != nil {
		return err
	}
	// Perhaps only the answer was lost, and the service still runs.
	if waitErr := r.tools.Wait(ctx, transactionUnit); waitErr != nil {
		return waitErr
	}
	return err
}

// running returns the command line of the service, "" if the service does not run.
func (r *Driver) running(ctx context.Context) (string, error) {
	return r.tools.Running(ctx, transactionUnit)
}

// interruptGrace is how long rpm-ostree may take to give up a transaction. It does so between two reads or writes.
const interruptGrace = time.Minute

// interrupt has the client cancel its transaction, and returns when the service has stopped.
func (r *Driver) interrupt(ctx context.Context) error {
	if err := r.tools.Units.Kill(ctx, transactionUnit+".service", syscall.SIGINT); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, interruptGrace)
	defer cancel()
	if err := r.tools.Wait(bounded, transactionUnit); err != nil && ctx.Err() != nil {
		return err
	}
	return r.tools.Stop(ctx, transactionUnit)
}

// cancelOrphan cancels the active transaction if a dead client of ours has begun it and it does not lead to t. With
// nil, no transaction leads to t. Transactions of other programs are never cancelled: rpm-ostree tells them apart by
// the name that we give ourselves. cancelOrphan returns when the transaction is over, or won't be over soon. It also
// returns the title of a transaction of ours. At most two forks.
func (r *Driver) cancelOrphan(ctx context.Context, s hostStatus, t *target) (title string, err error) {
	if runs, err := r.running(ctx); err != nil || runs != "" {
		return "", err
	}
	output, err := r.run(ctx, "env", "LC_ALL=C.UTF-8", "RPMOSTREE_CLIENT_ID="+clientID, "rpm-ostree", "status")
	if err != nil {
		return "", ctx.Err() // the daemon has stopped, and with it its transaction
	}
	title, mine := initiated(string(output))
	if !mine {
		return "", nil
	}
	if t != nil && t.leads(s, "rpm-ostree "+title) {
		return title, nil
	}
	r.say("cancelling the unit of an earlier attempt: " + title)
	bounded, cancel := context.WithTimeout(ctx, interruptGrace)
	defer cancel()
	// Whether the cancelling succeeds or not, the caller waits for the transaction.
	_, _ = r.run(bounded, "env", "LC_ALL=C.UTF-8", "RPMOSTREE_CLIENT_ID="+clientID, "rpm-ostree", "cancel")
	return title, ctx.Err()
}

// initiated reads the active transaction from the text of rpm-ostree status, and whether we have begun it.
func initiated(status string) (title string, mine bool) {
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "Transaction":
			title = strings.TrimSpace(value)
		case "Initiator":
			return title, strings.HasPrefix(value, "client(id:"+clientID+" ")
		case "Deployments:":
			return "", false
		}
	}
	return "", false
}
