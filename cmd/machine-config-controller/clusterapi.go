// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/noderefit/noderefit/cli"
	"github.com/noderefit/noderefit/clusterapi"
)

// clusterAPIOptions are the flags of cluster-api.
type clusterAPIOptions struct {
	address, cert, key, clientCA string
	kubeconfig                   string
	cluster, namespace           string
	clients, pools               []string
}

// clusterAPITimeout bounds reading a request and answering it. Cluster API waits for 10 seconds.
const clusterAPITimeout = 15 * time.Second

func clusterAPI() *cobra.Command {
	var o clusterAPIOptions
	cmd := &cobra.Command{
		Use:   "cluster-api --cluster NAME --namespace NAME --client-ca FILE --client-name NAME",
		Short: "Update machines of Cluster API in place, as an extension of its Runtime SDK",
		Long: `cluster-api answers Cluster API's hooks CanUpdateMachine, CanUpdateMachineSet and UpdateMachine. Changes of
the files of a KubeadmConfig become a MachineConfig of the pool that a machine's annotation noderefit.dev/pool names.
Whatever else changes is left to Cluster API, which replaces the machine.`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.cluster == "" || o.namespace == "":
				return cli.Usagef("--cluster and --namespace are required")
			case o.clientCA == "" || len(o.clients) == 0:
				return cli.Usagef("--client-ca and --client-name are required: a client that may ask can write files on nodes")
			}
			return cli.NoArgs(cmd, args)
		},
		RunE: func(*cobra.Command, []string) error { return o.run() },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.cluster, "cluster", "", "name of the Cluster whose machines are updated")
	flags.StringVar(&o.namespace, "namespace", "", "namespace of this Cluster and its Machines")
	flags.StringSliceVar(&o.clients, "client-name", nil,
		"names, with commas; one has to be the common name or a DNS name of the client certificate")
	flags.StringSliceVar(&o.pools, "pools", nil,
		"pools that machines may be updated through, with commas; without it all but those of the control plane")
	flags.StringVar(&o.clientCA, "client-ca", "",
		"file of certificates; one of them has to have signed the client certificate of Cluster API's controllers")
	flags.StringVar(&o.address, "bind-address", ":9443", "where to serve HTTPS")
	flags.StringVar(&o.cert, "cert", "/etc/ssl/cluster-api/tls.crt",
		"file of the server's certificate, with its chain; read again when it changes")
	flags.StringVar(&o.key, "key", "/etc/ssl/cluster-api/tls.key", "file of its key")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig file of the cluster of the nodes; without it $KUBECONFIG, else the service account of the pod")
	return cmd
}

func (o *clusterAPIOptions) run() error {
	log, err := logging()
	if err != nil {
		return err
	}
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), mcfgv1.Install(scheme)); err != nil {
		return err
	}
	nodes, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	watcher, err := certwatcher.New(o.cert, o.key)
	if err != nil {
		return fmt.Errorf("reading the certificate %s and its key, which --cert and --key name: %w", o.cert, err)
	}
	ctx, stop := cli.Signals()
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.address)
	if err != nil {
		return fmt.Errorf("serving HTTPS: %w", err)
	}
	server := &http.Server{
		Handler: clusterapi.New(clusterapi.NewCluster(nodes),
			clusterapi.Options{Namespace: o.namespace, Cluster: o.cluster, Pools: o.pools}, log),
		ReadTimeout: clusterAPITimeout, WriteTimeout: clusterAPITimeout, IdleTimeout: time.Minute,
		ErrorLog: zap.NewStdLog(zap.NewNop()), // the log has no errors of clients that send nothing sensible
	}
	base := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate}
	authorities, err := cli.NewAuthorities(o.clientCA, func(err error) {
		log.Error(err, "clients are verified by the authorities that the file had")
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	secure := tls.NewListener(listener, &tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return o.demand(base, authorities.Pool()), nil
		},
	})
	group.Go(func() error { return watcher.Start(ctx) })
	runnable := manager.Server{Server: server, Listener: secure, ShutdownTimeout: new(clusterAPITimeout)}
	group.Go(func() error { return runnable.Start(ctx) })
	log.Info("serving", "version", version, "https", listener.Addr().String(), "cluster", o.cluster)
	return group.Wait()
}

// demand returns a configuration of TLS that demands besides the certificate of a client, of one of the authorities and
// with one of the names.
func (o *clusterAPIOptions) demand(base *tls.Config, authorities *x509.CertPool) *tls.Config {
	c := base.Clone()
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, authorities
	c.SessionTicketsDisabled = true // a session would outlive a change of the authorities
	c.VerifyConnection = func(s tls.ConnectionState) error { return o.named(s.PeerCertificates[0]) }
	return c
}

// named returns an error unless a certificate has one of the names.
func (o *clusterAPIOptions) named(c *x509.Certificate) error {
	if slices.Contains(o.clients, c.Subject.CommonName) ||
		slices.ContainsFunc(c.DNSNames, func(name string) bool { return slices.Contains(o.clients, name) }) {
		return nil
	}
	return fmt.Errorf("the client certificate of %q has none of the names of --client-name", c.Subject.CommonName)
}
