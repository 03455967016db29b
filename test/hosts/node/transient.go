// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	units "github.com/noderefit/noderefit/agent"
	"github.com/noderefit/noderefit/plan"
	"github.com/noderefit/noderefit/test/lab"
)

// TransientImage makes a commit of base with a transient /etc, the units that such an image needs except for those that
// are left out, some texts, and links that are named like the unit that they lead to.
func (n *Node) TransientImage(ctx context.Context, ref, base string, texts map[string]string, links []string,
	without ...string) error {
	const dir = "/usr/lib/systemd/system/"
	tree := "/var/tmp/" + ref
	all := map[string]string{"/usr/lib/ostree/prepare-root.conf": "[etc]\ntransient=true\n"}
	maps.Copy(all, texts)
	for name, text := range units.ImageUnits() {
		if !slices.Contains(without, name) {
			all[dir+name] = text
		}
	}
	links = slices.Clone(links)
	for _, target := range plan.WantedBy() {
		for _, name := range units.BootUnits {
			links = append(links, dir+target+".wants/"+name)
		}
	}
	for at, text := range all {
		at = n.HostPath(tree + at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	for _, at := range links {
		at = n.HostPath(tree + at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink("../"+filepath.Base(at), at)); err != nil {
			return err
		}
	}
	_, err := n.Output(ctx, "ostree", "commit", "--repo=/ostree/repo", "--branch="+ref, "--bootable", "--no-bindings",
		"--owner-uid=0", "--owner-gid=0", "--tree=ref="+base, "--tree=dir="+tree)
	return errors.Join(err, lab.RemoveTree(n.HostPath(tree)))
}

// TransientEtc boots the host into an image with a transient /etc, as a machine that was installed from it. The ref of
// the image is "transient".
func (n *Node) TransientEtc(ctx context.Context, texts map[string]string, links []string, without ...string) error {
	if err := n.TransientImage(ctx, "transient", lab.RefV1, texts, links, without...); err != nil {
		return err
	}
	if _, err := n.Output(ctx, "ostree", "admin", "deploy", "--os="+lab.OS, "transient"); err != nil {
		return err
	}
	if err := n.Reboot(ctx); err != nil {
		return err
	}
	kind, err := n.Output(ctx, "findmnt", "-no", "FSTYPE", "/etc")
	if err == nil && strings.TrimSpace(kind) != "overlay" {
		err = fmt.Errorf("/etc is %s", kind)
	}
	return err
}
