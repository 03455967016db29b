// SPDX-License-Identifier: Apache-2.0

// Command machine-config-daemon moves the host that it runs on from one configuration to the next.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path"
	"strings"
	"syscall"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/spf13/cobra"
	"time"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/hands"
	"github.com/noderefit/noderefit/host"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/transaction"
)

// version is set by the build.
var version = "dev"

// handover holds the results for a head that has started this process.
var handover *hands.Handover

func main() {
	ctx, stop := cli.Signals()
	// Where the journal or a pager has gone, a write of progress fails. A failed write must not end the operation.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := os.Setenv("PATH", ostree.SearchPath) // the caller of this process has another PATH
	if err != nil {
		fmt.Fprintln(os.Stderr, "error: setting PATH:", err)
		os.Exit(host.ExitFailed)
	}
	if err := ostree.Uncover(); err != nil {
		fmt.Fprintln(os.Stderr, "warning: a mount covers the file systems that this host boots from:", err)
	}
	var executed *cobra.Command
	if handover, err = hands.TakeHandover(); err == nil {
		executed, err = root().ExecuteContextC(ctx)
	}
	stop()
	code := exitCode(err)
	if err != nil {
		cli.Say(os.Stderr, advised(err, os.Geteuid() == 0)+cli.SeeHelp(executed, err))
	}
	if err := handover.Report(code, err); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		code = host.ExitFailed
	}
	if code != 0 {
		os.Exit(code)
	}
}

// advised returns an error for people, and what to do where only root may do what was asked for.
func advised(err error, root bool) string {
	const advice = "; run it as root"
	if text := err.Error(); root || !errors.Is(err, fs.ErrPermission) || strings.HasSuffix(text, advice) {
		return text
	}
	return err.Error() + advice
}

// exitCode returns the exit code of docs/commands.md, "Exit codes".
func exitCode(err error) int {
	if errors.As(err, new(cli.UsageError)) {
		return host.ExitUsage
	}
	return host.ExitCode(err)
}

// options are the flags that several commands share.
type options struct {
	root   string
	os     string
	output string
}

func (o *options) json() bool { return o.output == cli.JSON }

func (o *options) check() error {
	if err := cli.TextOrJSON("flag -o", o.output); err != nil {
		return err
	}
	switch host.OS(o.os) {
	case host.OSAuto, host.OSRpmOstree, host.OSBootc, host.OSOstree, host.OSNone:
		return nil
	}
	return cli.Usagef("flag --os: %q is not one of auto, rpm-ostree, bootc, ostree, none", o.os)
}

func (o *options) open(say func(phase, what string)) (*host.Host, error) {
	return host.Open(o.root, host.OS(o.os), say)
}

// look opens the host for a command that only reads.
func (o *options) look() (*host.Host, error) { return o.open(func(string, string) {}) }

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "machine-config-daemon",
		Short: "Move a host from one whole configuration to the next, in one transaction",
		Long: `machine-config-daemon moves a host from one whole configuration (files, units, SSH keys, kernel arguments,
OS image) to the next in one transaction that survives a power cut at any instant, proves itself after the boot, and
comes back by itself when it is bad.

Exit codes: 0 done, 1 failed, 2 usage, 3 the desired state cannot be reached from here, 4 the host does not match its
configuration, 5 refused because another operation or manager is at work.`,
		Args: cli.NoCommand,
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("a command is needed; see machine-config-daemon --help")
		},
	}
	cli.Root(cmd, version)
	cmd.AddCommand(runCommand(), planCommand(), stageCommand(), applyCommand(), statusCommand(), verifyCommand(),
		repairCommand(), deliverCommand(), recoverCommand(), rollbackCommand(), proveCommand(), firstbootCommand(),
		hooksCommand(), beforeDrainCommand(), rebootWantedCommand(),
		rebootCommand())
	cli.Examples(cmd, examples)
	return cmd
}

func (o *options) flags(cmd *cobra.Command) {
	cmd.Args = cli.NoArgs
	cmd.PreRunE = func(*cobra.Command, []string) error { return o.check() }
	cmd.Flags().StringVar(&o.root, "root", "/", "directory that looks like a host")
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "output format: text or json")
	o.os = string(host.OSAuto)
}

func (o *options) osFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.os, "os", string(host.OSAuto),
		"how the OS is managed: auto, rpm-ostree, bootc, ostree or none")
}

func readConfig(flag, path string, resolve machineconfig.Resolve) (*machineconfig.Config, error) {
	if path == "" {
		return nil, cli.Usagef("flag --%s is required", flag)
	}
	cfg, warnings, err := resolve.ReadConfig(butane.Translate, path)
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
	return cfg, errors.Join(err, handover.Taken(path))
}

func readPolicy(path string) (*plan.Policy, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading policy: %w", err)
	}
	if err := handover.Taken(path); err != nil {
		return nil, err
	}
	p, err := plan.ParsePolicy(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// goal is the target of plan, stage and apply.
type goal struct {
	flag           string // the flag that names the configuration
	config, policy string // files
	values         string // a file, or "" for none
	root           *string
}

func (g *goal) flags(cmd *cobra.Command, flag, usage string, root *string) {
	g.flag, g.root = flag, root
	cmd.Flags().StringVar(&g.config, flag, "", usage)
	cmd.Flags().StringVar(&g.policy, "policy", "", "MachineConfiguration with the node disruption policies")
	cmd.Flags().StringVar(&g.values, "values", "", "values that the configuration names: a map of keys and texts")
}

// read returns a nil policy where none is given.
func (g *goal) read() (*machineconfig.Config, *plan.Policy, error) {
	cfg, err := readConfig(g.flag, g.config, valuesIn(g.values, *g.root))
	if err != nil {
		return nil, nil, err
	}
	policy, err := readPolicy(g.policy)
	return cfg, policy, err
}

// show prints a document, for programs or for people.
func (o *options) show(v interface{ WriteText(w io.Writer) error }) error {
	if !o.json() {
		return v.WriteText(os.Stdout)
	}
	return cli.WriteJSON(os.Stdout, v)
}

func planCommand() *cobra.Command {
	var o options
	var to goal
	var current string
	var soft cli.SoftReboot
	var skipOS bool
	cmd := &cobra.Command{
		Use:   "plan --desired FILE",
		Short: "Show what would change, and what it would disrupt",
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, policy, err := to.read()
			if err != nil {
				return err
			}
			var p *plan.Plan
			if current != "" {
				from, err := readConfig("current", current, valuesIn(to.values, o.root))
				if err != nil {
					return err
				}
				p, err = plan.Make(from, want, plan.Options{Policy: policy, SoftReboot: bool(soft), SkipOS: skipOS})
				if err != nil {
					return err
				}
			} else {
				h, err := o.look()
				if err != nil {
					return err
				}
				defer h.Close()
				options := host.PlanOptions{Policy: policy, SoftReboot: bool(soft), SkipOS: skipOS}
				if p, err = h.Plan(cmd.Context(), want, options); err != nil {
					return err
				}
			}
			return errors.Join(o.show(hands.NewPlanDocument(p)), host.Unreconcilable(p))
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&current, "current", "", "configuration to start from; by default the host's committed one")
	to.flags(cmd, "desired", "configuration to go to", &o.root)
	cmd.Flags().Var(&soft, "soft-reboot", cli.SoftRebootUsage)
	cmd.Flags().BoolVar(&skipOS, "skip-os", false, "leave out OS changes")
	return cmd
}

func applyCommand() *cobra.Command {
	var o options
	var to goal
	var a host.ApplyOptions
	var hooks string
	var steps bool
	cmd := &cobra.Command{
		Use:   "apply --config FILE",
		Short: "Move the host to a configuration as one transaction",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if steps {
				return host.WriteSteps(os.Stdout)
			}
			var cfg *machineconfig.Config
			if cfg, a.Policy, err = to.read(); err != nil {
				return err
			}
			if a.Hooks, err = readHooks(hooks); err != nil {
				return err
			}
			return o.act(cmd.Context(), "apply", func(h *host.Host) (*host.Result, error) {
				return h.Apply(cmd.Context(), cfg, a)
			})
		},
	}
	o.flags(cmd)
	o.osFlag(cmd)
	to.flags(cmd, "config", "rendered MachineConfig, Ignition or Butane document", &o.root)
	rebootFlags(cmd, &a.RebootOptions)
	cmd.Flags().BoolVar(&steps, "print-steps", false, "print the steps of an update on the host, and end")
	cmd.Flags().BoolVar(&a.SkipOS, "skip-os", false, "leave out OS changes that this host cannot make")
	cmd.Flags().BoolVar(&a.KeepStaged, "keep-staged", false,
		"refuse an update that would remove an OS which others have staged; the agent passes it beside bootc-operator")
	cmd.Flags().BoolVar(&a.Strict, "strict", false,
		"refuse a host that does not match its configuration, instead of overwriting what differs")
	cmd.Flags().BoolVar(&a.Lift, "lift-quarantine", false,
		"try a configuration again that failed its verdict on this host")
	cmd.Flags().BoolVar(&a.Cluster, "cluster", false,
		"make what the cluster says of the node part of the verdict; the agent in the cluster passes it")
	cmd.Flags().StringVar(&a.Approved, "approved", "",
		"the digest of the image, or the commit, that was approved: another OS is refused before anything is touched")
	cmd.Flags().StringVar(&a.Order.ID, "order", "",
		"the ordered reboot that the update's reboot carries out; the agent in the cluster passes it")
	cmd.Flags().StringVar(&a.Order.Why, "order-why", "", "why that reboot was ordered")
	hooksFlag(cmd, &hooks)
	return cmd
}

func stageCommand() *cobra.Command {
	var o options
	var to goal
	var a host.StageOptions
	var drop bool
	var minFree uint32
	var bandwidth int64
	cmd := &cobra.Command{
		Use:   "stage --config FILE | --drop",
		Short: "Check what apply would refuse, and bring the OS to the disk, while the host continues unchanged",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if drop && to.config != "" {
				return cli.Usagef("flags --config and --drop exclude each other")
			}
			if drop {
				return o.act(cmd.Context(), "stage --drop", func(h *host.Host) (*host.Result, error) {
					return h.Unstage(cmd.Context())
				})
			}
			var cfg *machineconfig.Config
			if cfg, a.Policy, err = to.read(); err != nil {
				return err
			}
			a.MinFree = uint64(minFree) << 20
			ctx, done, err := o.paced(cmd.Context(), bandwidth)
			if err != nil {
				return err
			}
			defer done()
			return o.work(func(h *host.Host) (*host.Result, error) {
				return h.Stage(ctx, cfg, a)
			})
		},
	}
	o.flags(cmd)
	o.osFlag(cmd)
	to.flags(cmd, "config", "rendered MachineConfig, Ignition or Butane document", &o.root)
	cmd.Flags().BoolVar(&a.SkipOS, "skip-os", false, "leave out OS changes that this host cannot make")
	cmd.Flags().BoolVar(&a.Strict, "strict", false, "refuse a host that does not match its configuration")
	cmd.Flags().BoolVar(&a.Lift, "lift-quarantine", false,
		"accept a configuration that failed its verdict on this host; it stays in quarantine until apply lifts it")
	cmd.Flags().BoolVar(&a.AsStaged, "as-staged", false,
		"use the OS that was staged for the configuration, although its image's name may mean another OS by now")
	cmd.Flags().Uint32Var(&minFree, "min-free", 0, "MiB to leave free on the disk: below that nothing is pulled")
	cmd.Flags().Uint16Var(&a.Weights.CPU, "cpu-weight", 0, "systemd's CPUWeight of the tools that bring the OS")
	cmd.Flags().Uint16Var(&a.Weights.IO, "io-weight", 0, "systemd's IOWeight of the tools that bring the OS")
	cmd.Flags().Int64Var(&bandwidth, "bandwidth", 0, "bytes a second that all fetches together may take; 0: no limit")
	cmd.Flags().BoolVar(&drop, "drop", false, "remove the staged OS, unless a boot into it was decided")
	return cmd
}

// rebootFlags adds the flags of the verbs that boot what they commit, after those of options.
func rebootFlags(cmd *cobra.Command, a *host.RebootOptions) {
	var soft cli.SoftReboot
	cmd.Flags().Var(&soft, "soft-reboot", cli.SoftRebootUsage)
	cmd.Flags().Var((*cli.RebootMethod)(&a.Method), "reboot-method", cli.RebootMethodUsage)
	cmd.Flags().BoolVar(&a.NoReboot, "no-reboot", false, "do everything but the reboot")
	timeoutFlag(cmd, &a.Timeout)
	before := cmd.PreRunE
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		if err := before(cmd, args); err != nil {
			return err
		}
		if soft && a.Method != "" && a.Method != transaction.MethodSoft {
			return cli.Usagef("flags --soft-reboot=auto and --reboot-method=%s exclude each other",
				(*cli.RebootMethod)(&a.Method))
		}
		if soft {
			a.Method = transaction.MethodSoft
		}
		return checkTimeout(a.Timeout)
	}
}

func timeoutFlag(cmd *cobra.Command, timeout *time.Duration) {
	cmd.Flags().DurationVar(timeout, "verdict-timeout", api.DefaultVerdictTimeout,
		"how long the host may take to prove healthy after the boot")
}

func checkTimeout(timeout time.Duration) error {
	if timeout <= 0 {
		return cli.Usagef("flag --verdict-timeout: %s leaves no time for a verdict", timeout)
	}
	return nil
}

func rollbackCommand() *cobra.Command {
	var o options
	var a host.RollbackOptions
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Go back to the previous committed configuration",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.act(cmd.Context(), "rollback", func(h *host.Host) (*host.Result, error) {
				return h.Rollback(cmd.Context(), a)
			})
		},
	}
	o.flags(cmd)
	o.osFlag(cmd)
	rebootFlags(cmd, &a.RebootOptions)
	return cmd
}

func repairCommand() *cobra.Command {
	var o options
	var policy string
	var only []string
	cmd := &cobra.Command{
		Use:   "repair [--only SUBJECT]...",
		Short: "Write back what has drifted from the host's configuration, without a reboot",
		Long: `repair writes back files, links, units, keys and passwords that are not as the host's committed configuration
says, keeps a copy of what it overwrites, and reloads or restarts what the node disruption policies say. It never
reboots or drains, and leaves alone what would need another deployment: the OS and its kernel arguments.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := readPolicy(policy)
			if err != nil {
				return err
			}
			return o.act(cmd.Context(), "repair", func(h *host.Host) (*host.Result, error) {
				return h.Repair(cmd.Context(), p, only)
			})
		},
	}
	o.flags(cmd)
	o.osFlag(cmd)
	cmd.Flags().StringVar(&policy, "policy", "", "MachineConfiguration with the node disruption policies")
	cmd.Flags().StringArrayVar(&only, "only", nil,
		`what to write back, as verify names it, such as "file /etc/chrony.conf"; by default everything that can be`)
	return cmd
}

func deliverCommand() *cobra.Command {
	var o options
	var a host.DeliverOptions
	var config, policy string
	cmd := &cobra.Command{
		Use:   "deliver --config FILE",
		Short: "Write the certificates of a ControllerConfig, beside the host's configuration",
		Long: `deliver writes the certificates of a ControllerConfig that are renewed apart from configurations: the CA of
the kubelet's clients, the CAs of the cloud and of image registries, the bundle that people add, and the registry's pull
secret. The command changes no configuration and never reboots or drains; only the bundle restarts services. From then
on these paths keep the delivered contents under every configuration. A field that can't be read is an error, and its
path keeps the contents delivered before.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cc, err := readControllerConfig(config)
			if err != nil {
				return err
			}
			if a.Policy, err = readPolicy(policy); err != nil {
				return err
			}
			return o.act(cmd.Context(), "deliver", func(h *host.Host) (*host.Result, error) {
				return h.Deliver(cmd.Context(), cc, a)
			})
		},
	}
	o.flags(cmd)
	o.osFlag(cmd)
	cmd.Flags().StringVar(&config, "config", "", "ControllerConfig, YAML or JSON")
	cmd.Flags().StringVar(&policy, "policy", "", "MachineConfiguration with the node disruption policies")
	return cmd
}

func readControllerConfig(path string) (*mcfgv1.ControllerConfig, error) {
	if path == "" {
		return nil, cli.Usagef("flag --config is required")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading ControllerConfig: %w", err)
	}
	if err := handover.Taken(path); err != nil {
		return nil, err
	}
	return machineconfig.ParseControllerConfig(data)
}

func firstbootCommand() *cobra.Command {
	var o options
	var a host.FirstbootOptions
	var from string
	cmd := &cobra.Command{
		Use:   "firstboot",
		Short: "Complete a machine that Ignition has made (the host's unit runs this)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !path.IsAbs(from) {
				return cli.Usagef("flag --machineconfig-file: %q is not an absolute path", from)
			}
			return o.act(cmd.Context(), "firstboot", func(h *host.Host) (*host.Result, error) {
				return h.Firstboot(cmd.Context(), path.Clean(from), a)
			})
		},
	}
	o.flags(cmd)
	o.osFlag(cmd)
	rebootFlags(cmd, &a.RebootOptions)
	cmd.Flags().BoolVar(&a.SkipOS, "skip-os", false, "leave out OS changes that this host cannot make")
	cmd.Flags().StringVar(&from, "machineconfig-file", api.EncapsulatedPath,
		"file, below --root, of the MachineConfig that the machine was made from")
	return cmd
}

func recoverCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Finish or undo an interrupted update (the unit of the boot runs this)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.act(cmd.Context(), "recover", func(h *host.Host) (*host.Result, error) {
				return h.Recover(cmd.Context())
			})
		},
	}
	o.flags(cmd)
	o.osFlag(cmd)
	return cmd
}

// act does work beside which no other work may run.
func (o *options) act(ctx context.Context, verb string, do func(*host.Host) (*host.Result, error)) error {
	return o.work(func(h *host.Host) (*host.Result, error) {
		if err := h.Lock(ctx, verb); err != nil {
			return nil, err
		}
		return do(h)
	})
}

// work opens the host for work that may take time, reports progress meanwhile, and prints the result. A result is
// printed together with its error. A result may be nil.
func (o *options) work(do func(*host.Host) (*host.Result, error)) error {
	p := newProgress(os.Stderr)
	defer p.done()
	h, err := o.open(p.say)
	if err != nil {
		return err
	}
	defer h.Close()
	res, err := do(h)
	p.done()
	if res == nil {
		return err
	}
	for _, w := range res.Warnings {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
	if err != nil && !o.json() {
		return err
	}
	return errors.Join(err, o.show(hands.NewResultDocument(res)))
}

func statusCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the current and pending configuration, and what blocks an update",
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := o.look()
			if err != nil {
				return err
			}
			defer h.Close()
			if err := h.Readable(); err != nil {
				return err
			}
			return o.show(hands.NewStatusDocument(h.Status(cmd.Context())))
		},
	}
	o.flags(cmd)
	return cmd
}

func verifyCommand() *cobra.Command {
	var o options
	var config string
	var paths bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the host with its configuration",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var cfg *machineconfig.Config
			if config != "" {
				var err error
				if cfg, err = readConfig("config", config, valuesIn("", o.root)); err != nil {
					return err
				}
			}
			h, err := o.look()
			if err != nil {
				return err
			}
			defer h.Close()
			v, err := h.Verify(cmd.Context(), cfg)
			if err == nil && !paths {
				v.Paths = nil
			}
			if err != nil {
				return err
			}
			return errors.Join(o.show(hands.NewVerificationDocument(v)), v.Err())
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&config, "config", "", "configuration to compare with; by default the host's committed one")
	cmd.Flags().BoolVar(&paths, "paths", false, "list the paths that were compared, with -o json")
	return cmd
}

func proveCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "prove",
		Short: "Give the verdict on a configuration that has booted (the host's unit runs this)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.work(func(h *host.Host) (*host.Result, error) {
				return nil, h.Prove(cmd.Context())
			})
		},
	}
	o.flags(cmd)
	return cmd
}
