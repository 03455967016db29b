// SPDX-License-Identifier: Apache-2.0

package hands

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/api"
)

// commandLine is the command line of a verb, and the documents below dir that the command line names.
type commandLine struct {
	dir       string
	argv      []string
	documents map[string][]byte
}

// argument adds one part of a request to a command line; nothing where the request has no such part.
type argument func(l *commandLine, c *call) error

// commandLines has, for each verb of the host, its arguments in their order.
var commandLines = map[string][]argument{
	agent.StatusVerb.Name:  nil,
	agent.WantedVerb.Name:  nil,
	agent.RebootVerb.Name:  {rebootOrder, rebootMethod, hookDocument, verdict, cluster},
	agent.PlanVerb.Name:    {document("--desired"), hookDocument, policy, softReboot, beside("--skip-os")},
	agent.VerifyVerb.Name:  {paths},
	agent.RepairVerb.Name:  {subjects, policy},
	agent.DeliverVerb.Name: {document("--config"), policy},
	agent.StageVerb.Name: {document("--config"), hookDocument, policy, stageOrder, lift, strict, beside("--skip-os"),
		drop},
	agent.AskVerb.Name: {target, hookDocument},
	agent.ApplyVerb.Name: {document("--config"), hookDocument, policy, lift, approval, verdict, strict, softReboot,
		rebootMethod, noReboot, orderOf, beside("--skip-os"), beside("--keep-staged")},
}

func (l *commandLine) add(argv ...string) { l.argv = append(l.argv, argv...) }

// file hands a document over as the value of a flag.
func (l *commandLine) file(flag, name string, data []byte) {
	l.documents[name] = data
	l.add(flag, path.Join(l.dir, name))
}

func document(flag string) argument {
	return func(l *commandLine, c *call) error {
		if c.request != nil {
			l.file(flag, handoverConfig, c.request.Config)
		}
		return nil
	}
}

func hookDocument(l *commandLine, c *call) error {
	if c.request == nil || c.request.Node == "" {
		return nil
	}
	data, err := json.Marshal(c.request.Document)
	if err == nil {
		l.file("--hooks", handoverHooks, data)
	}
	return err
}

func policy(l *commandLine, c *call) error {
	if c.request != nil && len(c.request.Policy) > 0 {
		l.file("--policy", handoverPolicy, c.request.Policy)
	}
	return nil
}

func subjects(l *commandLine, c *call) error {
	if c.request != nil {
		for _, subject := range c.request.repair {
			l.add("--only", subject)
		}
	}
	return nil
}

func target(l *commandLine, c *call) error {
	if c.request != nil {
		l.add("--to", c.request.Name)
	}
	return nil
}

func stageOrder(l *commandLine, c *call) error {
	if o := c.order(); o != nil {
		l.add("--as-staged", fmt.Sprintf("--min-free=%d", o.MinFreeMebibytes),
			fmt.Sprintf("--cpu-weight=%d", o.CPUWeight), fmt.Sprintf("--io-weight=%d", o.IOWeight))
		if o.Bandwidth > 0 {
			l.add(fmt.Sprintf("--bandwidth=%d", o.Bandwidth))
		}
	}
	return nil
}

func lift(l *commandLine, c *call) error {
	if c.request != nil && c.request.Lift {
		l.add("--lift-quarantine")
	}
	return nil
}

// approval makes the host read the cluster's report before the commit, and names the approved OS.
func approval(l *commandLine, c *call) error {
	l.add("--cluster")
	if r := c.request; r != nil && r.Order != nil && r.Order.Digest != "" {
		l.add("--approved=" + r.Order.Digest)
	}
	return nil
}

func verdict(l *commandLine, c *call) error {
	if c.hands.options.Verdict > 0 {
		l.add("--verdict-timeout=" + c.hands.options.Verdict.String())
	}
	return nil
}

func strict(l *commandLine, c *call) error {
	if c.request != nil && c.request.Strict {
		l.add("--strict")
	}
	return nil
}

// beside adds a flag to a request that leaves the OS to another manager.
func beside(flag string) argument {
	return func(l *commandLine, c *call) error {
		if c.request != nil && c.request.Beside {
			l.add(flag)
		}
		return nil
	}
}

func cluster(l *commandLine, _ *call) error {
	l.add("--cluster")
	return nil
}

// rebootOrder names the ordered reboot.
func rebootOrder(l *commandLine, c *call) error {
	if r := c.request; r != nil && r.Reboot != nil {
		l.add("--id="+r.Reboot.ID, "--why="+r.Reboot.Why)
		if r.Reboot.Soft {
			l.add("--soft")
		}
	}
	return nil
}

// orderOf names the ordered reboot that the update's reboot carries out.
func orderOf(l *commandLine, c *call) error {
	if r := c.request; r != nil && r.Reboot != nil {
		l.add("--order="+r.Reboot.ID, "--order-why="+r.Reboot.Why)
	}
	return nil
}

func noReboot(l *commandLine, c *call) error {
	if c.request != nil && c.request.NoReboot {
		l.add("--no-reboot")
	}
	return nil
}

// softReboot allows a soft reboot, but not where a reboot of the machine is ordered: a soft one brings no kernel.
func softReboot(l *commandLine, c *call) error {
	soft, full := c.hands.options.SoftReboot, false
	if r := c.request; r != nil {
		full = r.Reboot != nil && !r.Reboot.Soft
		if r.Method != "" {
			soft = r.Method == api.RebootSoft
		}
	}
	if soft && !full {
		l.add("--soft-reboot=auto")
	}
	return nil
}

// rebootMethod names the method of a RolloutPolicy that is neither the usual one nor a soft reboot.
func rebootMethod(l *commandLine, c *call) error {
	r := c.request
	if r == nil || r.Reboot != nil && r.Reboot.Soft {
		return nil
	}
	if r.Method == api.RebootKexec || r.Method == api.RebootCommand {
		l.add("--reboot-method=" + strings.ToLower(string(r.Method)))
	}
	return nil
}

// drop makes the host remove what was staged: a stage without a request.
func drop(l *commandLine, c *call) error {
	if c.request == nil {
		l.add("--drop")
	}
	return nil
}

func paths(l *commandLine, _ *call) error {
	l.add("--paths")
	return nil
}
