// SPDX-License-Identifier: Apache-2.0

package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// Part is one file of an archive.
type Part struct {
	Name string
	// Text may be cut: its end is what matters. Other parts are whole or left out.
	Text bool
	// Read returns the contents, without anything that must be masked.
	Read func(context.Context) ([]byte, error)
}

// Entry is what became of a part.
type Entry struct {
	Name  string
	Bytes int
	// Note says why the part is not there, or not whole; empty: it is.
	Note string
}

const (
	// partTime is how long the reading of one part may take: a host that does not answer holds nobody up for longer.
	partTime = 30 * time.Second
	// together is how many parts are read at the same time.
	together = 8
	// contentsName is the list of what is in the archive.
	contentsName = "contents.txt"
	folder       = "noderefit-support/"
)

// archive writes parts in their order, at most limit bytes of contents, and a list of what became of each. A part that
// can't be had is no error.
func archive(ctx context.Context, w io.Writer, limit int64, now time.Time, parts []Part) ([]Entry, error) {
	zipped := gzip.NewWriter(w)
	out := &writer{tar: tar.NewWriter(zipped), now: now}
	entries := make([]Entry, 0, len(parts))
	left := limit
	for some := range slices.Chunk(parts, together) {
		contents, errs := readAll(ctx, some)
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("collecting: %w", context.Cause(ctx))
		}
		for i, p := range some {
			e := Entry{Name: p.Name}
			var data []byte
			data, e.Note = fit(p, contents[i], errs[i], left)
			if data != nil {
				e.Bytes = len(data)
				left -= int64(len(data))
				if err := out.file(p.Name, data); err != nil {
					return nil, err
				}
			}
			entries = append(entries, e)
		}
	}
	if err := out.file(contentsName, listing(entries, now)); err != nil {
		return nil, err
	}
	if err := out.tar.Close(); err != nil {
		return nil, fmt.Errorf("writing the archive: %w", err)
	}
	if err := zipped.Close(); err != nil {
		return nil, fmt.Errorf("writing the archive: %w", err)
	}
	return entries, nil
}

// readAll reads parts at the same time.
func readAll(ctx context.Context, parts []Part) ([][]byte, []error) {
	contents, errs := make([][]byte, len(parts)), make([]error, len(parts))
	var all sync.WaitGroup
	for i := range parts {
		all.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, partTime, fmt.Errorf("no answer in %s", partTime))
			defer cancel()
			contents[i], errs[i] = parts[i].Read(ctx)
			if errs[i] != nil && ctx.Err() != nil {
				errs[i] = context.Cause(ctx)
			}
		})
	}
	all.Wait()
	return contents, errs
}

// fit returns what of a part goes in where left bytes are left, nil: nothing, and a note about what does not.
func fit(p Part, data []byte, err error, left int64) ([]byte, string) {
	switch {
	case err != nil && len(data) == 0:
		return nil, describe(err)
	case err != nil:
		return data[:min(int64(len(data)), max(left, 0))], "not whole: " + describe(err)
	case int64(len(data)) <= left:
		return data, ""
	case !p.Text || left <= 0:
		return nil, fmt.Sprintf("%d bytes are over the limit; --limit allows more", len(data))
	}
	end := data[int64(len(data))-left:]
	if i := bytes.IndexByte(end, '\n'); i >= 0 {
		end = end[i+1:]
	}
	return end, fmt.Sprintf("the last of %d bytes, because of the limit; --limit allows more", len(data))
}

// writer writes files that only their owner may read.
type writer struct {
	tar *tar.Writer
	now time.Time
}

func (w *writer) file(name string, data []byte) error {
	err := w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: folder + name, Mode: 0o600, Size: int64(len(data)),
		ModTime: w.now.Truncate(time.Second)})
	if err == nil {
		_, err = w.tar.Write(data)
	}
	if err != nil {
		return fmt.Errorf("writing %s to the archive: %w", name, err)
	}
	return nil
}

// listing is contents.txt.
func listing(entries []Entry, now time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Collected at %s. Contents of files and texts that may hold secrets are masked.\n\n",
		now.UTC().Format(time.RFC3339))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, e := range entries {
		size := fmt.Sprint(e.Bytes)
		if e.Bytes == 0 && e.Note != "" {
			size = "-"
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join([]string{e.Name, size, e.Note}, "\t"), "\t"))
	}
	_ = w.Flush() // to memory
	return b.Bytes()
}
