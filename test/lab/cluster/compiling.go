// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"time"
)

// every is the time between two lines about a build. A line that comes too often hides the rest of a log.
const every = 5 * time.Second

// compiling turns the output of "go build -v" into a line every few seconds that says how far the build is. Lines that
// are not about a package, such as errors, pass as they are.
type compiling struct {
	log   io.Writer
	most  int // packages in the program; those in the go command's cache are not compiled
	now   func() time.Time
	began time.Time
	said  time.Time
	count int
	rest  []byte // a line whose end has not come yet
}

func newCompiling(log io.Writer, most int) *compiling {
	now := time.Now()
	return &compiling{log: log, most: most, now: time.Now, began: now, said: now}
}

// importPath matches a line of "go build -v" that names a package.
var importPath = regexp.MustCompile(`^[A-Za-z0-9_./~+-]+$`)

// Write takes a part of the output of the go command.
func (c *compiling) Write(p []byte) (int, error) {
	c.rest = append(c.rest, p...)
	for {
		line, rest, whole := bytes.Cut(c.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		c.rest = rest
		if !importPath.Match(line) {
			if _, err := fmt.Fprintf(c.log, "%s\n", line); err != nil {
				return 0, err
			}
			continue
		}
		c.count++
		now := c.now()
		if now.Sub(c.said) < every {
			continue
		}
		c.said = now
		if _, err := fmt.Fprintf(c.log, "kubebox: compiled %d of at most %d packages in %.0f s, now %s\n",
			c.count, c.most, now.Sub(c.began).Seconds(), line); err != nil {
			return 0, err
		}
	}
}

// packages returns the number of packages in the program whose sources are in dir.
func packages(ctx context.Context, dir string, log io.Writer) (int, error) {
	cmd := exec.CommandContext(ctx, "go", "-C", dir, "list", "-deps", ".")
	cmd.Stderr = log
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("listing the packages of %s: %w", dir, err)
	}
	return bytes.Count(out, []byte("\n")), nil
}
