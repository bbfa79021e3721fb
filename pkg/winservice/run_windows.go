package winservice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"

	"flannel/pkg/logging"
)

// Started reports whether the service manager started this process: by the words that install puts at the end of the
// command line, or for a service that was made otherwise by who the parent is.
func Started(args []string) bool {
	if slices.Equal(args[max(0, len(args)-len(runVerb)):], runVerb) {
		return true
	}
	is, err := svc.IsWindowsService()
	return err == nil && is
}

// OpenEventLog opens the system's log for the service.
func OpenEventLog() (log logging.EventLog, close func() error, err error) {
	l, err := eventlog.Open(Name)
	if err != nil {
		return nil, nil, fmt.Errorf("open the event log: %w", err)
	}
	return l, l.Close, nil
}

// Run runs the program under the service manager, which ends ctx to stop it and expects that it takes stopWithin at most.
// No signal is listened to: when a user logs off, services get one, too.
func Run(stopWithin time.Duration, program func(ctx context.Context) (code int)) (code int, err error) {
	s := &running{program: program, stopHint: uint32(stopWithin / time.Millisecond)}
	err = svc.Run(Name, s)
	if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
		err = errors.New("service run is for the service manager: use flanneld service start, or leave these two words out")
	}
	return s.code, err
}

// running is the program as the service manager sees it.
type running struct {
	program  func(context.Context) int
	stopHint uint32 // how long the program may take to stop, in milliseconds
	code     int
}

// Execute says at once that the service runs: what it waits for may take any time, and is in its log.
func (s *running) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (ours bool, code uint32) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan int, 1)
	go func() { ended <- s.program(ctx) }()
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
				status <- svc.Status{State: svc.StopPending, WaitHint: s.stopHint}
				stop()
			}
		}
	}
}
