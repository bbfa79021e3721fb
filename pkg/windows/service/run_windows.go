// This file runs the daemon under the service manager. main asks Started first, and
// then calls Run instead of the program.

package service

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
)

// Started reports whether the service manager started this process: the command
// line ends with runVerb, which install adds, or (a service that another tool
// created) the parent process is the service manager.
func Started(args []string) bool {
	if _, fromInstall := Arguments(args); fromInstall {
		return true
	}
	isService, err := svc.IsWindowsService()
	return err == nil && isService
}

// Run runs the program under the service manager, and cancels its ctx when the
// service is to stop. It tells the service manager that this takes stopWithin at
// most. The program must not listen to signals: services get one, too, when a user
// logs off. code is what the program returned; 0 with an error that kept it from starting.
func Run(stopWithin time.Duration, program func(ctx context.Context) (code int)) (code int, err error) {
	s := &running{program: program, stopHint: uint32(stopWithin / time.Millisecond)}
	err = svc.Run(Name, s)
	if errors.Is(err, windows.ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) {
		err = errors.New("only the service manager uses service run: use flanneld service start, or remove these two words")
	}
	return s.code, err
}

// running implements svc.Handler.
type running struct {
	program  func(context.Context) int
	stopHint uint32 // how long the program may take to stop, in milliseconds
	code     int    // exit code of the program
}

// Execute reports the service as running at once. The program may wait for its
// network for any time, and logs that.
func (s *running) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (ownCode bool, code uint32) {
	// requests and status are channels of the service manager's dispatcher, and only
	// this goroutine uses them. After a stop, it goes on until the program has ended:
	// to return is to report the service as stopped.
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan int, 1)
	go func() { ended <- s.program(ctx) }()
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	for {
		select {
		case s.code = <-ended:
			return true, uint32(s.code) // true: an exit code of ours, not a Windows error
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
