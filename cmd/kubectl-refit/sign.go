// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/butane"
	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/refit"
	"github.com/noderefit/noderefit/signature"
)

// signing are the flags of sign.
type signing struct {
	rendered         string
	files            []string
	keys, signatures []string
	payload          bool
}

func signCommand(o *options) *cobra.Command {
	var s signing
	cmd := &cobra.Command{
		Use: "sign POOL [-f FILE]... | --rendered FILE",
		Example: `  kubectl refit sign worker -f motd.yaml --key release.key > signatures.yaml
  kubectl refit sign --rendered rendered-worker.yaml --key release.key > signatures.yaml`,
		Short: "Sign the configuration of a pool",
		Long: `Signs the configuration that a pool would get by the documents of files, or gets by what the cluster has. With
--rendered, the configuration is that of a file, as machine-config-controller render prints it, and no cluster is asked.
The output is a MachineConfig without content that carries the signature: apply it along with the documents, or before.
What is signed is the digest of the content, of which the configuration's name has the first half.

Keys are PEM files: Ed25519, ECDSA, or RSA of at least 2048 bits. Where a device or another program has the key,
--payload prints the bytes that are to be signed, and --signature takes the signature of them.`,
		Args: func(_ *cobra.Command, args []string) error { return s.check(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := s.config(cmd, o, args)
			if err != nil {
				return err
			}
			if s.payload {
				_, err = cmd.OutOrStdout().Write(signature.Payload(cfg.Digest))
				return err
			}
			lines, err := s.lines(cfg.Digest)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "signed %s\n", cfg.Name)
			_, err = io.WriteString(cmd.OutOrStdout(), signature.Document(machineconfig.PoolOf(cfg.Name), lines))
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVarP(&s.files, "filename", "f", nil,
		"file or directory with documents, - for the standard input; may be repeated")
	flags.StringVar(&s.rendered, "rendered", "", "file with a rendered configuration, - for the standard input")
	flags.StringSliceVar(&s.keys, "key", nil, "file with a private key; may be repeated")
	flags.StringSliceVar(&s.signatures, "signature", nil,
		"file with a signature of the output of --payload, as it is or in base64; may be repeated")
	flags.BoolVar(&s.payload, "payload", false, "print the bytes that are to be signed")
	o.argumentsFrom(cmd, false, pools)
	return cmd
}

func (s *signing) check(args []string) error {
	switch {
	case s.rendered != "" && len(args)+len(s.files) > 0:
		return cli.Usagef("flag --rendered: the file has the whole configuration: leave out POOL and -f")
	case s.payload && len(s.keys)+len(s.signatures) > 0:
		return cli.Usagef("flag --payload: signs nothing: leave out --key and --signature")
	case !s.payload && len(s.keys)+len(s.signatures) == 0:
		return cli.Usagef("flag --key: a private key is needed, or --payload and --signature")
	case s.rendered != "":
		return nil
	}
	return arguments(1, 1, "POOL, or --rendered FILE,")(nil, args)
}

// config returns the configuration to sign. Its digest is computed here from the content: no name is believed.
func (s *signing) config(cmd *cobra.Command, o *options, args []string) (*machineconfig.Config, error) {
	if s.rendered != "" {
		return readRendered(s.rendered)
	}
	return s.fromCluster(cmd.Context(), cmd, o, args[0])
}

func (s *signing) fromCluster(
	ctx context.Context, cmd *cobra.Command, o *options, pool string,
) (*machineconfig.Config, error) {
	c, err := o.connect(cmd)
	if err != nil {
		return nil, err
	}
	_, _, mc, err := c.Rendered(ctx, pool, refit.Proposal{Files: s.files})
	if err != nil {
		return nil, err
	}
	return machineconfig.Parse(mc)
}

func readRendered(path string) (*machineconfig.Config, error) {
	docs, _, err := machineconfig.Read(butane.Translate, path)
	if err != nil {
		return nil, err
	}
	if len(docs.Configs) != 1 {
		return nil, fmt.Errorf("reading %s: has %d MachineConfigs where one rendered configuration is needed", path,
			len(docs.Configs))
	}
	mc := machineconfig.Unfilled(docs.Configs[0].Object) // the copy of a host has its values
	cfg, err := machineconfig.Parse(mc)
	if err != nil {
		return nil, err
	}
	if machineconfig.PoolOf(mc.Name) == "" || !machineconfig.NamedBy(mc.Name, cfg.Digest) || cfg.Digest == cfg.Former {
		return nil, fmt.Errorf("reading %s: MachineConfig %q is no rendered configuration, or has another content than its "+
			"name says: machine-config-controller render makes one of documents", path, mc.Name)
	}
	return cfg, nil
}

// lines returns the signatures of a digest.
func (s *signing) lines(digest string) ([]string, error) {
	var lines []string
	for _, file := range s.keys {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the key: %w", err)
		}
		key, err := signature.ParseSigner(data)
		if err != nil {
			return nil, fmt.Errorf("reading the key: %s: %w", file, err)
		}
		made, err := signature.Sign(key, digest)
		if err != nil {
			return nil, fmt.Errorf("signing with %s: %w", file, err)
		}
		lines = append(lines, signature.Line(digest, made))
	}
	for _, file := range s.signatures {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the signature: %w", err)
		}
		if len(data) == 0 {
			return nil, fmt.Errorf("reading the signature: %w", errors.New(file+" is empty"))
		}
		if decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(data))); err == nil {
			data = decoded
		}
		lines = append(lines, signature.Line(digest, data))
	}
	return lines, nil
}
