// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/page"
	"github.com/noderefit/noderefit/refit"
)

const (
	// The time limits for reading a request of the page, for answering it, and for ending the process.
	pageReads, pageAnswers, pageEnds = 10 * time.Second, time.Minute, 2 * time.Second
	// pageHeaders is in bytes.
	pageHeaders = 64 << 10
)

func pageCommand(o *options) *cobra.Command {
	var port int
	var open bool
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Serve the web page on this machine, with your own rights",
		Long: `Serves the web page on the loopback address of this machine, until Ctrl-C. The page needs no installation in
the cluster and no token: the command reads the cluster with your kubeconfig, and shows what you may read. The page
changes nothing.

The command prints the address of the page on its standard output. A part of the address is a secret of this process.
Without the secret, other users of the machine and web sites get nothing. Do not pass the address on.`,
		Example: `  kubectl refit page
  kubectl refit page --open
  kubectl refit page --context production --port 8798`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if port < 0 || port > 65535 {
				return cli.Usagef("flag --port: %d is no port; name one from 1 to 65535, or leave the flag out", port)
			}
			c, err := o.connect(cmd)
			if err != nil {
				return err
			}
			return servePage(cmd, page.Options{
				Read: func(ctx context.Context) (page.View, error) {
					v, unknown, err := c.View(ctx)
					if err != nil {
						return page.View{}, errors.New(refit.Describe(err))
					}
					return page.View{View: v, Warnings: unknown}, nil
				},
				Now: time.Now, Version: version, Cluster: o.clusterName(),
				Zone: time.Local, //nolint:gosmopolitan // the reader's own machine
			}, port, open)
		},
	}
	o.argumentsFrom(cmd, false)
	cmd.Flags().IntVar(&port, "port", 0, "port of the page; 0: any free port")
	cmd.Flags().BoolVar(&open, "open", false, "open the page in the browser")
	return cmd
}

// clusterName returns the name of the kubeconfig's context, or the API server's address where there is no context.
func (o *options) clusterName() string {
	if name := *o.kube.Context; name != "" {
		return name
	}
	if raw, err := o.kube.ToRawKubeConfigLoader().RawConfig(); err == nil && raw.CurrentContext != "" {
		return raw.CurrentContext
	}
	return *o.kube.APIServer
}

// servePage serves the page until the command's context ends.
func servePage(cmd *cobra.Command, o page.Options, port int, open bool) error {
	ctx := cmd.Context()
	// What is wrong with the kubeconfig or the rights is said here, before anybody looks at the page.
	if _, err := o.Read(ctx); err != nil {
		return err
	}
	handler, path := page.Local(o)
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("serving the page: %w; name another port with --port, or leave the flag out", err)
	}
	server := &http.Server{
		Handler: handler, ReadTimeout: pageReads, WriteTimeout: pageAnswers, MaxHeaderBytes: pageHeaders,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // strangers' requests are no news
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	address := "http://" + listener.Addr().String() + path
	fmt.Fprintln(cmd.OutOrStdout(), address)
	fmt.Fprintln(cmd.ErrOrStderr(), "This is your page, with your rights: do not pass the address on. Ctrl-C ends it.")
	if open {
		remove, err := openPage(ctx, address)
		defer remove()
		if err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: opening the browser: %s; open the address yourself\n", err)
		}
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serving the page: %w", err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageEnds)
	defer cancel()
	if err := server.Shutdown(ending); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("ending the page: %w", err)
	}
	return nil
}

// openPage opens an address in the user's browser. The browser is given a file that leads there, because other users of
// the machine see the arguments of processes. remove removes the file.
func openPage(ctx context.Context, address string) (remove func(), err error) {
	dir, err := os.MkdirTemp("", "kubectl-refit-page-")
	if err != nil {
		return func() {}, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	file := filepath.Join(dir, "page.html")
	text := `<!doctype html><meta charset="utf-8"><title>Noderefit</title><meta http-equiv="refresh" content="0; url=` +
		html.EscapeString(address) + `">`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return remove, err
	}
	name, args := opener(runtime.GOOS)
	// The browser stays when the page ends.
	browser := exec.CommandContext(context.WithoutCancel(ctx), name, append(args, file)...)
	if err := browser.Start(); err != nil {
		return remove, err
	}
	go func() { _ = browser.Wait() }()
	return remove, nil
}

// opener returns the command that opens a file in the user's browser.
func opener(system string) (name string, args []string) {
	switch system {
	case "darwin":
		return "open", nil
	case "windows":
		return "rundll32", []string{"url.dll,FileProtocolHandler"}
	}
	return "xdg-open", nil
}
