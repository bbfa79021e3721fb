package service

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"flannel/pkg/file"
)

// This file has what tests of services and processes run, and how they start and end it.

// TestMain lets the test program be a component: --windows-service runs it as a service; with two files as arguments, it is
// starting until the first exists, and stopping until the second exists. --stay runs it until it is killed, --fail ends it
// at once.
func TestMain(m *testing.M) {
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == "--windows-service" && filepath.IsAbs(args[1]):
		_ = svc.Run("", idle{startsAt: args[1], stopsAt: args[2]})
	case slices.Contains(args, "--windows-service"):
		_ = svc.Run("", idle{}) // the status of the service says whether it runs
	case slices.Contains(args, "--stay"):
		time.Sleep(time.Hour)
	case slices.Contains(args, "--fail"):
		os.Exit(7)
	default:
		os.Exit(m.Run())
	}
}

// idle is a service that only runs. With two files, it is starting until the first exists, and stopping until the second
// exists. If the first is a directory, the service removes it and fails.
type idle struct{ startsAt, stopsAt string }

const accepted = svc.AcceptStop | svc.AcceptPauseAndContinue

func (i idle) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour) // the test program may have been killed
	defer cancel()
	status <- svc.Status{State: svc.StartPending}
	waitFor(ctx, i.startsAt)
	if info, err := os.Stat(i.startsAt); err == nil && info.IsDir() {
		_ = os.Remove(i.startsAt)
		return true, 7
	}
	status <- svc.Status{State: svc.Running, Accepts: accepted}
	for {
		select {
		case <-ctx.Done():
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Stop:
				status <- svc.Status{State: svc.StopPending}
				waitFor(ctx, i.stopsAt)
				return false, 0
			case svc.Pause:
				status <- svc.Status{State: svc.Paused, Accepts: accepted}
			default:
				status <- r.CurrentStatus
			}
		}
	}
}

// waitFor waits until a file exists, or until ctx ends; "" returns at once.
func waitFor(ctx context.Context, path string) {
	for path != "" && ctx.Err() == nil {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

const testedName = "flannel-tested"

// newComponents returns components in a directory, with a copy of the test program.
func newComponents(t *testing.T) (Components, Component, *strings.Builder) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, out := t.TempDir(), &strings.Builder{}
	what := Component{Name: testedName, Program: filepath.Join(dir, testedName+".exe"), Args: []string{"--stay", "--iface=Ethernet 2"}}
	if err := file.Copy(program, what.Program, 0o755); err != nil {
		t.Fatal(err)
	}
	c := Components{BaseDir: dir, LogDir: dir, Out: out}
	t.Cleanup(func() {
		if err := c.Stop(context.Background(), testedName); err != nil {
			t.Error(err)
		}
		killTested(t) // a service that is starting does not stop
		if err := c.RemoveService(testedName); err != nil {
			t.Error(err)
		}
		t.Log(out)
	})
	return c, what, out
}

// killTested ends the processes that still run the component, and that of its service, which may be kube-log-runner.exe.
func killTested(t *testing.T) {
	t.Helper()
	ids, err := processesNamed(testedName)
	if err != nil {
		t.Error(err)
	}
	_ = withService(testedName, windows.SERVICE_QUERY_STATUS, func(s *mgr.Service) error { // there may be none
		status, err := s.Query()
		ids = append(ids, status.ProcessId) // 0, which no process can open, if it does not run
		return err
	})
	for _, id := range ids {
		p, err := openProcess(id, toStop)
		if err != nil { // it has ended
			continue
		}
		_ = p.kill() // one that is ending may refuse
		p.close()
	}
}

// processOf is the process of a component that runs.
func (c Components) processOf(t *testing.T) uint32 {
	t.Helper()
	if runs, err := c.Running(testedName); !runs || err != nil {
		t.Fatalf("it runs: %t, %v", runs, err)
	}
	r, err := c.readRecord(testedName)
	if err != nil {
		t.Fatal(err)
	}
	return r.ID
}
