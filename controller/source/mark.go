// SPDX-License-Identifier: Apache-2.0

package source

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/noderefit/noderefit/api"
)

// Mark returns the value of the annotation api.MadeAs for a MachineConfig of templates: its name, a slash, and a digest
// of its spec.
func Mark(mc *mcfgv1.MachineConfig) string {
	sum := sha256.Sum256([]byte(canonical(&mc.Spec)))
	return mc.Name + "/" + hex.EncodeToString(sum[:])
}

// Marked reports whether a MachineConfig has a mark of templates, and whether the mark was made for its name. A copy
// has the mark of another name.
func Marked(mc metav1.Object) (marked, own bool) {
	made, marked := mc.GetAnnotations()[api.MadeAs]
	return marked, strings.HasPrefix(made, mc.GetName()+"/")
}

// Altered reports whether the spec of a MachineConfig was changed since templates made it. The template controller is
// about to undo such a change.
func Altered(mc *mcfgv1.MachineConfig) bool {
	_, own := Marked(mc)
	return own && mc.Annotations[api.MadeAs] != Mark(mc)
}

// canonical returns a spec as JSON, the same for every spelling of the same content.
func canonical(s *mcfgv1.MachineConfigSpec) string {
	rest := *s
	rest.Config.Raw = nil
	var config any
	if len(s.Config.Raw) > 0 {
		if err := json.Unmarshal(s.Config.Raw, &config); err != nil {
			return "not JSON " + string(s.Config.Raw)
		}
	}
	for _, list := range []*[]string{&rest.KernelArguments, &rest.Extensions} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	text, err := json.Marshal([]any{config, rest})
	if err != nil {
		return "not JSON " + err.Error()
	}
	return string(text)
}
