// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/systemd"
	"github.com/noderefit/noderefit/transaction"
)

// newerKeys are the keys that a unit of type service may have since systemd 252, up to 258. A systemd that does not
// know a key warns about that key in each reload. So harmful ones are refused for all services, and not taken back.
const newerKeys = `Unit.WantsMountsFor Unit.SurviveFinalKillSignal Unit.ConditionVersion Unit.AssertVersion
Unit.ConditionKernelModuleLoaded Unit.AssertKernelModuleLoaded Unit.ConditionPathIsSocket Unit.AssertPathIsSocket
Service.RestartSteps Service.RestartMaxDelaySec Service.RestartMode Service.FileDescriptorStorePreserve Service.OpenFile
Service.ReloadSignal Service.RootImagePolicy Service.RootEphemeral Service.ExtensionImagePolicy Service.MountImagePolicy
Service.SetLoginEnvironment Service.LogFilterPatterns Service.PrivateBPF Service.BPFDelegateCommands
Service.BPFDelegateMaps Service.BPFDelegatePrograms Service.BPFDelegateAttachments Service.DelegateNamespaces
Service.LandlockConfig Service.PrivatePIDs Service.BindLogSockets Service.StateDirectoryAccounting
Service.StateDirectoryQuota Service.CacheDirectoryAccounting Service.CacheDirectoryQuota Service.LogsDirectoryAccounting
Service.LogsDirectoryQuota Service.ImportCredential Service.MemoryKSM Service.StartupMemoryLow Service.StartupMemoryHigh
Service.StartupMemoryMax Service.StartupMemorySwapMax Service.StartupMemoryZSwapMax Service.MemoryZSwapWriteback
Service.DefaultStartupMemoryLow Service.DelegateSubgroup Service.ManagedOOMMemoryPressureDurationSec
Service.MemoryPressureThresholdSec Service.MemoryPressureWatch Service.NFTSet Service.CoredumpReceive`

// obsolete are keys that have no effect in any systemd, and that only some versions still name.
const obsolete = "IgnoreOnSnapshot SysVStartPriority BusPolicy Capabilities NetClass"

// thisSystemd is this machine's systemd.
func thisSystemd(t *testing.T) string {
	t.Helper()
	for _, at := range []string{"/usr/lib/systemd/systemd", "/lib/systemd/systemd"} {
		if _, err := os.Stat(at); err == nil {
			return at
		}
	}
	t.Skip("no systemd")
	return ""
}

// knownKeys returns the keys, each after its section and a dot.
func knownKeys(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command(thisSystemd(t), "--dump-configuration-items").Output()
	if err != nil {
		t.Fatal(err)
	}
	keys := strings.Fields(newerKeys)
	section := ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if key, _, is := strings.Cut(line, "="); is && (section == "Unit" || section == "Service") {
			keys = append(keys, section+"."+key)
		} else if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
		}
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) < 300 {
		t.Fatalf("systemd names only %d keys", len(keys))
	}
	return keys
}

// refusedForAll reports whether a configuration may not set a key for all services.
func refusedForAll(t *testing.T, section, key, value string) bool {
	t.Helper()
	cfg := &machineconfig.Config{Files: []machineconfig.File{{Path: systemd.UnitDir + "/service.d/10-a.conf",
		Contents: []byte("[" + section + "]\n" + key + "=" + value + "\n")}}}
	p, err := plan.Make(&machineconfig.Config{}, cfg, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return len(p.Unreconcilable) > 0
}

// dropinUnits returns all units that have a drop-in of the agent, with that drop-in.
func dropinUnits() map[string]string {
	all := map[string]string{}
	for _, w := range Wants() {
		if dir, name := filepath.Split(w.Path); name == plan.OwnDropin {
			all[strings.TrimSuffix(filepath.Base(dir), ".d")] = string(w.Node.Data)
		}
	}
	return all
}

// TestEveryKeyOfAServiceIsTakenBackOrRefusedOrHarmless checks every key that a drop-in for all services may set, by
// this machine's systemd and by newerKeys.
func TestEveryKeyOfAServiceIsTakenBackOrRefusedOrHarmless(t *testing.T) {
	used := map[string]bool{}
	for _, full := range knownKeys(t) {
		section, key, _ := strings.Cut(full, ".")
		if refusedForAll(t, section, key, "1h") {
			continue
		}
		if slices.Contains(strings.Fields(obsolete), key) {
			continue
		}
		for unit, text := range dropinUnits() {
			if strings.Contains(text, "\n"+takenBackBy(key)+"=") {
				continue
			}
			if why := noHarm(unit, key); why == "" {
				t.Errorf("%s: %s is neither taken back nor refused, and there is no reason why it does no harm", unit, full)
			}
			used[key] = true
		}
	}
	for _, table := range []map[string]string{harmlessKeys, harmlessToCommands} {
		for key := range table {
			if !used[key] {
				t.Errorf("%s is in the table of what does no harm, and need not be", key)
			}
		}
	}
}

// takenBackBy returns the key by which the agent's drop-ins take back another key: conditions and assertions are reset
// together with the first of their kind.
func takenBackBy(key string) string {
	if other, is := sameAs[key]; is {
		return other
	}
	for _, kind := range []string{"Condition", "Assert"} {
		if strings.HasPrefix(key, kind) {
			return kind + "PathExists"
		}
	}
	return key
}

// sameAs are other names of keys that a drop-in of the agent takes back.
var sameAs = map[string]string{
	"ReadWriteDirectories": "ReadWritePaths", "ReadOnlyDirectories": "ReadOnlyPaths",
	"InaccessibleDirectories": "InaccessiblePaths", "TimeoutSec": "TimeoutStopSec",
	"StartLimitInterval": "StartLimitIntervalSec", "OnFailureIsolate": "OnFailureJobMode",
}

// The reasons why a key that is not taken back does no harm.
const (
	isText      = "people read it"
	needsOther  = "it says something of what another key asks for, which is taken back"
	onlyJournal = "it changes what the journal keeps; nothing is read from there"
	onlyCounts  = "it counts, and bounds nothing"
	ofSlices    = "it is for what is below a slice, and nothing is below a service"
	isForMore   = "it protects or prefers the unit"
	ofOthers    = "it starts or stops others beside the unit; where these would end the boot it is refused"
	noSocket    = "nothing listens for the unit"
	ofReload    = "nothing reloads the unit"
	noRestart   = "units that are not restarted have none, and the verdict's says its own"
	unused      = "no program of the agent's uses it"
	slower      = "it bounds how much of what is contended the unit gets, and not what it does; a command that is too slow " +
		"fails, and is tried again"
)

// harmlessKeys may stay as a drop-in for all services sets them, with the reason.
var harmlessKeys = map[string]string{
	"Description": isText, "Documentation": isText, "SourcePath": isText,
	"Wants": ofOthers, "Upholds": ofOthers, "OnSuccess": ofOthers, "OnFailure": ofOthers, "OnSuccessJobMode": ofOthers,
	"PropagatesStopTo": ofOthers, "PropagatesReloadTo": ofReload, "PropagateReloadTo": ofReload,
	"ReloadPropagatedFrom": ofReload, "PropagateReloadFrom": ofReload, "ReloadSignal": ofReload,
	"JoinsNamespaceOf": needsOther, "AllowIsolate": "it allows, and forbids nothing",
	"JobTimeoutRebootArgument": needsOther, "FailureActionExitStatus": needsOther, "SuccessActionExitStatus": needsOther,
	"StartLimitBurst": needsOther, "CollectMode": "what has ended is asked for before it is forgotten",
	"SurviveFinalKillSignal": isForMore,

	"RestartSec": noRestart, "RestartMode": noRestart, "RestartMaxDelaySec": needsOther, "BusName": needsOther,
	"GuessMainPID": needsOther, "PermissionsStartOnly": needsOther, "RootDirectoryStartOnly": needsOther,
	"NonBlocking": noSocket, "FileDescriptorStoreMax": noSocket, "FileDescriptorStorePreserve": noSocket,
	"USBFunctionDescriptors": noSocket, "USBFunctionStrings": noSocket, "WatchdogSignal": needsOther,

	"RootImageOptions": needsOther, "RootImagePolicy": needsOther, "RootHash": needsOther, "RootHashSignature": needsOther,
	"RootVerity": needsOther, "RootEphemeral": needsOther, "ExtensionImagePolicy": needsOther,
	"MountImagePolicy": needsOther, "BPFDelegateCommands": needsOther, "BPFDelegateMaps": needsOther,
	"BPFDelegatePrograms": needsOther, "BPFDelegateAttachments": needsOther, "SystemCallErrorNumber": needsOther,
	"CPUSchedulingPriority": needsOther, "CPUSchedulingResetOnFork": needsOther, "IOSchedulingPriority": needsOther,
	"RuntimeDirectoryMode": needsOther, "RuntimeDirectoryPreserve": needsOther, "StateDirectoryMode": needsOther,
	"StateDirectoryAccounting": needsOther, "StateDirectoryQuota": needsOther, "CacheDirectoryMode": needsOther,
	"CacheDirectoryAccounting": needsOther, "CacheDirectoryQuota": needsOther, "LogsDirectoryMode": needsOther,
	"LogsDirectoryAccounting": needsOther, "LogsDirectoryQuota": needsOther, "ConfigurationDirectoryMode": needsOther,
	"StandardInputData": needsOther, "StandardInputText": needsOther, "TTYPath": needsOther, "TTYReset": needsOther,
	"TTYRows": needsOther, "TTYColumns": needsOther, "TTYVHangup": needsOther, "TTYVTDisallocate": needsOther,
	"UtmpIdentifier": needsOther, "UtmpMode": needsOther, "SetLoginEnvironment": needsOther, "RemoveIPC": needsOther,
	"DelegateSubgroup": needsOther,

	"LogExtraFields": onlyJournal, "LogFilterPatterns": onlyJournal, "LogLevelMax": onlyJournal,
	"LogRateLimitBurst": onlyJournal, "LogRateLimitIntervalSec": onlyJournal, "SyslogFacility": onlyJournal,
	"SyslogLevel": onlyJournal, "SyslogLevelPrefix": onlyJournal, "SyslogIdentifier": onlyJournal,
	"BindLogSockets": onlyJournal,

	"CPUAccounting": onlyCounts, "IOAccounting": onlyCounts, "BlockIOAccounting": onlyCounts, "IPAccounting": onlyCounts,
	"MemoryAccounting": onlyCounts, "TasksAccounting": onlyCounts, "NFTSet": onlyCounts, "MemoryPressureWatch": onlyCounts,
	"MemoryPressureThresholdSec": onlyCounts,
	"DefaultMemoryLow":           ofSlices, "DefaultMemoryMin": ofSlices, "DefaultStartupMemoryLow": ofSlices,
	"DisableControllers": ofSlices,
	"MemoryLow":          isForMore, "MemoryMin": isForMore, "StartupMemoryLow": isForMore, "MemoryKSM": isForMore,
	"MemoryZSwapWriteback": slower, "CPUShares": slower, "StartupCPUShares": slower, "BlockIOWeight": slower,
	"StartupBlockIOWeight": slower, "BlockIODeviceWeight": slower, "IODeviceWeight": slower, "CPUQuotaPeriodSec": needsOther,
	"ManagedOOMMemoryPressureLimit": needsOther, "ManagedOOMMemoryPressureDurationSec": needsOther,

	"CoredumpFilter": unused, "CoredumpReceive": unused, "LimitCORE": unused, "LimitMSGQUEUE": unused, "LimitNICE": unused,
	"LimitRTPRIO": unused, "LimitRTTIME": unused, "LimitSIGPENDING": unused, "KeyringMode": unused,
	"ImportCredential": "a credential that is not there is none", "TimeoutCleanSec": "nothing cleans the unit",
}

// harmlessToCommands are more such keys, for the units that no boot starts: a command that fails reports the failure,
// and can be given again.
var harmlessToCommands = map[string]string{
	"ExecStart": "where all services run something else the host does not prove", "Environment": "the command has more, and its PATH",
	"PassEnvironment": "the command has more", "SuccessExitStatus": "how a command ends is in its report",
	"Nice": slower, "IOSchedulingClass": slower, "CPUWeight": slower, "IOWeight": slower, "StartupCPUWeight": slower,
	"StartupIOWeight": slower,
	"StandardInput":   "the descriptors that a hook is started with count before", "StandardOutput": "as StandardInput",
	"StandardError": "as StandardInput",
}

// noHarm returns the reason why a key does no harm to a unit, "" where the key might do harm.
func noHarm(unit, key string) string {
	if why, is := harmlessKeys[key]; is || slices.Contains(BootUnits, unit) || unit == plan.RebootUnit {
		return why
	}
	return harmlessToCommands[key]
}

// hostileValues are tried with each key: systemd ignores values of another kind.
var hostileValues = []string{"yes", "no", "1", "1us", "1h", "/nonexistent", "/", "infinity", "nobody", "strict", "kill", "SIGCONT",
	"poweroff-force", "idle", "bind", "0777", "isolate", "x86", "AF_UNIX", "~@file-system", "CAP_CHOWN", "always", "process",
	"/nonexistent 1", "file:/nonexistent", "A=b", "/bin/false", "1%", "notify", "all", "exclude", "closed", "x.slice", "0"}

// TestNothingThatIsSaidOfAllServicesReachesTheUnitsOfABoot makes this machine's systemd load each of those units with
// hostile settings before the agent's own drop-in. The test compares the whole result for the unit.
func TestNothingThatIsSaidOfAllServicesReachesTheUnitsOfABoot(t *testing.T) {
	dir := t.TempDir()
	for at := dir; at != "/tmp" && at != "/"; at = filepath.Dir(at) { // for a user without rights, as systemd demands
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	texts, said, plain := dropinUnits(), map[string]string{}, map[string]string{}
	write := func(at, text string) {
		at = filepath.Join(dir, at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	add := func(unit, hostile string) {
		name := fmt.Sprintf("u%d.service", len(said))
		write(name, hostUnits[unit].file())
		write(name+".d/"+plan.OwnDropin, texts[unit])
		if hostile == "" {
			plain[unit] = name
		} else {
			write(name+".d/10-hostile.conf", hostile)
		}
		said[name] = hostile
		plain[name] = plain[unit]
	}
	for _, unit := range append(slices.Clone(BootUnits), plan.RebootUnit) {
		add(unit, "")
		for values := range slices.Chunk(hostileValues, 6) { // the last value that systemd can read counts
			everything := ""
			for _, full := range knownKeys(t) {
				section, key, _ := strings.Cut(full, ".")
				hostile := ""
				for _, value := range values {
					if !refusedForAll(t, section, key, value) {
						hostile += "[" + section + "]\n" + key + "=" + value + "\n"
					}
				}
				if hostile != "" && unit == transaction.ProveUnit {
					add(unit, hostile)
				}
				if noHarm(unit, key) == "" {
					everything += hostile
				}
			}
			add(unit, everything)
		}
	}
	write("all.target", "[Unit]\nDefaultDependencies=no\nWants="+strings.Join(slices.Collect(maps.Keys(said)), "\nWants=")+"\n")
	dump := loaded(t, dir, "all.target")
	for name, hostile := range said {
		before, after := dump[plain[name]], dump[name]
		if len(before) < 20 || len(after) < 20 {
			t.Fatalf("systemd says %d and %d lines of %s and %s", len(before), len(after), plain[name], name)
		}
		key, _, _ := strings.Cut(hostile[strings.Index(hostile, "\n")+1:], "=")
		allowed := strings.Count(hostile, "\n") < 20 && noHarm(transaction.ProveUnit, key) != ""
		for _, line := range append(missing(after, before), missing(before, after)...) {
			if !allowed || strings.Contains(line, "Load State") {
				t.Errorf("%.300q: %q", hostile, line)
			}
		}
	}
	t.Logf("%d units", len(said))
}

// missing returns the lines that other does not have.
func missing(of, other []string) (lines []string) {
	for _, line := range other {
		if !slices.Contains(of, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// loaded returns systemd's dump of the units in a directory that a target wants, by name. systemd starts nothing for
// that.
func loaded(t *testing.T, dir, target string) map[string][]string {
	t.Helper()
	cmd := exec.Command(thisSystemd(t), "--test", "--system", "--unit="+target)
	cmd.Env = []string{"SYSTEMD_UNIT_PATH=" + dir, "SYSTEMD_LOG_TARGET=null", "HOME=/tmp", "PATH=/usr/bin:/bin"}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	dump, name := map[string][]string{}, ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if after, is := strings.CutPrefix(line, "\t-> Unit "); is {
			name = strings.TrimSuffix(after, ":")
		} else if strings.HasPrefix(line, "\t-> ") {
			name = ""
		} else if name != "" && strings.HasPrefix(line, "\t") && !ofName(line) {
			dump[name] = append(dump[name], strings.ReplaceAll(line, name, "UNIT"))
		}
	}
	return dump
}

// ofName reports whether a line of a dump differs from unit to unit by its name.
func ofName(line string) bool {
	return slices.ContainsFunc([]string{"Path:", "Invocation", "Timestamp", "Description", "WantedBy", "ReferencedBy", "Action:",
		"Job ", "Need Daemon Reload"}, func(word string) bool { return strings.Contains(line, word) })
}
