package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

// This file has the functions that bring a service into a state and wait for it: flanneld's service, for Control, and
// those of Components.

// pause waits between two queries of a service.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}

// startService starts the service and waits until it runs. If somebody else is starting or stopping the service, it waits
// for that first. While the service stops, Windows answers Start with ERROR_SERVICE_ALREADY_RUNNING; startService then calls
// Start again until the service has stopped.
func startService(ctx context.Context, s *mgr.Service, out io.Writer) error {
	refused, last := error(nil), svc.State(0) // Start's answer, and the state that was found after it
	for deadline := time.Now().Add(stateWithin); ; {
		if last != svc.StartPending { // else that start is waited for, and not repeated if it fails
			refused = s.Start()
		}
		if refused == nil {
			break
		}
		if !errors.Is(refused, windows.ERROR_SERVICE_ALREADY_RUNNING) {
			return fmt.Errorf("start the service: %w", refused)
		}
		status, err := query(s)
		if err != nil {
			return err
		}
		switch found := afterRefusal(last, status.State); {
		case found == startFailed:
			return stoppedAtOnce(s, status)
		case found == runs:
			done := StateName(status.State)
			if last == 0 {
				done = "already " + done
			}
			show(out, fmt.Sprintf("%s, process %d", done, status.ProcessId))
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("start the service: %w; after %v it is still %s; see its log", refused, stateWithin, StateName(status.State))
		}
		last = status.State
		if err := pause(ctx); err != nil {
			return err
		}
	}
	status, err := await(ctx, s, svc.Running, query)
	if err != nil {
		return err
	}
	show(out, fmt.Sprintf("running, process %d", status.ProcessId))
	return nil
}

// startOutcome is what startService concludes from the answer ERROR_SERVICE_ALREADY_RUNNING to Start.
type startOutcome int

const (
	runs        startOutcome = iota // there is nothing to start
	pending                         // look again
	startFailed                     // the start of somebody else; it is not repeated
)

// afterRefusal returns the outcome for the state after Start was refused with ERROR_SERVICE_ALREADY_RUNNING, and the state at
// the look before, 0 at the first. A paused service counts as running: nssm, which runs a program as a service, pauses it
// while it delays the next start of its program.
func afterRefusal(last, state svc.State) startOutcome {
	switch state {
	case svc.Stopped: // it was stopping, or starting, when Start was called
		if last == svc.StartPending {
			return startFailed
		}
		return pending
	case svc.StartPending, svc.StopPending:
		return pending
	}
	return runs
}

// stopService stops a service, flanneld's or that of another component, and waits until it is
// stopped.
func stopService(ctx context.Context, s *mgr.Service, out io.Writer) error {
	accepted, done := false, "already stopped"
	_, err := await(ctx, s, svc.Stopped, func(s *mgr.Service) (svc.Status, error) {
		before, err := query(s)
		if err != nil || accepted {
			return before, err
		}
		status, err := s.Control(svc.Stop) // also the status of a service that refuses the request
		switch {
		case err == nil:
			accepted = true
		case errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE):
			err = nil // status says stopped, which ends the wait
		case errors.Is(err, windows.ERROR_SERVICE_CANNOT_ACCEPT_CTRL):
			err = nil // the service is starting or stopping, and is asked again; or stopped
		case errors.Is(err, windows.ERROR_INVALID_SERVICE_CONTROL) && before.State == svc.StartPending:
			status, err = before, nil // Wine's error for a service that is starting, without its status
		default:
			err = fmt.Errorf("stop the service: %w", err)
		}
		if accepted || status.State != svc.Stopped {
			done = "stopped"
		}
		return status, err
	})
	if err != nil {
		return err
	}
	if done == "stopped" && s.Name == Name {
		done += "; the network stays in place"
	}
	show(out, done)
	return nil
}

// stateWithin is how long a service may take to start or stop, and a process to end. It is
// far more than flanneld takes: it reports the start at once, and ends after 1.5 seconds.
const stateWithin = 20 * time.Second

// await calls look, which returns the status of the service, until the state is want, svc.Running
// or svc.Stopped. It fails if look fails, if the service stops instead of running, and after stateWithin.
func await(ctx context.Context, s *mgr.Service, want svc.State, look func(*mgr.Service) (svc.Status, error)) (svc.Status, error) {
	for deadline := time.Now().Add(stateWithin); ; {
		status, err := look(s)
		switch {
		case err != nil:
			return status, err
		case status.State == want:
			return status, nil
		case status.State == svc.Stopped:
			return status, stoppedAtOnce(s, status)
		case time.Now().After(deadline):
			return status, fmt.Errorf("the service is still %s after %v; see its log", StateName(status.State), stateWithin)
		}
		if err := pause(ctx); err != nil {
			return status, err
		}
	}
}

// stoppedAtOnce is the error about a service that has stopped instead of running.
func stoppedAtOnce(s *mgr.Service, status svc.Status) error {
	return fmt.Errorf("the service stopped at once%s; see the event log (Application, source %s)", exitText(status), s.Name)
}

// query returns the status of a service.
func query(s *mgr.Service) (svc.Status, error) {
	status, err := s.Query()
	if err != nil {
		err = fmt.Errorf("query the service's state: %w", err)
	}
	return status, err
}

// exitText describes, after a comma, with which error a stopped service ended; empty: it ended without an error, or has not
// stopped.
func exitText(s svc.Status) string {
	code := windows.Errno(s.Win32ExitCode)
	switch {
	case s.State != svc.Stopped || code == windows.ERROR_SUCCESS:
		return ""
	case code == windows.ERROR_SERVICE_NEVER_STARTED:
		return ", not started since the system started"
	case code == windows.ERROR_SERVICE_SPECIFIC_ERROR:
		return fmt.Sprintf(", exit status %d", s.ServiceSpecificExitCode)
	}
	return fmt.Sprintf(", Windows error %d", s.Win32ExitCode)
}

// StateName returns the state in words.
func StateName(s svc.State) string {
	names := map[svc.State]string{
		svc.Stopped: "stopped", svc.StartPending: "starting", svc.StopPending: "stopping", svc.Running: "running",
		svc.ContinuePending: "continuing", svc.PausePending: "pausing", svc.Paused: "paused",
	}
	return cmp.Or(names[s], fmt.Sprintf("in state %d", s))
}
