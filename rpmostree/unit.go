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
	// transactionUnit is the service that transactions run as, one at a time. The daemon of rpm-ostree goes on with a
	// transaction whose client has died, so to stop the client together with us would lose what it says and no more.
	transactionUnit = "noderefit-rpm-ostree"
	// clientID is how rpm-ostree calls us in its journal, and to whom has to wait for us.
	clientID = "noderefit"
)

// transact runs one transaction to its end. That ctx is done ends the waiting and not the transaction. An error is a
// *CommandError with the end of the client's standard error, which has nothing in it if the client was killed.
func (r *Driver) transact(ctx context.Context, argv ...string) error {
	stop := r.tools.Follow(ctx, transactionUnit, r.Progress)
	_, err := r.tools.In(transactionUnit, systemd.Command{Description: strings.Join(argv, " "),
		Environment: []string{"RPMOSTREE_CLIENT_ID=" + clientID}})(ctx, argv...)
	stop()
	if err == nil || ctx.Err() != nil {
		return err
	}
	// It may be that only the answer was lost, while the service lives on.
	if waitErr := r.tools.Wait(ctx, transactionUnit); waitErr != nil {
		return waitErr
	}
	return err
}

// running is the command line of the service, "" if it does not run.
func (r *Driver) running(ctx context.Context) (string, error) {
	return r.tools.Running(ctx, transactionUnit)
}

// interruptGrace is how long rpm-ostree has to give up a transaction, which it does between two reads or writes.
const interruptGrace = time.Minute

// interrupt has the client cancel its transaction, and returns when the service does not run any more.
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

// cancelOrphan cancels the active transaction if a client of ours that is dead has begun it, and if it does not lead to
// t; with nil none does. Nobody else's is touched: rpm-ostree tells whose it is, by the name that we give ourselves. It
// returns when the transaction is over, or will not be soon. Two forks at most.
func (r *Driver) cancelOrphan(ctx context.Context, s hostStatus, t *target) error {
	if runs, err := r.running(ctx); err != nil || runs != "" {
		return err
	}
	output, err := r.run(ctx, "env", "LC_ALL=C.UTF-8", "RPMOSTREE_CLIENT_ID="+clientID, "rpm-ostree", "status")
	if err != nil {
		return ctx.Err() // the daemon left, and its transaction with it
	}
	title, mine := initiated(string(output))
	if !mine || t != nil && t.leads(s, "rpm-ostree "+title) {
		return nil
	}
	r.say("cancelling what an earlier attempt has left: " + title)
	bounded, cancel := context.WithTimeout(ctx, interruptGrace)
	defer cancel()
	// Whatever comes of it, the transaction is waited for.
	_, _ = r.run(bounded, "env", "LC_ALL=C.UTF-8", "RPMOSTREE_CLIENT_ID="+clientID, "rpm-ostree", "cancel")
	return ctx.Err()
}

// initiated reads in the text of rpm-ostree status what the active transaction is, and whether we have begun it.
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
