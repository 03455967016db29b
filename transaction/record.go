// SPDX-License-Identifier: Apache-2.0

// Package transaction moves a host from one configuration to the next, and back.
//
// The state that must be correct at every instant is kept in two places on disk. The boot record has the configuration
// of the host, the configuration that the host is on the way to, and the phase. A journal beside it holds, for one
// transaction, everything that must be done or undone outside an ostree deployment. Both are read again at each start:
// nothing that matters is only in memory. What a step has already done is seen from the disk, never from a flag.
package transaction

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/noderefit/noderefit/files"
)

// The places of the agent's own state on a host.
const (
	StateDir  = "/var/lib/machine-config-daemon"
	ConfigDir = "/etc/machine-config-daemon"
	RunDir    = "/run/machine-config-daemon"

	// RecordPath is the boot record.
	RecordPath   = StateDir + "/boot.json"
	configsDir   = StateDir + "/configs"
	journalsDir  = StateDir + "/transactions"
	journalFile  = "journal.json"
	recordFormat = 1
)

// State is what the agent reports about a host, in the words of docs/commands.md.
type State string

// The states.
const (
	Done           State = "Done"
	Working        State = "Working"
	Degraded       State = "Degraded"
	Unreconcilable State = "Unreconcilable"
	RolledBack     State = "RolledBack"
)

// Phase is how far a pending configuration is. Phase and booted deployment together decide what recovery does.
type Phase string

const (
	// PhasePrepare: staged files and a deployment may be half made; the host is wholly on the committed revision.
	PhasePrepare Phase = "prepare"
	// PhaseApply: decided, on a host or for a change that needs no boot; the journal is being rolled forward.
	PhaseApply Phase = "apply"
	// PhaseBoot: the deployment is complete. The update is decided once that deployment is the boot loader's default.
	PhaseBoot Phase = "boot"
	// PhaseProve: the new deployment has booted and its journal is applied; the verdict is open.
	PhaseProve Phase = "prove"
	// PhaseUndo: decided to go back.
	PhaseUndo Phase = "undo"
)

// Revision is a configuration on a host.
type Revision struct {
	Config     string `json:"config"`
	Digest     string `json:"digest"`
	Deployment string `json:"deployment,omitempty"`
	// OwnedKargs are the kernel arguments of the deployment that a configuration asked for.
	OwnedKargs []string `json:"ownedKernelArguments,omitempty"`
	// Layers are the changes of a configuration to the packages of the deployment.
	Layers Layers `json:"layers,omitzero"`
	// Skipped names the parts of the configuration that were left out on request (--skip-os).
	Skipped []string `json:"skipped,omitempty"`
	// Made are the directories that were made only as parents of something. A directory is removed with the last of its
	// contents.
	Made        []string  `json:"madeDirectories,omitempty"`
	Transaction string    `json:"transaction,omitempty"`
	Since       time.Time `json:"since"`
	// Unproved means that the host stays on the revision without a verdict, because it had no deployment to go back to.
	// The state is not Done before a verdict is given.
	Unproved bool `json:"unproved,omitempty"`
}

// Layers are packages on top of an OS image, and packages of the image that are left out, each by name.
type Layers struct {
	// Wanted are all packages that the configuration asks for, also those that others have layered.
	Wanted []string `json:"wanted,omitempty"`
	// Packages are layered, and Removed are left out, because a configuration asked for it. Both are ours to undo.
	Packages []string `json:"packages,omitempty"`
	Removed  []string `json:"removed,omitempty"`
}

// Pending is a configuration that the host is on the way to.
type Pending struct {
	Revision
	Phase Phase `json:"phase"`
	Road  Road  `json:"road"`
	// BootID is the boot in which the phase was reached, in the form of the function BootID. PhaseBoot waits for the
	// reboot for as long as the same kernel runs.
	BootID string `json:"bootID,omitempty"`
	// From is the deployment that the host started from and goes back to, "" without ostree.
	From string `json:"from,omitempty"`
	// Checksum, KernelArguments and Existing identify, in PhasePrepare, a deployment of ours: it has this checksum and
	// these arguments, and is not in Existing.
	Checksum        string   `json:"checksum,omitempty"`
	KernelArguments []string `json:"kernelArguments,omitempty"`
	Existing        []string `json:"existing,omitempty"`
	// EtcTransaction is the journal of the changes to the /etc that has booted, on the staged road; "" before that journal
	// is complete. Reread is a boot that read files before recovery changed them. That boot is not to be proved.
	EtcTransaction string `json:"etcTransaction,omitempty"`
	Reread         string `json:"reread,omitempty"`
	// Etc is a digest of the running /etc at the merge. Changes there before the reboot would be lost.
	Etc string `json:"etc,omitempty"`

	Attempts    int           `json:"attempts"`
	MaxAttempts int           `json:"maxAttempts,omitempty"`
	Timeout     time.Duration `json:"timeoutNanoseconds,omitempty"`
	// Deadline of the verdict, as time since the boot that BootID names: setting the clock meanwhile changes nothing.
	Deadline time.Duration `json:"deadlineSinceBootNanoseconds,omitempty"`
	Baseline Baseline      `json:"baseline"`
	// Verdict means that a change without a boot is proved after its actions. Services are the states before them of the
	// services that the actions touch.
	Verdict  bool              `json:"verdict,omitempty"`
	Services map[string]string `json:"services,omitempty"`
	// SoftReboot means that a restart of the userspace is enough to boot the update, and how far that restart is.
	SoftReboot SoftReboot `json:"softReboot,omitempty"`
	// NoReboot, in PhaseBoot, means that the reboot is left to people.
	NoReboot bool `json:"noReboot,omitempty"`
	// Reason, in PhaseUndo, is why the host goes back. Quarantine means that the revision is refused from now on.
	Reason     string `json:"reason,omitempty"`
	Quarantine bool   `json:"quarantine,omitempty"`
}

// SoftReboot is how a pending deployment is booted: "" by a reboot of the machine.
type SoftReboot string

// A soft reboot is tried once. Where it fails to boot the update, a full reboot follows.
const (
	SoftPlanned SoftReboot = "planned"
	SoftStarted SoftReboot = "started"
)

// Baseline is what was already wrong before the update, so that the verdict does not blame the update for it.
type Baseline struct {
	FailedUnits    []string `json:"failedUnits,omitempty"`
	KubeletActive  bool     `json:"kubeletActive,omitempty"`
	KubeletHealthy bool     `json:"kubeletHealthy,omitempty"`
	// NodeReady means that the update came from a cluster, which is to call the node Ready again. Network is the state of
	// the host's network before the update.
	NodeReady bool    `json:"nodeReady,omitempty"`
	Network   Network `json:"network,omitzero"`
}

// Network is what a host can find out about its network by itself.
type Network struct {
	// Route means that the host has a default route.
	Route bool `json:"route,omitempty"`
	// Answers means that a router of such a route answers on its link. Silent means that a router was asked and does not
	// answer. Neither is set for a router that was not asked lately.
	Answers bool `json:"answers,omitempty"`
	Silent  bool `json:"silent,omitempty"`
}

// Quarantined is a revision that failed its verdict. It is identified by its content: the same content under another
// name is refused too.
type Quarantined struct {
	Config string    `json:"config"`
	Digest string    `json:"digest"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// Withheld is what wants no reboot any more, because the host has tried it.
type Withheld struct {
	// Kind is an api.RebootKind. Subject is the checksum of a deployment, or the release of a kernel.
	Kind    string    `json:"kind"`
	Subject string    `json:"subject"`
	Why     string    `json:"why"`
	Since   time.Time `json:"since"`
}

// Record is the boot record, /var/lib/machine-config-daemon/boot.json, shared by all deployments of the host.
type Record struct {
	Version     int           `json:"version"`
	Committed   *Revision     `json:"committed,omitempty"`
	Previous    *Revision     `json:"previous,omitempty"`
	Pending     *Pending      `json:"pending,omitempty"`
	Quarantined []Quarantined `json:"quarantined,omitempty"`
	// Rebooted is the latest ordered reboot.
	Rebooted *Rebooted `json:"rebooted,omitempty"`
	// Way is the way of the latest reboot of the agent's; nil: a full reboot was asked for.
	Way *Way `json:"way,omitempty"`
	// Withheld are deployments and kernels that a reboot has tried, and that want no reboot any more.
	Withheld []Withheld `json:"withheld,omitempty"`
	// Discard lists our deployments that failed or were left; the next update removes them.
	Discard []string `json:"discard,omitempty"`
	// Returning is the deployment that an update is to boot again, which could make none.
	Returning string `json:"returning,omitempty"`

	Standing

	// Before is the state before something else changed the OS. People read it again once that change is undone.
	Before *Standing `json:"before,omitempty"`
}

// Standing is the state of a host, in words for people.
type Standing struct {
	State  State     `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// The errors of a record that can't be used. No program acts on such a record.
var (
	errDamaged = errors.New("boot record is damaged")
	errNewer   = errors.New("boot record was written by a newer version")
)

// envelope is the record on disk. The sum detects a record that was half written, or written by another program.
type envelope struct {
	Sum    string          `json:"sha256"`
	Record json.RawMessage `json:"record"`
}

func encodeRecord(r *Record) ([]byte, error) {
	r.Version = recordFormat
	inner, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(inner)
	out, err := json.Marshal(envelope{Sum: hex.EncodeToString(sum[:]), Record: inner})
	if err != nil {
		return nil, err
	}
	return append(out, '\n'), nil
}

// decodeRecord reads what encodeRecord wrote, and refuses everything else.
func decodeRecord(data []byte) (*Record, error) {
	var e envelope
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&e); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, RecordPath, err)
	}
	if len(bytes.TrimSpace(data[dec.InputOffset():])) > 0 {
		return nil, fmt.Errorf("%w: %s: data after the record", errDamaged, RecordPath)
	}
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(e.Record, &version); err == nil && version.Version > recordFormat {
		return nil, fmt.Errorf("%w: %s has format %d, this binary knows %d; go back to that version of the agent",
			errNewer, RecordPath, version.Version, recordFormat)
	}
	sum := sha256.Sum256(e.Record)
	if hex.EncodeToString(sum[:]) != e.Sum {
		return nil, fmt.Errorf("%w: %s: checksum does not match", errDamaged, RecordPath)
	}
	r := &Record{}
	strict := json.NewDecoder(bytes.NewReader(e.Record))
	strict.DisallowUnknownFields()
	if err := strict.Decode(r); err != nil {
		if json.Unmarshal(e.Record, &Record{}) == nil {
			return nil, fmt.Errorf("%w: %s: %w; go back to that version of the agent", errNewer, RecordPath, err)
		}
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, RecordPath, err)
	}
	if r.Version != recordFormat {
		return nil, fmt.Errorf("%w: %s: format %d", errDamaged, RecordPath, r.Version)
	}
	return r, nil
}

// Store is the agent's state below a root.
type Store struct {
	root *files.Root
}

// NewStore returns the state below root. It writes nothing.
func NewStore(root *files.Root) *Store { return &Store{root: root} }

// Load returns the boot record. The record of a new host has no committed revision.
func (s *Store) Load() (*Record, error) {
	data, err := s.root.ReadFile(RecordPath)
	if errors.Is(err, fs.ErrNotExist) {
		return &Record{Version: recordFormat, Standing: Standing{State: Done}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading boot record: %w", err)
	}
	return decodeRecord(data)
}

// save makes r the boot record, durably: two fsyncs. Where the disk is full, save frees the reserves of all
// transactions, also of those that r no longer names.
func (s *Store) save(r *Record) error {
	data, err := encodeRecord(r)
	if err != nil {
		return fmt.Errorf("encoding boot record: %w", err)
	}
	err = s.root.WriteRecord(RecordPath, data, 0o600)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		ids, _ := s.root.ReadDir(journalsDir)
		for _, id := range ids {
			_ = s.root.Remove(path.Join(journalDir(id), reserveFile))
		}
		err = s.root.WriteRecord(RecordPath, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing boot record: %w", err)
	}
	return nil
}

// setState changes the state that people read. The time changes only where state or reason do.
func (e *Engine) setState(r *Record, state State, reason string) {
	now := e.Now().UTC().Truncate(time.Second)
	if c := r.Committed; state == Done && c != nil && c.Unproved {
		state = Degraded
		if reason == "" {
			reason = fmt.Sprintf("the host stays on %s, which was not proved", c.Config)
		}
	}
	if o := r.Rebooted; state == Done && r.Pending == nil && o != nil && o.Baseline != nil {
		state, reason = Degraded, "the host was not healthy after its reboot, and has had no verdict since"
	}
	r.Before = nil
	if r.Pending == nil && state != Working {
		r.Rebooted.ends(e.BootID, state, reason, now)
	}
	reason = strings.ReplaceAll(reason, "\n", "; ") // joined errors; people and scripts read them as one line
	if r.State != state || r.Reason != reason || r.Since.IsZero() {
		r.State, r.Reason, r.Since = state, reason, now
	}
}

// From returns the name of the configuration that the host has, "" for none.
func (r *Record) From() string {
	if r.Committed == nil {
		return ""
	}
	return r.Committed.Config
}

// LeadsTo reports whether a deployment is where an update, or the way back from one, leads: where that deployment boots
// next, no person and no other program has chosen it.
func (r *Record) LeadsTo(deployment string) bool {
	p := r.Pending
	return deployment != "" && (deployment == r.Returning ||
		p != nil && (deployment == p.Deployment || p.Phase == PhaseUndo && deployment == p.From))
}

// Quarantine returns the entry of the content digest, or nil.
func (r *Record) Quarantine(digest string) *Quarantined {
	for i := range r.Quarantined {
		if r.Quarantined[i].Digest == digest {
			return &r.Quarantined[i]
		}
	}
	return nil
}

// quarantine refuses rev from now on. Committed content is never refused, because the host falls back on it, unless
// that content was not proved either.
func (r *Record) quarantine(rev Revision, reason string, now time.Time) {
	reason = strings.ReplaceAll(reason, "\n", "; ")
	committed := r.Committed != nil && r.Committed.Digest == rev.Digest && !r.Committed.Unproved
	if r.Quarantine(rev.Digest) == nil && !committed {
		r.Quarantined = append(r.Quarantined,
			Quarantined{Config: rev.Config, Digest: rev.Digest, Reason: reason, Since: now.UTC().Truncate(time.Second)})
	}
}

// ConfigPath returns where the configuration with that digest is kept on the host.
func ConfigPath(digest string) string { return path.Join(configsDir, digest+".json") }

// ReadConfig returns the kept configuration with that digest, as the transaction received it.
func (s *Store) ReadConfig(digest string) ([]byte, error) {
	return s.root.ReadFile(ConfigPath(digest))
}
