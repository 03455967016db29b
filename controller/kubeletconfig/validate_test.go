// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"sigs.k8s.io/yaml"
)

func TestWhatNoKubeletTakesIsRefusedByField(t *testing.T) {
	for _, test := range []struct{ spec, want string }{
		{`kubeletConfig: {maxpods: 5}`, `unknown field "maxpods"`},
		{`kubeletConfig: {authentication: {webhook: {enabeld: true}}}`, `unknown field "authentication.webhook.enabeld"`},
		{`kubeletConfig: {maxPods: "5"}`, "maxPods: must be of type int32 and is a string"},
		{`kubeletConfig: {maxPods: 1.5}`, "maxPods: must be of type int32 and is a number 1.5"},
		{`kubeletConfig: {maxPods: 5000000000}`, "maxPods: must be of type int32 and is a number 5000000000"},
		{`kubeletConfig: {maxPods: null}`, "maxPods is null"},
		{`kubeletConfig: {evictionHard: {memory.available: null}}`, "evictionHard.memory.available is null"},
		{`kubeletConfig: {syncFrequency: 5}`, "syncFrequency: must be of type string and is a number"},
		{`kubeletConfig: {syncFrequency: soon}`, `syncFrequency: time: invalid duration "soon"`},
		{`kubeletConfig: {syncFrequency: -5s}`, "syncFrequency: -5s is negative"},
		{`kubeletConfig: {kind: Config}`, "kind has to be KubeletConfiguration"},
		{`kubeletConfig: {apiVersion: v1}`, "apiVersion has to be kubelet.config.k8s.io/v1beta1"},
		{`kubeletConfig: {cgroupDriver: ""}`, "cgroupDriver may not be set: it has to be the container runtime's"},
		{`kubeletConfig: {clusterDNS: [10.0.0.1]}`, "clusterDNS may not be set"},
		{`kubeletConfig: {clusterDomain: a}`, "clusterDomain may not be set"},
		{`kubeletConfig: {failSwapOn: false}`, "failSwapOn may not be set"},
		{`kubeletConfig: {memorySwap: {swapBehavior: LimitedSwap}}`, "memorySwap.swapBehavior may not be set"},
		{`kubeletConfig: {staticPodPath: /etc/pods}`, `staticPodPath may not be set, except to ""`},
		{`kubeletConfig: {maxPods: -1}`, "maxPods: -1 is less than 0"},
		{`kubeletConfig: {podPidsLimit: -2}`, "podPidsLimit: -2 is less than -1"},
		{`kubeletConfig: {port: 70000}`, "port: 70000 is not between 0 and 65535"},
		{`kubeletConfig: {oomScoreAdj: -1001}`, "oomScoreAdj: -1001 is not between -1000 and 1000"},
		{`kubeletConfig: {containerLogMaxFiles: 1}`, "containerLogMaxFiles: 1 is less than 2"},
		{`kubeletConfig: {imageGCHighThresholdPercent: 101}`, "imageGCHighThresholdPercent: 101 is not between 0 and 100"},
		{`kubeletConfig: {imageGCHighThresholdPercent: 75}`,
			"imageGCLowThresholdPercent: 80 is not less than imageGCHighThresholdPercent, 75"},
		{`kubeletConfig: {imageMinimumGCAge: 5m, imageMaximumGCAge: 1m}`, "imageMaximumGCAge: 1m0s is not more than"},
		{`kubeletConfig: {cpuCFSQuotaPeriod: 2s}`, "cpuCFSQuotaPeriod: 2s is not between 1ms and 1s"},
		{`kubeletConfig: {containerLogMonitorInterval: 1s}`, "containerLogMonitorInterval: 1s is less than 3s"},
		{`kubeletConfig: {memoryThrottlingFactor: 1.5}`, "memoryThrottlingFactor: 1.5 is not above 0"},
		{`kubeletConfig: {shutdownGracePeriod: 10ms}`, "shutdownGracePeriod: 10ms is neither 0 nor at least 1s"},
		{`kubeletConfig: {shutdownGracePeriod: 1m, shutdownGracePeriodCriticalPods: 2m}`,
			"shutdownGracePeriodCriticalPods: 2m0s is more than shutdownGracePeriod, 1m0s"},
		{`kubeletConfig: {cpuManagerPolicy: Static}`, `cpuManagerPolicy: "Static" is not one of none, static`},
		{`kubeletConfig: {topologyManagerPolicy: strict}`, `topologyManagerPolicy: "strict" is not one of none, best-effort`},
		{`kubeletConfig: {authorization: {mode: Never}}`, `authorization.mode: "Never"`},
		{`kubeletConfig: {tlsMinVersion: TLS1.2}`, `tlsMinVersion: "TLS1.2"`},
		{`kubeletConfig: {tlsCipherSuites: [ECDHE]}`, `tlsCipherSuites: "ECDHE"`},
		{`kubeletConfig: {registerWithTaints: [{key: a, effect: Never}]}`, `registerWithTaints: "Never"`},
		{`kubeletConfig: {systemReserved: {disk: 1Gi}}`, `systemReserved: "disk" is not one of cpu`},
		{`kubeletConfig: {systemReserved: {memory: 1GB!}}`, `systemReserved.memory: "1GB!" is no quantity`},
		{`kubeletConfig: {kubeReserved: {cpu: -500m}}`, "kubeReserved.cpu: -500m is negative"},
		{`kubeletConfig: {evictionHard: {memory: 1Gi}}`, `evictionHard: "memory" is not one of`},
		{`kubeletConfig: {evictionHard: {memory.available: 101%}}`, "evictionHard.memory.available: 101% is more than 100%"},
		{`kubeletConfig: {evictionSoft: {memory.available: 1Gi}}`,
			"evictionSoft.memory.available: needs its evictionSoftGracePeriod"},
		{`kubeletConfig: {evictionSoftGracePeriod: {memory.available: long}}`,
			`evictionSoftGracePeriod.memory.available: "long" is no duration`},
		{`kubeletConfig: {qosReserved: {memory: 1Gi}}`, `qosReserved.memory: "1Gi" is no percentage`},
		{`kubeletConfig: {containerLogMaxSize: big}`, `containerLogMaxSize: "big" is no quantity`},
		{`kubeletConfig: {reservedSystemCPUs: all}`, `reservedSystemCPUs: "all" is no list of CPUs`},
		{`kubeletConfig: {maxParallelImagePulls: 5}`, "maxParallelImagePulls: more than 1 needs serializeImagePulls: false"},
		{`kubeletConfig: {systemCgroups: /a}`, "systemCgroups: needs cgroupRoot"},
		{`kubeletConfig: {cgroupRoot: /, systemCgroups: /a, systemReservedCgroup: /b}`,
			"systemReservedCgroup: /b is not systemCgroups, /a"},
		{`kubeletConfig: {enforceNodeAllocatable: [pods, pods]}`, "enforceNodeAllocatable: pods is there twice"},
		{`kubeletConfig: {enforceNodeAllocatable: [none, pods]}`, "enforceNodeAllocatable: none excludes all others"},
		{`kubeletConfig: {enforceNodeAllocatable: [system-reserved]}`, "system-reserved needs systemReservedCgroup"},
		{`kubeletConfig: {runOnce: true}`, "runOnce: "},
		{`logLevel: 11`, "spec.logLevel: 11 is not between 0 and 10"},
		{`{logLevel: 3, kubeletConfig: {logging: {verbosity: 3}}}`, "spec.logLevel can't be set together with"},
		{`{autoSizingReserved: true, kubeletConfig: {systemReserved: {cpu: 1}}}`,
			"systemReserved: must be of type string and is a number"},
		{`{autoSizingReserved: true, kubeletConfig: {systemReserved: {cpu: "1"}}}`,
			"spec.autoSizingReserved can't be set together with spec.kubeletConfig.systemReserved"},
		{`tlsSecurityProfile: {type: New}`, `spec.tlsSecurityProfile.type: "New" is not one of`},
		{`tlsSecurityProfile: {type: Custom}`, "spec.tlsSecurityProfile.custom: is missing"},
		{`tlsSecurityProfile: {type: Custom, custom: {ciphers: [ROT13], minTLSVersion: VersionTLS12}}`,
			"spec.tlsSecurityProfile.custom.ciphers: a kubelet can negotiate none of"},
	} {
		t.Run(test.spec, func(t *testing.T) {
			spec := &mcfgv1.KubeletConfigSpec{}
			if err := yaml.UnmarshalStrict([]byte(test.spec), spec); err != nil {
				t.Fatal(err)
			}
			_, err := settings{pool: "worker", doc: document{}}.apply(spec)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "spec.") {
				t.Errorf("%v does not begin with a field", err)
			}
		})
	}
}

func TestWhatKubeletsTakeIsTaken(t *testing.T) {
	for _, text := range []string{
		`kubeletConfig: {kind: KubeletConfiguration, apiVersion: kubelet.config.k8s.io/v1beta1, maxPods: 500}`,
		`kubeletConfig: {featureGates: {InPlacePodVerticalScaling: false}}`,
		`kubeletConfig: {staticPodPath: ""}`,
		`kubeletConfig: {evictionSoft: {memory.available: 5%}, evictionSoftGracePeriod: {memory.available: 1m30s}}`,
		`kubeletConfig: {systemReserved: {cpu: 500m, memory: 1Gi, ephemeral-storage: 1Gi, pid: "100"}}`,
		`kubeletConfig: {serializeImagePulls: false, maxParallelImagePulls: 5, reservedSystemCPUs: "0-3,8"}`,
		`kubeletConfig: {registerWithTaints: [{key: a, value: b, effect: NoSchedule}]}`,
		`kubeletConfig: {cpuManagerPolicy: static, topologyManagerPolicy: single-numa-node, podPidsLimit: -1}`,
		`{logLevel: 0, kubeletConfig: {logging: {format: json}}}`,
		`{}`,
	} {
		spec := &mcfgv1.KubeletConfigSpec{}
		if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
			t.Fatal(err)
		}
		if _, err := (settings{pool: "worker", doc: document{}}).apply(spec); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestTheControlPlaneKeepsItsStaticPods(t *testing.T) {
	spec := &mcfgv1.KubeletConfigSpec{}
	if err := yaml.UnmarshalStrict([]byte(`kubeletConfig: {staticPodPath: ""}`), spec); err != nil {
		t.Fatal(err)
	}
	for _, pool := range []string{"master", "control-plane"} {
		if _, err := (settings{pool: pool, doc: document{}}).apply(spec); err == nil {
			t.Errorf("%s lets its pods go", pool)
		}
	}
}

func TestATLSProfileBecomesWhatKubeletsCallIt(t *testing.T) {
	for _, test := range []struct {
		spec, version string
		has           string
		hasNot        string
	}{
		{`tlsSecurityProfile: {type: Modern}`, "VersionTLS13", "TLS_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"},
		{`tlsSecurityProfile: {}`, "VersionTLS12", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"},
		{`tlsSecurityProfile: {type: Old}`, "VersionTLS10", "TLS_RSA_WITH_AES_128_CBC_SHA", "AES256-SHA256"},
		{`tlsSecurityProfile: {type: Custom, custom: {ciphers: [ECDHE-RSA-AES128-GCM-SHA256], minTLSVersion: VersionTLS11}}`,
			"VersionTLS11", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"},
		{`{tlsSecurityProfile: {type: Old}, kubeletConfig: {tlsMinVersion: VersionTLS12}}`, "VersionTLS12",
			"TLS_RSA_WITH_AES_128_CBC_SHA", "AES256-SHA256"},
	} {
		spec := &mcfgv1.KubeletConfigSpec{}
		if err := yaml.UnmarshalStrict([]byte(test.spec), spec); err != nil {
			t.Fatal(err)
		}
		s, err := settings{pool: "worker", doc: document{}}.apply(spec)
		if err != nil {
			t.Fatal(err)
		}
		suites, _ := s.doc["tlsCipherSuites"].([]any)
		if s.doc["tlsMinVersion"] != test.version || !slices.Contains(suites, any(test.has)) ||
			slices.Contains(suites, any(test.hasNot)) {
			t.Errorf("%s: %v", test.spec, s.doc)
		}
	}
}

// The script runs here as it does on a host.
func TestTheHostReservesAsOpenShiftDoes(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct{ kib, processors, on, want string }{
		{"4000000", "2", "true", `{"memory": "1Gi", "cpu": "500m", "ephemeral-storage": "1Gi"}`},
		{"33554432", "64", "true", `{"memory": "2Gi", "cpu": "816m", "ephemeral-storage": "1Gi"}`},
		{"536870912", "256", "true", `{"memory": "16Gi", "cpu": "3120m", "ephemeral-storage": "1Gi"}`},
		{"536870912", "256", "false", ""},
	} {
		script, out, memory := filepath.Join(dir, "sh"), filepath.Join(dir, "out"), filepath.Join(dir, "meminfo")
		for name, text := range map[string]string{script: calculator, memory: "MemTotal:       " + test.kib + " kB\n"} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), "/bin/sh", script, out)
		cmd.Env = append(os.Environ(), "MEMINFO="+memory, "PROCESSORS="+test.processors, sizingEnabled+test.on)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := parse(text)
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if err := ofKind(doc, false); err != nil {
			t.Error(err)
		}
		if err := check(doc); err != nil {
			t.Error(err)
		}
		if test.want == "" && doc["systemReserved"] != nil || !strings.Contains(string(text), test.want) {
			t.Errorf("%s, %s: %s", test.kib, test.processors, text)
		}
	}
}
