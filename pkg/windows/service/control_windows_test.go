package service

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

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
			if err := stopService(t.Context(), s, stateWithin, io.Discard); err != nil {
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

// A service that is starting does not accept the request to stop, and is asked again. If it is still starting at the end, the
// error says so.
func TestStopWhileStarting(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	withTested(t, func(s *mgr.Service) error {
		if err := s.Start(); err != nil {
			return err
		}
		eventually.True(t, "it is starting", func() bool {
			status, err := s.Query()
			return err == nil && status.State == svc.StartPending
		})
		err := stopService(t.Context(), s, 0, t.Output())
		if code := windows.Errno(0); err == nil || errors.As(err, &code) || !logtest.Names(err.Error(), StateName(svc.StartPending)) {
			t.Errorf("it is still starting: %v", err)
		}
		return stopService(pausing{t.Context(), func() {
			if err := os.WriteFile(started, nil, 0o644); err != nil {
				t.Error(err)
			}
		}}, s, stateWithin, t.Output())
	}, started)
}
