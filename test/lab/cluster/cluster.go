// SPDX-License-Identifier: Apache-2.0

// Package cluster makes real Kubernetes control planes: etcd, the API server, the controllers and the scheduler. They
// run as children of this process on 127.0.0.1, with our kinds installed. A node is either simulated by kwok, or is a
// host of the host lab that runs the kubelet.
//
// Only two things are simulated: what kwok does for its nodes, and the container runtime of hosts that have none.
// Scheduling, eviction, disruption budgets, taints, leases, authorisation and admission are Kubernetes' own.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	mcclient "github.com/openshift/client-go/machineconfiguration/clientset/versioned"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/noderefit/noderefit/test/lab"
)

// poll is the interval at which a condition is checked whose changes are not announced.
const poll = 20 * time.Millisecond

// startTimeout allows for a machine that is busy with other work. Otherwise a cluster starts within a few seconds.
const startTimeout = 3 * time.Minute

// Options say which parts a cluster has besides etcd and the API server.
type Options struct {
	// Dir is the directory for state, credentials and logs (PROGRAM.log), and is made if necessary. If Dir is empty, the
	// cluster has a directory that Stop removes.
	Dir string
	// Controllers runs the controller manager. Without the controller manager no Deployment works, no disruption budget is
	// ever met, and no node becomes NotReady.
	Controllers bool
	// Scheduler runs the scheduler.
	Scheduler bool
	// Kwok runs kwok. It simulates the nodes of AddNode, and all others that have KwokLabel.
	Kwok bool
	// GracePeriod is the time from a node's last heartbeat until the node is NotReady; 0: 6 s.
	GracePeriod time.Duration
	// LeaseSeconds is the duration of a node's lease, which is renewed after a quarter of that time; 0: the grace period.
	// With thousands of nodes both have to be longer.
	LeaseSeconds int
	// Audit makes the API server log each request, for Cluster.Requests.
	Audit bool
	// NoCRDs leaves our kinds out, and Without some of them, by their plural names.
	NoCRDs  bool
	Without []string
}

// Cluster is a running control plane.
type Cluster struct {
	// Config is the administrator's configuration; its requests are not throttled. Kubeconfig is the file with that
	// configuration.
	Config     *rest.Config
	Kubeconfig string
	// Client and MachineConfigs are the administrator's clients.
	Client         kubernetes.Interface
	MachineConfigs mcclient.Interface

	options   Options
	temporary bool // we made the directory
	ports     *ports
	authority *authority
	api, etcd *process
	others    []*process
	hosts     int
}

// The ports of a cluster, as offsets from its first port.
const (
	portAPI = iota
	portEtcd
	portEtcdPeer
	portControllers
	portScheduler
)

// New starts a cluster for a test, and stops the cluster after the test. On a machine that can't run a cluster the test
// is skipped (see Need).
func New(t testing.TB, options Options) *Cluster {
	t.Helper()
	Need(t)
	if options.Dir == "" {
		options.Dir = t.TempDir()
	}
	c, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Start starts a cluster and returns when the cluster is ready. The context is for the start only.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if options.GracePeriod == 0 {
		options.GracePeriod = 6 * time.Second
	}
	if options.LeaseSeconds == 0 {
		options.LeaseSeconds = max(1, int(options.GracePeriod.Seconds()))
	}
	c := &Cluster{options: options}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a cluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	// This may take minutes, which must not count as part of the start.
	if _, err := box(); err != nil {
		return err
	}
	if err := c.prepare(); err != nil {
		return err
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.StartAPI(ctx); err != nil {
		return err
	}
	return startAll(ctx, append(c.programs(), part{!c.options.NoCRDs, c.installCRDs}))
}

// part is a part of a cluster that needs the API server.
type part struct {
	wanted bool
	start  func(context.Context) (wait func() error, err error)
}

// programs are the programs beside the API server and etcd. They are clients of the API server.
func (c *Cluster) programs() []part {
	return []part{
		{c.options.Controllers, c.startControllers},
		{c.options.Scheduler, c.startScheduler},
		{c.options.Kwok, c.startKwok},
	}
}

// startAll starts the wanted parts, and waits until all of them are ready.
func startAll(ctx context.Context, parts []part) error {
	var waits []func() error
	for _, p := range parts {
		if !p.wanted {
			continue
		}
		wait, err := p.start(ctx)
		if err != nil {
			return err
		}
		waits = append(waits, wait)
	}
	for _, wait := range waits {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes everything that must exist before the first process: directory, ports, keys and clients.
func (c *Cluster) prepare() (err error) {
	if c.ports, err = reservePorts(); err != nil {
		return err
	}
	if c.options.Dir == "" {
		c.temporary = true
		// The directory belongs to the owner of the ports. So an existing directory is left over from a killed process.
		c.options.Dir = filepath.Join(os.TempDir(), fmt.Sprintf("noderefit-cluster-%d-%d", os.Geteuid(), c.ports.first))
		if err := lab.RemoveTree(c.options.Dir); err != nil {
			return err
		}
	}
	if c.options.Dir, err = filepath.Abs(c.options.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.options.Dir, 0o700); err != nil {
		return err
	}
	if c.authority, err = newAuthority(); err != nil {
		return err
	}
	if err := c.authority.write(c.options.Dir); err != nil {
		return err
	}
	if c.Config, err = c.certificateConfig("admin", "system:masters"); err != nil {
		return err
	}
	c.Config.QPS = -1
	c.Kubeconfig = c.path("kubeconfig")
	if err := os.WriteFile(c.Kubeconfig, kubeconfig(c.Config), 0o600); err != nil {
		return err
	}
	if c.Client, err = kubernetes.NewForConfig(c.Config); err != nil {
		return err
	}
	c.MachineConfigs, err = mcclient.NewForConfig(c.Config)
	return err
}

func (c *Cluster) path(name string) string { return filepath.Join(c.options.Dir, name) }

func (c *Cluster) port(which int) int { return c.ports.first + which }

func (c *Cluster) startEtcd(ctx context.Context) error {
	url := "http://" + address(c.port(portEtcd))
	p, err := start(c.options.Dir, "etcd", "--data-dir="+etcdData, "--log-level=warn", "--unsafe-no-fsync=true",
		"--quota-backend-bytes=4294967296", "--listen-client-urls="+url, "--advertise-client-urls="+url,
		"--listen-peer-urls=http://"+address(c.port(portEtcdPeer)))
	if err != nil {
		return err
	}
	c.etcd = p
	return p.wait(ctx, stranger, url+"/health")
}

// StartAPI starts the API server, at the same address and with the same data as before, and waits until it is ready.
func (c *Cluster) StartAPI(ctx context.Context) error {
	if c.api != nil {
		return errors.New("starting kube-apiserver: it runs")
	}
	args := []string{
		"--etcd-servers=http://" + address(c.port(portEtcd)), "--secure-port=" + strconv.Itoa(c.port(portAPI)),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--tls-cert-file=server.crt", "--tls-private-key-file=server.key", "--client-ca-file=ca.crt",
		"--service-account-key-file=sa.pub", "--service-account-signing-key-file=sa.key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/16",
		"--kubelet-client-certificate=kubelet.crt", "--kubelet-client-key=kubelet.key",
		"--kubelet-preferred-address-types=ExternalIP,InternalIP",
		"--enable-bootstrap-token-auth", "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000",
	}
	if c.options.Audit {
		if err := os.WriteFile(c.path("audit.yaml"), []byte(auditPolicy), 0o600); err != nil {
			return err
		}
		args = append(args, "--audit-policy-file=audit.yaml", "--audit-log-path="+auditLog)
	}
	p, err := start(c.options.Dir, "kube-apiserver", args...)
	if err != nil {
		return err
	}
	c.api = p
	client, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		return err
	}
	return p.wait(ctx, client, c.Config.Host+"/readyz")
}

// StopAPI ends the API server like a crash. Everything else continues to run without it.
func (c *Cluster) StopAPI() {
	if c.api != nil {
		c.api.Kill()
		c.api = nil
	}
}

func (c *Cluster) startControllers(ctx context.Context) (wait func() error, err error) {
	port := c.port(portControllers)
	p, err := start(c.options.Dir, "kube-controller-manager", "--kubeconfig="+c.Kubeconfig, "--leader-elect=false",
		"--authentication-kubeconfig="+c.Kubeconfig, "--authorization-kubeconfig="+c.Kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port),
		"--service-account-private-key-file=sa.key", "--root-ca-file=ca.crt",
		"--cluster-signing-cert-file=ca.crt", "--cluster-signing-key-file=ca.key",
		"--node-monitor-period=1s", "--node-monitor-grace-period="+c.options.GracePeriod.String(),
		"--concurrent-replicaset-syncs=20", "--concurrent-deployment-syncs=20",
		"--kube-api-qps=500", "--kube-api-burst=1000")
	if err != nil {
		return nil, err
	}
	c.others = append(c.others, p)
	client, err := rest.HTTPClientFor(c.Config)
	return func() error {
		if err := p.wait(ctx, stranger, "https://"+address(port)+"/healthz"); err != nil {
			return err
		}
		// Without this service account no pod is admitted.
		return p.wait(ctx, client, c.Config.Host+"/api/v1/namespaces/default/serviceaccounts/default")
	}, err
}

func (c *Cluster) startScheduler(ctx context.Context) (wait func() error, err error) {
	port := c.port(portScheduler)
	p, err := start(c.options.Dir, "kube-scheduler", "--kubeconfig="+c.Kubeconfig, "--leader-elect=false",
		"--authentication-kubeconfig="+c.Kubeconfig, "--authorization-kubeconfig="+c.Kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--kube-api-qps=500", "--kube-api-burst=1000")
	if err != nil {
		return nil, err
	}
	c.others = append(c.others, p)
	return func() error { return p.wait(ctx, stranger, "https://"+address(port)+"/healthz") }, nil
}

func (c *Cluster) startKwok(ctx context.Context) (wait func() error, err error) {
	kubebox, err := box()
	if err != nil {
		return nil, err
	}
	config, err := exec.CommandContext(ctx, kubebox, "kwok-config", "-selector="+KwokLabel, "-parallelism=64",
		"-lease-seconds="+strconv.Itoa(c.options.LeaseSeconds)).Output()
	if err != nil {
		return nil, fmt.Errorf("configuring kwok: %w", err)
	}
	if err := os.WriteFile(c.path("kwok.yaml"), config, 0o600); err != nil {
		return nil, err
	}
	p, err := start(c.options.Dir, "kwok", "--kubeconfig="+c.Kubeconfig, "--config="+c.path("kwok.yaml"), "--v=WARN")
	if err != nil {
		return nil, err
	}
	c.others = append(c.others, p)
	return func() error { return nil }, nil
}

func (c *Cluster) stopPrograms() {
	for _, p := range slices.Backward(c.others) {
		p.Kill()
	}
	c.others = nil
}

// Stop ends everything, and removes what Start has made by itself. Hosts that have joined stay as they are.
func (c *Cluster) Stop() error {
	c.StopAPI()
	c.stopPrograms()
	if c.etcd != nil {
		c.etcd.Kill()
		c.etcd = nil
	}
	if c.ports == nil {
		return nil
	}
	defer c.ports.release()
	if !c.temporary {
		return nil
	}
	c.temporary = false // the next owner of the ports has the directory
	return lab.RemoveTree(c.options.Dir)
}
