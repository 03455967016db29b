// SPDX-License-Identifier: Apache-2.0

// Package agent is the agent's part on a host: its program, the verbs that the host runs as units, and the units that
// recover and prove in each boot. An Installer puts them on a host:
//
//	i, err := agent.NewInstaller(root)
//	err = i.Install()
package agent

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/hooks"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// The names of the two programs. Program has the verbs of a host; its command run executes RunProgram, the agent of a
// cluster, from the same directory.
const (
	Program    = "machine-config-daemon"
	RunProgram = Program + "-run"
)

// BinaryPath is the host's own copy of the program, on the shared part of the disk. There each deployment that boots
// can recover. The copy stays when the agent's pod or package is removed.
const (
	binaryDir  = transaction.StateDir + "/bin"
	BinaryPath = binaryDir + "/" + Program
	// Launcher is the program that init runs, with ours as its argument. Where SELinux is enforcing, init may not run a
	// program labelled like the rest of /var/lib, and the first restorecon would remove another label. init may run the
	// launcher, in a domain that may run any program.
	Launcher = "/usr/bin/env"
)

// orderlyReboot is how long the orderly reboot out of a bad configuration may take: longer than the 90 s that systemd
// gives a service to stop.
const orderlyReboot = 100 * time.Second

// hostUnit is one of the agent's units on a host: the text of its file, and the settings that its drop-in repeats. A
// drop-in for all services may have changed these settings.
type hostUnit struct {
	// unit is the file's [Unit] section; "": the unit is a transient one.
	unit string
	// asked: the unit starts on request, and not in every boot.
	asked bool
	// conditions and service belong to both the file and the drop-in.
	conditions, service string
}

// BootUnits are the agent's units on a host, in the order in which they run.
var BootUnits = []string{transaction.RecoverUnit, transaction.ProveUnit}

// BootCommand returns the command line of one of BootUnits.
func BootCommand(unit string) []string {
	return []string{Launcher, BinaryPath, strings.TrimSuffix(strings.TrimPrefix(unit, unitPrefix), ".service")}
}

// The units are plain files of the host rather than transient units: they must exist at the next boot. Recovery runs as
// soon as the file systems that recovery may have to write are mounted. It runs before everything that could read them.
// It runs before greenboot too, which would swap the deployments of a machine that the boot loader has rolled back. A
// boot that ends in emergency mode mounts only what these units ask for. Both units may be running ostree when they are
// stopped. ostree freezes /boot for a moment and must not be killed then: only the program itself is told to stop.
var hostUnits = map[string]hostUnit{
	// When recovery fails, status reports the failure, and the verdict's unit tries once more.
	transaction.RecoverUnit: {
		unit: `Description=Bring the node to one side of an interrupted update
Documentation=https://github.com/noderefit/noderefit
DefaultDependencies=no
RequiresMountsFor=/var/lib/machine-config-daemon /etc
Wants=systemd-remount-fs.service boot.mount
After=systemd-remount-fs.service boot.mount
After=local-fs.target systemd-tmpfiles-setup.service
Before=sysinit.target kubelet.service crio.service containerd.service
Before=greenboot-rpm-ostree-grub2-check-fallback.service greenboot-healthcheck.service
Conflicts=shutdown.target
Before=shutdown.target
OnFailure=` + transaction.ProveUnit + `
`,
		service: `Type=oneshot
ExecStart=` + Launcher + ` ` + BinaryPath + ` recover
SyslogIdentifier=machine-config-daemon
TimeoutStartSec=5min
TimeoutStopSec=90
KillMode=mixed
Restart=no
`,
	},
	// This unit starts in every boot, beside everything else: its clock runs even if the rest of the boot hangs. Where no
	// update waits for a verdict the program ends at once. The unit is ordered neither after recovery nor after the
	// mounting services that recovery waits for: these may never start. The program itself waits for recovery, and no
	// longer than the deadline allows.
	transaction.ProveUnit: {
		unit: `Description=Prove that the node is healthy on its new configuration
Documentation=https://github.com/noderefit/noderefit
DefaultDependencies=no
RequiresMountsFor=/var/lib/machine-config-daemon
Wants=systemd-remount-fs.service boot.mount
Conflicts=shutdown.target
Before=shutdown.target
StartLimitIntervalSec=0
`,
		conditions: "ConditionPathExists=" + transaction.RecordPath + "\n",
		service: `Type=exec
ExecStart=` + Launcher + ` ` + BinaryPath + ` prove
SyslogIdentifier=machine-config-daemon
TimeoutStartSec=90
TimeoutStopSec=90
Restart=on-failure
RestartSec=5
KillMode=mixed
`,
	},
	// This unit starts before the reboot out of a bad configuration, whose services may never stop. No part of the
	// shutdown conflicts with this unit. So the unit runs until systemd itself ends, in the normal way or because the unit
	// has ended. The unit keeps nothing of the host busy except one program of the OS.
	plan.RebootUnit: {
		unit: `Description=Force the reboot out of a bad configuration, if the orderly reboot does not end
Documentation=https://github.com/noderefit/noderefit
DefaultDependencies=no
`,
		asked:      true,
		conditions: "SuccessAction=reboot-force\n",
		service: `Type=exec
ExecStart=` + Launcher + ` sleep ` + strconv.Itoa(int(orderlyReboot/time.Second)) + `
TimeoutStartSec=90
TimeoutStopSec=90
Restart=no
`,
	},
	// The agent that runs a hook enforces the hook's limit: a transient unit loses its own limit where a drop-in for all
	// services sets another. The limit here is for an agent that has died meanwhile.
	hooks.Unit: {service: `Type=simple
RemainAfterExit=yes
Restart=no
SuccessExitStatus=
RuntimeMaxSec=` + (hooks.LongestLimit + hooks.Grace).String() + `
TimeoutStopSec=` + hooks.Grace.String() + `
`},
}

// handUnit returns the drop-in settings of a command's transient unit. systemd reads them after the properties that the
// unit was started with.
func handUnit(v Verb) hostUnit {
	limit := "infinity"
	if v.Limit > 0 {
		limit = v.Limit.String()
	}
	return hostUnit{service: "Type=simple\nRemainAfterExit=no\nKillMode=mixed\nRestart=no\nRuntimeMaxSec=" + limit +
		"\nTimeoutStopSec=" + v.Grace.String() + "\n"}
}

// file returns the text of the unit file.
func (u hostUnit) file() string {
	text := "[Unit]\n" + u.unit + u.conditions + "\n[Service]\n" + u.service
	if u.asked {
		return text
	}
	return text + "\n[Install]\nWantedBy=" + strings.Join(plan.WantedBy(), " ") + "\n"
}

// dropin returns the drop-in that resets every setting that a drop-in for all services may have. systemd reads this
// drop-in after those, because of its name.
func (u hostUnit) dropin() string {
	own, dependencies := u.service, ""
	if u.unit != "" {
		dependencies = "DefaultDependencies=no\n"
		// The units lie beside the slice of all services, whose limits are not meant for them.
		own = "SuccessExitStatus=\nSlice=-.slice\nManagedOOMPreference=omit\nNice=0\nIOSchedulingClass=best-effort\n" +
			"CPUWeight=100\nIOWeight=100\nStartupCPUWeight=100\nStartupIOWeight=100\n" +
			"ExecStart=\nEnvironment=\nPassEnvironment=\nRemainAfterExit=no\n" + own
	}
	if !strings.Contains(own, "RemainAfterExit=yes") { // a hook's output is a pipe
		own += "StandardInput=null\nStandardOutput=journal\nStandardError=inherit\n"
	}
	return "# Settings for all services do not apply to this service, which takes a bad configuration back.\n" +
		"[Unit]\n" + dependencies + takenBackOfUnits + "FailureAction=none\nSuccessAction=none\n" + u.conditions +
		"\n[Service]\n" + takenBackOfServices + own +
		"Environment=PATH=" + ostree.SearchPath + "\n"
}

// ImageUnits returns the texts of the units, by name, that an image with a transient /etc must have itself. Recovery
// puts the host's own units over them in each boot. A host that no agent has ever worked on skips both. Recovery comes
// before systemd-tmpfiles, whose files it writes.
func ImageUnits() map[string]string {
	out := map[string]string{}
	for _, name := range BootUnits {
		u := hostUnits[name]
		u.conditions = "ConditionPathExists=" + transaction.RecordPath + "\n"
		u.unit = strings.Replace(u.unit, "After=local-fs.target systemd-tmpfiles-setup.service\n",
			"After=local-fs.target\nBefore=systemd-tmpfiles-setup.service\n", 1)
		out[name] = u.file()
	}
	return out
}

// Wakers returns what ostree looks for of ImageUnits in an image.
func Wakers() (out []ostree.Waker) {
	for _, name := range BootUnits {
		out = append(out, ostree.Waker{Name: name, Command: strings.Join(BootCommand(name), " "), WantedBy: plan.WantedBy()})
	}
	return out
}

const takenBackOfUnits = `ConditionPathExists=
AssertPathExists=
RefuseManualStart=no
RefuseManualStop=no
StopWhenUnneeded=no
IgnoreOnIsolate=yes
JobTimeoutSec=infinity
JobRunningTimeoutSec=infinity
JobTimeoutAction=none
OnFailureJobMode=replace
RebootArgument=
StartLimitIntervalSec=0
StartLimitAction=none
`

// rebootUnits are systemd's own services at the end of a reboot. A drop-in for all services applies to them too. A host
// on which they are skipped hangs instead of booting.
var rebootUnits = []string{"systemd-reboot.service", "systemd-soft-reboot.service", "systemd-kexec.service"}

// takenBackOfServices resets every harmful setting that systemd 252 knows, in the order of its manual pages. These are
// identity, view of the file system, allowed system calls, limits, and commands that run before and after. Newer
// harmful settings are refused for all services instead, because an older systemd would log a warning about each such
// line at each reload.
const takenBackOfServices = `ExecCondition=
ExecStartPre=
ExecStartPost=
ExecReload=
ExecStop=
ExecStopPost=
ExitType=main
RestartPreventExitStatus=
RestartForceExitStatus=
PIDFile=
RuntimeMaxSec=infinity
TimeoutStartSec=90
TimeoutStopSec=90
TimeoutAbortSec=
TimeoutStartFailureMode=terminate
TimeoutStopFailureMode=terminate
RuntimeRandomizedExtraSec=0
WatchdogSec=0
NotifyAccess=none
OOMPolicy=stop
KillMode=control-group
KillSignal=SIGTERM
RestartKillSignal=SIGTERM
FinalKillSignal=SIGKILL
SendSIGKILL=yes
SendSIGHUP=no
RootDirectory=
RootImage=
WorkingDirectory=
MountImages=
ExtensionImages=
ExtensionDirectories=
BindPaths=
BindReadOnlyPaths=
TemporaryFileSystem=
ReadWritePaths=
ReadOnlyPaths=
InaccessiblePaths=
ExecPaths=
NoExecPaths=
ExecSearchPath=
MountAPIVFS=no
MountFlags=
ProtectProc=default
ProcSubset=all
User=
Group=
DynamicUser=no
SupplementaryGroups=
PAMName=
CapabilityBoundingSet=~
AmbientCapabilities=
SecureBits=
NoNewPrivileges=no
SELinuxContext=
AppArmorProfile=
SmackProcessLabel=
LimitCPU=infinity
LimitFSIZE=infinity
LimitDATA=infinity
LimitSTACK=8M:infinity
LimitRSS=infinity
LimitNOFILE=524288
LimitAS=infinity
LimitNPROC=infinity
LimitLOCKS=infinity
LimitMEMLOCK=infinity
UMask=0022
OOMScoreAdjust=0
TimerSlackNSec=50us
Personality=
IgnoreSIGPIPE=yes
CPUSchedulingPolicy=other
CPUAffinity=
NUMAPolicy=default
NUMAMask=
ProtectSystem=no
ProtectHome=no
RuntimeDirectory=
StateDirectory=
CacheDirectory=
LogsDirectory=
ConfigurationDirectory=
PrivateTmp=no
PrivateDevices=no
PrivateNetwork=no
NetworkNamespacePath=
PrivateIPC=no
IPCNamespacePath=
PrivateUsers=no
ProtectHostname=no
ProtectClock=no
ProtectKernelTunables=no
ProtectKernelModules=no
ProtectKernelLogs=no
ProtectControlGroups=no
RestrictAddressFamilies=
RestrictFileSystems=
RestrictNamespaces=no
LockPersonality=no
MemoryDenyWriteExecute=no
RestrictRealtime=no
RestrictSUIDSGID=no
PrivateMounts=no
SystemCallFilter=
SystemCallArchitectures=
SystemCallLog=
EnvironmentFile=
UnsetEnvironment=
LoadCredential=
LoadCredentialEncrypted=
SetCredential=
SetCredentialEncrypted=
LogNamespace=
Slice=system.slice
Delegate=no
CPUQuota=
AllowedCPUs=
StartupAllowedCPUs=
AllowedMemoryNodes=
StartupAllowedMemoryNodes=
MemoryHigh=infinity
MemoryMax=infinity
MemorySwapMax=infinity
TasksMax=infinity
ManagedOOMSwap=auto
ManagedOOMMemoryPressure=auto
ManagedOOMPreference=none
IOReadBandwidthMax=
IOWriteBandwidthMax=
IOReadIOPSMax=
IOWriteIOPSMax=
IODeviceLatencyTargetSec=
IPAddressAllow=
IPAddressDeny=
IPIngressFilterPath=
IPEgressFilterPath=
BPFProgram=
SocketBindAllow=
SocketBindDeny=
RestrictNetworkInterfaces=
DeviceAllow=
DevicePolicy=auto
`

// Wants returns the files and links of the agent's units on a host.
func Wants() []files.Want {
	var wants []files.Want
	file := func(at, text string) {
		wants = append(wants, files.Want{Path: path.Join(systemd.UnitDir, at),
			Node: files.Node{Type: files.Regular, Mode: 0o644, Data: []byte(text)}})
	}
	all := maps.Clone(hostUnits)
	for _, v := range Verbs {
		all[v.Unit()] = handUnit(v)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		u := all[name]
		file(name+".d/"+plan.OwnDropin, u.dropin())
		if u.unit == "" {
			continue
		}
		file(name, u.file())
		if u.asked {
			continue
		}
		for _, target := range plan.WantedBy() {
			wants = append(wants, files.Want{Path: path.Join(systemd.UnitDir, target+".wants", name),
				Node: files.Node{Type: files.Symlink, Target: path.Join(systemd.UnitDir, name)}})
		}
	}
	for _, name := range rebootUnits {
		file(name+".d/"+plan.OwnDropin, "# Settings for all services do not apply to this service, which ends a reboot.\n"+
			"[Unit]\n"+takenBackOfUnits+"FailureAction=none\n\n[Service]\n"+takenBackOfServices+
			"Type=oneshot\nRestart=no\nRemainAfterExit=no\nTimeoutStartSec=infinity\n")
	}
	return wants
}
