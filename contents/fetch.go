// SPDX-License-Identifier: Apache-2.0

package contents

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/noderefit/noderefit/files"
	"github.com/noderefit/noderefit/machineconfig"
	"github.com/noderefit/noderefit/osimage"
	"github.com/noderefit/noderefit/ostree"
	"github.com/noderefit/noderefit/pace"
)

// The limits of fetching.
const (
	// maxBytes is the largest size of the contents of one file, before and after decompression.
	maxBytes = 4 << 30
	// reserve is how many bytes stay free on the disk.
	reserve = 64 << 20
	// usualPace is the largest number of bytes in a second.
	usualPace = 64 << 20
	// usualBurst is what the pace gives in 16 ms. A wait that ends later than a burst lasts loses the rest of its bytes,
	// and timers are late by a millisecond.
	usualBurst = 1 << 20
	// maxRedirects is how often a server may send a fetch elsewhere.
	maxRedirects = 5
	// stall is how long a server may send nothing.
	stall = time.Minute
	// tries is how often one fetch goes on after an interruption.
	tries = 4
)

// Fetch brings all contents of a configuration that the host does not have. A fetch that was interrupted goes on where
// it ended. The error is an *ostree.Error that names file and source: Invalid for other bytes than the reference
// has, NeedsAdmin for a full disk and for a source that refuses, and Retryable for a source that is away. Everything
// that was fetched before an error stays for the next try.
func (s *Store) Fetch(ctx context.Context, cfg *machineconfig.Config) error {
	lacking := Lacking(s.Fill(cfg))
	if len(lacking) == 0 {
		return nil
	}
	if err := s.Root.MkdirAll(Dir, 0o700); err != nil {
		return err
	}
	f := &fetcher{root: s.Root, pace: cmp.Or(pace.Of(ctx), rate.NewLimiter(usualPace, usualBurst))}
	if err := f.connect(); err != nil {
		return err
	}
	defer f.base.CloseIdleConnections()
	for _, file := range lacking {
		if _, err := s.bytes(file.Reference); err == nil {
			continue // an earlier file has the same contents
		}
		s.Say(fmt.Sprintf("the contents of %s from %s", file.Path, file.Reference.Source))
		if err := f.fetch(ctx, file.Reference); err != nil {
			doing := fmt.Sprintf("fetching the contents of file %s from %s", file.Path, file.Reference.Source)
			return &ostree.Error{Class: classOf(err), Doing: doing, Err: err}
		}
	}
	return nil
}

// failure is an error of a known class.
type failure struct {
	class ostree.Class
	error
}

func (f failure) Unwrap() error { return f.error }

func classOf(err error) ostree.Class {
	if known, is := errors.AsType[failure](err); is {
		return known.class
	}
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO} {
		if errors.Is(err, full) {
			return ostree.NeedsAdmin
		}
	}
	return ostree.Retryable
}

// fetcher fetches by one connection at a time.
type fetcher struct {
	root   *files.Root
	pace   *rate.Limiter
	base   *http.Transport
	client *http.Client
}

// connect makes the client, with the host's proxies.
func (f *fetcher) connect() error {
	text, _ := f.root.ReadFile(osimage.ProxyFile) // without it the variables of this process name proxies
	onward := pace.HostProxies(text)
	base, is := http.DefaultTransport.(*http.Transport)
	if !is {
		return errors.New("the program has no transport for HTTP")
	}
	f.base = base.Clone()
	f.base.Proxy = func(r *http.Request) (*url.URL, error) { return onward(r.URL) }
	f.base.DisableCompression = true // the bytes are wanted as they are
	f.base.ResponseHeaderTimeout = stall
	f.client = clientOf(f.base)
	return nil
}

// clientOf returns a client that asks only over TLS, and follows few redirects.
func clientOf(t http.RoundTripper) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case r.URL.Scheme != "https":
			return failure{ostree.NeedsAdmin, fmt.Errorf("the source redirects to %s, which is not https", r.URL.Redacted())}
		case len(via) > maxRedirects:
			return failure{ostree.NeedsAdmin, fmt.Errorf("the source redirects more than %d times", maxRedirects)}
		}
		return nil
	}}
}

// source is a place of bytes.
type source struct {
	client *http.Client
	url    string
	// digest is the hash of the bytes as they come, "" for an unknown hash.
	digest string
}

// fetch brings the contents of one reference.
func (f *fetcher) fetch(ctx context.Context, r *machineconfig.Reference) error {
	if _, _, _, is := r.Image(); is {
		return f.fetchImage(ctx, r)
	}
	return f.bring(ctx, r, []source{{client: f.client, url: r.Source}})
}

// bring fetches from the first source that has the bytes, and keeps them.
func (f *fetcher) bring(ctx context.Context, r *machineconfig.Reference, sources []source) error {
	part := path.Join(Dir, partPrefix+r.Key())
	var failed []error
	for _, from := range sources {
		err := f.bringFrom(ctx, r, from, part)
		if err == nil || ctx.Err() != nil || errors.Is(err, unix.ENOSPC) {
			return err
		}
		if len(sources) > 1 {
			err = fmt.Errorf("%s: %w", from.url, err)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func (f *fetcher) bringFrom(ctx context.Context, r *machineconfig.Reference, from source, part string) error {
	resumed, err := f.download(ctx, from, part)
	if err != nil {
		return err
	}
	err = f.keep(r, from, part)
	if !resumed || err == nil || classOf(err) != ostree.Invalid {
		return err
	}
	// The source may have changed between the two parts.
	if _, err = f.download(ctx, from, part); err != nil {
		return err
	}
	return f.keep(r, from, part)
}

// download writes the bytes of a source to the file part, and goes on where an earlier download ended. resumed
// reports whether there was one.
func (f *fetcher) download(ctx context.Context, from source, part string) (resumed bool, err error) {
	file, err := f.root.Grow(part)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	for try := 1; ; try++ {
		st, err := file.Stat()
		if err != nil {
			return resumed, err
		}
		resumed = resumed || st.Size() > 0
		err = f.receive(ctx, from, file, st.Size())
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return resumed, errors.Join(err, file.Truncate(0)) // others need the room
		}
		after, failed := file.Stat()
		if err == nil || ctx.Err() != nil || failed != nil {
			return resumed, cmp.Or(err, ctx.Err(), failed)
		}
		if after.Size() <= st.Size() || try == tries || classOf(err) != ostree.Retryable {
			return resumed, err
		}
	}
}

// receive asks for the bytes from have on, and appends them to the file.
func (f *fetcher) receive(ctx context.Context, from source, file *os.File, have int64) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	silent := time.AfterFunc(stall, func() { stop(fmt.Errorf("nothing came for %s", stall)) })
	defer silent.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from.url, http.NoBody)
	if err != nil {
		return failure{ostree.Invalid, err}
	}
	if have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	resp, err := from.client.Do(req)
	if err != nil {
		return away(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusPartialContent && begins(resp, have):
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && have > 0:
		return nil // no byte is after these; their hash decides whether they are the right ones
	case resp.StatusCode == http.StatusOK, resp.StatusCode == http.StatusPartialContent:
		if err := file.Truncate(0); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			if have == 0 {
				return failure{ostree.NeedsAdmin, fmt.Errorf("the source answers %s to a request for everything", resp.Status)}
			}
			return f.receive(ctx, from, file, 0)
		}
		have = 0
	default:
		return answered(resp)
	}
	if err := f.room(resp.ContentLength, have); err != nil {
		return err
	}
	body := &pace.Reader{Context: ctx, Limiter: f.pace, From: &heard{io.LimitReader(resp.Body, maxBytes+1-have),
		func() { silent.Reset(stall) }}}
	n, err := io.Copy(&sparing{f, file}, body)
	switch {
	case have+n > maxBytes:
		return errors.Join(tooLarge(), file.Truncate(0))
	case err != nil:
		return away(ctx, err)
	}
	return nil
}

func tooLarge() error {
	return failure{ostree.Invalid, fmt.Errorf("the file is larger than the limit of %d MiB", maxBytes>>20)}
}

// begins reports whether a partial answer begins at that byte.
func begins(resp *http.Response, at int64) bool {
	return strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", at))
}

// away returns the reason of an interruption.
func away(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if wrapped, is := errors.AsType[*url.Error](err); is {
		err = wrapped.Err // the caller names the URL
	}
	return err
}

// answered makes an error of an answer that is no success.
func answered(resp *http.Response) error {
	err := fmt.Errorf("the source answers %s", resp.Status)
	switch {
	case resp.StatusCode >= http.StatusInternalServerError, resp.StatusCode == http.StatusTooManyRequests,
		resp.StatusCode == http.StatusRequestTimeout:
		return failure{ostree.Retryable, err}
	}
	return failure{ostree.NeedsAdmin, err}
}

// room refuses bytes that the disk has no room for. A length below 0 is not known.
func (f *fetcher) room(length, have int64) error {
	if length > maxBytes-have {
		return tooLarge()
	}
	free, err := f.root.Space(Dir)
	if err != nil {
		return err
	}
	if need := uint64(max(length, 0)) + reserve; free.Bytes < need {
		return fmt.Errorf("%d MiB are needed in %s, of which %d MiB stay free, and %d MiB are free: %w", need>>20, Dir,
			reserve>>20, free.Bytes>>20, unix.ENOSPC)
	}
	return nil
}

// sparing writes to a file as long as the disk has room.
type sparing struct {
	*fetcher
	file *os.File
}

func (s *sparing) Write(b []byte) (int, error) {
	if err := s.room(int64(len(b)), 0); err != nil {
		return 0, err
	}
	return s.file.Write(b)
}

// heard reads, and tells when something came.
type heard struct {
	from io.Reader
	came func()
}

func (h *heard) Read(b []byte) (int, error) {
	n, err := h.from.Read(b)
	if n > 0 {
		h.came()
	}
	return n, err
}

// keep verifies the bytes in the file part, decompresses them where that is needed, and gives them their name. Wrong
// bytes are removed.
func (f *fetcher) keep(r *machineconfig.Reference, from source, part string) error {
	known := strings.Replace(from.digest, ":", "-", 1)
	if known != "" {
		if err := f.verify(part, known); err != nil {
			return err
		}
	}
	if r.Gzip {
		expanded := part + "-expanded"
		err := f.expand(part, expanded)
		if err = errors.Join(err, f.root.Remove(part)); err != nil {
			return errors.Join(err, f.root.Remove(expanded))
		}
		part, known = expanded, ""
	}
	name := cmp.Or(r.Hash, known)
	if name == "" {
		sum, err := f.sum(part, sha256.New())
		if err != nil {
			return err
		}
		name = "sha256-" + sum
	} else if name != known {
		if err := f.verify(part, name); err != nil {
			return err
		}
	}
	if err := f.root.Fsync(part); err != nil {
		return err
	}
	if err := f.root.Replace(Dir, path.Base(part), path.Join(Dir, name)); err != nil {
		return err
	}
	if err := f.root.Fsync(Dir); err != nil {
		return err
	}
	if name == r.Key() {
		return nil
	}
	link := path.Join(Dir, partPrefix+"link")
	if err := f.root.Remove(link); err != nil {
		return err
	}
	if err := f.root.Stage(Dir, path.Base(link), files.Node{Type: files.Symlink, Target: name}); err != nil {
		return err
	}
	if err := f.root.Replace(Dir, path.Base(link), path.Join(Dir, r.Key())); err != nil {
		return err
	}
	return f.root.Fsync(Dir)
}

// verify refuses and removes a file with another hash.
func (f *fetcher) verify(name, want string) error {
	function, sum, _ := strings.Cut(want, "-")
	h := sha512.New()
	if function == "sha256" {
		h = sha256.New()
	}
	got, err := f.sum(name, h)
	if err != nil || got == sum {
		return err
	}
	wrong := fmt.Errorf("the bytes there have the hash %s-%s, and %s is wanted: correct the configuration or the "+
		"source", function, got, want)
	return errors.Join(failure{ostree.Invalid, wrong}, f.root.Remove(name))
}

func (f *fetcher) sum(name string, h hash.Hash) (string, error) {
	file, err := f.root.Grow(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// expand decompresses a file.
func (f *fetcher) expand(from, to string) error {
	in, err := f.root.Grow(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if err := f.root.Remove(to); err != nil {
		return err
	}
	out, err := f.root.Grow(to)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	z, err := gzip.NewReader(in)
	if err != nil {
		return failure{ostree.Invalid, fmt.Errorf("the source is not compressed by gzip: %w", err)}
	}
	n, err := io.Copy(&sparing{f, out}, io.LimitReader(z, maxBytes+1))
	switch {
	case classOf(err) == ostree.NeedsAdmin:
		return err
	case err != nil:
		return failure{ostree.Invalid, fmt.Errorf("decompressing: %w", err)}
	case n > maxBytes:
		return tooLarge()
	}
	return nil
}
