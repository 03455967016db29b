// SPDX-License-Identifier: Apache-2.0

package signature

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/noderefit/noderefit/api"
	"github.com/noderefit/noderefit/machineconfig"
)

// Dir is the trust directory of a host. Where the directory exists, the host accepts only what one of its keys signed.
const Dir = "/etc/noderefit/trust.d"

// Field is the field of a document that is to blame where a signature is missing.
const Field = "annotation " + api.SignaturesKey

// NoHooks is why a host that demands signatures runs no hook of the cluster.
const NoHooks = "the host demands signatures (" + Dir + "), and no signature covers a NodeHook: bring the hook as a " +
	"file of a signed configuration, and take its name out of the pool's annotation " + api.HooksKey

// Tree is the file system of a host.
type Tree interface {
	ReadDir(name string) ([]string, error)
	ReadFile(name string) ([]byte, error)
	// Exposed returns a path that other users than root can write to, "" where name is not exposed.
	Exposed(name string) string
}

// isKey reports whether a file in the trust directory is read as a key.
func isKey(name string) bool {
	return !strings.HasPrefix(name, ".") && (strings.HasSuffix(name, ".pem") || strings.HasSuffix(name, ".pub"))
}

// Demanded reports whether a host demands signatures. A directory that can't be read counts as one that does.
func Demanded(t Tree) bool {
	_, err := t.ReadDir(Dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// trusted returns the keys of a host. names has the files with these keys, and left what is wrong with other files.
func trusted(t Tree) (keys []Key, names, left []string, err error) {
	entries, err := t.ReadDir(Dir)
	if err != nil {
		return nil, nil, nil, err
	}
	if exposed := t.Exposed(path.Join(Dir, "key.pem")); exposed != "" && !strings.HasPrefix(exposed, Dir+"/") {
		return nil, nil, nil, fmt.Errorf("users other than root can write to %s", exposed)
	}
	for _, name := range entries {
		if !isKey(name) {
			continue
		}
		file := path.Join(Dir, name)
		if t.Exposed(file) != "" {
			left = append(left, name+": users other than root can write to the file")
			continue
		}
		data, err := t.ReadFile(file)
		var found []Key
		if err == nil {
			found, err = ParseKeys(data)
		}
		if err != nil {
			left = append(left, name+": "+err.Error())
			continue
		}
		keys, names = append(keys, found...), append(names, name)
	}
	return keys, names, left, nil
}

// Refusal returns why a host refuses a configuration, "" where the host does not. What can't be read is refused.
func Refusal(t Tree, cfg *machineconfig.Config) string {
	if why := locksOut(cfg); why != "" {
		return why
	}
	if !Demanded(t) {
		return ""
	}
	keys, names, left, err := trusted(t)
	var why string
	switch {
	case err != nil:
		return fmt.Sprintf("the host demands a signature, and can't read the keys in %s: %v", Dir, err)
	case len(keys) == 0:
		why = "the directory has no key"
	case cfg.Former != "" && cfg.Former == cfg.Digest:
		return "the host demands a signature, and the digest that an older version gave can't be signed: render it again"
	default:
		text, digest := "", cmp.Or(cfg.Template, cfg.Digest) // nobody can sign what a node makes of its values
		if cfg.Object != nil {
			text = cfg.Object.Annotations[api.SignaturesKey]
		}
		if why = Missing(keys, digest, text); why == "" {
			return ""
		}
	}
	out := fmt.Sprintf("the host demands a signature by a key in %s", Dir)
	if len(names) > 0 {
		out += " (" + strings.Join(names, ", ") + ")"
	}
	out += ": " + why
	if len(left) > 0 {
		out += "; not used: " + strings.Join(left, "; ")
	}
	return out + "; sign it with kubectl refit sign, or change the keys on the host"
}

// locksOut returns what is wrong with the keys that a configuration brings, "" where nothing is. A host with keys that
// can't be read would accept no configuration any more.
func locksOut(cfg *machineconfig.Config) string {
	for _, f := range cfg.Files {
		if path.Dir(f.Path) != Dir || !isKey(path.Base(f.Path)) {
			continue
		}
		if f.FromValues {
			return f.Path + ": a value of the node may not decide which keys the host trusts"
		}
		if f.Reference != nil || f.NoContents {
			return f.Path + ": a key has to have its contents in the configuration"
		}
		if f.Mode&0o022 != 0 {
			return f.Path + ": users other than root could write to the key"
		}
		if _, err := ParseKeys(f.Contents); err != nil {
			return fmt.Sprintf("%s: %v: the host would accept no later configuration", f.Path, err)
		}
	}
	return ""
}
