// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/noderefit/noderefit/test/standin/rpmostree/catalogue"
)

// imageReference is a container image as rebase takes it: how it is verified, and what skopeo calls it.
type imageReference struct {
	verification string // ostree-unverified-image, ostree-image-signed, or ostree-remote-image:REMOTE
	image        string // docker://NAME, containers-storage:NAME, oci:PATH, oci-archive:PATH
}

// parseImage reads a container image reference; ok is false for what is none.
func parseImage(text string) (r imageReference, ok bool) {
	prefix, rest, _ := strings.Cut(text, ":")
	switch prefix {
	case "ostree-unverified-registry":
		return imageReference{"ostree-unverified-image", "docker://" + strings.TrimPrefix(rest, "//")}, true
	case "ostree-unverified-image", "ostree-image-signed":
		r = imageReference{prefix, rest}
	case "ostree-remote-image":
		remote, rest, _ := strings.Cut(rest, ":")
		r = imageReference{prefix + ":" + remote, rest}
	case "ostree-remote-registry":
		remote, rest, _ := strings.Cut(rest, ":")
		return imageReference{"ostree-remote-image:" + remote, "docker://" + rest}, true
	default:
		return r, false
	}
	r.image = regexp.MustCompile(`^(docker|registry):(//)?`).ReplaceAllString(r.image, "docker://")
	return r, true
}

// String is how origins have it: the short form for what is not verified in a registry.
func (r imageReference) String() string {
	if name, ok := strings.CutPrefix(r.image, "docker://"); ok && r.verification == "ostree-unverified-image" {
		return "ostree-unverified-registry:" + name
	}
	return r.verification + ":" + r.image
}

// withDigest is the same image by digest.
func (r imageReference) withDigest(digest string) imageReference {
	name, _ := r.split()
	r.image = name + "@" + digest
	return r
}

// split is the image without its tag or digest, and that: latest where there is none.
func (r imageReference) split() (name, tagOrDigest string) {
	if name, digest, ok := strings.Cut(r.image, "@"); ok {
		return name, digest
	}
	slash := strings.LastIndex(r.image, "/")
	if colon := strings.LastIndex(r.image, ":"); colon > slash && colon > strings.Index(r.image, ":") {
		return r.image[:colon], r.image[colon+1:]
	}
	return r.image, "latest"
}

// importImage makes a commit of a container image and returns its checksum. The same image gives the same commit.
func importImage(ctx context.Context, r imageReference) (string, error) {
	name, want := r.split()
	transport, path, _ := strings.Cut(name, ":")
	dir := path
	switch transport {
	case "docker":
		path = strings.TrimPrefix(path, "//")
		dir = filepath.Join(catalogue.Registries, path)
	case "containers-storage":
		dir = filepath.Join(catalogue.Storage, path)
	case "oci-archive":
		work, err := os.MkdirTemp("/var/tmp", "rpm-ostree.")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(work)
		if err := unpack(path, work); err != nil {
			return "", err
		}
		dir = work
	case "oci":
	default:
		return "", guess("Unknown transport '%s'", transport)
	}
	image, layer, err := catalogue.ReadLayout(dir, want)
	if errors.Is(err, catalogue.ErrUnknown) {
		// The words are skopeo's as far as they are known.
		return "", guess("Creating importer: failed to invoke method OpenImage: failed to invoke method OpenImage: "+
			"reading manifest %s in %s: manifest unknown", want, path)
	}
	if err != nil {
		return "", err
	}
	if _, err := readCommit(image.Base); err != nil {
		if _, err := tool(ctx, "pull-local", "--repo="+repository, catalogue.Commits, image.Base); err != nil {
			return "", err
		}
	}
	checksum, err := commitTree(ctx, "--tree=ref="+image.Base, "--tree=tar="+layer, "--bootable",
		"--timestamp=2025-01-01T00:00:00Z",
		"--add-metadata-string=version="+image.Version,
		"--add-metadata-string=ostree.manifest-digest="+image.Digest)
	if err != nil {
		return "", err
	}
	// ostree's container images are held by such refs, so that cleanup leaves them.
	ref := "ostree/container/image/" + escapeRef(r.image)
	_, err = tool(ctx, "refs", "--repo="+repository, "--force", "--create="+ref, checksum)
	return checksum, err
}

// escapeRef writes what a ref's name may not have as _XX_, its number in hexadecimal.
func escapeRef(name string) string {
	var escaped strings.Builder
	for _, c := range []byte(name) {
		if c == '-' || c == '/' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			escaped.WriteByte(c)
		} else {
			fmt.Fprintf(&escaped, "_%02X_", c)
		}
	}
	return strings.ReplaceAll(escaped.String(), "//", "/_2F_")
}

// unpack unpacks a tar archive of plain files and directories.
func unpack(archive, dir string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	for reader := tar.NewReader(file); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg || !filepath.IsLocal(header.Name) {
			continue
		}
		data, err := io.ReadAll(reader)
		if err != nil {
			return err
		}
		at := filepath.Join(dir, header.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, data, 0o644)); err != nil {
			return err
		}
	}
}

var checksumPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// fetchBase fetches what the origin names, unless only what is there counts, and returns the commit.
func fetchBase(ctx context.Context, o *origin, cached bool) (string, error) {
	if r, ok := parseImage(o.Container); ok {
		if o.Override != "" {
			r = r.withDigest(o.Override)
		}
		return importImage(ctx, r)
	}
	remote, ref, isRemote := strings.Cut(o.Refspec, ":")
	want := cmp.Or(o.Override, ref)
	switch {
	case checksumPattern.MatchString(o.Refspec):
		_, err := readCommit(o.Refspec)
		return o.Refspec, err
	case isRemote && !cached:
		argv := []string{"pull", "--repo=" + repository, remote, want}
		if o.Override != "" {
			argv = append(argv, ref)
		}
		if _, err := tool(ctx, argv...); err != nil {
			return "", err
		}
	}
	if o.Override != "" {
		_, err := readCommit(o.Override)
		return o.Override, err
	}
	return tool(ctx, "rev-parse", "--repo="+repository, o.Refspec)
}

// findVersion is the commit with a version, from the one that the origin's ref names now back through its parents.
func findVersion(ctx context.Context, o *origin, version string) (string, error) {
	unpinned := *o
	unpinned.Override = ""
	checksum, err := fetchBase(ctx, &unpinned, false)
	for err == nil && checksum != "" {
		c, readErr := readCommit(checksum)
		if readErr != nil {
			break // older ones are not here
		}
		if c.text("version") == version {
			return checksum, nil
		}
		checksum = c.parent
	}
	if err != nil {
		return "", err
	}
	return "", original("Version %s not found in %s", version, o.Refspec)
}
