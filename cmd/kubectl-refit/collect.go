// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/checkup"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/refit"
	"github.com/noderefit/noderefit/support"
)

func collectCommand(o *options) *cobra.Command {
	var s support.Selection
	var file, limit string
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Write what a report about a fault needs into one archive, without secrets",
		Long: `Writes one archive for a report about a fault: pools, nodes, MachineConfigs and our other objects, events, logs
of controller and agents, and of each host the status and the journal, read through its agent. Contents of files, and
texts that may hold a secret, are masked. Secrets and ConfigMaps are never read. contents.txt in the archive lists what
is inside, and what could not be had and why. Look through the archive before you give it away.`,
		Example: `  kubectl refit collect
  kubectl refit collect --node worker-3 --file worker-3.tar.gz`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			size, err := resource.ParseQuantity(limit)
			if err != nil || size.Value() <= 0 {
				return cli.Usagef("flag --limit: %q is no size; write, for example, 64Mi", limit)
			}
			s.Limit = size.Value()
			if file == "" {
				file = "noderefit-support-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			return o.collect(cmd, s, file)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "file", "", "where the archive is written (default: a name with the time, in this directory)")
	f.StringVar(&limit, "limit", "64Mi", "most bytes of contents; logs are cut first")
	f.StringSliceVar(&s.Nodes, "node", nil, "ask only the host and agent of this node; may be repeated")
	return cmd
}

// collect writes the archive beside its place, and puts it there when it is whole.
func (o *options) collect(cmd *cobra.Command, s support.Selection, file string) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	co := support.Options{Plugin: version, Namespace: api.Namespace}
	if cmd.Flags().Changed("namespace") {
		co.Namespace = *o.kube.Namespace
	}
	cluster, err := support.Connect(cfg, co)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s exists; remove it, or name another file with --file", file)
	}
	out, err := os.CreateTemp(filepath.Dir(file), ".noderefit-support-*") // only its owner may read it
	if err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	defer func() { _ = os.Remove(out.Name()) }() // gone already where all went well
	entries, err := cluster.Collect(cmd.Context(), out, s, o.judgements(cmd)...)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	if err := os.Rename(out.Name(), file); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	return summary(cmd.OutOrStdout(), file, entries)
}

// summary says what is in an archive, and names each part that is not whole.
func summary(w io.Writer, file string, entries []support.Entry) error {
	size := int64(0)
	if info, err := os.Stat(file); err == nil {
		size = info.Size()
	}
	whole := 0
	for _, e := range entries {
		if e.Note == "" {
			whole++
		}
	}
	if _, err := fmt.Fprintf(w, "%s: %d bytes, %d of %d parts\n", file, size, whole, len(entries)); err != nil {
		return err
	}
	for _, e := range entries {
		if e.Note == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "  %s: %s\n", e.Name, e.Note); err != nil {
			return err
		}
	}
	return nil
}

// judgements are what other commands say of the cluster.
func (o *options) judgements(cmd *cobra.Command) []support.Part {
	return []support.Part{
		support.Document("version.json", func(ctx context.Context) (any, error) {
			cluster, err := o.checkup(cmd)
			if err != nil {
				return nil, err
			}
			return cluster.Versions(ctx)
		}),
		support.Document("check.json", func(ctx context.Context) (any, error) {
			cluster, err := o.checkup(cmd)
			if err != nil {
				return nil, err
			}
			return cluster.Check(ctx, checkup.CheckOptions{})
		}),
		support.Document("status.json", func(ctx context.Context) (any, error) {
			cluster, err := o.connect(cmd)
			if err != nil {
				return nil, err
			}
			return cluster.Status(ctx, refit.StatusQuestion{})
		}),
	}
}
