// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"github.com/godbus/dbus/v5"
	"github.com/spf13/cobra"
)

// Names that are spelt their own way.
const (
	lockFlag     = "lock-finalization"     //nolint:misspell // rpm-ostree's own word, and ostree's
	finalizeName = "finalize-deployment"   //nolint:misspell // rpm-ostree's own word
	lockedKey    = "finalization-locked"   //nolint:misspell // rpm-ostree's own word
	lockedMark   = "(finalization locked)" //nolint:misspell // ostree's own word
)

// flags are what commands have in common, by name.
type flags struct {
	lock, reboot, unchanged, bypass, dryRun, cacheOnly, downloadOnly bool
	idempotent, inactive, skipPurge, all, yes, experimental          bool
	install, uninstall, remove, replace                              []string
	driver, url, description, branch, remote                         string
}

// add gives a command those flags that are named.
func (f *flags) add(c *cobra.Command, names ...string) {
	set := c.Flags()
	for _, name := range names {
		switch name {
		case lockFlag:
			set.BoolVar(&f.lock, name, false, "Prevent automatic deployment on shutdown")
		case "reboot":
			set.BoolVarP(&f.reboot, name, "r", false, "Initiate a reboot after operation is complete")
		case "unchanged-exit-77":
			set.BoolVar(&f.unchanged, name, false, "If no overlays were changed, exit 77")
		case "bypass-driver":
			set.BoolVar(&f.bypass, name, false, "Force even if an updates driver is registered")
		case "dry-run":
			set.BoolVarP(&f.dryRun, name, "n", false, "Exit after printing the transaction")
		case "cache-only":
			set.BoolVarP(&f.cacheOnly, name, "C", false, "Do not download latest ostree and RPM data")
		case "download-only":
			set.BoolVar(&f.downloadOnly, name, false, "Just download latest ostree and RPM data, don't deploy")
		case "idempotent":
			set.BoolVar(&f.idempotent, name, false, "Do nothing if package already (un)installed")
		case "allow-inactive":
			set.BoolVar(&f.inactive, name, false, "Allow inactive package requests")
		case "skip-purge":
			set.BoolVar(&f.skipPurge, name, false, "Keep previous refspec after rebase")
		case "assumeyes":
			set.BoolVarP(&f.yes, name, "y", false, "Auto-confirm interactive prompts")
		case "experimental":
			set.BoolVar(&f.experimental, name, false, "Ignored")
		case "install":
			set.StringArrayVar(&f.install, name, nil, "Overlay additional package")
		case "uninstall":
			set.StringArrayVar(&f.uninstall, name, nil, "Remove overlayed additional package")
		case "register-driver":
			set.StringVar(&f.driver, name, "", "Register agent as driver for updates")
		}
	}
}

// options are the options of a transaction.
func (f *flags) options() map[string]dbus.Variant {
	m := map[string]dbus.Variant{
		"initiating-command-line": dbus.MakeVariant(commandLine()),
	}
	for name, value := range map[string]bool{
		lockFlag: f.lock, "reboot": f.reboot, "dry-run": f.dryRun,
		"cache-only": f.cacheOnly, "download-only": f.downloadOnly, "idempotent-layering": f.idempotent,
		"allow-inactive": f.inactive, "skip-purge": f.skipPurge,
	} {
		if value {
			m[name] = dbus.MakeVariant(true)
		}
	}
	if f.driver != "" {
		m["register-driver"] = dbus.MakeVariant(f.driver)
	}
	if f.url != "" || f.description != "" {
		m["custom-origin"] = dbus.MakeVariant(struct{ URL, Description string }{f.url, f.description})
	}
	return m
}

// commandLine is how the transaction is called: the arguments without the program, with a blank after each.
func commandLine() string { return strings.Join(os.Args[1:], " ") + " " }

// modifiers are what of an UpdateDeployment these flags, and packages to install, mean.
func (f *flags) modifiers() (map[string]dbus.Variant, error) {
	m := map[string]dbus.Variant{}
	for name, list := range map[string][]string{
		"uninstall-packages": f.uninstall, "override-remove-packages": f.remove,
	} {
		if len(list) > 0 {
			m[name] = dbus.MakeVariant(list)
		}
	}
	for name, list := range map[string][]string{"install": f.install, "override-replace": f.replace} {
		var names []string
		var local []dbus.Variant
		for _, item := range list {
			if !strings.HasSuffix(item, ".rpm") {
				names = append(names, item)
				continue
			}
			file, err := os.Open(item)
			if err != nil {
				return nil, fmt.Errorf("can't open file '%s': %w", item, err)
			}
			local = append(local, dbus.MakeVariant(dbus.UnixFD(dup(file))))
		}
		if len(names) > 0 {
			m[name+"-packages"] = dbus.MakeVariant(names)
		}
		if len(local) > 0 {
			m[name+"-local-packages"] = dbus.MakeVariant(local)
		}
	}
	return m, nil
}

// update runs an UpdateDeployment.
func (f *flags) update(cmd *cobra.Command, driven bool, extra map[string]dbus.Variant, more map[string]bool) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	c, err := connect(ctx, out)
	if err != nil {
		return err
	}
	if driven && !f.bypass && f.driver == "" {
		if err := c.driven(); err != nil {
			return err
		}
	}
	modifiers, err := f.modifiers()
	if err != nil {
		return err
	}
	maps.Copy(modifiers, extra)
	options := f.options()
	for key, value := range more {
		if value {
			options[key] = dbus.MakeVariant(true)
		}
	}
	return f.changing(c, cmd, `Run "systemctl reboot" to start a reboot`, func() error {
		return c.transact(ctx, "UpdateDeployment", modifiers, options)
	})
}

// changing runs a transaction, and then tells from what is first whether anything was changed.
func (f *flags) changing(c *client, cmd *cobra.Command, hint string, transact func() error) error {
	before, err := c.first()
	if err != nil {
		return err
	}
	if err := transact(); err != nil {
		return err
	}
	after, err := c.first()
	if err != nil {
		return err
	}
	if before == after && f.unchanged {
		return errUnchanged
	}
	if before != after && !f.reboot {
		fmt.Fprintln(cmd.OutOrStdout(), hint)
	}
	return nil
}

// command is the whole command line.
func command(out io.Writer) *cobra.Command {
	root := &cobra.Command{Use: "rpm-ostree", SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}}
	root.SetOut(out)
	version := root.Flags().Bool("version", false, "Print version information and exit")
	root.Args = cobra.ArbitraryArgs
	root.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			fmt.Fprint(os.Stderr, "Usage:\n  rpm-ostree [OPTION…] COMMAND\n\n")
			return original("Unknown command '%s'", args[0])
		}
		if !*version {
			return guess("No command specified")
		}
		fmt.Fprint(out, "rpm-ostree:\n Version: '2026.2'\n Git: stand-in\n Features:\n  - rust\n  - container\n")
		return nil
	}
	root.AddCommand(statusCommand(), kargsCommand(), rebaseCommand(), deployCommand(), upgradeCommand(), resetCommand(),
		packagesCommand("install"), packagesCommand("uninstall"), overrideCommand(), rollbackCommand(), cleanupCommand(),
		cancelCommand(), finalizeCommand(), reloadCommand(),
		&cobra.Command{Use: "start-daemon", Hidden: true, RunE: func(cmd *cobra.Command, _ []string) error {
			return serveDaemon(cmd.Context())
		}})
	return root
}

func kargsCommand() *cobra.Command {
	f := &flags{}
	var p patch
	var index string
	cmd := &cobra.Command{Use: "kargs", Args: cobra.NoArgs}
	f.add(cmd, lockFlag, "reboot", "unchanged-exit-77")
	set := cmd.Flags()
	set.StringArrayVar(&p.added, "append", nil, "Append kernel argument")
	set.StringArrayVar(&p.replaced, "replace", nil, "Replace existing kernel argument")
	set.StringArrayVar(&p.deleted, "delete", nil, "Delete a kernel argument")
	set.StringArrayVar(&p.ifMissing, "append-if-missing", nil, "Append kernel argument if missing")
	set.StringArrayVar(&p.ifPresent, "delete-if-present", nil, "Delete kernel argument if present")
	set.StringVar(&index, "deploy-index", "", "Modify the kernel args from a specific deployment based on index")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(p.deleted) > 0 && len(p.replaced) > 0 {
			return original("Cannot specify both --delete and --replace")
		}
		c, err := connect(cmd.Context(), cmd.OutOrStdout())
		if err != nil {
			return err
		}
		existing, err := c.arguments(index)
		if err != nil {
			return err
		}
		if len(p.added)+len(p.replaced)+len(p.deleted)+len(p.ifMissing)+len(p.ifPresent) == 0 {
			fmt.Fprintln(cmd.OutOrStdout(), existing)
			return nil
		}
		options := f.options()
		for name, list := range map[string][]string{"append-if-missing": p.ifMissing, "delete-if-present": p.ifPresent} {
			if len(list) > 0 {
				options[name] = dbus.MakeVariant(list)
			}
		}
		return f.changing(c, cmd, "Kernel arguments updated.\nRun \"systemctl reboot\" to start a reboot", func() error {
			return c.transact(cmd.Context(), "KernelArgs", existing,
				orEmpty(p.added), orEmpty(p.replaced), orEmpty(p.deleted), options)
		})
	}
	return cmd
}

// arguments are those of a deployment: the first one's where no index is given.
func (c *client) arguments(index string) (string, error) {
	id, err := c.first()
	if index != "" && err == nil {
		id, err = c.byIndex(index)
	}
	if err != nil {
		return "", err
	}
	var config map[string]dbus.Variant
	if err := c.os.Call(osInterface+".GetDeploymentBootConfig", 0, id, true).Store(&config); err != nil {
		return "", plainError(err)
	}
	return vardict(config).text("options"), nil
}

func (c *client) byIndex(index string) (string, error) {
	all, err := c.deployments()
	if err != nil {
		return "", err
	}
	for i, m := range all {
		if fmt.Sprint(i) == index {
			return vardict(m).text("id"), nil
		}
	}
	return "", guess("Out of range deployment index %s, expected < %d", index, len(all))
}

func rebaseCommand() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{Use: "rebase [REFSPEC] [REVISION]", Args: cobra.MaximumNArgs(2)}
	f.add(cmd, lockFlag, "reboot", "bypass-driver", "cache-only", "download-only", "skip-purge", "experimental",
		"install", "uninstall")
	cmd.Flags().StringVarP(&f.branch, "branch", "b", "", "Rebase to branch BRANCH")
	cmd.Flags().StringVarP(&f.remote, "remote", "m", "", "Rebase to current branch name using REMOTE")
	cmd.Flags().StringVar(&f.url, "custom-origin-url", "", "Machine-readable description of custom origin")
	cmd.Flags().StringVar(&f.description, "custom-origin-description", "", "Human-readable description of custom origin")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		refspec := f.branch
		if f.remote != "" {
			refspec = f.remote + ":" + f.branch
		}
		if len(args) > 0 {
			refspec = args[0]
		}
		if refspec == "" {
			return guess("No refspec specified")
		}
		extra := map[string]dbus.Variant{}
		if strings.HasPrefix(refspec, "/") {
			repo, ref, _ := strings.Cut(refspec, ":")
			dir, err := os.Open(repo)
			if err != nil {
				return err
			}
			extra["ex-local-repo-remote"] = dbus.MakeVariant(dbus.UnixFD(dup(dir)))
			refspec = ref
		}
		extra["set-refspec"] = dbus.MakeVariant(refspec)
		if len(args) > 1 {
			extra["set-revision"] = dbus.MakeVariant(args[1])
		}
		return f.update(cmd, true, extra, nil)
	}
	return cmd
}

func deployCommand() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{Use: "deploy REVISION", Args: cobra.ExactArgs(1)}
	f.add(cmd, lockFlag, "reboot", "unchanged-exit-77", "bypass-driver", "register-driver", "cache-only",
		"download-only", "install", "uninstall")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.update(cmd, true, map[string]dbus.Variant{"set-revision": dbus.MakeVariant(args[0])}, nil)
	}
	return cmd
}

func upgradeCommand() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{Use: "upgrade", Aliases: []string{"update"}, Args: cobra.NoArgs}
	f.add(cmd, lockFlag, "reboot", "unchanged-exit-77", "bypass-driver", "cache-only", "download-only",
		"install", "uninstall")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return f.update(cmd, true, nil, nil)
	}
	return cmd
}

func resetCommand() *cobra.Command {
	f := &flags{}
	var overlays, overrides bool
	cmd := &cobra.Command{Use: "reset", Args: cobra.NoArgs}
	f.add(cmd, lockFlag, "reboot", "install", "uninstall")
	cmd.Flags().BoolVarP(&overlays, "overlays", "l", false, "Remove all overlayed packages")
	cmd.Flags().BoolVarP(&overrides, "overrides", "o", false, "Remove all overrides")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		every := !overlays && !overrides
		return f.update(cmd, false, nil, map[string]bool{"no-pull-base": true,
			"no-layering": overlays || every, "no-overrides": overrides || every})
	}
	return cmd
}

// packagesCommand is install or uninstall, each of which takes the other's packages as an option.
func packagesCommand(name string) *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{Use: name + " PACKAGE...", Args: cobra.ArbitraryArgs}
	other := map[string]string{"install": "uninstall", "uninstall": "install"}[name]
	f.add(cmd, lockFlag, "reboot", "dry-run", "assumeyes", "allow-inactive", "idempotent", "unchanged-exit-77",
		"cache-only", "download-only", other)
	if name == "uninstall" {
		cmd.Flags().BoolVar(&f.all, "all", false, "Remove all overlayed additional packages")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 && !f.all {
			return guess("At least one PACKAGE must be specified")
		}
		if name == "install" {
			f.install = args
		} else {
			f.uninstall = args
		}
		return f.update(cmd, false, nil, map[string]bool{"no-pull-base": true, "no-layering": f.all})
	}
	return cmd
}

func overrideCommand() *cobra.Command {
	parent := &cobra.Command{Use: "override"}
	for _, name := range []string{"replace", "remove", "reset"} {
		f := &flags{}
		cmd := &cobra.Command{Use: name + " PACKAGE...", Args: cobra.ArbitraryArgs}
		f.add(cmd, lockFlag, "reboot", "dry-run", "cache-only", "install", "uninstall", "experimental")
		switch name {
		case "replace":
			cmd.Flags().StringArrayVar(&f.remove, "remove", nil, "Remove a package")
		case "remove":
			cmd.Flags().StringArrayVar(&f.replace, "replace", nil, "Replace a package")
		case "reset":
			cmd.Flags().BoolVarP(&f.all, "all", "a", false, "Reset all active overrides")
		}
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			extra := map[string]dbus.Variant{}
			switch name {
			case "replace":
				f.replace = args
			case "remove":
				f.remove = args
			default:
				if len(args) > 0 {
					extra["override-reset-packages"] = dbus.MakeVariant(args)
				}
			}
			if len(args) == 0 && !f.all {
				return guess("At least one PACKAGE must be specified")
			}
			return f.update(cmd, false, extra, map[string]bool{"no-pull-base": true, "no-overrides": f.all})
		}
		parent.AddCommand(cmd)
	}
	return parent
}

func rollbackCommand() *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{Use: "rollback", Args: cobra.NoArgs}
	f.add(cmd, "reboot")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := connect(cmd.Context(), cmd.OutOrStdout())
		if err != nil {
			return err
		}
		return f.changing(c, cmd, `Run "systemctl reboot" to start a reboot`, func() error {
			return c.transact(cmd.Context(), "Rollback", f.options())
		})
	}
	return cmd
}

func cleanupCommand() *cobra.Command {
	var base, pending, rollback, repomd bool
	cmd := &cobra.Command{Use: "cleanup", Args: cobra.NoArgs}
	cmd.Flags().BoolVarP(&base, "base", "b", false, "Clear temporary files; will leave deployments unchanged")
	cmd.Flags().BoolVarP(&pending, "pending", "p", false, "Remove pending deployment")
	cmd.Flags().BoolVarP(&rollback, "rollback", "r", false, "Remove rollback deployment")
	cmd.Flags().BoolVarP(&repomd, "repomd", "m", false, "Delete cached rpm repo metadata")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var kinds []string
		for _, k := range []struct {
			asked bool
			kind  string
		}{{base, "base"}, {pending, "pending-deploy"}, {rollback, "rollback-deploy"}, {repomd, "repomd"}} {
			if k.asked {
				kinds = append(kinds, k.kind)
			}
		}
		if len(kinds) == 0 {
			return original("cleanup: At least one cleanup option must be specified")
		}
		c, err := connect(cmd.Context(), cmd.OutOrStdout())
		if err != nil {
			return err
		}
		return c.transact(cmd.Context(), "Cleanup", kinds)
	}
	return cmd
}

func finalizeCommand() *cobra.Command {
	var missing, unlocked bool
	cmd := &cobra.Command{Use: finalizeName + " [CHECKSUM]", Args: cobra.MaximumNArgs(1)}
	cmd.Flags().BoolVar(&missing, "allow-missing-checksum", false, "Don't error out if no expected checksum is provided")
	cmd.Flags().BoolVar(&unlocked, "allow-unlocked", false, "Don't error out if staged deployment wasn't locked")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 && !missing {
			fmt.Fprintf(os.Stderr, "Usage:\n  rpm-ostree %s [OPTION…] [CHECKSUM]\n\n", finalizeName)
			return original("usage error: Must provide expected CHECKSUM or --allow-missing-checksum")
		}
		c, err := connect(cmd.Context(), cmd.OutOrStdout())
		if err != nil {
			return err
		}
		options := map[string]dbus.Variant{
			"allow-missing-checksum": dbus.MakeVariant(missing), "allow-unlocked": dbus.MakeVariant(unlocked),
		}
		if len(args) > 0 {
			options["checksum"] = dbus.MakeVariant(args[0])
		}
		return c.transact(cmd.Context(), "FinalizeDeployment", options)
	}
	return cmd
}

func reloadCommand() *cobra.Command {
	return &cobra.Command{Use: "reload", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		c, err := connect(cmd.Context(), cmd.OutOrStdout())
		if err != nil {
			return err
		}
		for _, method := range []string{".ReloadConfig", ".Reload"} {
			if err := c.sysroot.Call(sysrootInterface+method, 0).Err; err != nil {
				return plainError(err)
			}
		}
		return nil
	}}
}

// dup keeps a file open for as long as the process runs: its number is passed on.
func dup(file *os.File) int {
	open = append(open, file)
	return int(file.Fd())
}

var open []*os.File
