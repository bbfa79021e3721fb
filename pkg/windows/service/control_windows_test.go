package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
)

// withTested calls do with a new service, whose process is this test program with args.
func withTested(t *testing.T, do func(*mgr.Service) error, args ...string) {
	t.Helper()
	_, what, _ := newComponents(t) // which removes the service
	if err := createService(what, append([]string{what.Program, "--windows-service"}, args...)); err != nil {
		t.Fatal(err)
	}
	if err := withService(testedName, windows.SERVICE_ALL_ACCESS, do); err != nil {
		t.Fatal(err)
	}
}

// A process is outdated also if it was started while install changed the settings of the service, and none is if it was
// started later.
func TestStartedMeanwhile(t *testing.T) {
	withTested(t, func(s *mgr.Service) error {
		restart := func() error {
			if err := stopService(t.Context(), s, io.Discard); err != nil {
				return err
			}
			return startService(t.Context(), s, io.Discard)
		}
		for _, c := range []struct {
			what     string
			do       func() error
			outdated bool
		}{
			{"started", restart, false},
			{"outdated", func() error { return outdate(s, func() error { return nil }) }, true},
			{"restarted", restart, false},
			{"restarted meanwhile", func() error { return outdate(s, restart) }, true},
			{"restarted later", restart, false},
		} {
			if err := c.do(); err != nil {
				return err
			}
			if outdated, err := isOutdated(s); outdated != c.outdated || err != nil {
				t.Errorf("%s: it is outdated: %t, %v", c.what, outdated, err)
			}
		}
		return nil
	})
}

// pausing calls do in each pause of a function that gets the context.
type pausing struct {
	context.Context
	do func()
}

func (p pausing) Done() <-chan struct{} {
	p.do()
	return p.Context.Done()
}

// touch creates a file.
func touch(t *testing.T, path string) {
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Error(err)
	}
}

// becomes waits until the service is in a state, other than stopped.
func becomes(t *testing.T, s *mgr.Service, want svc.State) {
	t.Helper()
	var status svc.Status
	eventually.True(t, "it is "+StateName(want), func() bool {
		var err error
		status, err = s.Query()
		return err == nil && status.State == want
	})
	if text := exitText(status); text != "" {
		t.Errorf("it is %s%s", StateName(want), text)
	}
}

// A service that is starting does not accept the request to stop, and is asked again. If it is still starting at the end, the
// error says so.
func TestStopWhileStarting(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	withTested(t, func(s *mgr.Service) error {
		defer touch(t, started)
		if err := s.Start(); err != nil {
			return err
		}
		becomes(t, s, svc.StartPending)
		synctest.Test(t, func(t *testing.T) {
			err := stopService(t.Context(), s, t.Output())
			if code := windows.Errno(0); err == nil || errors.As(err, &code) || !logtest.Names(err.Error(), StateName(svc.StartPending)) {
				t.Errorf("it is still starting: %v", err)
			}
		})
		return stopService(pausing{t.Context(), func() { touch(t, started) }}, s, t.Output())
	}, started, started)
}

// start and stop print "already …" only if the service was in that state at the first look. A service that is stopping is
// started when it has stopped; if it does not stop, the error says so.
func TestStateReachedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	started, stopped := filepath.Join(dir, "started"), filepath.Join(dir, "stopped")
	withTested(t, func(s *mgr.Service) error {
		defer touch(t, stopped)
		defer touch(t, started)
		// says runs a verb and calls do in each of its pauses. It returns what the verb printed, without the process.
		says := func(verb func(context.Context, *mgr.Service, io.Writer) error, do func(), want svc.State) string {
			t.Helper()
			var out strings.Builder
			if err := verb(pausing{t.Context(), do}, s, &out); err != nil {
				t.Fatal(err)
			}
			status, err := s.Query()
			if err != nil || status.State != want {
				t.Fatalf("it is %s, %v; printed %q", StateName(status.State), err, &out)
			}
			return strings.TrimSuffix(out.String(), fmt.Sprintf(", process %d\n", status.ProcessId))
		}
		start := func(do func()) string { t.Helper(); return says(startService, do, svc.Running) }
		stop := func(do func()) string { t.Helper(); return says(stopService, do, svc.Stopped) }
		// begins starts or stops the service as somebody else would, and it stays pending until the returned function creates
		// the file.
		begins := func(begin func() error, file string, state svc.State) func() {
			t.Helper()
			if err := errors.Join(os.Remove(file), begin()); err != nil {
				t.Fatal(err)
			}
			becomes(t, s, state)
			return func() { touch(t, file) }
		}
		beginStart := func() error { return s.Start() }
		beginStop := func() error { _, err := s.Control(svc.Stop); return err }
		nothing := func() {}

		touch(t, started)
		touch(t, stopped)
		startedHere, ranBefore := start(nothing), start(nothing)
		stoppedHere, wasStopped := stop(nothing), stop(nothing)
		if startedHere == ranBefore || stoppedHere == wasStopped {
			t.Errorf("start prints %q, then %q; stop %q, then %q", startedHere, ranBefore, stoppedHere, wasStopped)
		}
		if said := start(begins(beginStart, started, svc.StartPending)); said != startedHere {
			t.Errorf("start of a service that is starting prints %q, want %q", said, startedHere)
		}
		if said := stop(begins(beginStop, stopped, svc.StopPending)); said != stoppedHere {
			t.Errorf("stop of a service that is stopping prints %q, want %q", said, stoppedHere)
		}
		start(nothing)
		endStop := begins(beginStop, stopped, svc.StopPending)
		synctest.Test(t, func(t *testing.T) {
			err := startService(t.Context(), s, t.Output())
			if !errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING) || !logtest.Names(err.Error(), StateName(svc.StopPending)) {
				t.Errorf("it is still stopping: %v", err)
			}
		})
		if said := start(endStop); said != startedHere {
			t.Errorf("start of a service that is stopping prints %q, want %q", said, startedHere)
		}
		if _, err := s.Control(svc.Pause); err != nil {
			return err
		}
		becomes(t, s, svc.Paused)
		if said := says(startService, nothing, svc.Paused); !logtest.Names(said, StateName(svc.Paused)) {
			t.Errorf("start of a service that is paused prints %q", said)
		}
		return nil
	}, started, stopped)
}

// If the start of somebody else fails, startService fails, too, and does not start the service a second time.
func TestStartOfOthersFails(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	withTested(t, func(s *mgr.Service) error {
		defer touch(t, started)
		if err := s.Start(); err != nil {
			return err
		}
		becomes(t, s, svc.StartPending)
		fail := sync.OnceFunc(func() { // the service removes the directory: a second start would stay pending
			if err := os.Mkdir(started, 0o755); err != nil {
				t.Error(err)
			}
		})
		err := startService(pausing{t.Context(), fail}, s, t.Output())
		if err == nil || !logtest.Names(err.Error(), "7") {
			t.Errorf("start: %v", err)
		}
		status, err := s.Query()
		if status.State != svc.Stopped {
			t.Errorf("it is %s", StateName(status.State))
		}
		return err
	}, started, started)
}

func TestAfterRefusal(t *testing.T) {
	for _, c := range []struct {
		last, state svc.State
		want        startOutcome
	}{
		{0, svc.StartPending, pending},
		{0, svc.StopPending, pending},
		{0, svc.Stopped, pending}, // it stopped between Start and the query
		{svc.StopPending, svc.Stopped, pending},
		{svc.Stopped, svc.Stopped, pending},
		{svc.StopPending, svc.StartPending, pending},
		{svc.StartPending, svc.StartPending, pending},
		{svc.StartPending, svc.StopPending, pending},
		{svc.StartPending, svc.Stopped, startFailed},
		{svc.StartPending, svc.Running, runs},
		{svc.StartPending, svc.Paused, runs},
		{0, svc.Running, runs},
		{0, svc.Paused, runs},
		{0, svc.PausePending, runs},
		{0, svc.ContinuePending, runs},
	} {
		if got := afterRefusal(c.last, c.state); got != c.want {
			t.Errorf("%s, then %s: %d, want %d", StateName(c.last), StateName(c.state), got, c.want)
		}
	}
}
