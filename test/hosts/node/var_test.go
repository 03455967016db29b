// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"
)

// A check of /var may take longer than the verdict may. A reboot in the middle of it would begin the check anew, for ever.
func TestASlowCheckOfVarIsNotHeldAgainstTheConfiguration(t *testing.T) {
	long(t)
	ctx, n := onA(t)
	apply(ctx, t, n, mc("b", configB), "--no-reboot", "--verdict-timeout", "20s")
	const units = "/systemd/system/"
	etc := "/sysroot/" + pendingEtc(ctx, t, n)
	put(t, n, etc+units+"check.service", "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\n"+
		"ExecStart=/bin/sleep 30\n", 0o644)
	put(t, n, etc+units+"var-lib.mount", "[Unit]\nDefaultDependencies=no\nBefore=local-fs.target\nRequires=check.service\n"+
		"After=check.service\n[Mount]\nWhat=/var/lib\nWhere=/var/lib\nType=none\nOptions=bind\n", 0o644)
	put(t, n, etc+units+"local-fs.target.d/var.conf", "[Unit]\nRequires=var-lib.mount\n", 0o644)
	shell(ctx, t, n, "systemctl reboot --no-block")
	settled(ctx, t, n, "b")
	out, _ := shell(ctx, t, n, "systemctl show -p ActiveEnterTimestampMonotonic --value var-lib.mount; "+
		"systemctl show -p ExecMainStartTimestampMonotonic --value "+proveUnit)
	var mounted, began int64
	if _, err := fmt.Sscan(out, &mounted, &began); err != nil || mounted == 0 || began < mounted {
		t.Errorf("the unit of the verdict began at %d, and /var/lib was mounted at %d: %v, %s", began, mounted, err, out)
	}
}
