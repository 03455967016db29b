// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func TestFieldsThatAProgramPrintsWithoutAValueOverrideNothing(t *testing.T) {
	const below = `{"containerRuntimeEndpoint":"unix:///run/crio/crio.sock","nodeStatusUpdateFrequency":"20s",` +
		`"shutdownGracePeriod":"40s","shutdownGracePeriodCriticalPods":"10s","logging":{"verbosity":4},` +
		`"authentication":{"x509":{"clientCAFile":"/etc/ca"},"webhook":{"cacheTTL":"1m"}}}`
	typed, err := json.Marshal(&kubeletv1beta1.KubeletConfiguration{CPUManagerPolicy: "static"})
	if err != nil {
		t.Fatal(err)
	}
	level := int32(6)
	for _, test := range []struct {
		name, raw string
		level     *int32
		change    func(document)
	}{
		{"serialised by a program", string(typed), nil, func(d document) { d["cpuManagerPolicy"] = "static" }},
		{"with a log level beside it", string(typed), &level, func(d document) {
			d["cpuManagerPolicy"], d["logging"] = "static", document{"verbosity": int64(6)}
		}},
		{"written by a person", `{"shutdownGracePeriod":"0s","shutdownGracePeriodCriticalPods":"0s"}`, nil, func(d document) {
			d["shutdownGracePeriod"], d["shutdownGracePeriodCriticalPods"] = "0s", "0s"
		}},
		{"by a person who writes a duration of 0 that a kubelet takes for its default",
			`{"evictionPressureTransitionPeriod":"0s","shutdownGracePeriod":"0s",` +
				`"shutdownGracePeriodCriticalPods":"0s","logging":{"verbosity":0}}`, nil,
			func(d document) {
				d["evictionPressureTransitionPeriod"] = "0s"
				d["shutdownGracePeriod"], d["shutdownGracePeriodCriticalPods"] = "0s", "0s"
				d["logging"] = document{"verbosity": int64(0)}
			}},
	} {
		base, err := parse([]byte(below))
		if err != nil {
			t.Fatal(err)
		}
		want, err := copied(base)
		if err != nil {
			t.Fatal(err)
		}
		test.change(want)
		got, err := settings{pool: "worker", whole: true, doc: base}.apply(&mcfgv1.KubeletConfigSpec{
			KubeletConfig: &runtime.RawExtension{Raw: []byte(test.raw)}, LogLevel: test.level,
		})
		if diff := cmp.Diff(want, got.doc); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", test.name, err, diff)
		}
	}
}
