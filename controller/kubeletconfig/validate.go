// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	kjson "sigs.k8s.io/json"
)

// document is a KubeletConfiguration as written. A field that is missing in it was not set, so false and 0 are values
// like any other.
type document = map[string]any

const documentKind = "KubeletConfiguration"

var documentVersion = kubeletv1beta1.SchemeGroupVersion.String()

// reserved are the fields that a KubeletConfig may not set, and why. Each has to agree with something that is set
// elsewhere.
var reserved = []struct{ path, because string }{
	{"cgroupDriver", "has to be the container runtime's"},
	{"clusterDNS", "is the cluster's"},
	{"clusterDomain", "is the cluster's"},
	{"failSwapOn", "is the host's"},
	{"memorySwap.swapBehavior", "is the host's"},
}

// read decodes a KubeletConfig's part of the kubelet's configuration. Errors name each field that is unknown, has the
// wrong type, or may not be set, by its path in spec.kubeletConfig.
func read(raw []byte) (document, error) {
	doc := document{}
	if len(raw) == 0 {
		return doc, nil
	}
	strict, err := kjson.UnmarshalStrict(raw, &doc)
	if err != nil {
		return nil, fmt.Errorf("spec.kubeletConfig: %w", err)
	}
	if doc == nil {
		return document{}, nil
	}
	problems := strict
	if err := ofKind(doc, true); err != nil {
		problems = append(problems, err)
	}
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		problems = append(problems, checkField(key, doc[key])...)
	}
	for _, r := range reserved {
		if at(doc, r.path) != nil {
			problems = append(problems, fmt.Errorf("%s may not be set: it %s", r.path, r.because))
		}
	}
	for i, p := range problems {
		problems[i] = fmt.Errorf("spec.kubeletConfig: %w", p)
	}
	return doc, errors.Join(problems...)
}

// ofKind returns an error unless a document is a KubeletConfiguration. With unsaid, a document without kind and
// apiVersion passes.
func ofKind(doc document, unsaid bool) error {
	for _, field := range [][2]string{{"kind", documentKind}, {"apiVersion", documentVersion}} {
		if is, said := doc[field[0]]; (said || !unsaid) && is != field[1] {
			return fmt.Errorf("%s has to be %s", field[0], field[1])
		}
	}
	return nil
}

// checkField decodes one field by itself, because not all errors of the decoder name their field.
func checkField(key string, value any) []error {
	if path := null(key, value); path != "" {
		return []error{fmt.Errorf("%s is null: leave it out, or give it a value", path)}
	}
	one, err := json.Marshal(document{key: value})
	if err != nil {
		return []error{fmt.Errorf("%s: %w", key, err)}
	}
	strict, err := kjson.UnmarshalStrict(one, &kubeletv1beta1.KubeletConfiguration{})
	if err == nil {
		return strict
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return []error{fmt.Errorf("%s: must be of type %s and is a %s", cmp.Or(wrong.Field, key), wrong.Type, wrong.Value)}
	}
	return []error{fmt.Errorf("%s: %w", key, err)}
}

// null returns the path of the first null in a value, and "" if the value has none.
func null(path string, value any) string {
	switch v := value.(type) {
	case nil:
		return path
	case document:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if found := null(path+"."+key, v[key]); found != "" {
				return found
			}
		}
	case []any:
		for i, e := range v {
			if found := null(fmt.Sprintf("%s[%d]", path, i), e); found != "" {
				return found
			}
		}
	}
	return ""
}

// at returns the value at a dotted path, and nil if the path does not exist.
func at(doc document, path string) any {
	var value any = doc
	for key := range strings.SplitSeq(path, ".") {
		inner, ok := value.(document)
		if !ok {
			return nil
		}
		value = inner[key]
	}
	return value
}

// checker collects what is impossible in a configuration, by field.
type checker struct{ problems []error }

func (c *checker) say(ok bool, field, format string, args ...any) {
	if !ok {
		c.problems = append(c.problems, fmt.Errorf("spec.kubeletConfig: %s: "+format, append([]any{field}, args...)...))
	}
}

// number checks a number that was set. most is no limit if it is 0.
func number[T int32 | int64](c *checker, field string, value *T, least, most T) {
	if value == nil {
		return
	}
	if most == 0 {
		c.say(*value >= least, field, "%d is less than %d", *value, least)
		return
	}
	c.say(*value >= least && *value <= most, field, "%d is not between %d and %d", *value, least, most)
}

func (c *checker) oneOf(field, value string, choice ...string) {
	c.say(value == "" || slices.Contains(choice, value), field, "%q is not one of %s", value, strings.Join(choice, ", "))
}

var (
	cpus    = regexp.MustCompile(`^\d+(-\d+)?(,\d+(-\d+)?)*$`)
	percent = regexp.MustCompile(`^(\d+(?:\.\d+)?)%$`)
	// reservable are the resources that can be reserved. signals are the signals that an eviction can depend on.
	reservable = []string{"cpu", "ephemeral-storage", "memory", "pid"}
	signals    = []string{
		"allocatableMemory.available", "containerfs.available", "containerfs.inodesFree", "imagefs.available",
		"imagefs.inodesFree", "memory.available", "nodefs.available", "nodefs.inodesFree", "pid.available",
	}
)

// check returns why no kubelet, on any host, would start with a whole configuration, by the rules of Kubernetes' own
// validation. Rules that depend on the kubelet's version or its feature gates are left to the kubelet.
func check(doc document) error {
	raw, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("spec.kubeletConfig: %w", err)
	}
	kc := &kubeletv1beta1.KubeletConfiguration{}
	if err := json.Unmarshal(raw, kc); err != nil {
		return fmt.Errorf("spec.kubeletConfig: %w", err)
	}
	c := &checker{}
	c.numbers(kc)
	c.durations(kc)
	c.choices(kc)
	c.resources(kc)
	c.together(kc)
	slices.SortFunc(c.problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(c.problems...)
}

func (c *checker) numbers(kc *kubeletv1beta1.KubeletConfiguration) {
	number(c, "maxPods", &kc.MaxPods, 0, 0)
	number(c, "podsPerCore", &kc.PodsPerCore, 0, 0)
	number(c, "podPidsLimit", kc.PodPidsLimit, -1, 0)
	number(c, "maxOpenFiles", &kc.MaxOpenFiles, 0, 0)
	number(c, "eventBurst", &kc.EventBurst, 0, 0)
	number(c, "eventRecordQPS", kc.EventRecordQPS, 0, 0)
	number(c, "kubeAPIBurst", &kc.KubeAPIBurst, 0, 0)
	number(c, "kubeAPIQPS", kc.KubeAPIQPS, 0, 0)
	number(c, "registryBurst", &kc.RegistryBurst, 0, 0)
	number(c, "registryPullQPS", kc.RegistryPullQPS, 0, 0)
	number(c, "nodeLeaseDurationSeconds", &kc.NodeLeaseDurationSeconds, 0, 0)
	number(c, "evictionMaxPodGracePeriod", &kc.EvictionMaxPodGracePeriod, 0, 0)
	number(c, "nodeStatusMaxImages", kc.NodeStatusMaxImages, -1, 0)
	number(c, "maxParallelImagePulls", kc.MaxParallelImagePulls, 1, 0)
	number(c, "containerLogMaxFiles", kc.ContainerLogMaxFiles, 2, 0)
	number(c, "containerLogMaxWorkers", kc.ContainerLogMaxWorkers, 1, 0)
	number(c, "port", &kc.Port, 0, 65535)
	number(c, "readOnlyPort", &kc.ReadOnlyPort, 0, 65535)
	number(c, "healthzPort", kc.HealthzPort, 0, 65535)
	number(c, "oomScoreAdj", kc.OOMScoreAdj, -1000, 1000)
	number(c, "iptablesMasqueradeBit", kc.IPTablesMasqueradeBit, 0, 31)
	number(c, "iptablesDropBit", kc.IPTablesDropBit, 0, 31)
	number(c, "imageGCHighThresholdPercent", kc.ImageGCHighThresholdPercent, 0, 100)
	number(c, "imageGCLowThresholdPercent", kc.ImageGCLowThresholdPercent, 0, 100)
	if f := kc.MemoryThrottlingFactor; f != nil {
		c.say(*f > 0 && *f <= 1, "memoryThrottlingFactor", "%v is not above 0 and at most 1", *f)
	}
}

func (c *checker) durations(kc *kubeletv1beta1.KubeletConfiguration) {
	for field, d := range map[string]metav1.Duration{
		"syncFrequency": kc.SyncFrequency, "fileCheckFrequency": kc.FileCheckFrequency,
		"httpCheckFrequency":        kc.HTTPCheckFrequency,
		"nodeStatusUpdateFrequency": kc.NodeStatusUpdateFrequency, "nodeStatusReportFrequency": kc.NodeStatusReportFrequency,
		"imageMinimumGCAge": kc.ImageMinimumGCAge, "imageMaximumGCAge": kc.ImageMaximumGCAge,
		"cpuManagerReconcilePeriod": kc.CPUManagerReconcilePeriod, "runtimeRequestTimeout": kc.RuntimeRequestTimeout,
		"evictionPressureTransitionPeriod": kc.EvictionPressureTransitionPeriod,
	} {
		c.say(d.Duration >= 0, field, "%s is negative", d.Duration)
	}
	if d := kc.CPUCFSQuotaPeriod; d != nil {
		c.say(d.Duration >= time.Millisecond && d.Duration <= time.Second, "cpuCFSQuotaPeriod",
			"%s is not between 1ms and 1s", d.Duration)
	}
	if d := kc.ContainerLogMonitorInterval; d != nil {
		c.say(d.Duration >= 3*time.Second, "containerLogMonitorInterval", "%s is less than 3s", d.Duration)
	}
	if d := kc.CrashLoopBackOff.MaxContainerRestartPeriod; d != nil {
		c.say(d.Duration >= time.Second && d.Duration <= 5*time.Minute, "crashLoopBackOff.maxContainerRestartPeriod",
			"%s is not between 1s and 5m", d.Duration)
	}
	for field, d := range map[string]time.Duration{
		"shutdownGracePeriod":             kc.ShutdownGracePeriod.Duration,
		"shutdownGracePeriodCriticalPods": kc.ShutdownGracePeriodCriticalPods.Duration,
	} {
		c.say(d == 0 || d >= time.Second, field, "%s is neither 0 nor at least 1s", d)
	}
}

func (c *checker) choices(kc *kubeletv1beta1.KubeletConfiguration) {
	c.oneOf("cpuManagerPolicy", kc.CPUManagerPolicy, "none", "static")
	c.oneOf("memoryManagerPolicy", kc.MemoryManagerPolicy, "None", "Static")
	c.oneOf("topologyManagerPolicy", kc.TopologyManagerPolicy, "none", "best-effort", "restricted", "single-numa-node")
	c.oneOf("topologyManagerScope", kc.TopologyManagerScope, "container", "pod")
	c.oneOf("hairpinMode", kc.HairpinMode, "promiscuous-bridge", "hairpin-veth", "none")
	c.oneOf("configMapAndSecretChangeDetectionStrategy", string(kc.ConfigMapAndSecretChangeDetectionStrategy),
		"Get", "Cache", "Watch")
	c.oneOf("imagePullCredentialsVerificationPolicy", string(kc.ImagePullCredentialsVerificationPolicy),
		"NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify")
	c.oneOf("memoryReservationPolicy", string(kc.MemoryReservationPolicy), "None", "TieredReservation")
	c.oneOf("authorization.mode", string(kc.Authorization.Mode), "AlwaysAllow", "Webhook")
	c.oneOf("logging.format", kc.Logging.Format, "text", "json")
	c.oneOf("tlsMinVersion", kc.TLSMinVersion, "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13")
	for _, name := range kc.TLSCipherSuites {
		c.oneOf("tlsCipherSuites", name, suites()...)
	}
	c.say(!kc.RunOnce, "runOnce", "kubelets can't be run that way any more")
	for _, taint := range kc.RegisterWithTaints {
		c.oneOf("registerWithTaints", string(taint.Effect), string(corev1.TaintEffectNoSchedule),
			string(corev1.TaintEffectPreferNoSchedule), string(corev1.TaintEffectNoExecute))
		c.say(taint.Key != "" && taint.Effect != "", "registerWithTaints", "a taint needs a key and an effect")
	}
}

// suites returns the names of the cipher suites that can be negotiated.
func suites() []string {
	var out []string
	for _, s := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		out = append(out, s.Name)
	}
	return out
}

func (c *checker) quantity(field, value string) {
	q, err := resource.ParseQuantity(value)
	c.say(err == nil, field, "%q is no quantity", value)
	c.say(err != nil || q.Sign() >= 0, field, "%s is negative", value)
}

func (c *checker) share(field, value string) bool {
	m := percent.FindStringSubmatch(value)
	if m == nil {
		return false
	}
	share, err := strconv.ParseFloat(m[1], 64)
	c.say(err == nil && share <= 100, field, "%s is more than 100%%", value)
	return true
}

func (c *checker) resources(kc *kubeletv1beta1.KubeletConfiguration) {
	for field, m := range map[string]map[string]string{
		"systemReserved": kc.SystemReserved, "kubeReserved": kc.KubeReserved,
	} {
		for name, value := range m {
			c.oneOf(field, name, reservable...)
			c.quantity(field+"."+name, value)
		}
	}
	for field, m := range map[string]map[string]string{
		"evictionHard": kc.EvictionHard, "evictionSoft": kc.EvictionSoft, "evictionMinimumReclaim": kc.EvictionMinimumReclaim,
	} {
		for signal, value := range m {
			c.oneOf(field, signal, signals...)
			if !c.share(field+"."+signal, value) {
				c.quantity(field+"."+signal, value)
			}
		}
	}
	for signal, value := range kc.EvictionSoftGracePeriod {
		c.oneOf("evictionSoftGracePeriod", signal, signals...)
		d, err := time.ParseDuration(value)
		c.say(err == nil && d >= 0, "evictionSoftGracePeriod."+signal, "%q is no duration, such as 1m30s", value)
	}
	for signal := range kc.EvictionSoft {
		c.say(kc.EvictionSoftGracePeriod[signal] != "", "evictionSoft."+signal, "needs its evictionSoftGracePeriod")
	}
	for name, value := range kc.QOSReserved {
		c.oneOf("qosReserved", name, "memory")
		c.say(c.share("qosReserved."+name, value), "qosReserved."+name, "%q is no percentage", value)
	}
	if kc.ContainerLogMaxSize != "" {
		c.quantity("containerLogMaxSize", kc.ContainerLogMaxSize)
	}
	c.say(kc.ReservedSystemCPUs == "" || cpus.MatchString(kc.ReservedSystemCPUs), "reservedSystemCPUs",
		"%q is no list of CPUs, such as 0-3,8", kc.ReservedSystemCPUs)
}

// together checks rules about several fields.
func (c *checker) together(kc *kubeletv1beta1.KubeletConfiguration) {
	high, low := int32(85), int32(80) // the kubelet's defaults
	if kc.ImageGCHighThresholdPercent != nil {
		high = *kc.ImageGCHighThresholdPercent
	}
	if kc.ImageGCLowThresholdPercent != nil {
		low = *kc.ImageGCLowThresholdPercent
	}
	c.say(low < high, "imageGCLowThresholdPercent", "%d is not less than imageGCHighThresholdPercent, %d", low, high)
	least, most := kc.ImageMinimumGCAge.Duration, kc.ImageMaximumGCAge.Duration
	c.say(most == 0 || most > least, "imageMaximumGCAge", "%s is not more than imageMinimumGCAge, %s", most, least)
	critical, all := kc.ShutdownGracePeriodCriticalPods.Duration, kc.ShutdownGracePeriod.Duration
	c.say(critical <= all, "shutdownGracePeriodCriticalPods", "%s is more than shutdownGracePeriod, %s", critical, all)
	c.say(len(kc.ShutdownGracePeriodByPodPriority) == 0 || critical == 0 && all == 0, "shutdownGracePeriodByPodPriority",
		"can't be set together with shutdownGracePeriod")
	if pulls := kc.MaxParallelImagePulls; pulls != nil && *pulls > 1 {
		c.say(kc.SerializeImagePulls != nil && !*kc.SerializeImagePulls, "maxParallelImagePulls",
			"more than 1 needs serializeImagePulls: false")
	}
	c.say(kc.SystemCgroups == "" || kc.CgroupRoot != "", "systemCgroups", "needs cgroupRoot")
	c.say(kc.SystemReservedCgroup == "" || kc.SystemCgroups == "" || kc.SystemReservedCgroup == kc.SystemCgroups,
		"systemReservedCgroup", "%s is not systemCgroups, %s", kc.SystemReservedCgroup, kc.SystemCgroups)
	c.say(kc.ReservedSystemCPUs == "" || kc.SystemReservedCgroup == "" && kc.KubeReservedCgroup == "",
		"reservedSystemCPUs", "can't be set together with systemReservedCgroup or kubeReservedCgroup")
	c.enforcement(kc)
}

func (c *checker) enforcement(kc *kubeletv1beta1.KubeletConfiguration) {
	const field = "enforceNodeAllocatable"
	seen := map[string]bool{}
	for _, what := range kc.EnforceNodeAllocatable {
		c.oneOf(field, what, "pods", "system-reserved", "system-reserved-compressible", "kube-reserved",
			"kube-reserved-compressible", "none")
		c.say(!seen[what], field, "%s is there twice", what)
		seen[what] = true
		c.say(!strings.HasPrefix(what, "system-reserved") || kc.SystemReservedCgroup != "", field,
			"%s needs systemReservedCgroup", what)
		c.say(!strings.HasPrefix(what, "kube-reserved") || kc.KubeReservedCgroup != "", field,
			"%s needs kubeReservedCgroup", what)
		c.say(what == "none" || kc.CgroupsPerQOS == nil || *kc.CgroupsPerQOS, field, "%s needs cgroupsPerQOS", what)
	}
	c.say(!seen["none"] || len(seen) == 1, field, "none excludes all others")
	for _, what := range []string{"system-reserved", "kube-reserved"} {
		c.say(!seen[what] || !seen[what+"-compressible"], field, "%s and %s-compressible exclude each other", what, what)
	}
}
