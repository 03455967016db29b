// SPDX-License-Identifier: Apache-2.0

package ostree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTextsInTheMetadataOfACommitAreRead(t *testing.T) {
	data, err := os.ReadFile("testdata/image.commit")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	path := filepath.Join(root, objectPath(one))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	p := NewPlain(nil, root)
	texts, err := p.CommitTexts(one)
	if err != nil || len(texts) != 2 || texts["ostree.manifest-digest"] != "sha256:"+one ||
		!strings.HasPrefix(texts["ostree.manifest"], "{") || !strings.HasSuffix(texts["ostree.manifest"], "]}") {
		t.Errorf("%q, %v", texts, err)
	}
	for name, broken := range map[string][]byte{"empty": nil, "cut": data[:40], "no commit": []byte("commit\n")} {
		if texts, err := commitTexts(broken); err == nil {
			t.Errorf("%s gives %q", name, texts)
		}
	}
	if _, err := p.CommitTexts(two); err == nil || !strings.Contains(err.Error(), two) {
		t.Errorf("one that is not there: %v", err)
	}
	if _, err := p.CommitTexts("../x"); err == nil {
		t.Error("a path is a checksum")
	}
}
