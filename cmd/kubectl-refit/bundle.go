// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/bundle"
	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/installation"
	"github.com/noderefit/noderefit/machineconfig"
)

func bundleCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Carry an installation and its OS images to a cluster without a network",
		Long: `Carries what an installation and its pools need to a cluster that reaches no registry outside. save writes a
directory where there is a network. load copies the images into a registry where the cluster is. mirrors prints the
objects by which nodes pull the images there.`,
		Example: `  kubectl refit bundle save ./bundle -f machineconfigs/
  kubectl refit bundle load ./bundle --registry registry.of.yours
  kubectl refit bundle mirrors ./bundle --registry registry.of.yours | kubectl apply -f -`,
		Args: cli.NoCommand,
		RunE: func(*cobra.Command, []string) error {
			return cli.Usagef("a command is needed: save, load or mirrors")
		},
	}
	cmd.AddCommand(bundleSave(o), bundleLoad(o), bundleMirrors())
	return cmd
}

// bundleFlags are the flags of bundle save.
type bundleFlags struct {
	registry      string
	files, images []string
}

func bundleSave(o *options) *cobra.Command {
	var f bundleFlags
	cmd := &cobra.Command{
		Use:   "save DIR [--registry REGISTRY] [-f FILE]... [--image IMAGE]...",
		Short: "Write a bundle into a directory",
		Long: `Writes a bundle into a directory: the images of Noderefit at this program's version, the OS images and the
extensions that the MachineConfigs of files name, and the files themselves. The directory is an OCI image layout, and
bundle.json lists what is in it with digests. Images come with all their platforms and with the signature that cosign
keeps beside an image.

A command that was stopped is given again, and goes on where it was.`,
		Example: `  kubectl refit bundle save ./bundle -f machineconfigs/
  kubectl refit bundle save /media/stick/bundle --registry registry.of.yours/noderefit --image quay.io/os/node:44`,
		Args: arguments(1, 1, "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			contents, err := f.contents(cmd, o, args[0])
			if err != nil {
				return err
			}
			list, err := bundle.Save(cmd.Context(), args[0], contents, progressOf(cmd))
			if err != nil {
				return stopped(err)
			}
			return o.print(cmd, list, func(w io.Writer) error {
				for _, left := range list.Left {
					fmt.Fprintln(w, "left out:", left)
				}
				_, err := fmt.Fprintf(w, "saved %d images and %d files into %s, %d MB. Take the directory and this program to "+
					"the cluster, and there:\n  kubectl refit bundle load %s --registry REGISTRY\n",
					len(list.Images), len(list.Files), args[0], list.Bytes/1_000_000, args[0])
				return err
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.registry, "registry", registry,
		"registry with the images of Noderefit, such as registry.of.yours/noderefit")
	flags.StringArrayVarP(&f.files, "filename", "f", nil,
		"file or directory with MachineConfigs, Butane or Ignition configs")
	flags.StringArrayVar(&f.images, "image", nil, "another image, with a tag or a digest")
	o.outputFlag(cmd)
	return cmd
}

// apart refuses files that no bundle in a directory can have: that bundle itself, and the standard input.
func apart(dir, file string) error {
	if file == "-" {
		return cli.Usagef("flag -f: the standard input has no name for the bundle: name a file or a directory")
	}
	inside, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	outside, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	if rel, err := filepath.Rel(outside, inside); err == nil && filepath.IsLocal(rel) {
		return cli.Usagef("flag -f: the bundle %s lies within %s, and would have itself in it: name another directory",
			dir, file)
	}
	return nil
}

// contents reads what goes into a bundle in a directory.
func (f *bundleFlags) contents(cmd *cobra.Command, o *options, dir string) (bundle.Contents, error) {
	c := bundle.Contents{Version: version, Images: f.images}
	if err := o.check(cmd); err != nil {
		return c, err
	}
	if f.registry == "" {
		return c, cli.Usagef("flag --registry: this program is of no release and knows no registry: say where the " +
			"images of Noderefit are, for example --registry registry.of.yours/noderefit")
	}
	for _, file := range f.files {
		if err := apart(dir, file); err != nil {
			return c, err
		}
	}
	release, err := installation.NewRelease(version, f.registry)
	if err != nil {
		return c, err
	}
	own, err := release.Images(f.registry)
	if err != nil {
		return c, err
	}
	c.Images = append(c.Images, own...)
	c.Files = map[string][]byte{}
	for name, data := range release.Files() {
		c.Files[path.Join("chart/noderefit", name)] = data
	}
	docs, warnings, err := machineconfig.Read(butane.Translate, f.files...)
	if err != nil {
		return c, err
	}
	for _, warning := range warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", warning)
	}
	for _, d := range docs.Configs {
		if err := c.Add(d.Object); err != nil {
			return c, err
		}
	}
	for _, file := range f.files {
		if err := c.AddPath(file); err != nil {
			return c, fmt.Errorf("flag -f: %w", err)
		}
	}
	return c, nil
}

func bundleLoad(o *options) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "load DIR --registry REGISTRY",
		Short: "Copy the images of a bundle into a registry",
		Long: `Compares a bundle with its digests, and copies its images into a registry. An image keeps its digest, and the
path that it had in the registry that it is from. The credentials are those of docker and podman. A command that was
stopped is given again, and copies what is not there yet.`,
		Example: `  kubectl refit bundle load ./bundle --registry registry.of.yours
  kubectl refit bundle load ./bundle --registry registry.of.yours/outside -o json`,
		Args:    arguments(1, 1, "DIR"),
		PreRunE: func(*cobra.Command, []string) error { return neededRegistry(to) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			list, err := bundle.Load(cmd.Context(), args[0], to, progressOf(cmd))
			if err != nil {
				return stopped(err)
			}
			return o.print(cmd, list, func(w io.Writer) error { return loadedText(w, list, args[0], to) })
		},
	}
	registryFlag(cmd, &to)
	o.outputFlag(cmd)
	return cmd
}

func loadedText(w io.Writer, list *bundle.List, dir, to string) error {
	mirrors, err := list.Mirrors(to)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "loaded %d images into %s. Next:\n", len(list.Images), to)
	if own := list.Registry(to); own != "" && err == nil {
		_, err = fmt.Fprintf(w, "  kubectl refit install --registry %s\n", own)
	}
	if len(mirrors) > 0 && err == nil {
		_, err = fmt.Fprintf(w, "  kubectl refit bundle mirrors %s --registry %s | kubectl apply -f -\n", dir, to)
	}
	return err
}

func bundleMirrors() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "mirrors DIR --registry REGISTRY",
		Short: "Print the objects by which nodes pull the images of a bundle",
		Long: `Prints an ImageDigestMirrorSet and an ImageTagMirrorSet. With them nodes pull the images of a bundle from the
registry that the bundle was loaded into, and MachineConfigs keep the names that they have.`,
		Example: `  kubectl refit bundle mirrors ./bundle --registry registry.of.yours
  kubectl refit bundle mirrors ./bundle --registry registry.of.yours | kubectl apply -f -`,
		Args:    arguments(1, 1, "DIR"),
		PreRunE: func(*cobra.Command, []string) error { return neededRegistry(to) },
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := bundle.Read(args[0])
			if err != nil {
				return err
			}
			objects, err := list.Mirrors(to)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(objects)
			return err
		},
	}
	registryFlag(cmd, &to)
	return cmd
}

func registryFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "registry", "", "registry that nodes reach, such as registry.of.yours")
}

func neededRegistry(to string) error {
	if to == "" {
		return cli.Usagef("flag --registry: a registry that nodes reach is needed, such as registry.of.yours")
	}
	if err := bundle.CheckRegistry(to); err != nil {
		return cli.Usagef("flag --registry: %s: %w", to, err)
	}
	return nil
}

// progressOf tells people how far a command is, apart from its output.
func progressOf(cmd *cobra.Command) bundle.Say {
	return func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
}
