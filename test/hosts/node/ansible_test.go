// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"strings"
	"testing"

	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/transaction"
)

// ansiblePull stands in for the program of that name: it notes what it is asked for, and fails when it is told to.
const ansiblePull = `#!/bin/sh
echo "$*" >>/var/tmp/ansible
case "$1" in
--check) point=check ;;
*) point=pull ;;
esac
test ! -e /var/tmp/fail-$point && exit 0
echo 'TASK [The backup is not running]'
echo 'fatal: [localhost]: FAILED! => the play has failed'
exit 2
`

func TestTheAnsibleExampleAsAHostRunsIt(t *testing.T) {
	ctx, n := onA(t)
	example, err := os.ReadFile("../../../docs/examples/ansible/60-worker-ansible.bu")
	if err != nil {
		t.Fatal(err)
	}
	hook(t, n, "/var/usrlocal/bin/ansible-pull", ansiblePull)
	bring := func(text string) (string, int) {
		t.Helper()
		at := document(t, n, "60-worker-ansible.bu", []byte(text))
		_, stderr, exit, err := n.Agent(ctx, "apply", "--config", at)
		if err != nil {
			t.Fatal(err)
		}
		return stderr, exit
	}
	if out, exit := bring(string(example)); exit != 0 {
		t.Fatalf("exit %d: %s", exit, out)
	}
	settled(ctx, t, n, "60-worker-ansible")
	asked := read(t, n, "/var/tmp/ansible")
	for _, want := range []string{"--url https://git.example.com/site/playbooks.git --checkout main ", "--connection local",
		"--extra-vars noderefit_from=a noderefit_to=60-worker-ansible worker.yml"} {
		if strings.Count(asked, "\n") != 1 || !strings.Contains(asked, want) {
			t.Errorf("ansible-pull was run with %q, not with %q", asked, want)
		}
	}

	next := strings.Replace(string(example), "CHECKOUT=main", "CHECKOUT=next", 1)
	const words = ": exit status 2: TASK [The backup is not running] | fatal: [localhost]: FAILED! => the play has failed"
	shell(ctx, t, n, "touch /var/tmp/fail-check")
	if out, exit := bring(next); exit != host.ExitRefused || !strings.Contains(out, "before-drain.d/50-ansible-check"+words) {
		t.Errorf("exit %d: %s", exit, out)
	}
	shell(ctx, t, n, "rm /var/tmp/fail-check; touch /var/tmp/fail-pull")
	if out, exit := bring(next); exit != 0 {
		t.Fatalf("exit %d: %s", exit, out)
	}
	s, err := n.WaitState(ctx, transaction.RolledBack, transaction.Done)
	if err != nil {
		t.Fatal(err)
	}
	if s.State != transaction.RolledBack || !strings.Contains(s.Reason, "after-boot.d/50-ansible-pull"+words) {
		t.Errorf("%+v", s)
	}
}
