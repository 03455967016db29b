// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"image"
	"image/draw"
	"image/png"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/noderefit/noderefit/api"
)

// browserName is Debian's program of that name, and of its package.
const browserName = "chromium-headless-shell"

// browser is a tab of a real one.
type browser struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // of the tab

	mu sync.Mutex
	// complaints are what the browser says is wrong with what it was given, asked where it went for more.
	complaints, asked []string
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	if _, err := exec.LookPath(browserName); err != nil {
		if os.Getenv("LAB") == "require" {
			t.Fatalf("the page is looked at with a browser: %v (BROWSER_TESTS=1 make deps installs it)", err)
		}
		t.Skip(err)
	}
	// In a container of CI's there is nobody else to be kept away from. The certificate is one that nobody knows.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browserName), chromedp.NoSandbox,
		chromedp.IgnoreCertErrors, chromedp.DisableGPU, chromedp.WindowSize(1280, 900))
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(ctx)
	t.Cleanup(closeTab)
	b := &browser{t: t, ctx: ctx}
	b.must(chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *log.EventEntryAdded:
			b.complaints = append(b.complaints, e.Entry.Text+" "+e.Entry.URL)
		case *network.EventRequestWillBeSent:
			if address, err := url.Parse(e.Request.URL); err == nil {
				address.User = nil
				b.asked = append(b.asked, address.String())
			}
		}
	}))
	return b
}

func (b *browser) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// open goes to a page, with the token as one would type it.
func (b *browser) open(c *controller, token, path string) {
	b.t.Helper()
	address, err := url.Parse("https://" + c.address + path)
	b.must(err)
	address.User = url.UserPassword("me", token)
	b.visit(address.String())
}

// visit goes to an address.
func (b *browser) visit(address string) {
	b.t.Helper()
	b.must(chromedp.Do(b.ctx, chromedp.Navigate(address)))
}

// value is what an expression comes to in the page.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	b.must(err)
	return v
}

// text is what the user reads.
func (b *browser) text() string {
	b.t.Helper()
	return strings.Join(strings.Fields(value[string](b, `document.body.innerText`)), " ")
}

func (b *browser) reads(want ...string) {
	b.t.Helper()
	text := b.text()
	for _, w := range want {
		if !strings.Contains(text, w) {
			b.t.Errorf("nobody reads %q in\n%s", w, text)
		}
	}
}

// look sets the size of the window, as a phone's or a desk's, and light or dark.
func (b *browser) look(width, height int64, phone bool, scheme string) {
	b.t.Helper()
	var options []chromedp.EmulateViewportOption
	if phone {
		options = append(options, chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulatePortrait)
	}
	b.must(chromedp.Do(b.ctx, chromedp.EmulateViewport(width, height, options...),
		chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
			_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				//nolint:misspell // CSS's own spelling
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			})
			return err
		})))
}

// picture takes one of what is in the window, and keeps it by its name where that is asked for.
func (b *browser) picture(name string) {
	b.t.Helper()
	data, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	b.must(err)
	taken, err := png.Decode(bytes.NewReader(data))
	b.must(err)
	shades := shadesOf(taken)
	if len(shades) < 10 {
		b.t.Errorf("the picture %s has %d colours: there is nothing on it", name, len(shades))
	}
	if *pictures != "" && name != "" {
		b.must(keep(filepath.Join(*pictures, name), taken, shades))
	}
}

// shade is how often a picture has a colour, and where it is to be found.
type shade struct {
	times int
	at    image.Point
}

// shadesOf a picture, those first that it has most of.
func shadesOf(taken image.Image) []*shade {
	found := map[any]*shade{}
	for y := taken.Bounds().Min.Y; y < taken.Bounds().Max.Y; y++ {
		for x := taken.Bounds().Min.X; x < taken.Bounds().Max.X; x++ {
			key := any(taken.At(x, y))
			if found[key] == nil {
				found[key] = &shade{at: image.Pt(x, y)}
			}
			found[key].times++
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *shade) int { return b.times - a.times })
}

// keep writes a picture in the colours that it has most of, which makes a third of its size.
func keep(path string, taken image.Image, shades []*shade) error {
	out := image.NewPaletted(taken.Bounds(), nil)
	for _, s := range shades[:min(len(shades), 256)] {
		out.Palette = append(out.Palette, taken.At(s.at.X, s.at.Y))
	}
	draw.Draw(out, out.Bounds(), taken, out.Bounds().Min, draw.Src)
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	return errors.Join(encoder.Encode(file, out), file.Sync())
}

// content is what a browser complains of, and whether it asked for anything that is not below an address.
func (b *browser) content(below string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, complaint := range b.complaints {
		b.t.Errorf("the browser says: %s", complaint)
	}
	for _, asked := range b.asked {
		if !strings.HasPrefix(asked, below) {
			b.t.Errorf("the browser asked for %s", asked)
		}
	}
	if len(b.asked) < 2 {
		b.t.Errorf("the browser asked for %v alone, and for no style sheet", b.asked)
	}
}

// faint finds texts that stand out too little from what is behind them, by the rule of WCAG AA.
//
//go:embed testdata/faint.js
var faint string

func (l *lab) shown() {
	t := l.t
	b := openBrowser(t)
	c := l.controller(api.Controller, "--page-cluster-name=production")
	token := l.viewer("may", pageRole)
	l.page(c, token, "/page/", "failed on 1")

	b.look(1200, 1790, false, "light")
	b.open(c, token, "/page/?refresh=off")
	b.reads(
		"15 of 37 nodes updated; 2 pools need a person, 1 pool waits, 1 pool is up to date.",
		"worker ! Draining 12 of 24 updated to "+workerNew, "12 Updated 3 Updating 9 Waiting",
		"Blocked by PodDisruptionBudget shop/checkout", "pod shop/checkout-7d9f4c6b58-x2k4p is held by PodDisruptionBudget checkout",
		"RolloutPolicy careful", "Failure budget 0 of 2 nodes used", "As said above. worker-13 ! Draining 14m 0b6f1e9d → 9c2e7d41",
		"worker-14 ↻ Rebooting 2m", "worker-15 ↻ Staging", "9 more wait for the same reason as the pool. 12 up to date.",
		"under way, 12 of 24 updated", "done, 24 nodes", "replaced, 1 of 24 updated, failed on 2",
		"gpu ! Quarantined", gpuNew+" failed on node gpu-1 and is offered to no other node: check nvidia-driver: exit status 9",
		"kubectl refit quarantine lift gpu", "0 of 4 updated, failed on 1",
		"edge ○ OutsideWindow", "RolloutPolicy weekend-nights", "Next window", "waits, no node was sent yet",
		"master ✓ UpToDate", "3 of 3 updated", "Read-only.",
	)
	b.content("https://" + c.address + "/page/")
	for _, scheme := range []string{"light", "dark"} {
		b.look(1200, 1790, false, scheme)
		for _, bad := range value[[]string](b, faint) {
			t.Errorf("in %s this can hardly be read: %s", scheme, bad)
		}
		b.picture(map[string]string{"light": "web-page-light.png"}[scheme])
	}
	if bars := value[int](b, `[...document.querySelectorAll('svg.bar')].filter(e => e.getBoundingClientRect().width > 500 &&
		e.getAttribute('aria-label')).length`); bars != 4 {
		t.Errorf("%d bars are drawn over the width of the page, of 4 pools", bars)
	}

	b.look(390, 844, true, "light")
	b.open(c, token, "/page/pools/worker?refresh=off")
	b.reads("production / Pool worker", "worker-13 ! Draining", "worker-24 ○ Waiting", "worker-01 ✓ Updated")
	if over := value[int](b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
		t.Errorf("on a phone the page is %d pixels too wide", over)
	}
	b.picture("web-page-phone.png")
}

func (l *lab) followed() {
	t := l.t
	b := openBrowser(t)
	c := l.controller(api.Controller)
	token := l.viewer("may", pageRole)
	l.page(c, token, "/page/", "worker-15")
	b.open(c, token, "/page/?q=worker-1")
	b.reads("Nodes that match", "worker-15")
	b.open(c, token, "/page/")
	b.reads("12 of 24 updated")
	const far = 300 // the page grows shorter when a node is updated
	if at := value[int](b, `(scrollTo(0, 300), Math.round(scrollY))`); at != far {
		t.Fatalf("the page does not scroll to %d, but to %d", far, at)
	}
	l.annotate("worker-15", map[string]string{api.CurrentConfig: workerNew, api.StateKey: string(api.Done)})
	l.until("the open page says so", func() string {
		// While it is loaded anew there may be nothing to ask.
		ctx, cancel := context.WithTimeout(b.ctx, time.Second)
		defer cancel()
		text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(text, "13 of 24 updated") {
			return text
		}
		return ""
	})
	if at := value[int](b, `Math.round(scrollY)`); at != far {
		t.Errorf("the page was loaded again at %d, not where its reader was, at %d", at, far)
	}
	b.content("https://" + c.address + "/page/")
}
