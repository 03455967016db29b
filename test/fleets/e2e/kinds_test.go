// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/progress"
	"github.com/noderefit/noderefit/test/lab"
	"github.com/noderefit/noderefit/test/lab/fleet"
)

// The nodes of a fleet of three kinds: a host of apt with GRUB, one of dnf with boot loader entries, and one of ostree.
const (
	ofApt    = "w-apt"
	ofDnf    = "w-dnf"
	ofOSTree = "w-ostree"
)

// TestThreeKindsOfHosts has hosts of three kinds in one cluster. The pool and the policy do not name the kinds. The
// scenarios share one fleet, as those of TestRollouts do.
func TestThreeKindsOfHosts(t *testing.T) {
	packages := lab.NeedPackages(t)
	kind := func(loader lab.Loader) fleet.Kind {
		return fleet.Kind{Base: packages, Options: lab.Options{WithoutOSTree: true, Loader: loader}}
	}
	ctx, f := start(t, fleet.Options{
		Hosts: []string{ofApt, ofDnf, ofOSTree}, Kwok: []string{"k0", "k1"},
		Kinds: map[string]fleet.Kind{ofApt: kind(lab.GRUB), ofDnf: kind(lab.Entries)},
	})
	for _, scenario := range []struct {
		name string
		run  func(context.Context, *testing.T, *fleet.Fleet)
	}{
		{"one change reboots all of them and is proved", kindsChange},
		{"a power cut in the boot of each ends on the change", kindsCut},
		{"a kubelet that does not start brings all of them back", kindsComeBack},
		{"upgrades of packages reboot them in turn, and one that fails stops the others", kindsReboot},
	} {
		began := time.Now()
		ok := t.Run(scenario.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(ctx, patience, errors.New("the scenario takes too long"))
			defer cancel()
			scenario.run(ctx, t, f)
		})
		t.Logf("%s: %v", scenario.name, time.Since(began).Round(time.Second))
		if !ok {
			t.FailNow() // what a scenario leaves behind is not what the next one begins with
		}
	}
}

// kinds returns a MachineConfig of files, a unit, a drop-in of the kubelet and a kernel argument.
func kinds(text, dropIn string) string {
	return fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 50-kinds
  labels:
    machineconfiguration.openshift.io/role: worker
spec:
  kernelArguments: [kinds=%[1]s]
  config:
    ignition:
      version: 3.2.0
    storage:
      files:
      - {path: /etc/kinds.conf, mode: 420, overwrite: true, contents: {source: "data:,%[1]s"}}
      - {path: /usr/local/bin/kinds, mode: 493, overwrite: true, contents: {source: "data:,%%23%%21/bin/sh%%0Aecho%%20%[1]s"}}
    systemd:
      units:
      - name: kinds.service
        enabled: true
        contents: |
          [Service]
          Type=oneshot
          RemainAfterExit=yes
          ExecStart=/bin/sh -c 'echo %[1]s >/run/kinds'
          [Install]
          WantedBy=multi-user.target
      - name: kubelet.service
        dropins:
        - name: 90-kinds.conf
          contents: |
            [Service]
            %[2]s
`, text, dropIn)
}

// has holds each host to the files, the unit and the kernel argument of a change, and to what its agent says of them.
func has(ctx context.Context, t *testing.T, f *fleet.Fleet, text string) {
	t.Helper()
	for _, n := range f.Nodes {
		out, err := n.Output(ctx, "sh", "-c", "cat /etc/kinds.conf && echo && kinds && cat /run/kinds && systemctl is-active kinds.service")
		if want := strings.Repeat(text+"\n", 3) + "active\n"; err != nil || out != want {
			t.Errorf("%s has %q: %v", n.Name, out, err)
		}
		ours := slices.DeleteFunc(strings.Fields(n.Kargs()), func(a string) bool { return !strings.HasPrefix(a, "kinds=") })
		if !slices.Equal(ours, []string{"kinds=" + text}) {
			t.Errorf("%s was booted with %s", n.Name, n.Kargs())
		}
		if out, errs, exit, err := n.Agent(ctx, "verify"); err != nil || exit != 0 {
			t.Errorf("%s: verify: exit %d, %v: %s%s", n.Name, exit, err, out, errs)
		}
		_, object, err := f.Says(ctx, n.Name)
		must(t, err)
		ready := slices.ContainsFunc(object.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !ready || object.Spec.Unschedulable {
			t.Errorf("%s is ready: %t, cordoned: %t", n.Name, ready, object.Spec.Unschedulable)
		}
	}
}

func kindsChange(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	for name, want := range map[string]string{ofApt: "none", ofDnf: "none", ofOSTree: "ostree"} {
		s, err := f.Node(name).Status(ctx)
		must(t, err)
		if string(s.OS) != want {
			t.Errorf("%s is a host of %q", name, s.OS)
		}
	}
	must(t, f.Workload(ctx, "web", 8, 6))
	booted := boots(f)
	_, after := change(ctx, t, f, kinds("one", "Environment=KINDS=one"))
	must(t, f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(3)))
	bootedOnce(t, f, booted, names(f)...)
	has(ctx, t, f, "one")
}

// kindsCut pulls the plug of each host as soon as it has booted into the change. All go at a time from here on.
func kindsCut(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	must(t, f.Pool(ctx, "worker", "3"))
	booted := boots(f)
	cut := make(chan error, len(f.Nodes))
	for _, n := range f.Nodes {
		go func() {
			err := n.WaitBoot(ctx, booted[n.Name]+1)
			cut <- errors.Join(err, n.PowerCut(), n.PowerOn())
		}()
	}
	_, after := change(ctx, t, f, kinds("two", "Environment=KINDS=two"))
	for range f.Nodes {
		must(t, <-cut)
	}
	must(t, f.WaitAt(ctx, after, names(f)...), f.WaitPool(ctx, "worker", "updated", fleet.Updated(3)))
	has(ctx, t, f, "two")
}

// threeMayFail lets a configuration fail on each of them before the pool takes the others back.
const threeMayFail = `apiVersion: noderefit.dev/v1alpha1
kind: RolloutPolicy
metadata:
  name: three-may-fail
spec:
  pools: [worker]
  failureBudget: 3
`

func kindsComeBack(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	must(t, f.Apply(ctx, threeMayFail))
	lines := map[string]string{}
	for _, n := range f.Nodes {
		lines[n.Name] = n.Kargs()
	}
	booted := boots(f)
	// The kubelet refuses an argument that it does not know.
	before, bad := change(ctx, t, f, kinds("bad",
		"ExecStart=\n            ExecStart=/var/lib/cluster-lab/kubebox hollow-kubelet --no-such-argument"))
	must(t, f.WaitPool(ctx, "worker", "stopped", func(p *mcfgv1.MachineConfigPool) bool {
		return fleet.Condition(p, mcfgv1.MachineConfigPoolDegraded) && fleet.Condition(p, api.PoolQuarantined)
	}))
	for _, name := range names(f) {
		must(t, f.WaitNodeSays(ctx, name, "rolled back, and serving", func(says api.Node, n *corev1.Node) bool {
			return says.State == api.RolledBack && says.Current == before && !n.Spec.Unschedulable && says.Cordon == nil &&
				len(says.Quarantined) == 1 && says.Quarantined[0].Config == bad && strings.Contains(says.Reason, "kubelet")
		}), f.WaitReady(ctx, name))
		if got := f.Node(name).Boots() - booted[name]; got != 2 {
			t.Errorf("%s has booted %d times, there and back", name, got)
		}
		// ostree= names the deployment, which is another one.
		if got := argumentsOf(f.Node(name).Kargs()); got != argumentsOf(lines[name]) {
			t.Errorf("%s came back with the arguments %s, and had %s", name, got, lines[name])
		}
		explains(ctx, t, f, name, progress.RolledBack, "kubelet")
	}
	// No person has chosen the deployment to which a host goes back.
	events, err := f.Kubectl(ctx, "get", "events", "-A", "--field-selector=reason=RebootWanted", "-o", "jsonpath={.items[*].message}")
	if must(t, err); strings.Contains(events, "by a person or another program") {
		t.Errorf("a host on its way back has said: %s", events)
	}
	has(ctx, t, f, "two")
	must(t, f.Apply(ctx, kinds("two", "Environment=KINDS=two")), f.WaitAt(ctx, before, names(f)...),
		f.WaitPool(ctx, "worker", "updated", fleet.Updated(3)), f.Pool(ctx, "worker", "1"))
	_, err = f.Kubectl(ctx, "delete", "rolloutpolicy", "three-may-fail")
	must(t, err)
}

// argumentsOf returns a command line without the deployment.
func argumentsOf(line string) string {
	return strings.Join(slices.DeleteFunc(strings.Fields(line), func(a string) bool {
		return strings.HasPrefix(a, "ostree=")
	}), " ")
}

// rebootPolicy has a canary, a gate about it, and a window.
const rebootPolicy = `apiVersion: noderefit.dev/v1alpha1
kind: RolloutPolicy
metadata:
  name: reboots
spec:
  pools: [worker]
  reboots: Roll
  rebootWindows:
    open:
    - {from: %s, until: %s}
` + canaryStages

// window returns a policy with a window of two hours.
func window(policy string, opens time.Time) string {
	local := func(t time.Time) string { return `"` + t.UTC().Format("2006-01-02T15:04:05") + `"` }
	return fmt.Sprintf(policy, local(opens), local(opens.Add(2*time.Hour)))
}

// upgradeApt has dpkg upgrade a package whose script says that a reboot is required, as those of Debian's packages do.
const upgradeApt = `set -eu
mkdir -p /var/lib/dpkg/updates /var/lib/dpkg/info /var/tmp/package/DEBIAN
touch /var/lib/dpkg/status
for version in 1 2; do
	printf 'Package: libc6\nVersion: %s\nArchitecture: all\nMaintainer: lab <lab@example.com>\nDescription: the C library\n' \
		$version >/var/tmp/package/DEBIAN/control
	printf '#!/bin/sh\nset -e\n[ "$2" ] || exit 0\necho "*** System restart required ***" >/run/reboot-required\necho libc6 >>/run/reboot-required.pkgs\n' \
		>/var/tmp/package/DEBIAN/postinst
	chmod 755 /var/tmp/package/DEBIAN/postinst
	dpkg-deb --build /var/tmp/package /var/tmp/libc6-$version.deb
	dpkg --force-depends --install /var/tmp/libc6-$version.deb
done
`

// upgradeDnf has rpm upgrade a library, whose script says that a reboot is required, as needs-restarting does. A package
// of the kubelet comes along, whose settings the kubelet of the next boot does not take.
const upgradeDnf = `set -eu
mkdir -p /var/tmp/packages
cd /var/tmp/packages
printf 'fail\n' >kubelet.conf
for release in 1 2; do
	cat >glibc-$release.spec <<E
Name: glibc
Version: 2.40
Release: $release
Summary: the C library
License: none
BuildArch: noarch
%description
The C library.
%post
[ "\$1" -gt 1 ] || exit 0
echo "*** System restart required ***" >/run/reboot-required
echo glibc >>/run/reboot-required.pkgs
%files
E
done
cat >kubelet.spec <<'E'
Name: kubelet
Version: 2
Release: 1
Summary: the kubelet
License: none
BuildArch: noarch
%description
The kubelet.
%install
install -D -m 644 /var/tmp/packages/kubelet.conf %{buildroot}/etc/kubernetes/kubelet.conf
%files
/etc/kubernetes/kubelet.conf
E
for name in glibc-1 glibc-2 kubelet; do
	rpmbuild -bb --define '_topdir /var/tmp/packages' $name.spec >$name.log 2>&1 || { cat $name.log; exit 1; }
done
rpm -U --nodeps RPMS/noarch/glibc-2.40-1.noarch.rpm
rpm -U --nodeps RPMS/noarch/glibc-2.40-2.noarch.rpm RPMS/noarch/kubelet-*.rpm
`

func kindsReboot(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	_, err := f.Kubectl(ctx, "label", "node", ofApt, "canary=true")
	must(t, err, f.Apply(ctx, window(rebootPolicy, time.Now().Add(24*time.Hour))))
	booted := boots(f)
	// The agent sees by itself what packages write. Programs that take their time are asked now and then, or by a person.
	const ask = "\nmachine-config-daemon wants-reboot"
	for name, upgrade := range map[string]string{ofApt: upgradeApt, ofDnf: upgradeDnf + ask,
		ofOSTree: upgradeApt + "ostree admin deploy --os=" + lab.OS + " " + lab.RefV1 + ask} {
		text, err := f.Node(name).Output(ctx, "sh", "-c", upgrade)
		must(t, err)
		t.Logf("%s: %s", name, text)
	}
	// The packages have written the sentinel on each, and two have a reason of their own beside it.
	for name, reasons := range map[string][]string{ofApt: {"(libc6)"}, ofDnf: {"(glibc)", "needs-restarting"},
		ofOSTree: {"(libc6)", "boots next"}} {
		for _, why := range append(reasons, "/run/reboot-required: System restart required", "no window is open") {
			explains(ctx, t, f, name, progress.RebootWanted, why)
		}
	}
	must(t, rebootsOf(f, booted, map[string]int{}))

	// The window comes: the canary goes, and its gate holds the others.
	must(t, f.Apply(ctx, window(rebootPolicy, time.Now().Add(-time.Minute))), rebootedBy(ctx, f, ofApt))
	explains(ctx, t, f, ofDnf, progress.RebootWanted, "gate smoke of stage canary is closed")
	must(t, rebootsOf(f, booted, map[string]int{ofApt: 1}))

	must(t, f.Pinned(ctx, "third", ofOSTree)) // no drain gets past its budget
	pod := func() string {
		text, err := f.Kubectl(ctx, "get", "pods", "-l", "app=third", "-o", "jsonpath={.items[*].metadata.uid}")
		must(t, err)
		return text
	}
	before := pod()
	_, err = f.Kubectl(ctx, "label", "node", ofApt, "smoke=passed")
	must(t, err)
	explains(ctx, t, f, ofDnf, progress.RebootFailed, "kubelet")
	explains(ctx, t, f, "pool/worker", progress.RebootFailed, "node "+ofDnf)
	explains(ctx, t, f, ofOSTree, progress.RebootWanted, "the reboot of node "+ofDnf+" failed")
	must(t, f.WaitPool(ctx, "worker", "names the node", func(p *mcfgv1.MachineConfigPool) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c mcfgv1.MachineConfigPoolCondition) bool {
			return c.Type == api.PoolRebootsWanted && c.Reason == string(progress.RebootFailed) &&
				strings.Contains(c.Message, "the reboot of node "+ofDnf+" failed")
		})
	}))
	must(t, fleet.Until(ctx, "the MachineConfigNode says so", func(ctx context.Context) (bool, string, error) {
		text, err := f.Kubectl(ctx, "get", "machineconfignode", ofDnf, "-o",
			`jsonpath={.status.conditions[?(@.type=="NodeDegraded")]}`)
		return strings.Contains(text, `"status":"True"`) && strings.Contains(text, "kubelet"), text, err
	}))
	told(ctx, t, f, ofDnf, "RebootFailed", "kubelet")
	must(t, rebootsOf(f, booted, map[string]int{ofApt: 1, ofDnf: 1}))
	third, object, err := f.Says(ctx, ofOSTree)
	must(t, err)
	if now := pod(); third.Cordon != nil || third.Orders.Reboot != nil || object.Spec.Unschedulable || now != before {
		t.Errorf("%s does not serve as before, its pod was %q and is %q: %+v", ofOSTree, before, now, third)
	}

	// A person mends the node, and the rollout goes on.
	must(t, f.Unpin(ctx, "third"), os.Remove(f.Node(ofDnf).HostPath("/etc/kubernetes/kubelet.conf")))
	_, err = f.Node(ofDnf).Output(ctx, "sh", "-c", "systemctl reset-failed kubelet.service; systemctl restart kubelet.service")
	must(t, err, f.WaitReady(ctx, ofDnf))
	text, exit, err := f.Refit(ctx, "retry", ofDnf, "--why", "the package was mended")
	must(t, err)
	if exit != 0 {
		t.Fatal(text)
	}
	must(t, rebootedBy(ctx, f, ofDnf), rebootedBy(ctx, f, ofOSTree))
	explains(ctx, t, f, "pool/worker", progress.UpToDate, "")
	config, err := f.Configuration(ctx, "worker")
	must(t, err, f.WaitAt(ctx, config, names(f)...), rebootsOf(f, booted, map[string]int{ofApt: 1, ofDnf: 2, ofOSTree: 1}))
	has(ctx, t, f, "two")
}

// rebootedBy waits until a node was rebooted, is healthy, and serves.
func rebootedBy(ctx context.Context, f *fleet.Fleet, name string) error {
	return f.WaitNodeSays(ctx, name, "rebooted and serving", func(says api.Node, n *corev1.Node) bool {
		return says.Rebooted != nil && !says.Rebooted.Ended.IsZero() && says.Rebooted.Failed == "" &&
			says.RebootWanted == nil && says.State == api.Done && says.Cordon == nil && !n.Spec.Unschedulable
	})
}

// rebootsOf returns an error that names the hosts whose number of boots since then is not the wanted one, by default 0.
func rebootsOf(f *fleet.Fleet, since, want map[string]int) error {
	var errs []error
	for _, n := range f.Nodes {
		if got := n.Boots() - since[n.Name]; got != want[n.Name] {
			errs = append(errs, fmt.Errorf("%s has booted %d times, not %d times", n.Name, got, want[n.Name]))
		}
	}
	return errors.Join(errs...)
}
