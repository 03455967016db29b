// SPDX-License-Identifier: Apache-2.0

//go:build faults

package transaction

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// faultFile has the request for a process whose environment the test can't set, such as the recover unit at boot.
const faultFile = "/var/lib/noderefit-fault"

var faults struct {
	sync.Mutex
	once             sync.Once
	verb, mode, file string
	at, count        int
	linger           time.Duration
}

// fault counts the points that this process passes and acts at the requested point. The request is the environment
// variable NODEREFIT_FAULT, or the file: "VERB MODE N". VERB is the command's first argument, N is the number or the
// name of a point, and MODE is
//
//	kill   SIGKILL to the process at point N
//	hang   write a file beside the request, and stay there until the test pulls the plug
//	error  the effect fails at point N
//	trace  write the name of each point to the file N, after an empty line where another process has written before
//	linger stay at each point for the time N, as "2ms", while other work goes on
func fault(point string) error {
	faults.Lock()
	defer faults.Unlock()
	faults.once.Do(func() {
		request := os.Getenv("NODEREFIT_FAULT")
		if request == "" {
			data, _ := os.ReadFile(faultFile)
			request = string(data)
		}
		if f := strings.SplitN(strings.TrimSpace(request), " ", 3); len(f) == 3 {
			faults.verb, faults.mode, faults.file = f[0], f[1], f[2]
			faults.at, _ = strconv.Atoi(f[2]) // a name gives 0
			faults.linger, _ = time.ParseDuration(f[2])
		}
	})
	if len(os.Args) < 2 || os.Args[1] != faults.verb {
		return nil
	}
	faults.count++
	if faults.mode == "trace" {
		f, err := os.OpenFile(faults.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			if info, err := f.Stat(); err == nil && info.Size() > 0 && faults.count == 1 {
				_, _ = fmt.Fprintln(f)
			}
			_, _ = fmt.Fprintln(f, point)
			_ = f.Close()
		}
		return nil
	}
	if faults.mode == "linger" {
		time.Sleep(faults.linger)
		return nil
	}
	if faults.count != faults.at && point != faults.file {
		return nil
	}
	switch faults.mode {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "hang":
		_ = os.WriteFile(faultFile+".hit", []byte(point+"\n"), 0o600)
		select {}
	case "error":
		return fmt.Errorf("fault injected at %s", point)
	}
	return nil
}
