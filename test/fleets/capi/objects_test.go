// SPDX-License-Identifier: Apache-2.0

package capi

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kinds are those that the tests read.
var kinds = map[string]schema.GroupVersionKind{
	"Cluster":             {Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"},
	"Machine":             {Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Machine"},
	"MachineSet":          {Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "MachineSet"},
	"MachineDeployment":   {Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "MachineDeployment"},
	"KubeadmConfig":       {Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmConfig"},
	"KubeadmControlPlane": {Group: "controlplane.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmControlPlane"},
	"LabCluster":          {Group: "infrastructure.cluster.x-k8s.io", Version: "v1", Kind: "LabCluster"},
	"LabMachine":          {Group: "infrastructure.cluster.x-k8s.io", Version: "v1", Kind: "LabMachine"},
}

// definitions are the provider's kinds, as its contract with Cluster API wants them, and the rights that Cluster API's
// controllers need for them.
const definitions = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: labclusters.infrastructure.cluster.x-k8s.io
  labels: {cluster.x-k8s.io/v1beta2: v1}
spec:
  group: infrastructure.cluster.x-k8s.io
  names: {kind: LabCluster, listKind: LabClusterList, plural: labclusters, singular: labcluster}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              controlPlaneEndpoint:
                type: object
                properties: {host: {type: string}, port: {type: integer}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: labmachines.infrastructure.cluster.x-k8s.io
  labels: {cluster.x-k8s.io/v1beta2: v1}
spec:
  group: infrastructure.cluster.x-k8s.io
  names: {kind: LabMachine, listKind: LabMachineList, plural: labmachines, singular: labmachine}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {providerID: {type: string}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: labmachinetemplates.infrastructure.cluster.x-k8s.io
  labels: {cluster.x-k8s.io/v1beta2: v1}
spec:
  group: infrastructure.cluster.x-k8s.io
  names:
    kind: LabMachineTemplate
    listKind: LabMachineTemplateList
    plural: labmachinetemplates
    singular: labmachinetemplate
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              template:
                type: object
                properties:
                  spec:
                    type: object
                    properties: {providerID: {type: string}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: lab-provider
  labels:
    cluster.x-k8s.io/aggregate-to-manager: "true"
    cluster.x-k8s.io/aggregate-to-capi-kubeadm-control-plane-manager: "true"
rules:
- apiGroups: [infrastructure.cluster.x-k8s.io]
  resources: ["*"]
  verbs: ["*"]
`

// extensionConfig takes the authority in base64, the address, and the namespace of the Cluster.
const extensionConfig = `apiVersion: runtime.cluster.x-k8s.io/v1beta2
kind: ExtensionConfig
metadata: {name: noderefit}
spec:
  clientConfig:
    caBundle: %s
    url: https://%s
  namespaceSelector:
    matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: In, values: [%s]}
`

// kubeadmLeaves takes the name of the first Node of the control plane. The pods are those of the control plane's
// programs, in which Cluster API sees that they work.
const kubeadmLeaves = `apiVersion: v1
kind: ConfigMap
metadata: {name: kubeadm-config, namespace: kube-system}
data:
  ClusterConfiguration: |
    apiVersion: kubeadm.k8s.io/v1beta4
    kind: ClusterConfiguration
---
apiVersion: v1
kind: Pod
metadata: {name: kube-apiserver-%[1]s, namespace: kube-system, labels: {component: kube-apiserver}}
spec: {nodeName: %[1]s, containers: [{name: kube-apiserver, image: none}]}
---
apiVersion: v1
kind: Pod
metadata: {name: kube-controller-manager-%[1]s, namespace: kube-system, labels: {component: kube-controller-manager}}
spec: {nodeName: %[1]s, containers: [{name: kube-controller-manager, image: none}]}
---
apiVersion: v1
kind: Pod
metadata: {name: kube-scheduler-%[1]s, namespace: kube-system, labels: {component: kube-scheduler}}
spec: {nodeName: %[1]s, containers: [{name: kube-scheduler, image: none}]}
`

// theCluster takes the host and the port of the API server, its authority's certificate and key in base64, and the
// version of Kubernetes. The cluster lab's etcd is external to kubeadm. The annotation keeps Cluster API from asking for
// the API server's certificate through a pod in which nothing runs.
const theCluster = `apiVersion: v1
kind: Secret
metadata: {name: prod-ca, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: prod}}
type: cluster.x-k8s.io/secret
data: {tls.crt: %[3]s, tls.key: %[4]s}
---
apiVersion: v1
kind: Secret
metadata: {name: prod-etcd, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: prod}}
type: cluster.x-k8s.io/secret
data: {tls.crt: %[3]s}
---
apiVersion: v1
kind: Secret
metadata: {name: prod-apiserver-etcd-client, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: prod}}
type: cluster.x-k8s.io/secret
data: {tls.crt: %[3]s, tls.key: %[4]s}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1
kind: LabCluster
metadata: {name: prod, namespace: fleet}
spec: {controlPlaneEndpoint: {host: %[1]s, port: %[2]s}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1
kind: LabMachineTemplate
metadata: {name: machines, namespace: fleet}
spec: {template: {spec: {}}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: KubeadmControlPlane
metadata: {name: control, namespace: fleet}
spec:
  replicas: 1
  version: %[5]s
  machineTemplate:
    metadata:
      annotations: {machine.cluster.x-k8s.io/certificates-expiry: "2100-01-01T00:00:00Z"}
    spec:
      infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LabMachineTemplate, name: machines}
  kubeadmConfigSpec:
    clusterConfiguration:
      etcd:
        external:
          endpoints: ["https://127.0.0.1:2379"]
          caFile: /etc/kubernetes/pki/etcd/ca.crt
          certFile: /etc/kubernetes/pki/apiserver-etcd-client.crt
          keyFile: /etc/kubernetes/pki/apiserver-etcd-client.key
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: prod, namespace: fleet}
spec:
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: KubeadmControlPlane, name: control}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LabCluster, name: prod}
`

// template takes its name, and more of its spec, as lines that are indented by six.
const template = `apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfigTemplate
metadata: {name: %s, namespace: fleet}
spec:
  template:
    spec:
      files:
      - {path: /etc/always.conf, content: always}
%s
`

// deployment takes the version of Kubernetes, the name of its bootstrap template, and its rolling update.
const deployment = `apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {name: workers, namespace: fleet}
spec:
  clusterName: prod
  replicas: 2
  rollout: {strategy: {type: RollingUpdate, rollingUpdate: %[3]s}}
  selector: {matchLabels: {}}
  template:
    metadata:
      annotations: {noderefit.dev/pool: worker}
    spec:
      clusterName: prod
      version: %[1]s
      bootstrap:
        configRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: KubeadmConfigTemplate, name: %[2]s}
      infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LabMachineTemplate, name: machines}
`

// thePool is the pool of the workers, with a configuration that changes nothing on a host.
const thePool = `apiVersion: v1
kind: Namespace
metadata: {name: fleet}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec:
  machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}
  nodeSelector: {matchLabels: {node-role.kubernetes.io/worker: ""}}
---
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: 00-worker, labels: {machineconfiguration.openshift.io/role: worker}}
spec: {config: {ignition: {version: 3.4.0}}}
`
