// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/noderefit/noderefit/test/lab"
)

// rpmTree is a tree in which packages are installed: that of a fresh lab host, below what is written.
type rpmTree struct {
	*testing.T

	ctx         context.Context //nolint:containedctx // that of the test
	lower, work string
}

// try runs rpm for the tree, which is mounted for the command alone.
func (r rpmTree) try(args ...string) (string, error) {
	r.Helper()
	const mounted = `mount -t overlay overlay -o "lowerdir=$0,upperdir=$1/upper,workdir=$1/work" "$1/tree"
mount --bind /proc "$1/tree/proc"
mount --bind /dev "$1/tree/dev"
shift
exec rpm --root "$@"`
	return run(r.ctx, r.T, "", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, append([]string{"unshare", "--mount",
		"--propagation=private", "sh", "-ec", mounted, r.lower, r.work, filepath.Join(r.work, "tree"), "--dbpath=/var/lib/rpm"}, args...)...)
}

func (r rpmTree) does(args ...string) string {
	r.Helper()
	out, err := r.try(args...)
	if err != nil {
		r.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// written lists the files that are above the lower tree, but for rpm's own.
func (r rpmTree) written() []string {
	r.Helper()
	files := []string{}
	upper := filepath.Join(r.work, "upper")
	err := filepath.WalkDir(upper, func(path string, entry os.DirEntry, err error) error {
		name := strings.TrimPrefix(path, upper)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "/var/lib/rpm" || name == "/usr/lib/sysimage"):
			return filepath.SkipDir
		case !entry.IsDir():
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	return files
}

// rpms takes the rpms through their life in a tree. The record is that of a host in the middle of an update.
func rpms(ctx context.Context, t *testing.T, base *lab.Base, first, second string, record []byte) {
	t.Helper()
	h, err := base.NewHost(ctx, "", lab.Options{Name: "rpm"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	entry, err := lab.DefaultEntry(h.Sysroot())
	if err != nil {
		t.Fatal(err)
	}
	r := rpmTree{T: t, ctx: ctx, lower: filepath.Join(h.Sysroot(), entry.Dir), work: t.TempDir()}
	for _, dir := range []string{"upper", "work", "tree"} {
		if err := os.Mkdir(filepath.Join(r.work, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.does("-i", "--nodeps", one(t, first, "noderefit-agent-*.rpm"), one(t, first, "kubectl-refit-*.rpm"))
	if got := r.does("-q", "noderefit-agent"); got != "noderefit-agent-1.0.0~rc.1-1."+machine() {
		t.Errorf("installed is %s", got)
	}
	if out := r.does("-V", "--nodeps", "noderefit-agent", "kubectl-refit"); out != "" {
		t.Errorf("what was installed is other than in the package: %s", out)
	}
	for _, file := range []string{"/usr/bin/machine-config-daemon-run", "/usr/share/man/man1/machine-config-daemon.1.gz",
		"/usr/share/zsh/site-functions/_machine-config-daemon", "/usr/lib/systemd/system/machine-config-daemon.service"} {
		if !slices.Contains(r.written(), file) {
			t.Errorf("%s is not there: %v", file, r.written())
		}
	}
	r.does("-U", "--nodeps", one(t, second, "noderefit-agent-*.rpm"))
	if got := r.does("-q", "noderefit-agent"); got != "noderefit-agent-1.0.0-1."+machine() {
		t.Errorf("after the upgrade it is %s", got)
	}

	state := filepath.Join(r.work, "upper/var/lib/machine-config-daemon")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(state+"/boot.json", record, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := r.try("-e", "--nodeps", "noderefit-agent")
	if err == nil || !strings.Contains(out, "in the middle of an update of this host: configuration rebooting is pending") {
		t.Errorf("in the middle of an update: %v: %s", err, out)
	}
	r.does("-U", "--nodeps", "--replacepkgs", one(t, second, "noderefit-agent-*.rpm"))
	if err := os.Remove(state + "/boot.json"); err != nil {
		t.Fatal(err)
	}
	r.does("-e", "--nodeps", "noderefit-agent", "kubectl-refit")
	if diff := cmp.Diff([]string{}, r.written()); diff != "" {
		t.Errorf("what a removal leaves (-want +got):\n%s", diff)
	}
}

// machine is this machine's architecture as rpm calls it.
func machine() string {
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
}
