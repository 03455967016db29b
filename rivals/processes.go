// SPDX-License-Identifier: Apache-2.0

package rivals

import (
	"fmt"
	"strconv"
	"strings"
)

// processes returns the command lines of all running processes; the kernel's threads have none. It is given how to read
// the host.
func processes(readDir func(string) ([]string, error), readFile func(string) ([]byte, error)) ([][]string, error) {
	names, err := readDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var out [][]string
	for _, name := range names {
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		line, err := readFile("/proc/" + name + "/cmdline")
		if err == nil && len(line) > 0 { // a process that has ended meanwhile is left out
			out = append(out, strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"))
		}
	}
	return out, nil
}
