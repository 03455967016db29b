// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// choose returns the name of the configuration that a new node of the pool gets. It is the configuration that the pool
// goes to, once a node has proved it, and before that the configuration that the pool has. Counts are about the present
// configuration only if the status has seen it. A pool without a proved configuration gives an unproved one, since it
// would otherwise never get a node to prove it on.
func choose(pool *mcfgv1.MachineConfigPool) (string, error) {
	spec, status := pool.Spec.Configuration.Name, pool.Status.Configuration.Name
	failed, err := api.Decode[[]api.Quarantine](pool.Annotations, api.PoolQuarantineKey)
	bad := err != nil || slices.ContainsFunc(failed, func(q api.Quarantine) bool {
		return api.SameContent(q.Config, spec)
	})
	seen := pool.Status.ObservedGeneration == pool.Generation
	switch {
	case spec == "" && status == "":
		return "", unavailable{fmt.Errorf("pool %s has no configuration yet", pool.Name)}
	case spec != "" && seen && pool.Status.UpdatedMachineCount > 0 && !bad:
		return spec, nil
	case status != "":
		return status, nil
	case bad:
		return "", unavailable{fmt.Errorf("pool %s: %s failed on a node, and no other was ever proved", pool.Name, spec)}
	}
	return spec, nil
}

// The paths of what a new machine gets besides its configuration, as from OpenShift's server.
const (
	annotationsPath = "/etc/machine-config-daemon/node-annotations.json"
	kubeconfigPath  = "/etc/kubernetes/kubeconfig"
	// pulledPath exists once this installation has brought the program to the machine.
	pulledPath = "/etc/machine-config-daemon/pulled"
)

// join returns the kubeconfig for joining to a machine that may read secrets. Other machines get nothing. A machine
// whose token is for one pool joins by that token, so that the API server knows the pool.
func (s *Server) join(who visitor) ([]byte, error) {
	if s.o.BootstrapKubeconfig == "" || who.kind == stranger {
		return nil, nil
	}
	text, err := readSecret(s.o.BootstrapKubeconfig)
	if err == nil && who.token != "" {
		text, err = withToken(text, who.token)
	}
	if err != nil {
		return nil, behind{fmt.Errorf("reading the kubeconfig for new nodes: %w", err)}
	}
	return text, nil
}

// withToken returns a kubeconfig whose only user, that of its current context, has a token and no other credential.
func withToken(text []byte, token string) ([]byte, error) {
	config, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("the file is no kubeconfig") // the error could quote a secret
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil {
		return nil, fmt.Errorf("there is no context %q, which current-context names", config.CurrentContext)
	}
	config.Contexts = map[string]*clientcmdapi.Context{config.CurrentContext: current}
	config.AuthInfos = map[string]*clientcmdapi.AuthInfo{current.AuthInfo: {Token: token}}
	return clientcmd.Write(*config)
}

// extra returns what a new machine gets besides its configuration. join is nil where the machine has to get its
// kubeconfig in another way. arguments are kernel arguments that the machine's Ignition can't read, which firstboot
// sets. They don't become part of the configuration, whose content would no longer fit its name.
func (s *Server) extra(mc *mcfgv1.MachineConfig, arguments []string, join []byte) (machineconfig.Extra, error) {
	var x machineconfig.Extra
	annotations, err := json.Marshal(map[string]string{
		api.CurrentConfig: mc.Name, api.DesiredConfig: mc.Name, api.StateKey: string(api.Done),
	})
	if err != nil {
		return x, err
	}
	x.Files = append(x.Files, machineconfig.ExtraFile{Path: annotationsPath, Mode: 0o644, Contents: annotations})
	if join != nil {
		path := s.o.BootstrapKubeconfigPath
		if path == "" {
			path = kubeconfigPath
		}
		x.Files = append(x.Files, machineconfig.ExtraFile{Path: path, Mode: 0o600, Contents: join, Yield: true})
	}
	if s.o.DaemonImage != "" {
		x.Units = append(x.Units, pullUnit(s.o.DaemonImage))
	}
	x.Units = append(x.Units, machineconfig.Unit{
		Name: api.FirstbootUnit, Contents: api.FirstbootUnitText, Enabled: new(true),
	})
	// The cluster's metadata of the object is not for the machine.
	whole := &mcfgv1.MachineConfig{TypeMeta: mc.TypeMeta, Spec: mc.Spec}
	whole.Name = mc.Name
	if len(arguments) > 0 {
		whole.Annotations = map[string]string{api.LeftArguments: api.Encode(arguments)}
	}
	whole.APIVersion, whole.Kind = mcfgv1.GroupVersion.String(), "MachineConfig"
	encapsulated, err := json.Marshal(whole)
	if err != nil {
		return x, err
	}
	x.Files = append(x.Files, machineconfig.ExtraFile{
		Path: api.EncapsulatedPath, Mode: 0o600, Contents: encapsulated,
	})
	return x, nil
}

// pullUnit returns the unit that brings the program to a machine whose OS image does not have it.
func pullUnit(image string) machineconfig.Unit {
	return machineconfig.Unit{
		Name: "machine-config-daemon-pull.service", Enabled: new(true),
		Contents: `[Unit]
Description=Bring the node's agent to the machine
Documentation=https://github.com/noderefit/noderefit
ConditionPathExists=` + api.EncapsulatedPath + `
# Below /etc, for a program that a new installation finds in a /var that was kept may be an old one.
ConditionPathExists=!` + pulledPath + `
Wants=network-online.target
After=network-online.target
Before=` + api.FirstbootUnit + `
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
Environment=IMAGE=` + image + `
Environment=TO=` + api.HostProgram + `
Environment=DONE=` + pulledPath + `
# Only podman is there yet, and the image has no shell: its file is taken out of it.
ExecStart=/bin/sh -euc 'mkdir -p -m 0700 "$${TO%%/bin/*}"; mkdir -p "$${TO%%/*}"; \
  made=$$(podman create --pull=always --authfile=/var/lib/kubelet/config.json "$$IMAGE" || podman create "$$IMAGE"); \
  podman cp "$$made:/machine-config-daemon" "$$TO.new"; podman rm "$$made" >/dev/null; \
  chmod 0755 "$$TO.new"; sync "$$TO.new"; mv "$$TO.new" "$$TO"; mkdir -p "$${DONE%%/*}"; : >"$$DONE"'
Restart=on-failure
RestartMode=direct
RestartSec=10

[Install]
WantedBy=` + api.FirstbootUnit + `
`,
	}
}
