package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// isService tells whether the service manager started this process: by the words that install puts at the end of the
// command line, or for a service that was made otherwise by who the parent is.
func isService(args []string) bool {
	if slices.Equal(args[max(0, len(args)-2):], []string{"service", "run"}) {
		return true
	}
	is, err := svc.IsWindowsService()
	return err == nil && is
}

// runService runs the program under the service manager. No signal is listened to: when a user logs off, services get
// one, too.
func runService(p process) int {
	if n := len(p.args); n >= 2 && p.args[n-2] == "service" {
		p.args = p.args[:n-2]
	}
	log, err := eventlog.Open(serviceName)
	if err != nil {
		fmt.Fprintln(p.stderr, "flanneld: open the event log:", err) //nolint:errcheck // there is no other way to tell
		return exitError
	}
	defer log.Close() //nolint:errcheck // it only frees
	console := p.stderr
	p.stderr, p.events = eventErrors{log}, newEvents(log)
	s := &running{process: p}
	if err := svc.Run(serviceName, s); err != nil {
		if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
			err = errors.New("service run is for the service manager: use flanneld service start, or leave these two words out")
		}
		fmt.Fprintln(console, "flanneld:", err) //nolint:errcheck // there is no other way to tell
		return exitUsage
	}
	return s.code
}

// running is the program as the service manager sees it.
type running struct {
	process process
	code    int
}

// stopHint is how long the service manager shall expect us to take to stop, in milliseconds.
const stopHint = uint32(2 * stopWithin / time.Millisecond)

// Execute says at once that the service runs: what it waits for may take any time, and is in its log.
func (s *running) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (ours bool, code uint32) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, s.process) }()
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	for {
		select {
		case s.code = <-ended:
			return true, uint32(s.code)
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending, WaitHint: stopHint}
				stop()
			}
		}
	}
}
