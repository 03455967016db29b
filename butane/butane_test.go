// SPDX-License-Identifier: Apache-2.0

package butane

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/coreos/butane/config"
	"github.com/coreos/butane/config/common"
)

// The library keeps its list to itself.
func TestTheVariantsOfButaneThatAreListedAreThere(t *testing.T) {
	t.Parallel()
	for _, v := range variants {
		for version := range strings.FieldsSeq(strings.NewReplacer("to", "", "and", "").Replace(v.versions)) {
			_, _, err := config.TranslateBytes([]byte("variant: "+v.name+"\nversion: "+version+"\n"), common.TranslateBytesOptions{})
			if _, unknown := errors.AsType[common.ErrUnknownVersion](err); unknown {
				t.Error(err)
			}
		}
		last := strings.Fields(v.versions)
		major, minor, patch := 0, 0, 0
		if _, err := fmt.Sscanf(last[len(last)-1], "%d.%d.%d", &major, &minor, &patch); err != nil {
			t.Fatal(err)
		}
		next := fmt.Sprintf("variant: %s\nversion: %d.%d.%d\n", v.name, major, minor+1, patch)
		_, _, err := config.TranslateBytes([]byte(next), common.TranslateBytesOptions{})
		if _, unknown := errors.AsType[common.ErrUnknownVersion](err); !unknown {
			t.Errorf("there is a later version of %s than %s: %v", v.name, v.versions, err)
		}
	}
}
